//! Every row of the check order (design §5), and which reason wins when two hold.

mod support;

use flashgate_shared::{limits, sale::SaleState};
use serde_json::json;
use support::*;

/// How to make each check of a claim refuse, in the order of the checks, and what is then said.
/// The setters leave each other alone, so that any two can be combined.
const REASONS: [(&str, &str, u16); 10] = [
    ("size", "body-too-large", 413),
    ("key", "unprocessable", 422),
    ("sale", "not-found", 404),
    ("closed", "closed", 410),
    ("paused", "paused", 503),
    ("not open", "not-open", 425),
    ("sold out", "sold-out", 410),
    ("address", "slow-down", 429),
    ("permit", "try-again", 503),
    ("token", "token-missing", 401),
];

/// Sends a claim for which these reasons to refuse hold.
async fn refused(reasons: &[&str]) -> (World, Got) {
    let w = world();
    let has = |reason: &str| reasons.contains(&reason);
    if has("address") {
        w.set_sale("address_limits", json!({"claim": {"rate_per_s": 0.001, "burst": 1.0}}));
        // One good claim empties the bucket; what follows is judged when that is no longer fresh.
        assert_eq!(w.claim("first").await.status, 202);
        w.host.advance(1_500);
    }
    if has("closed") {
        w.set_sale("closes_at_ms", NOW_MS - 1);
    }
    if has("not open") {
        w.set_sale("opens_at_ms", NOW_MS + 30_000);
        if has("closed") {
            // A window cannot end before it begins: the operator's close takes the end's part.
            w.set_sale("closes_at_ms", NOW_MS + 60_000);
            w.host.lease.borrow_mut().state = SaleState::Closed;
        }
    }
    if has("paused") && w.host.lease.borrow().state != SaleState::Closed {
        w.host.lease.borrow_mut().state = SaleState::Paused;
        w.host.doc.borrow_mut().as_mut().unwrap()["state"] = "paused".into();
    }
    w.host.lease.borrow_mut().sold_out = has("sold out");
    w.set_sale("version", 2);
    w.host.lease.borrow_mut().config_version = 2;
    if has("permit") {
        w.host.permits.set(0);
    }
    let token = format!("Bearer {}", w.token("buyer"));
    let mut headers = vec![];
    if !has("token") {
        headers.push(("authorization", token.as_str()));
    }
    if !has("key") {
        headers.push(("idempotency-key", "k"));
    }
    if has("size") {
        headers.push(("content-length", "8193"));
    }
    let path = if has("sale") { "/v1/sales/ghosts/claim" } else { CLAIM };
    w.host.seen.borrow_mut().clear();
    let got = w.send(post(path, &headers)).await;
    (w, got)
}

#[tokio::test]
async fn every_reason_alone_refuses_with_its_own_words() {
    for (reason, kind, status) in REASONS {
        let (w, got) = refused(&[reason]).await;
        assert_eq!((got.kind().as_str(), got.status), (kind, status), "{reason}");
        assert!(w.host.seen_at(CLAIM).is_empty(), "{reason}: nothing reached the origin");
        let problem = got.problem();
        let my_claim = problem.my_claim.unwrap();
        assert!(my_claim.ends_with("/my-claim"), "{reason}: every refusal of a claim names my-claim");
        assert_eq!(got.headers["cache-control"], "no-store");
        let trace = got.headers["flashgate-trace-id"].to_str().unwrap();
        assert_eq!(problem.trace_id.unwrap().to_string(), trace);
        let retryable = [425, 429, 503].contains(&status);
        assert_eq!(got.headers.contains_key("retry-after"), retryable, "{reason}");
        assert_eq!(problem.retry_after_ms.is_some(), retryable || kind == "sold-out", "{reason}");
        if ["closed", "paused", "not-open", "sold-out", "try-again", "slow-down"].contains(&kind) {
            assert!(problem.now_ms.is_some(), "{reason}");
        }
        assert_eq!(problem.opens_at_ms.is_some(), kind == "not-open", "{reason}");
    }
    assert_eq!(world().claim("buyer").await.status, 202, "and none of them lets it pass");
}

