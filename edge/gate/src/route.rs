//! Which request goes where: step 1 of design §5, without any allocation.
//!
//! What is not listed here does not exist at the edge: the origin's admin, edge and payment routes
//! cannot be reached through it. `/v1/edge/sales/{sale}` is the edge's own.

use flashgate_shared::{ClaimId, SaleId};
use http::Method;

/// A route of the edge, with the variable part of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route<'p> {
    /// `/s/{sale}`: the page.
    Page,
    /// `/assets/…`, the whole path.
    Asset(&'p str),
    /// `/v1/time`.
    Time,
    /// `/healthz`.
    Health,
    /// `/v1/sales/{sale}`.
    Sale(&'p str),
    /// `POST /v1/sales/{sale}/enter`.
    Enter(&'p str),
    /// `POST /v1/sales/{sale}/claim`.
    Claim(&'p str),
    /// `/v1/sales/{sale}/my-claim`.
    MyClaim(&'p str),
    /// `/v1/claims/{id}`.
    Status,
    /// `/v1/claims/{id}/events`.
    Events,
    /// `POST /v1/claims/{id}/release`.
    Release,
    /// `POST /v1/orders`.
    Orders,
    /// `GET /v1/edge/sales/{sale}`, for operators.
    Document(&'p str),
    /// `PUT /v1/edge/sales/{sale}`, for operators.
    Publish(&'p str),
}

/// Why a request has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Nothing is there.
    NotFound,
    /// Something is there, but not for this method; the value of `Allow`.
    Method(&'static str),
}

const READ: &str = "GET, HEAD";
const GET: &str = "GET";
const POST: &str = "POST";
const DOCUMENT: &str = "GET, PUT";

/// The route of a request.
pub(crate) fn route<'p>(method: &Method, path: &'p str) -> Result<Route<'p>, Miss> {
    let (route, allow) = locate(path).ok_or(Miss::NotFound)?;
    if let (Route::Document(sale), &Method::PUT) = (&route, method) {
        return Ok(Route::Publish(sale));
    }
    let fits = match allow {
        POST => method == Method::POST,
        GET | DOCUMENT => method == Method::GET,
        _ => method == Method::GET || method == Method::HEAD,
    };
    if fits { Ok(route) } else { Err(Miss::Method(allow)) }
}

fn locate(path: &str) -> Option<(Route<'_>, &'static str)> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let mut next = || parts.next();
    let found = match (next(), next(), next(), next(), next()) {
        (Some("v1"), Some("sales"), Some(sale), action, None) => {
            SaleId::is_valid(sale).then_some(())?;
            match action {
                None => (Route::Sale(sale), READ),
                Some("enter") => (Route::Enter(sale), POST),
                Some("claim") => (Route::Claim(sale), POST),
                Some("my-claim") => (Route::MyClaim(sale), GET),
                Some(_) => return None,
            }
        }
        (Some("v1"), Some("claims"), Some(claim), action, None) => {
            claim.parse::<ClaimId>().ok()?;
            match action {
                None => (Route::Status, GET),
                Some("events") => (Route::Events, GET),
                Some("release") => (Route::Release, POST),
                Some(_) => return None,
            }
        }
        (Some("v1"), Some("edge"), Some("sales"), Some(sale), None) => {
            SaleId::is_valid(sale).then_some(())?;
            (Route::Document(sale), DOCUMENT)
        }
        (Some("v1"), Some("orders"), None, ..) => (Route::Orders, POST),
        (Some("v1"), Some("time"), None, ..) => (Route::Time, READ),
        (Some("s"), Some(sale), None, ..) if SaleId::is_valid(sale) => (Route::Page, READ),
        (Some("healthz"), None, ..) => (Route::Health, READ),
        (Some("assets"), Some(_), ..) => (Route::Asset(path), READ),
        _ => return None,
    };
    Some(found)
}

/// The first value of a query parameter that needs no percent-decoding (ids do not).
pub(crate) fn query<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    query?.split('&').find_map(|pair| pair.split_once('=').filter(|(n, _)| *n == name).map(|(_, v)| v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLAIM: &str = "2a79a811-4c13-5311-a5ad-1529bbabcf28";

    #[test]
    fn every_route_is_found_by_its_own_methods_only() {
        let claim = |rest: &str| format!("/v1/claims/{CLAIM}{rest}");
        for (path, want, methods) in [
            ("/s/phones", Route::Page, READ),
            ("/assets/a.css", Route::Asset("/assets/a.css"), READ),
            ("/v1/time", Route::Time, READ),
            ("/healthz", Route::Health, READ),
            ("/v1/sales/p-1", Route::Sale("p-1"), READ),
            ("/v1/sales/p-1/enter", Route::Enter("p-1"), POST),
            ("/v1/sales/p-1/claim", Route::Claim("p-1"), POST),
            ("/v1/sales/p-1/my-claim", Route::MyClaim("p-1"), GET),
            (&claim(""), Route::Status, GET),
            (&claim("/events"), Route::Events, GET),
            (&claim("/release"), Route::Release, POST),
            ("/v1/orders", Route::Orders, POST),
        ] {
            for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
                let got = route(&method.parse().unwrap(), path);
                if methods.split(", ").any(|m| m == method) {
                    assert_eq!(got, Ok(want), "{method} {path}");
                } else {
                    assert_eq!(got, Err(Miss::Method(methods)), "{method} {path}");
                }
            }
        }
    }

    #[test]
    fn operators_read_a_document_or_put_another() {
        let path = "/v1/edge/sales/a";
        assert_eq!(route(&Method::GET, path), Ok(Route::Document("a")));
        assert_eq!(route(&Method::PUT, path), Ok(Route::Publish("a")));
        for method in [Method::HEAD, Method::POST, Method::DELETE] {
            assert_eq!(route(&method, path), Err(Miss::Method("GET, PUT")), "{method}");
        }
    }

    #[test]
    fn what_is_not_listed_does_not_exist() {
        for path in [
            "",
            "/",
            "//",
            "*",
            "/s",
            "/s/",
            "/s/A",
            "/s/a/",
            "/s/a/b",
            "/S/a",
            "/v1",
            "/v1/",
            "/v1/sales",
            "/v1/sales/",
            "/v1/sales//claim",
            "/v1/sales/a/claim/",
            "/v1/sales/a/claims",
            "/v1/sales/a%2fb",
            "/v1/sales/../admin",
            "/v1/sales/a/claim/x",
            "/v1/claims/",
            "/v1/claims/1",
            "/v1/claims/2A/events",
            "/v1/orders/1",
            "/v1/time/",
            "/v1/admin/sales",
            "/v1/edge/leases",
            "/v1/edge/sales",
            "/v1/edge/sales/A",
            "/v1/edge/sales/a/b",
            "/v1/payments/notices",
            "/metrics",
            "/readyz",
            "/healthz/x",
            "/assets",
            "/é",
        ] {
            assert_eq!(route(&Method::GET, path), Err(Miss::NotFound), "{path}");
            assert_eq!(route(&Method::POST, path), Err(Miss::NotFound), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in ".*") {
            let _ = route(&Method::GET, &path);
        }
    }

    #[test]
    fn queries_are_read_without_decoding() {
        let q = Some("sale=a&q=1&sale=b&x");
        assert_eq!(query(q, "sale"), Some("a"));
        assert_eq!(query(q, "q"), Some("1"));
        assert_eq!(query(q, "x"), None);
        assert_eq!(query(None, "sale"), None);
    }
}
