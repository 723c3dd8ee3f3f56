//! The page and its assets: static, served also when the origin is out of reach.

use crate::refuse::{NOSNIFF, insert_trace};
use bytes::Bytes;
use flashgate_page::Asset;
use flashgate_shared::trace::TraceId;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};

/// `same-origin`, not `no-referrer`: with the latter a form's post says `Origin: null`, and the
/// origin check could not tell it from another site's.
const REFERRER: HeaderValue = HeaderValue::from_static("same-origin");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// What every HTML answer carries.
pub(crate) fn html_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HTML);
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(flashgate_page::CONTENT_SECURITY_POLICY));
    headers.insert(REFERRER_POLICY, REFERRER);
    // For browsers older than `frame-ancestors`.
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
}

/// Serves an asset: 200, or 304 when the client has it already.
pub(crate) fn serve(asset: &'static Asset, method: &Method, asked: &HeaderMap, trace: TraceId) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    html_headers(headers);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(ETAG, HeaderValue::from_static(asset.etag));
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(CACHE_CONTROL, if asset.immutable { FOR_EVER } else { REVALIDATE });
    insert_trace(headers, trace);
    if has_already(asked, asset.etag) {
        response.headers_mut().remove(CONTENT_TYPE);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else if method != Method::HEAD {
        *response.body_mut() = Bytes::from_static(asset.body);
    }
    response
}

/// `If-None-Match` (RFC 9110 §13.1.2): weak comparison against each listed tag, or `*`.
fn has_already(asked: &HeaderMap, etag: &str) -> bool {
    asked.get_all(IF_NONE_MATCH).iter().any(|value| {
        value.to_str().is_ok_and(|list| {
            list.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_revalidated_and_its_assets_are_not() {
        let trace = TraceId::from_random(1);
        let page = flashgate_page::sale_page();
        let first = serve(page, &Method::GET, &HeaderMap::new(), trace);
        assert_eq!((first.status(), &first.headers()[CACHE_CONTROL]), (StatusCode::OK, &REVALIDATE));
        assert!(!first.body().is_empty());
        for tags in [page.etag.to_owned(), format!("\"x\", W/{}", page.etag), "*".to_owned()] {
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
            assert_eq!(answer.headers()[CACHE_CONTROL], FOR_EVER);
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], NOSNIFF);
        }
    }
}
