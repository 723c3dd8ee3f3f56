//! What the gate learns from the origin, and how rarely it asks.

mod support;

use flashgate_gate::{OriginError, limits};
use flashgate_shared::{sale::SaleState, wire::LeaseKind};
use serde_json::json;
use std::time::Duration;
use support::*;

#[tokio::test]
async fn permits_are_spent_once_and_carry_the_authoritys_grant() {
    let w = world();
    w.host.skew_ms.set(5_000);
    w.host.permits.set(1);
    let crowd = ["a", "b", "c", "d", "e"].map(|buyer| w.claim(buyer));
    let outcomes = futures_util::future::join_all(crowd).await;
    assert_eq!(outcomes.iter().map(|got| got.status).collect::<Vec<_>>(), [202, 503, 503, 503, 503]);
    for seen in w.host.seen_at(CLAIM) {
        assert_eq!(seen.headers["flashgate-permit"], format!("{}.3", NOW_MS + 5_000));
        assert_eq!(seen.headers["flashgate-edge-key"], "edge-key");
    }
    assert_eq!(w.host.leases().len(), 1, "one question within the authority's retry_ms");
}

#[tokio::test]
async fn unused_permits_die() {
    for (age_ms, status) in [(249, 202), (250, 503)] {
        let w = world();
        w.host.permits.set(2);
        assert_eq!(w.claim("a").await.status, 202);
        w.host.advance(age_ms);
        assert_eq!(w.claim("b").await.status, status, "{age_ms}");
    }
}

#[tokio::test]
async fn one_request_asks_and_the_others_use_what_they_know() {
    let w = world();
    w.host.permits.set(0);
    let crowd = ["a", "b", "c", "d", "e"].map(|buyer| w.claim(buyer));
    for refused in futures_util::future::join_all(crowd).await {
        assert_eq!(refused.kind(), "try-again");
    }
    w.host.advance(100);
    w.host.held.set(true);
    let ask = w.claim("leader");
    let others = async {
        tokio::task::yield_now().await;
        for n in 0..50 {
            let client = format!("10.0.1.{n}");
            let got = w.send_from(&client, w.claim_request(&format!("b-{n}"))).await;
            assert_eq!(got.kind(), "try-again");
        }
        w.host.permits.set(10);
        w.host.held.set(false);
    };
    let (leader, ()) = tokio::join!(ask, others);
    assert_eq!(leader.status, 202);
    assert_eq!(w.host.leases().len(), 2);
    w.host.advance(100);
    w.claim("next").await;
    assert_eq!(w.host.leases().last().unwrap().want, 51 + 1 + limits::WANT_SPARE_MAX, "the demand that was seen");
}

#[tokio::test]
async fn a_lone_buyer_waits_for_what_has_not_gathered_yet_and_asks_once_more() {
    let w = world();
    w.host.permits.set(0);
    let from_ms = w.host.clock_ms.get();
    let more = async {
        while w.host.leases().is_empty() {
            tokio::task::yield_now().await;
        }
        w.host.permits.set(1);
    };
    let (alone, ()) = tokio::join!(w.claim("a"), more);
    assert_eq!((alone.status, w.host.leases().len()), (202, 2));
    assert!(w.host.clock_ms.get() - from_ms < flashgate_shared::limits::COLD_LEASE_WAIT_MS as i64);
    // Where nothing gathers he is told so, after that one question.
    w.host.permits.set(0);
    w.host.advance(1_000);
    assert_eq!((w.claim("b").await.kind(), w.host.leases().len()), ("try-again".into(), 4));
}

#[tokio::test]
async fn a_cold_instance_waits_for_the_authority_but_not_for_ever() {
    let w = world();
    assert_eq!(w.get("/v1/sales/phones").await.status, 200);
    w.host.advance(1_000);
    w.host.held.set(true);
    let release = async {
        tokio::task::yield_now().await;
        w.host.held.set(false);
    };
    let (a, b, ()) = tokio::join!(w.claim("a"), w.claim("b"), release);
    assert_eq!((a.status, b.status), (202, 202), "the second one waited for the first one's lease");
    assert_eq!(w.host.leases().len(), 2);
    w.host.advance(1_000);
    w.host.held.set(true);
    let from = w.host.clock_ms.get();
    let refused = async {
        tokio::task::yield_now().await;
        let got = w.claim("d").await;
        w.host.held.set(false);
        got
    };
    let (_, got) = tokio::join!(w.claim("c"), refused);
    assert_eq!(got.kind(), "try-again");
    assert_eq!(w.host.clock_ms.get() - from, 200);
}

