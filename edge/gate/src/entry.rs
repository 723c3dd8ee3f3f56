//! Who asks: entry token, idempotency key and the origin of a post, read from the headers.

use crate::{limits::COOKIES_MAX, refuse::Refusal};
use flashgate_shared::{
    IdempotencyKey, limits,
    problem::ProblemKind,
    token::{self, TokenError},
    wire::IDEMPOTENCY_KEY_HEADER,
};
use http::{
    HeaderMap, Request,
    header::{AUTHORIZATION, COOKIE, HOST, ORIGIN},
};

/// Every cookie of ours begins so.
const COOKIE_PREFIX: &str = "fg-entry-";

/// Our cookies among those of a request, as `name=value`.
pub(crate) fn our_cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(str::trim)
        .filter(|pair| pair.starts_with(COOKIE_PREFIX))
        .take(COOKIES_MAX)
}

/// The entry token: `Authorization: Bearer`, else the cookie of the sale (of any sale, when the
/// request does not say which).
pub(crate) fn token<'h>(headers: &'h HeaderMap, sale: Option<&str>) -> Option<&'h str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        return value.to_str().ok().and_then(token::bearer);
    }
    our_cookies(headers).find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let of = name.strip_prefix(COOKIE_PREFIX)?;
        sale.is_none_or(|sale| sale == of).then_some(value)
    })
}

/// Whether a token is there and looks like a JWT; whether it is one of ours, the origin decides.
pub(crate) fn token_shape(headers: &HeaderMap, sale: Option<&str>) -> Result<(), Refusal> {
    let Some(token) = token(headers, sale) else {
        return Err(token_refusal(&TokenError::Missing));
    };
    let part = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if token.len() > limits::TOKEN_BYTES || token.split('.').count() != 3 || !token.split('.').all(part) {
        return Err(token_refusal(&TokenError::Malformed));
    }
    Ok(())
}

/// How a bad token is answered: 401 asks for another token, 403 says that this one is of no use here.
pub(crate) fn token_refusal(error: &TokenError) -> Refusal {
    let (kind, detail) = match error {
        TokenError::Missing => (ProblemKind::TokenMissing, "Enter the sale first."),
        TokenError::Expired => (ProblemKind::TokenExpired, "Enter the sale again."),
        TokenError::NotYetValid => (ProblemKind::TokenNotYetValid, "Use it a little later."),
        TokenError::Audience => (ProblemKind::Forbidden, "The entry token is for another sale."),
        TokenError::Malformed => (ProblemKind::TokenInvalid, "It is no entry token."),
        TokenError::Algorithm | TokenError::UnknownKey | TokenError::Signature | TokenError::Issuer => {
            (ProblemKind::TokenInvalid, "It was not signed by this shop.")
        }
    };
    Refusal::new(kind).detail(detail)
}

/// The idempotency key of a claim.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<(), Refusal> {
    let refuse = |detail| Err(Refusal::new(ProblemKind::Unprocessable).detail(detail));
    let mut values = headers.get_all(IDEMPOTENCY_KEY_HEADER).iter();
    let Some(value) = values.next() else {
        return refuse("An Idempotency-Key header is needed.");
    };
    let well_formed = value.to_str().is_ok_and(IdempotencyKey::is_valid);
    if !well_formed || values.next().is_some() {
        return refuse("The Idempotency-Key header takes one key of 1 to 128 visible ASCII characters.");
    }
    Ok(())
}

