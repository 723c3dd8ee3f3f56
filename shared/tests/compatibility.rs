//! Edges and origins of neighbouring versions understand each other: what version 0.1.0 said is read, and
//! what a later version adds is ignored. The texts below never change; new versions add new ones.

use flashgate_shared::{
    admission::Permit,
    envelope::ClaimEnvelope,
    problem::{Problem, ProblemKind},
    sale::SaleConfig,
    wire::{ClaimAccepted, ClaimStatus, EdgeSaleAnswer, EnterAnswer, LeaseAnswer, LeaseRequest, SaleView},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What something is called, how it is read, and how 0.1.0 says it.
type Said = (&'static str, fn(Value) -> Result<(), String>, Value);

/// What 0.1.0 sends, by the type that reads it.
fn said_by_0_1_0() -> Vec<Said> {
    fn reads<T: DeserializeOwned>(value: Value) -> Result<(), String> {
        serde_json::from_value::<T>(value).map(drop).map_err(|e| e.to_string())
    }
    let sale = json!({
        "id": "phones", "version": 1, "title": "A hundred phones", "description": "", "total": 100,
        "price": {"amount_minor": 19900, "currency": "EUR"}, "per_buyer_limit": 1, "opens_at_ms": 1, "closes_at_ms": 2,
        "buckets": 10, "admit_factor": 5.0, "enter_rate_per_s": 4000.0, "pay_window_ms": 600000, "grace_ms": 30000,
        "second_try": false, "anonymous_entry": true, "backlog_limit": 1000
    });
    vec![
        (
            "a lease",
            reads::<LeaseAnswer>,
            json!({"granted": 3, "granted_at_ms": 5, "ttl_ms": 250, "retry_ms": 100, "now_ms": 5, "state": "open",
                   "sold_out": false, "epoch": 1, "config_version": 1}),
        ),
        ("a question for one", reads::<LeaseRequest>, json!({"sale": "phones", "kind": "claim", "want": 3})),
        (
            "a sale for edges, without a document",
            reads::<EdgeSaleAnswer>,
            json!({"sale": sale, "state": "open", "jwks": {"keys": []}, "issuer": "flashgate", "now_ms": 5}),
        ),
        (
            "a sale for buyers",
            reads::<SaleView>,
            json!({"id": "phones", "title": "A hundred phones", "description": "", "per_buyer_limit": 1,
                   "price": {"amount_minor": 19900, "currency": "EUR"}, "opens_at_ms": 1, "closes_at_ms": 2,
                   "phase": "open", "anonymous_entry": true, "now_ms": 5, "poll_after_ms": 2000}),
        ),
        (
            "a yes",
            reads::<ClaimAccepted>,
            json!({"claim_id": "2a79a811-4c13-5311-a5ad-1529bbabcf28", "status_url": "/v1/claims/x", "poll_after_ms": 9}),
        ),
        (
            "an entry",
            reads::<EnterAnswer>,
            json!({"token": "a.b.c", "position": null, "expires_at_ms": 9, "now_ms": 5}),
        ),
        (
            "a status",
            reads::<ClaimStatus>,
            json!({"claim_id": "2a79a811-4c13-5311-a5ad-1529bbabcf28", "sale": "phones", "status": "RESERVED",
                   "quantity": 1, "amount": {"amount_minor": 19900, "currency": "EUR"}, "pay_by_ms": 9, "paying": false,
                   "reason": null, "refunded": false, "now_ms": 5, "poll_after_ms": 9, "status_url": "/v1/claims/x"}),
        ),
        (
            "a message",
            reads::<ClaimEnvelope>,
            json!({"v": 1, "sale": "phones", "claim_id": "2a79a811-4c13-5311-a5ad-1529bbabcf28", "buyer": "ann",
                   "quantity": 1, "hold": "1.0.5-1", "claimed_at_ms": 5,
                   "trace_id": "11112222333344445555666677778888"}),
        ),
        ("a no", reads::<Problem>, json!({"type": "/problems/sold-out", "title": "Sold out", "status": 410})),
    ]
}

#[test]
fn what_the_version_before_says_is_understood() {
    for (what, read, value) in said_by_0_1_0() {
        assert_eq!(read(value), Ok(()), "{what}");
    }
}

#[test]
fn what_a_later_version_adds_is_ignored() {
    for (what, read, mut value) in said_by_0_1_0() {
        value["of_a_later_version"] = json!({"x": [1, 2, 3]});
        if value["sale"].is_object() {
            value["sale"]["of_a_later_version"] = json!(true);
            value["sale"]["price"]["of_a_later_version"] = json!(true);
        }
        assert_eq!(read(value), Ok(()), "{what}");
    }
}

#[test]
fn a_permit_keeps_its_form_and_a_word_of_a_later_version_is_no_error() {
    let permit: Permit = "1700000000000.3".parse().unwrap();
    assert_eq!(
        (permit.granted_at_ms, permit.epoch, permit.to_string().as_str()),
        (1_700_000_000_000, 3, "1700000000000.3")
    );
    let later: Problem =
        serde_json::from_value(json!({"type": "/problems/of-tomorrow", "title": "T", "status": 503})).unwrap();
    assert_eq!(later.kind(), None::<ProblemKind>);
}

#[test]
fn what_an_operator_writes_is_read_strictly() {
    let (.., sale) = said_by_0_1_0().remove(2);
    let good = sale["sale"].clone();
    assert!(SaleConfig::strictly(&good).is_ok());
    for (path, says) in [("", "`pri`"), ("price", "`price.pri`")] {
        let mut bad = good.clone();
        if path.is_empty() {
            bad["pri"] = json!(1)
        } else {
            bad[path]["pri"] = json!(1)
        }
        assert!(SaleConfig::strictly(&bad).is_err_and(|why| why.contains(says)), "{path}");
    }
}
