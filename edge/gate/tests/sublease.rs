//! Several instances of the gate behind one desk for sub-leases.

mod support;

use bytes::Bytes;
use flashgate_gate::{Body, Gate, GateConfig, Host, KvError, OriginError, Sublessor, Terms, lease_question};
use flashgate_shared::sale::SaleState;
use http::{Request, Response};
use support::*;

/// A runtime that asks the desk for leases, and the origin for everything else.
struct Branch<'a> {
    runtime: &'a Runtime,
    desk: &'a Sublessor,
}

impl Host for Branch<'_> {
    type Stream = &'static str;

    fn now_ms(&self) -> i64 {
        (&self.runtime).now_ms()
    }

    fn random_u64(&self) -> u64 {
        self.runtime.random_u64()
    }

    async fn origin(&self, request: Request<Bytes>, terms: Terms) -> Result<Response<Body<&'static str>>, OriginError> {
        if lease_question(&request).is_some_and(|sale| sale.as_str() == SALE) {
            return Ok(self.desk.handle(&self.runtime, request).await.map(Body::Bytes));
        }
        self.runtime.origin(request, terms).await
    }

    async fn pause(&self, ms: u64) {
        self.runtime.pause(ms).await;
    }

    async fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        self.runtime.kv_get(key).await
    }

    async fn kv_put(&self, key: &str, value: &[u8]) -> Result<(), KvError> {
        self.runtime.kv_put(key, value).await
    }
}

fn desk() -> Sublessor {
    Sublessor::new(GateConfig { edge_key: "edge-key".into(), document_keys: String::new() })
}

async fn claim(gate: &Gate, branch: &Branch<'_>, w: &World, buyer: &str) -> u16 {
    let answer = gate.handle(branch, "10.0.0.1".parse().unwrap(), w.claim_request(buyer)).await;
    answer.status().as_u16()
}

#[tokio::test]
async fn instances_ask_together_and_every_permit_is_spent_at_most_once() {
    let (w, desk) = (world(), desk());
    let branch = Branch { runtime: &w.host, desk: &desk };
    w.host.permits.set(2);
    w.host.skew_ms.set(5_000);
    let gates = [gate(), gate(), gate()];
    let [a, b, c] = &gates;
    let (a, b, c) = tokio::join!(claim(a, &branch, &w, "a"), claim(b, &branch, &w, "b"), claim(c, &branch, &w, "c"));
    let mut outcomes = [a, b, c];
    outcomes.sort();
    assert_eq!(outcomes, [202, 202, 503], "two permits for three");
    let asked = w.host.leases();
    // Every pause moves this clock for all: whoever comes after the first round was asked is in the next.
    assert!(asked.len() < gates.len(), "{asked:?}");
    assert_eq!(asked.iter().map(|ask| ask.want).sum::<u32>(), 6, "two for each: the demand of all");
    for question in w.host.seen_at("/v1/edge/leases") {
        assert_eq!(question.headers["flashgate-edge-key"], "edge-key");
        assert!(question.headers.contains_key("traceparent"));
    }
    for seen in w.host.seen_at(CLAIM) {
        let granted_at_ms: i64 =
            seen.headers["flashgate-permit"].to_str().unwrap().split_once('.').unwrap().0.parse().unwrap();
        assert!((NOW_MS + 5_000..=w.host.authority_ms()).contains(&granted_at_ms), "the authority's grant time");
    }
}

#[tokio::test]
async fn every_instance_hears_of_sold_out_paused_and_open_within_a_lease_period() {
    let (w, desk) = (world(), desk());
    let branch = Branch { runtime: &w.host, desk: &desk };
    let gates = [gate(), gate()];
    for (state, sold_out, status) in [
        (SaleState::Open, false, 202),
        (SaleState::Paused, false, 503),
        (SaleState::Open, true, 410),
        (SaleState::Open, false, 202),
    ] {
        w.host.lease.borrow_mut().state = state;
        w.host.lease.borrow_mut().sold_out = sold_out;
        w.host.advance(250);
        for (n, gate) in gates.iter().enumerate() {
            assert_eq!(
                claim(gate, &branch, &w, &format!("{state:?}-{sold_out}-{n}")).await,
                status,
                "{state:?} {sold_out}"
            );
        }
    }
}

#[tokio::test]
async fn without_the_authority_all_instances_are_deaf_and_it_is_asked_rarely() {
    let (w, desk) = (world(), desk());
    let branch = Branch { runtime: &w.host, desk: &desk };
    let gates = [gate(), gate(), gate()];
    for (n, gate) in gates.iter().enumerate() {
        assert_eq!(claim(gate, &branch, &w, &format!("known-{n}")).await, 202);
    }
    let before = w.host.leases().len();
    w.host.advance(1_000);
    w.host.down.set(Some(OriginError::NoAnswer));
    for (n, gate) in gates.iter().enumerate() {
        let request = w.claim_request(&format!("b-{n}"));
        let answer = gate.handle(&branch, "10.0.0.1".parse().unwrap(), request).await;
        assert_eq!(answer.status(), 503);
        let Body::Bytes(body) = answer.into_body() else { panic!("a stream") };
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(body.contains("/problems/unavailable"), "{body}");
    }
    assert_eq!(w.host.leases().len() - before, 1, "one question for all of them");
    w.host.down.set(None);
    w.host.advance(2_000);
    for (n, gate) in gates.iter().enumerate() {
        assert_eq!(claim(gate, &branch, &w, &format!("c-{n}")).await, 202, "and it is found again");
    }
}

#[tokio::test]
async fn what_is_no_question_for_a_lease_is_refused() {
    let (w, desk) = (world(), desk());
    let answer = desk.handle(&&w.host, Request::post("/v1/edge/leases").body(Bytes::from_static(b"{}")).unwrap()).await;
    assert_eq!(answer.status(), 400);
    assert!(w.host.leases().is_empty());
}