#[tokio::test]
async fn while_the_authority_gives_all_it_is_asked_for_nobody_is_refused() {
    let w = world();
    assert_eq!(w.claim("a").await.status, 202);
    let mut claims = vec![];
    for n in 0..50 {
        let (w, request) = (&w, w.claim_request(&format!("b-{n}")));
        claims.push(async move { w.send_from(&format!("10.0.1.{n}"), request).await.status });
    }
    let statuses = futures_util::future::join_all(claims).await;
    assert!(statuses.iter().all(|s| *s == 202), "a burst beyond the lease waits for the next: {statuses:?}");
    let want: Vec<u32> = w.host.leases().iter().map(|l| l.want).collect();
    assert!(want.len() <= 3, "by few questions, for all who wait: {want:?}");
    w.host.permits.set(1);
    w.host.advance(300);
    assert_eq!(w.claim("c").await.status, 202);
    let (from, questions) = (w.host.clock_ms.get(), w.host.leases().len());
    let crowd = ["d", "e", "f", "g"].map(|buyer| w.claim(buyer));
    for refused in futures_util::future::join_all(crowd).await {
        assert_eq!(refused.kind(), "try-again");
    }
    // The first two might have been alone: they see the others after one step.
    let most_ms = i64::from(limits::NEARLY_ALONE) * limits::WAIT_STEP_MS as i64;
    assert!(w.host.clock_ms.get() - from <= most_ms, "a short authority's edge refuses a crowd at once");
    assert_eq!(w.host.leases().len(), questions);
}

#[tokio::test]
async fn not_everybody_may_wait() {
    let w = world();
    assert_eq!(w.get("/v1/sales/phones").await.status, 200);
    w.host.advance(1_000);
    w.host.held.set(true);
    let crowd = limits::WAITING_MAX + 10;
    let mut claims = vec![];
    for n in 0..crowd {
        let request = w.claim_request(&format!("b-{n}"));
        let w = &w;
        claims.push(Box::pin(async move { w.send_from(&format!("10.1.{}.{}", n / 250, n % 250), request).await }));
    }
    let mut waker = std::task::Context::from_waker(std::task::Waker::noop());
    let done = claims.iter_mut().filter_map(|c| match c.as_mut().poll(&mut waker) {
        std::task::Poll::Ready(got) => Some(got),
        std::task::Poll::Pending => None,
    });
    let refused: Vec<_> = done.collect();
    assert_eq!(refused.len(), crowd - limits::WAITING_MAX - 1, "one asks, a bounded number waits");
    assert!(refused.iter().all(|got| got.status == 503));
}

#[tokio::test]
async fn a_cancelled_question_does_not_block_the_next() {
    let w = world();
    w.host.held.set(true);
    let cancelled = tokio::time::timeout(Duration::from_millis(1), w.claim("a")).await;
    assert!(cancelled.is_err());
    w.host.held.set(false);
    assert_eq!(w.claim("b").await.status, 202, "the sale is found all the same");
    w.host.advance(1_000);
    w.host.held.set(true);
    assert!(tokio::time::timeout(Duration::from_millis(1), w.claim("c")).await.is_err());
    w.host.held.set(false);
    w.host.advance(100);
    assert_eq!(w.claim("d").await.status, 202);
}

