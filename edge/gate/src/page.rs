//! The page and its assets: static, served also when the origin is out of reach.

use crate::refuse::insert_trace;
use bytes::Bytes;
use flashgate_page::{Asset, DOCUMENT_HEADERS};
use flashgate_shared::trace::TraceId;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH},
};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// What every HTML answer carries.
pub(crate) fn html_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HTML);
    insert_all(headers, DOCUMENT_HEADERS);
}

fn insert_all(headers: &mut HeaderMap, all: impl IntoIterator<Item = (&'static str, &'static str)>) {
    for (name, value) in all {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// Serves an asset, compressed where the client takes that: 200, or 304 when the client has it already.
pub(crate) fn serve(asset: &'static Asset, method: &Method, asked: &HeaderMap, trace: TraceId) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let (body, etag, encoding) = match accepts_gzip(asked) {
        true => (asset.gzip, asset.gzip_etag, Some(GZIP)),
        false => (asset.body, asset.etag, None),
    };
    let headers = response.headers_mut();
    insert_all(headers, asset.headers());
    headers.insert(ETAG, HeaderValue::from_static(etag));
    insert_trace(headers, trace);
    if has_already(asked, asset) {
        headers.remove(CONTENT_TYPE);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, encoding);
    }
    if method != Method::HEAD {
        *response.body_mut() = Bytes::from_static(body);
    }
    response
}

/// Whether gzip is acceptable (RFC 9110 §12.5.3): named with a weight above zero, or, when it is not
/// named, any coding is. Without the header only the plain bytes are.
fn accepts_gzip(asked: &HeaderMap) -> bool {
    let (mut gzip, mut any) = (None, None);
    for value in asked.get_all(ACCEPT_ENCODING) {
        for coding in value.to_str().unwrap_or_default().split(',') {
            let mut parts = coding.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            let wanted = weight.is_none_or(|q| q.parse().is_ok_and(|q: f32| q > 0.0));
            if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
                gzip = Some(wanted);
            } else if name == "*" {
                any = Some(wanted);
            }
        }
    }
    gzip.or(any).unwrap_or(false)
}

/// `If-None-Match` (RFC 9110 §13.1.2): weak comparison against each listed tag, or `*`. The client may have
/// it in either encoding.
fn has_already(asked: &HeaderMap, asset: &Asset) -> bool {
    asked.get_all(IF_NONE_MATCH).iter().any(|value| {
        value.to_str().is_ok_and(|list| {
            list.split(',').map(str::trim).any(|tag| {
                let tag = tag.strip_prefix("W/").unwrap_or(tag);
                tag == "*" || tag == asset.etag || tag == asset.gzip_etag
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{CACHE_CONTROL, VARY, X_CONTENT_TYPE_OPTIONS};

    #[test]
    fn the_page_is_revalidated_and_its_assets_are_not() {
        let trace = TraceId::from_random(1);
        let page = flashgate_page::sale_page();
        let first = serve(page, &Method::GET, &HeaderMap::new(), trace);
        assert_eq!((first.status(), first.headers()[CACHE_CONTROL].to_str().unwrap()), (StatusCode::OK, "no-cache"));
        assert!(!first.body().is_empty());
        for tags in [page.etag.to_owned(), page.gzip_etag.to_owned(), format!("\"x\", W/{}", page.etag), "*".to_owned()]
        {
            let mut asked = HeaderMap::new();
            asked.insert(IF_NONE_MATCH, tags.parse().unwrap());
            let again = serve(page, &Method::GET, &asked, trace);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            assert!(again.body().is_empty() && again.headers().contains_key(ETAG));
        }
        for path in flashgate_page::asset_paths() {
            let asset = flashgate_page::asset(path).unwrap();
            let answer = serve(asset, &Method::HEAD, &HeaderMap::new(), trace);
            assert!(answer.body().is_empty());
            assert!(answer.headers()[CACHE_CONTROL].to_str().unwrap().contains("immutable"));
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }

    #[test]
    fn whoever_takes_gzip_gets_it() {
        let page = flashgate_page::sale_page();
        for (accepts, wanted) in [
            (None, false),
            (Some("gzip, deflate, br, zstd"), true),
            (Some("br;q=1.0, GZIP;q=0.5"), true),
            (Some("gzip;q=0"), false),
            (Some("*"), true),
            (Some("*, gzip;q=0"), false),
            (Some("identity"), false),
            (Some(""), false),
            (Some("gzip;q=nonsense"), false),
        ] {
            let mut asked = HeaderMap::new();
            asked.extend(accepts.map(|value| (ACCEPT_ENCODING, value.parse::<HeaderValue>().unwrap())));
            let answer = serve(page, &Method::GET, &asked, TraceId::from_random(1));
            assert_eq!(answer.headers().get(CONTENT_ENCODING).is_some(), wanted, "{accepts:?}");
            let (body, etag) = if wanted { (page.gzip, page.gzip_etag) } else { (page.body, page.etag) };
            assert_eq!((answer.body().as_ref(), answer.headers()[ETAG].to_str().unwrap()), (body, etag), "{accepts:?}");
            assert_eq!(answer.headers()[VARY], "accept-encoding");
        }
    }
}
