//! What passes the edge, and what the edge answers by itself.

mod support;

use flashgate_shared::{problem::Problem, wire::SaleView};
use support::*;

const STATUS: &str = "/v1/claims/2a79a811-4c13-5311-a5ad-1529bbabcf28";

fn with_token(path: &str) -> http::Request<bytes::Bytes> {
    let mut request = get(path);
    request.headers_mut().insert("authorization", "Bearer a.b.c".parse().unwrap());
    request
}

#[tokio::test]
async fn a_claim_goes_on_with_its_body_and_comes_back_as_it_is() {
    let w = world();
    let mut request = w.claim_request("buyer");
    *request.body_mut() = "{\"quantity\":1}".into();
    request.headers_mut().insert("flashgate-permit", "1.1".parse().unwrap());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    request.headers_mut().insert("traceparent", parent.parse().unwrap());
    let got = w.send(request).await;
    assert_eq!((got.status, &got.body[..]), (202, &b"{\"ok\":true}"[..]));
    assert_eq!(got.headers["flashgate-trace-id"], trace);
    assert!(!got.headers.contains_key("connection"));
    let seen = &w.host.seen_at(CLAIM)[0];
    assert_eq!(&seen.body[..], b"{\"quantity\":1}");
    assert_eq!(seen.headers["x-forwarded-proto"], "http");
    assert_eq!(seen.headers.get_all("flashgate-permit").iter().count(), 1);
    let onward = seen.headers["traceparent"].to_str().unwrap();
    assert!(onward.contains(trace) && onward != parent, "the same trace, the edge's own span");
}

#[tokio::test]
async fn a_winner_reaches_his_claim_when_nobody_is_admitted() {
    let w = world();
    w.host.permits.set(0);
    w.host.lease.borrow_mut().sold_out = true;
    assert_eq!(w.claim("other").await.kind(), "sold-out");
    *w.host.forwarded.borrow_mut() = (200, "application/json", "{}".into());
    let query = format!("{STATUS}?sale=phones&q=1&t=5&m=abc");
    assert_eq!(w.send(with_token(&query)).await.status, 200);
    assert_eq!(w.send(with_token("/v1/sales/phones/my-claim")).await.status, 200);
    let token = [("authorization", "Bearer a.b.c")];
    assert_eq!(w.send(post("/v1/orders", &token)).await.status, 200);
    assert_eq!(w.send(post(&format!("{STATUS}/release?sale=phones"), &token)).await.status, 200);
    let seen = w.host.seen_at(&query);
    assert_eq!(seen[0].headers["flashgate-edge-key"], "edge-key");
    assert!(!seen[0].headers.contains_key("flashgate-permit"));
}

#[tokio::test]
async fn events_are_handed_through_as_a_stream() {
    let w = world();
    *w.host.forwarded.borrow_mut() = (200, "text/event-stream", String::new());
    let got = w.send(with_token(&format!("{STATUS}/events?sale=phones"))).await;
    assert!(got.streamed);
    assert_eq!(got.headers["content-type"], "text/event-stream");
}

#[tokio::test]
async fn status_needs_a_token_of_its_sale_and_has_its_own_bucket() {
    let w = world();
    assert_eq!(w.get(STATUS).await.kind(), "token-missing");
    let mut request = get(&format!("{STATUS}?sale=phones"));
    request.headers_mut().insert("cookie", "fg-entry-other=a.b.c".parse().unwrap());
    assert_eq!(w.send(request).await.kind(), "token-missing");
    assert!(w.host.seen.borrow().is_empty());
    let mut last = 0;
    for _ in 0..200 {
        last = w.send(with_token(&format!("{STATUS}?sale=phones"))).await.status;
    }
    assert_eq!(last, 429);
    assert_eq!(w.claim("buyer").await.status, 202, "claims are counted apart");
}

#[tokio::test]
async fn problems_of_the_origin_are_told_in_words_to_people() {
    let w = world();
    *w.host.forwarded.borrow_mut() = (409, "application/problem+json", problem("already-claimed", 409));
    let got = w.claim("buyer").await;
    assert_eq!((got.status, got.kind().as_str()), (409, "already-claimed"));
    let mut request = w.claim_request("buyer");
    request.headers_mut().insert("accept", "text/html".parse().unwrap());
    let got = w.send(request).await;
    assert_eq!((got.status, &got.headers["content-type"]), (409, &"text/html; charset=utf-8".parse().unwrap()));
}

#[tokio::test]
async fn the_sale_is_told_by_the_authoritys_clock() {
    let w = world();
    w.host.skew_ms.set(1_234);
    let got = w.get("/v1/sales/phones").await;
    let view: SaleView = serde_json::from_slice(&got.body).unwrap();
    assert_eq!((view.now_ms, view.phase.as_str()), (NOW_MS + 1_234, "open"));
    assert_eq!(got.headers["cache-control"], "no-store");
    w.host.lease.borrow_mut().sold_out = true;
    w.host.advance(100);
    assert_eq!(w.get("/v1/sales/phones").await.json()["phase"], "sold_out");
}

#[tokio::test]
async fn heads_have_no_body_and_unchanged_pages_none_either() {
    let w = world();
    for path in ["/s/phones", "/v1/time", "/healthz", "/v1/sales/phones"] {
        let mut request = get(path);
        *request.method_mut() = http::Method::HEAD;
        let got = w.send(request).await;
        assert_eq!((got.status, got.body.len()), (200, 0), "{path}");
        assert!(!w.get(path).await.body.is_empty());
    }
    let page = w.get("/s/phones").await;
    assert_eq!(page.headers["cache-control"], "no-cache");
    let mut again = get("/s/phones");
    again.headers_mut().insert("if-none-match", page.headers["etag"].clone());
    assert_eq!(w.send(again).await.status, 304);
    let asset = flashgate_page::asset_paths().next().unwrap();
    assert!(w.get(asset).await.headers["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(w.get("/assets/../etc/passwd").await.status, 404);
}

#[tokio::test]
async fn addresses_are_limited_one_by_one() {
    let w = world();
    let mut refused = None;
    for _ in 0..200 {
        let got = w.get("/v1/time").await;
        if got.status == 429 {
            refused = Some(got);
            break;
        }
    }
    let problem: Problem = refused.unwrap().problem();
    assert!(problem.retry_after_ms.unwrap() > 0);
    assert_eq!(w.send_from("10.0.0.2", get("/v1/time")).await.status, 200);
    w.host.advance(1_000);
    assert_eq!(w.get("/v1/time").await.status, 200);
}
