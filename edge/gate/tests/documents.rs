//! Sale documents: who may publish one, which one is taken, and what an edge does with it.

mod support;

use bytes::Bytes;
use flashgate_gate::{Gate, GateConfig, OriginError};
use http::{Request, Response};
use serde_json::{Value, json};
use support::*;

const PATH: &str = "/v1/edge/sales/phones";

/// A gate that knows the key of documents, which here is the one of entries.
fn taking(w: &World) -> Gate {
    let document_keys = json!({"keys": [jwk("d1", &w.pair)]}).to_string();
    Gate::new(GateConfig { edge_key: "edge-key".into(), document_keys })
}

fn signed(w: &World, typ: &str, content: &Value) -> String {
    w.sign_as(&json!({"typ": typ, "alg": "EdDSA", "kid": "d1"}), content)
}

fn document(w: &World, change: impl FnOnce(&mut Value)) -> String {
    let mut doc = w.host.doc.borrow().clone().unwrap();
    doc["now_ms"] = w.host.authority_ms().into();
    change(&mut doc);
    signed(w, "flashgate-sale+jwt", &doc)
}

fn ticket(w: &World, change: impl FnOnce(&mut Value)) -> String {
    let now_s = w.host.authority_ms() / 1000;
    let mut claims = json!({"aud": "flashgate-edge", "sub": SALE, "scope": "publish", "nbf": now_s, "exp": now_s + 60});
    change(&mut claims);
    signed(w, "flashgate-ticket+jwt", &claims)
}

fn put(ticket: &str, document: &str) -> Request<Bytes> {
    Request::put(PATH).header("authorization", format!("Bearer {ticket}")).body(document.to_owned().into()).unwrap()
}

async fn send(gate: &Gate, w: &World, request: Request<Bytes>) -> (u16, Value) {
    let answer: Response<_> = gate.handle(&&w.host, "10.0.0.1".parse().unwrap(), request).await;
    let status = answer.status().as_u16();
    match answer.into_body() {
        flashgate_gate::Body::Bytes(bytes) => {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
        }
        flashgate_gate::Body::Stream(_) => panic!("a stream"),
    }
}

#[tokio::test]
async fn newer_documents_are_taken_and_older_or_other_ones_are_not() {
    let w = world();
    let gate = taking(&w);
    let good = ticket(&w, |_| {});
    let version = |n: i64, title: &'static str| {
        document(&w, move |doc| (doc["sale"]["version"], doc["sale"]["title"]) = (n.into(), title.into()))
    };
    for (document, status, kind) in [
        (version(2, "A"), 200, ""),
        (version(2, "A"), 200, ""),
        (version(2, "B"), 409, "/problems/outdated"),
        (version(1, "A"), 409, "/problems/outdated"),
        (version(7, "C"), 200, ""),
        (version(2, "A"), 409, "/problems/outdated"),
    ] {
        let (got, body) = send(&gate, &w, put(&good, &document)).await;
        assert_eq!((got, body["type"].as_str().unwrap_or_default()), (status, kind), "{body}");
    }
    let (status, body) = send(&gate, &w, put(&good, &version(8, "D"))).await;
    assert_eq!((status, &body["version"], &body["before"]), (200, &8.into(), &7.into()));
    let read = ticket(&w, |t| t["scope"] = "read".into());
    let get = Request::get(PATH).header("authorization", format!("Bearer {read}")).body(Bytes::new()).unwrap();
    assert_eq!(send(&gate, &w, get).await, (200, Value::String(version(8, "D"))));
}

#[tokio::test]
async fn of_one_version_the_document_signed_later_counts_because_keys_change_without_one() {
    let w = world();
    let gate = taking(&w);
    let other = aws_lc_rs::signature::Ed25519KeyPair::generate().unwrap();
    let keys = |names: &[(&str, &aws_lc_rs::signature::Ed25519KeyPair)]| {
        let keys: Vec<_> = names.iter().map(|(kid, pair)| jwk(kid, pair)).collect();
        document(&w, |doc| doc["jwks"] = json!({ "keys": keys }))
    };
    let before = keys(&[("k1", &w.pair)]);
    assert_eq!(send(&gate, &w, put(&ticket(&w, |_| {}), &before)).await.0, 200);
    w.host.advance(1_000);
    let rotated = keys(&[("k2", &other), ("k1", &w.pair)]);
    assert_eq!(send(&gate, &w, put(&ticket(&w, |_| {}), &rotated)).await.0, 200);
    let (status, body) = send(&gate, &w, put(&ticket(&w, |_| {}), &before)).await;
    assert_eq!((status, &body["type"]), (409, &"/problems/outdated".into()));
    // An edge that starts now trusts the keys of the later one, without the origin.
    w.host.advance(1_000);
    let retired = keys(&[("k2", &other)]);
    assert_eq!(send(&gate, &w, put(&ticket(&w, |_| {}), &retired)).await.0, 200);
    let fresh = taking(&w);
    *w.host.doc.borrow_mut() = None;
    let (status, body) = send(&fresh, &w, w.claim_request("a")).await;
    assert_eq!((status, &body["type"]), (503, &"/problems/unavailable".into()), "a retired key is unknown: {body}");
}