#[tokio::test]
async fn of_two_reasons_the_earlier_check_answers() {
    for (i, (first, kind, _)) in REASONS.iter().enumerate() {
        for (second, ..) in &REASONS[i + 1..] {
            let (_, got) = refused(&[first, second]).await;
            assert_eq!(got.kind(), *kind, "{first} and {second}");
        }
    }
}

#[tokio::test]
async fn a_route_or_method_that_does_not_exist_is_refused_before_anything_else() {
    let w = world();
    for (method, path, kind, status) in [
        ("POST", "/v1/admin/sales", "not-found", 404),
        ("POST", "/v1/edge/leases", "not-found", 404),
        ("POST", "/v1/payments/notices", "not-found", 404),
        ("GET", "/", "not-found", 404),
        ("DELETE", CLAIM, "method-not-allowed", 405),
        ("GET", CLAIM, "method-not-allowed", 405),
        ("POST", "/v1/time", "method-not-allowed", 405),
    ] {
        let mut request = post(path, &[("content-length", "5")]);
        *request.method_mut() = method.parse().unwrap();
        let got = w.send(request).await;
        assert_eq!((got.kind().as_str(), got.status), (kind, status), "{method} {path}");
        assert_eq!(got.headers.contains_key("allow"), status == 405);
    }
    assert!(w.host.seen.borrow().is_empty(), "the origin never heard of it");
}

#[tokio::test]
async fn sizes_are_refused_by_what_the_headers_or_the_body_say() {
    let w = world();
    let long = format!("/v1/sales/phones?{}", "x".repeat(limits::TARGET_BYTES));
    assert_eq!(w.get(&long).await.kind(), "target-too-long");
    for (length, kind) in [("99999999999999999999", "bad-request"), ("-1", "bad-request"), ("8193", "body-too-large")] {
        let got = w.send(post(CLAIM, &[("idempotency-key", "k"), ("content-length", length)])).await;
        assert_eq!(got.kind(), kind, "{length}");
    }
    assert!(w.host.seen.borrow().is_empty());
    let mut request = w.claim_request("buyer");
    *request.body_mut() = vec![b' '; limits::BUYER_BODY_BYTES + 1].into();
    assert_eq!(w.send(request).await.kind(), "body-too-large", "whatever the headers say");
    assert!(w.host.seen_at(CLAIM).is_empty());
}

#[tokio::test]
async fn tokens_are_refused_with_401_or_403() {
    let w = world();
    let now_s = NOW_MS / 1000;
    let claims = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut c =
            json!({"iss": "shop", "aud": SALE, "sub": "b", "jti": "j", "iat": now_s, "nbf": now_s, "exp": now_s + 60});
        change(&mut c);
        w.sign("k1", &c)
    };
    let truncated = w.token("b");
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.e30.";
    for (token, kind, status) in [
        (claims(&|c| c["exp"] = (now_s).into()), "token-expired", 401),
        (claims(&|c| c["nbf"] = (now_s + 1).into()), "token-not-yet-valid", 403),
        (claims(&|c| c["aud"] = "other".into()), "forbidden", 403),
        (claims(&|c| c["iss"] = "other".into()), "token-invalid", 401),
        (truncated[..truncated.len() - 4].to_owned(), "token-invalid", 401),
        (none.to_owned(), "token-invalid", 401),
        ("x".repeat(10_000), "token-invalid", 401),
        (String::new(), "token-missing", 401),
    ] {
        let auth = format!("Bearer {token}");
        let got = w.send(post(CLAIM, &[("idempotency-key", "k"), ("authorization", &auth)])).await;
        assert_eq!((got.kind().as_str(), got.status), (kind, status), "{token}");
        w.host.advance(100);
    }
    assert!(w.host.seen_at(CLAIM).is_empty());
}

#[tokio::test]
async fn a_bad_token_costs_no_permit() {
    let w = world();
    w.host.permits.set(1);
    let bad = post(CLAIM, &[("idempotency-key", "k"), ("authorization", "Bearer a.b.c")]);
    assert_eq!(w.send(bad).await.kind(), "token-invalid");
    assert_eq!(w.claim("buyer").await.status, 202);
    assert_eq!(w.claim("other").await.kind(), "try-again");
}