#[tokio::test]
async fn a_sold_out_edge_learns_of_a_reopening_from_the_refused() {
    let w = world();
    *w.host.forwarded.borrow_mut() = (410, "application/problem+json", problem("sold-out", 410));
    assert_eq!(w.claim("a").await.status, 410);
    assert_eq!(w.host.seen_at(CLAIM).len(), 1);
    for n in 0..20 {
        assert_eq!(w.claim(&format!("b-{n}")).await.kind(), "sold-out");
    }
    assert_eq!(w.host.seen_at(CLAIM).len(), 1, "the answer was learnt: nobody else bothers the origin");
    *w.host.forwarded.borrow_mut() = (202, "application/json", "{}".into());
    w.host.advance(100);
    assert_eq!(w.claim("c").await.status, 202, "the next lease says otherwise");
}

#[tokio::test]
async fn a_pause_and_its_end_come_with_the_lease() {
    let w = world();
    assert_eq!(w.claim("a").await.status, 202);
    w.host.lease.borrow_mut().state = SaleState::Paused;
    w.host.advance(100);
    assert_eq!(w.claim("b").await.kind(), "paused");
    assert_eq!(w.get("/v1/sales/phones").await.json()["phase"], "paused");
    w.host.lease.borrow_mut().state = SaleState::Open;
    w.host.advance(100);
    assert_eq!(w.claim("c").await.status, 202);
}

#[tokio::test]
async fn a_refused_permit_is_no_refusal_of_the_buyer() {
    let w = world();
    *w.host.forwarded.borrow_mut() = (503, "application/problem+json", problem("permit-refused", 503));
    assert_eq!(w.claim("a").await.kind(), "try-again");
    *w.host.forwarded.borrow_mut() = (401, "application/problem+json", problem("unauthorized", 401));
    assert_eq!(w.claim("b").await.kind(), "unavailable", "the edge's own key is no business of the buyer");
}

#[tokio::test]
async fn without_the_origin_nobody_is_admitted_and_page_and_time_are_served() {
    let w = world();
    assert_eq!(w.claim("a").await.status, 202);
    w.host.down.set(Some(OriginError::NoAnswer));
    w.host.advance(10_000);
    for n in 0..30 {
        let got = w.claim(&format!("b-{n}")).await;
        assert_eq!(got.kind(), "unavailable");
        assert!(got.headers.contains_key("retry-after"));
    }
    assert_eq!(w.host.leases().len(), 2, "it is not asked for every refusal");
    assert_eq!(w.enter().await.kind(), "unavailable");
    assert_eq!(w.get("/v1/time").await.status, 200);
    assert_eq!(w.get("/s/phones").await.status, 200);
    assert_eq!(w.get("/v1/sales/phones").await.json()["title"], "A \"phone\"", "the last good settings are kept");
    assert_eq!(w.get("/v1/sales/never-seen").await.kind(), "unavailable");
    w.host.down.set(None);
    w.host.advance(2_000);
    assert_eq!(w.claim("c").await.status, 202);
}

#[tokio::test]
async fn a_claim_without_an_answer_is_told_that_its_outcome_is_unknown() {
    for (error, kind) in [
        (OriginError::NoAnswer, "unknown-outcome"),
        (OriginError::TooLarge, "unknown-outcome"),
        (OriginError::Unreachable, "unavailable"),
    ] {
        let w = world();
        assert_eq!(w.claim("a").await.status, 202);
        w.host.down.set(Some(error));
        let got = w.claim("b").await;
        assert_eq!(got.kind(), kind);
        assert!(got.problem().my_claim.is_some());
    }
}

#[tokio::test]
async fn unknown_sales_are_remembered_and_asking_for_them_is_limited() {
    let w = world();
    for _ in 0..5 {
        assert_eq!(w.get("/v1/sales/ghosts").await.kind(), "not-found");
    }
    assert_eq!(w.host.seen_at("/v1/edge/sales/ghosts").len(), 1);
    w.host.advance(limits::UNKNOWN_SALE_MS);
    assert_eq!(w.get("/v1/sales/ghosts").await.status, 404);
    assert_eq!(w.host.seen_at("/v1/edge/sales/ghosts").len(), 2);
    w.host.advance(10_000);
    w.host.seen.borrow_mut().clear();
    for n in 0..1_000 {
        let client = format!("10.9.{}.{}", n / 200, n % 200);
        let got = w.send_from(&client, get(&format!("/v1/sales/x-{n}"))).await;
        assert!([404, 429].contains(&got.status), "{}", got.status);
    }
    assert_eq!(w.host.seen.borrow().len(), limits::UNKNOWN_SALE_ASKS_BURST as usize);
    let w = world();
    for n in 0..1_000 {
        w.get(&format!("/v1/sales/x-{n}")).await;
    }
    assert!(w.host.seen.borrow().len() <= limits::UNKNOWN_SALE_ASKS_BURST as usize);
}