#[tokio::test]
async fn nobody_publishes_without_a_ticket_of_the_origins() {
    let w = world();
    let gate = taking(&w);
    let doc = document(&w, |_| {});
    let now_s = w.host.authority_ms() / 1000;
    let other = aws_lc_rs::signature::Ed25519KeyPair::generate().unwrap();
    let forged = sign_with(&other, &json!({"typ": "flashgate-ticket+jwt", "alg": "EdDSA", "kid": "d1"}), &json!({}));
    for (what, ticket, status) in [
        ("none", String::new(), 401),
        ("no JWT", "hello".into(), 401),
        ("by another key", forged, 401),
        ("a document", doc.clone(), 401),
        ("an entry token", w.token("buyer"), 401),
        ("of another sale", ticket(&w, |t| t["sub"] = "other".into()), 403),
        ("to read", ticket(&w, |t| t["scope"] = "read".into()), 403),
        ("for somebody else", ticket(&w, |t| t["aud"] = "origin".into()), 403),
        ("too old", ticket(&w, |t| t["exp"] = (now_s - 400).into()), 401),
        ("too early", ticket(&w, |t| t["nbf"] = (now_s + 400).into()), 401),
    ] {
        let (got, body) = send(&gate, &w, put(&ticket, &doc)).await;
        assert_eq!(got, status, "{what}: {body}");
    }
    assert!(w.host.store.borrow().is_empty());
    // An edge without document keys has no such route.
    let (status, _) = send(&support::gate(), &w, put(&ticket(&w, |_| {}), &doc)).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn bad_documents_are_refused_with_the_reason_and_change_nothing() {
    let w = world();
    let gate = taking(&w);
    let good = ticket(&w, |_| {});
    assert_eq!(send(&gate, &w, put(&good, &document(&w, |_| {}))).await.0, 200);
    let before = w.host.store.borrow().clone();
    for (document, says) in [
        ("hello".to_owned(), "not signed"),
        (good.clone(), "not signed"),
        (document(&w, |doc| doc["sale"]["id"] = "other".into()), "another sale"),
        (document(&w, |doc| doc["sale"]["total"] = 0.into()), "break a bound"),
        (document(&w, |doc| doc["jwks"] = json!({"keys": [{"kty": "RSA"}]})), "keys"),
    ] {
        let (status, body) = send(&gate, &w, put(&good, &document)).await;
        assert_eq!((status, &body["type"]), (422, &"/problems/unprocessable".into()), "{body}");
        assert!(body["detail"].as_str().unwrap().contains(says), "{body}");
    }
    let huge = put(&good, &"x".repeat(40_000));
    assert_eq!(send(&gate, &w, huge).await.0, 413);
    assert_eq!(*w.host.store.borrow(), before);
    w.host.store_down.set(true);
    let (status, body) = send(&gate, &w, put(&good, &document(&w, |doc| doc["sale"]["version"] = 5.into()))).await;
    assert_eq!((status, &body["type"]), (503, &"/problems/unavailable".into()));
}

#[tokio::test]
async fn a_new_instance_knows_the_sale_from_the_store_and_follows_the_authority() {
    let w = world();
    let first = taking(&w);
    let newer =
        document(&w, |doc| (doc["sale"]["version"], doc["sale"]["title"]) = (3.into(), "From the store".into()));
    assert_eq!(send(&first, &w, put(&ticket(&w, |_| {}), &newer)).await.0, 200);
    // The origin is out of reach: the sale is known all the same, and nobody is admitted.
    let second = taking(&w);
    w.host.down.set(Some(OriginError::Unreachable));
    let view = || Request::get("/v1/sales/phones").body(Bytes::new()).unwrap();
    let (status, body) = send(&second, &w, view()).await;
    assert_eq!((status, &body["title"]), (200, &"From the store".into()));
    assert_eq!(send(&second, &w, w.claim_request("a")).await.0, 503);
    // The authority knows a newer version: it is fetched, and kept for the next instance.
    w.host.down.set(None);
    w.host.lease.borrow_mut().config_version = 4;
    w.set_sale("version", 4);
    w.set_sale("title", "From the origin");
    let signed = document(&w, |_| {});
    w.host.doc.borrow_mut().as_mut().unwrap()["document"] = signed.into();
    w.host.advance(5_000);
    assert_eq!(send(&second, &w, view()).await.0, 200);
    w.host.advance(300);
    assert_eq!(send(&second, &w, view()).await.1["title"], "From the origin");
    w.host.down.set(Some(OriginError::Unreachable));
    assert_eq!(send(&taking(&w), &w, view()).await.1["title"], "From the origin");
    // What somebody else wrote into the store is not used.
    w.host.store.borrow_mut().insert("sale/phones".into(), b"tampered".to_vec());
    assert_eq!(send(&taking(&w), &w, view()).await.0, 503);
}