#[tokio::test]
async fn a_cookie_counts_only_from_our_own_pages() {
    let w = world();
    let cookie = format!("a=1; fg-entry-{SALE}={}", w.token("buyer"));
    let foreign = [("idempotency-key", "k"), ("cookie", &cookie), ("origin", "https://evil.example")];
    assert_eq!(w.send(post(CLAIM, &foreign)).await.kind(), "forbidden");
    assert_eq!(w.send(post(ENTER, &foreign)).await.kind(), "forbidden");
    assert_eq!(w.send(post("/v1/orders", &foreign)).await.kind(), "forbidden");
    let own = [("idempotency-key", "k"), ("cookie", &cookie), ("origin", "http://shop.example")];
    assert_eq!(w.send(post(CLAIM, &own)).await.status, 202);
    assert_eq!(w.host.seen_at(CLAIM)[0].headers["cookie"], cookie[5..]);
}

#[tokio::test]
async fn one_buyer_has_no_more_tries_than_one_address() {
    let w = world();
    w.set_sale("address_limits", json!({"claim": {"rate_per_s": 0.001, "burst": 3.0}}));
    for n in 0..3 {
        let got = w.send_from(&format!("10.0.1.{n}"), w.claim_request("buyer")).await;
        assert_eq!(got.status, 202);
        w.host.advance(100);
    }
    assert_eq!(w.send_from("10.0.1.9", w.claim_request("buyer")).await.kind(), "slow-down");
    assert_eq!(w.send_from("10.0.1.9", w.claim_request("other")).await.status, 202);
}

#[tokio::test]
async fn one_device_has_no_more_tries_than_one_address_whatever_accounts_it_uses() {
    let w = world();
    w.set_sale("address_limits", json!({"claim": {"rate_per_s": 0.001, "burst": 3.0}}));
    for n in 0..5 {
        let token = w.device_token(&format!("buyer-{n}"), "phone");
        let got = w.send_from(&format!("10.0.2.{n}"), World::claim_with(&token)).await;
        assert_eq!(got.status, if n < 3 { 202 } else { 429 }, "{n}");
    }
    let other = w.device_token("buyer-0", "tablet");
    assert_eq!(w.send_from("10.0.3.1", World::claim_with(&other)).await.status, 202, "another device");
}

#[tokio::test]
async fn the_window_is_judged_by_the_authoritys_clock() {
    for (skew_ms, kind) in [(-3_600_000, "not-open"), (0, ""), (7_200_000, "closed")] {
        let w = world();
        w.host.skew_ms.set(skew_ms);
        let got = w.claim("buyer").await;
        if kind.is_empty() {
            assert_eq!(got.status, 202);
        } else {
            assert_eq!(got.kind(), kind);
            assert_eq!(got.problem().now_ms, Some(NOW_MS + skew_ms));
        }
        let time = w.get("/v1/time").await.json();
        assert_eq!((time["now_ms"].as_i64(), time["error_ms"].as_i64()), (Some(NOW_MS + skew_ms), Some(1)));
    }
}

#[tokio::test]
async fn entering_is_possible_before_the_opening_and_not_after_the_end() {
    let w = world();
    w.set_sale("opens_at_ms", NOW_MS + 30_000);
    assert_eq!(w.claim("buyer").await.kind(), "not-open");
    assert_eq!(w.enter().await.status, 202);
    assert!(!w.host.seen_at(ENTER)[0].headers.contains_key("flashgate-permit"));
    w.host.permits.set(0);
    w.host.advance(300);
    assert_eq!(w.enter().await.kind(), "try-again");
    w.host.advance(3_600_000);
    assert_eq!(w.enter().await.kind(), "closed");
}

#[tokio::test]
async fn people_hear_the_same_in_words() {
    let w = world();
    w.host.lease.borrow_mut().sold_out = true;
    let got = w.send(post(CLAIM, &[("idempotency-key", "k"), ("accept", "text/html,*/*;q=0.8")])).await;
    assert_eq!(got.status, 410);
    assert_eq!(got.headers["content-type"], "text/html; charset=utf-8");
    assert!(got.headers["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
    assert_eq!(got.headers["x-content-type-options"], "nosniff");
    let html = String::from_utf8_lossy(&got.body).into_owned();
    assert!(html.contains("Sold out") && html.contains("/s/phones"), "{html}");
}
