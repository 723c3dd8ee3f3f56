//! What goes on to the origin and what comes back: allow-lists both ways, so that nothing a client
//! invents (`flashgate-*`, `x-forwarded-*`, hop-by-hop headers) reaches the origin.

use crate::{
    entry,
    refuse::{NO_STORE, NOSNIFF, insert_trace},
};
use bytes::Bytes;
use flashgate_shared::{
    admission::Permit,
    trace::TraceId,
    wire::{EDGE_KEY_HEADER, IDEMPOTENCY_KEY_HEADER, PERMIT_HEADER, TRACEPARENT_HEADER},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri,
    header::{
        ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, COOKIE, RETRY_AFTER, SET_COOKIE,
        X_CONTENT_TYPE_OPTIONS,
    },
    uri::PathAndQuery,
};

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of the client that go on as they are.
static ASKED: [HeaderName; 4] = [AUTHORIZATION, CONTENT_TYPE, ACCEPT, HeaderName::from_static(IDEMPOTENCY_KEY_HEADER)];

/// Headers of the origin that go back as they are.
static ANSWERED: [HeaderName; 5] = [CONTENT_TYPE, CONTENT_LANGUAGE, CACHE_CONTROL, RETRY_AFTER, SET_COOKIE];

/// A request of the edge's own (leases, sale settings).
pub(crate) fn own(
    method: Method,
    target: &str,
    body: Bytes,
    key: &HeaderValue,
    trace: TraceId,
    span: u64,
) -> Option<Request<Bytes>> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = target.parse().ok()?;
    let headers = request.headers_mut();
    credentials(headers, key, trace, span)?;
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(request)
}

/// Puts the edge's key and the trace, with the edge's own span, on a request.
fn credentials(headers: &mut HeaderMap, key: &HeaderValue, trace: TraceId, span: u64) -> Option<()> {
    let parent = HeaderValue::try_from(trace.traceparent(span)).ok()?;
    headers.insert(HeaderName::from_static(EDGE_KEY_HEADER), key.clone());
    headers.insert(HeaderName::from_static(TRACEPARENT_HEADER), parent);
    Some(())
}

/// The client's request as the origin gets it.
pub(crate) fn onward<B>(
    asked: &Request<B>,
    key: &HeaderValue,
    permit: Option<Permit>,
    trace: TraceId,
    span: u64,
) -> Option<Request<Bytes>> {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = asked.method().clone();
    let target: PathAndQuery = asked.uri().path_and_query()?.clone();
    *request.uri_mut() = Uri::from(target);
    let headers = request.headers_mut();
    for name in &ASKED {
        if let Some(value) = asked.headers().get(name) {
            headers.insert(name.clone(), value.clone());
        }
    }
    let mut cookies = String::new();
    for pair in entry::our_cookies(asked.headers()) {
        if !cookies.is_empty() {
            cookies.push_str("; ");
        }
        cookies.push_str(pair);
    }
    if !cookies.is_empty() {
        headers.insert(COOKIE, HeaderValue::try_from(cookies).ok()?);
    }
    let https = asked.uri().scheme() == Some(&http::uri::Scheme::HTTPS);
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if https { "https" } else { "http" }));
    if let Some(permit) = permit {
        let value = HeaderValue::try_from(permit.to_string()).ok()?;
        headers.insert(HeaderName::from_static(PERMIT_HEADER), value);
    }
    credentials(headers, key, trace, span)?;
    Some(request)
}

/// The origin's answer as the client gets it.
pub(crate) fn back<T>(answer: Response<T>, trace: TraceId) -> Response<T> {
    let (mut parts, body) = answer.into_parts();
    let got = std::mem::take(&mut parts.headers);
    for name in &ANSWERED {
        for value in got.get_all(name) {
            parts.headers.append(name.clone(), value.clone());
        }
    }
    parts.headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
    parts.headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    insert_trace(&mut parts.headers, trace);
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_headers_go_on() {
        let asked = Request::post("https://shop.example/v1/sales/s/claim?x=1")
            .header("authorization", "Bearer a.b.c")
            .header("cookie", "session=secret; fg-entry-s=a.b.c; tracker=1")
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .header("idempotency-key", "k")
            .header("flashgate-permit", "9.9")
            .header("flashgate-edge-key", "forged")
            .header("x-forwarded-for", "1.2.3.4")
            .header("x-forwarded-proto", "gopher")
            .header("forwarded", "for=1.2.3.4")
            .header("connection", "keep-alive, x-mine")
            .header("x-mine", "1")
            .header("te", "trailers")
            .header("spin-client-addr", "1.2.3.4:5")
            .header("traceparent", "junk")
            .body(())
            .unwrap();
        let permit = Permit { granted_at_ms: 5, epoch: 1 };
        let key = HeaderValue::from_static("edge");
        let sent = onward(&asked, &key, Some(permit), TraceId::from_random(1), 2).unwrap();
        assert_eq!(sent.uri(), "/v1/sales/s/claim?x=1");
        let mut got: Vec<_> = sent.headers().iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        got.sort();
        assert_eq!(
            got,
            [
                "accept: application/json",
                "authorization: Bearer a.b.c",
                "content-type: application/json",
                "cookie: fg-entry-s=a.b.c",
                "flashgate-edge-key: edge",
                "flashgate-permit: 5.1",
                "idempotency-key: k",
                "traceparent: 00-00000000000000000000000000000001-0000000000000002-01",
                "x-forwarded-proto: https",
            ]
        );
    }

    #[test]
    fn only_listed_headers_come_back() {
        let answer = Response::builder()
            .status(202)
            .header("content-type", "application/json")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .header("connection", "close")
            .header("transfer-encoding", "chunked")
            .header("content-length", "7")
            .header("server", "x")
            .header("flashgate-trace-id", "forged")
            .body(())
            .unwrap();
        let got = back(answer, TraceId::from_random(3));
        assert_eq!(got.status(), 202);
        assert_eq!(got.headers().get_all("set-cookie").iter().count(), 2);
        let mut names: Vec<_> = got.headers().keys().map(|n| n.as_str()).collect();
        names.sort();
        assert_eq!(
            names,
            ["cache-control", "content-type", "flashgate-trace-id", "set-cookie", "x-content-type-options"]
        );
        assert!(got.headers()["flashgate-trace-id"].to_str().unwrap().ends_with('3'));
    }
}