/// A post that carries a cookie of ours must come from our own pages: browsers send cookies by
/// themselves. A bearer token is put there by whoever holds it, so it needs no such proof.
pub(crate) fn same_origin<B>(request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    if headers.contains_key(AUTHORIZATION) || our_cookies(headers).next().is_none() {
        return Ok(());
    }
    let host =
        request.uri().authority().map(|a| a.as_str()).or_else(|| headers.get(HOST).and_then(|h| h.to_str().ok()));
    let own = match headers.get(ORIGIN) {
        Some(origin) => {
            origin.to_str().ok().and_then(|o| o.split_once("://")).is_some_and(|(_, from)| Some(from) == host)
        }
        None => headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin"),
    };
    if own {
        return Ok(());
    }
    Err(Refusal::new(ProblemKind::Forbidden)
        .detail("A post with a cookie must come from this shop's own pages (Origin header)."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn a_bearer_token_goes_before_a_cookie() {
        let both = headers(&[("authorization", "Bearer a.b.c"), ("cookie", "x=1; fg-entry-s=d.e.f")]);
        assert_eq!(token(&both, Some("s")), Some("a.b.c"));
        let cookies = headers(&[("cookie", "fg-entry-other=z; x=y"), ("cookie", "fg-entry-s=d.e.f")]);
        assert_eq!(token(&cookies, Some("s")), Some("d.e.f"));
        assert_eq!(token(&cookies, Some("t")), None);
        assert_eq!(token(&cookies, None), Some("z"));
        let basic = headers(&[("authorization", "Basic a"), ("cookie", "fg-entry-s=d.e.f")]);
        assert_eq!(token(&basic, Some("s")), None);
        assert_eq!(our_cookies(&cookies).collect::<Vec<_>>(), ["fg-entry-other=z", "fg-entry-s=d.e.f"]);
    }

    #[test]
    fn only_the_shape_of_a_token_is_judged_for_status() {
        let kind = |value: &str| token_shape(&headers(&[("authorization", value)]), None).err().map(|r| r.kind);
        assert_eq!(kind("Bearer a.b.c"), None);
        assert_eq!(kind("Bearer a.b"), Some(ProblemKind::TokenInvalid));
        assert_eq!(kind("Bearer a..c"), Some(ProblemKind::TokenInvalid));
        assert_eq!(kind("Bearer a.b.c d"), Some(ProblemKind::TokenInvalid));
        let long = format!("Bearer a.b.{}", "c".repeat(limits::TOKEN_BYTES));
        assert_eq!(kind(&long), Some(ProblemKind::TokenInvalid));
        let none = token_shape(&HeaderMap::new(), None).unwrap_err();
        assert_eq!(none.kind, ProblemKind::TokenMissing);
    }

    #[test]
    fn an_idempotency_key_is_one_visible_word() {
        let ok = |pairs: &[(&'static str, &str)]| idempotency_key(&headers(pairs)).is_ok();
        assert!(ok(&[("idempotency-key", "k-1")]));
        assert!(!ok(&[]));
        assert!(!ok(&[("idempotency-key", "")]));
        assert!(!ok(&[("idempotency-key", "a b")]));
        assert!(!ok(&[("idempotency-key", &"k".repeat(129))]));
        assert!(!ok(&[("idempotency-key", "a"), ("idempotency-key", "a")]));
    }

    #[test]
    fn posts_with_a_cookie_come_from_our_own_pages() {
        let ok = |pairs: &[(&'static str, &str)]| {
            let mut request = Request::post("http://shop.example:8080/v1/orders").body(()).unwrap();
            *request.headers_mut() = headers(pairs);
            same_origin(&request).is_ok()
        };
        let cookie = ("cookie", "fg-entry-s=a.b.c");
        assert!(ok(&[]));
        assert!(ok(&[("cookie", "other=1"), ("origin", "https://evil.example")]));
        assert!(ok(&[cookie, ("origin", "http://shop.example:8080")]));
        assert!(ok(&[cookie, ("authorization", "Bearer a.b.c"), ("origin", "https://evil.example")]));
        assert!(ok(&[cookie, ("sec-fetch-site", "same-origin")]));
        for bad in ["https://evil.example", "http://shop.example", "null", "shop.example:8080", ""] {
            assert!(!ok(&[cookie, ("origin", bad)]), "{bad}");
        }
        assert!(!ok(&[cookie, ("sec-fetch-site", "same-site")]));
        assert!(!ok(&[cookie]));
    }
}