#[tokio::test]
async fn settings_follow_the_version_in_the_lease() {
    let w = world();
    assert_eq!(w.get("/v1/sales/phones").await.json()["title"], "A \"phone\"");
    w.set_sale("title", "Another");
    w.set_sale("version", 2);
    w.host.advance(2_000);
    assert_eq!(w.get("/v1/sales/phones").await.json()["title"], "A \"phone\"", "the same version: not fetched");
    w.host.lease.borrow_mut().config_version = 2;
    w.host.advance(2_000);
    assert_eq!(w.get("/v1/sales/phones").await.json()["title"], "Another");
    assert_eq!(w.host.seen_at("/v1/edge/sales/phones").len(), 2);
}

#[tokio::test]
async fn a_key_that_the_lease_names_no_more_is_believed_no_more() {
    let w = world();
    w.host.lease.borrow_mut().key_ids = Some(vec!["k1".to_owned()]);
    assert_eq!(w.claim("a").await.status, 202);
    let new = aws_lc_rs::signature::Ed25519KeyPair::generate().unwrap();
    let sets = [json!({"keys": [jwk("k1", &w.pair), jwk("k2", &new)]}), json!({"keys": [jwk("k2", &new)]})];
    for (keys, status) in sets.into_iter().zip([202, 401]) {
        let names = keys["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned());
        w.host.lease.borrow_mut().key_ids = Some(names.collect());
        w.host.doc.borrow_mut().as_mut().unwrap()["jwks"] = keys.clone();
        w.host.advance(2_000);
        let got = w.claim("b").await;
        assert_eq!(got.status, status, "an old token, {keys}");
    }
    // At first, for each new set, and once more for the key that a token still named.
    assert_eq!(w.host.seen_at("/v1/edge/sales/phones").len(), 4, "not for every lease");
}

#[tokio::test]
async fn an_unknown_key_is_looked_up_once_and_rarely() {
    let mut w = world();
    assert_eq!(w.claim("a").await.status, 202);
    w.host.advance(2_000);
    let old = std::mem::replace(&mut w.pair, aws_lc_rs::signature::Ed25519KeyPair::generate().unwrap());
    let now_s = w.host.authority_ms() / 1000;
    let token = w.sign(
        "k2",
        &json!({"iss": "shop", "aud": SALE, "sub": "b", "jti": "j", "iat": now_s, "nbf": now_s, "exp": now_s + 60}),
    );
    let claim = || post(CLAIM, &[("idempotency-key", "k"), ("authorization", &format!("Bearer {token}"))]);
    assert_eq!(w.send(claim()).await.kind(), "token-invalid", "looked up, and not there");
    for _ in 0..5 {
        let got = w.send(claim()).await;
        assert_eq!(got.kind(), "unavailable", "it may have come since");
        assert!(got.problem().retry_after_ms.is_some());
    }
    assert_eq!(w.host.seen_at("/v1/edge/sales/phones").len(), 2, "not for every forged kid");
    w.host.doc.borrow_mut().as_mut().unwrap()["jwks"] = json!({"keys": [jwk("k1", &old), jwk("k2", &w.pair)]});
    w.host.advance(1_000);
    assert_eq!(w.send(claim()).await.status, 202, "the new key was found");
}

#[tokio::test]
async fn enter_and_claim_have_their_own_leases() {
    let w = world();
    w.enter().await;
    w.claim("a").await;
    assert_eq!((w.host.leases_of(LeaseKind::Enter), w.host.leases_of(LeaseKind::Claim)), (1, 1));
}
