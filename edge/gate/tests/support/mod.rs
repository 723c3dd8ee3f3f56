//! A scripted runtime: the gate's own ports, in memory. Time stands still unless a test moves it.
#![allow(dead_code, reason = "each test binary uses its part")]

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use bytes::Bytes;
use flashgate_gate::{Body, Gate, GateConfig, Host, KvError, OriginError, Terms};
use flashgate_shared::{
    problem::Problem,
    sale::SaleState,
    wire::{LeaseAnswer, LeaseKind, LeaseRequest},
};
use http::{HeaderMap, Method, Request, Response};
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::IpAddr,
};

/// The edge's clock when a test begins; the authority's is [`Runtime::skew_ms`] ahead.
pub const NOW_MS: i64 = 1_700_000_000_000;
pub const SALE: &str = "phones";
pub const CLAIM: &str = "/v1/sales/phones/claim";
pub const ENTER: &str = "/v1/sales/phones/enter";

/// One request that reached the origin.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub terms: Terms,
}

/// The runtime and, behind it, the origin.
pub struct Runtime {
    pub clock_ms: Cell<i64>,
    pub skew_ms: Cell<i64>,
    pub drawn: Cell<u64>,
    /// `None`: there is no such sale.
    pub doc: RefCell<Option<Value>>,
    pub lease: RefCell<LeaseAnswer>,
    /// Permits that the authority still has.
    pub permits: Cell<u32>,
    pub down: Cell<Option<OriginError>>,
    /// Answers are held back while this is set.
    pub held: Cell<bool>,
    pub forwarded: RefCell<(u16, &'static str, String)>,
    pub seen: RefCell<Vec<Seen>>,
    pub store: RefCell<HashMap<String, Vec<u8>>>,
    /// The store does not answer.
    pub store_down: Cell<bool>,
}

impl Host for &Runtime {
    type Stream = &'static str;

    fn now_ms(&self) -> i64 {
        self.clock_ms.get()
    }

    fn random_u64(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        // Any fixed bijection will do.
        self.drawn.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    async fn origin(&self, request: Request<Bytes>, terms: Terms) -> Result<Response<Body<&'static str>>, OriginError> {
        let (parts, body) = request.into_parts();
        let target = parts.uri.to_string();
        self.seen.borrow_mut().push(Seen {
            method: parts.method,
            target: target.clone(),
            headers: parts.headers,
            body: body.clone(),
            terms,
        });
        while self.held.get() {
            tokio::task::yield_now().await;
        }
        if let Some(error) = self.down.get() {
            return Err(error);
        }
        let (status, media, body) = self.respond(&target, &body);
        let body = match terms.stream {
            true => Body::Stream("events"),
            false => Body::Bytes(Bytes::from(body)),
        };
        Ok(Response::builder()
            .status(status)
            .header("content-type", media)
            .header("connection", "keep-alive")
            .body(body)
            .unwrap())
    }

    async fn pause(&self, ms: u64) {
        self.clock_ms.set(self.clock_ms.get() + ms as i64);
        tokio::task::yield_now().await;
    }

    async fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        if self.store_down.get() { Err(KvError) } else { Ok(self.store.borrow().get(key).cloned()) }
    }

    async fn kv_put(&self, key: &str, value: &[u8]) -> Result<(), KvError> {
        if self.store_down.get() {
            return Err(KvError);
        }
        self.store.borrow_mut().insert(key.to_owned(), value.to_vec());
        Ok(())
    }
}

impl Runtime {
    pub fn authority_ms(&self) -> i64 {
        self.clock_ms.get() + self.skew_ms.get()
    }

    fn respond(&self, target: &str, body: &Bytes) -> (u16, &'static str, String) {
        if let Some(id) = target.strip_prefix("/v1/edge/sales/") {
            let doc = self.doc.borrow().clone().filter(|doc| doc["sale"]["id"] == id);
            return match doc {
                Some(mut doc) => {
                    doc["now_ms"] = self.authority_ms().into();
                    (200, "application/json", doc.to_string())
                }
                None => (404, "application/problem+json", problem("not-found", 404)),
            };
        }
        if target == "/v1/edge/leases" {
            let ask: LeaseRequest = serde_json::from_slice(body).unwrap();
            let mut answer = self.lease.borrow().clone();
            answer.granted = ask.want.min(self.permits.get());
            self.permits.set(self.permits.get() - answer.granted);
            answer.now_ms = self.authority_ms();
            answer.granted_at_ms = self.authority_ms();
            return (200, "application/json", serde_json::to_string(&answer).unwrap());
        }
        self.forwarded.borrow().clone()
    }

    /// What reached the origin under this target.
    pub fn seen_at(&self, target: &str) -> Vec<Seen> {
        self.seen.borrow().iter().filter(|s| s.target == target).cloned().collect()
    }

    pub fn leases(&self) -> Vec<LeaseRequest> {
        let seen = self.seen_at("/v1/edge/leases");
        seen.iter().map(|s| serde_json::from_slice(&s.body).unwrap()).collect()
    }

    pub fn leases_of(&self, kind: LeaseKind) -> usize {
        self.leases().iter().filter(|l| l.kind == kind).count()
    }

    pub fn advance(&self, ms: i64) {
        self.clock_ms.set(self.clock_ms.get() + ms);
    }
}

pub fn problem(kind: &str, status: u16) -> String {
    json!({"type": format!("/problems/{kind}"), "title": "T", "status": status}).to_string()
}

/// A gate, its runtime and the key that signs entries.
pub struct World {
    pub gate: Gate,
    pub host: Runtime,
    pub pair: Ed25519KeyPair,
}

/// A JWT with this header and content.
pub fn sign_with(pair: &Ed25519KeyPair, header: &Value, content: &Value) -> String {
    let text = format!("{}.{}", B64.encode(header.to_string()), B64.encode(content.to_string()));
    format!("{text}.{}", B64.encode(pair.sign(text.as_bytes())))
}

pub fn gate() -> Gate {
    Gate::new(GateConfig { edge_key: "edge-key".into(), document_keys: String::new() })
}

pub fn jwk(kid: &str, pair: &Ed25519KeyPair) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": B64.encode(pair.public_key())})
}

/// A sale that is open, with permits for everybody.
pub fn world() -> World {
    let pair = Ed25519KeyPair::generate().unwrap();
    let doc = json!({
        "sale": {
            "id": SALE, "version": 1, "title": "A \"phone\"", "description": "", "price": {"amount_minor": 19900, "currency": "EUR"},
            "total": 100, "per_buyer_limit": 1, "opens_at_ms": NOW_MS - 60_000, "closes_at_ms": NOW_MS + 3_600_000,
            "buckets": 4, "admit_factor": 5.0, "enter_rate_per_s": 100.0, "pay_window_ms": 600_000, "grace_ms": 30_000,
            "second_try": false, "anonymous_entry": true, "backlog_limit": 1000
        },
        "state": "open", "jwks": {"keys": [jwk("k1", &pair)]}, "issuer": "shop", "now_ms": 0
    });
    let host = Runtime {
        clock_ms: Cell::new(NOW_MS),
        skew_ms: Cell::new(0),
        drawn: Cell::new(0),
        doc: RefCell::new(Some(doc)),
        lease: RefCell::new(LeaseAnswer {
            granted: 0,
            granted_at_ms: 0,
            ttl_ms: 250,
            retry_ms: 100,
            now_ms: 0,
            state: SaleState::Open,
            sold_out: false,
            epoch: 3,
            config_version: 1,
            key_ids: None,
        }),
        permits: Cell::new(u32::MAX / 2),
        down: Cell::new(None),
        held: Cell::new(false),
        forwarded: RefCell::new((202, "application/json", "{\"ok\":true}".into())),
        seen: RefCell::default(),
        store: RefCell::default(),
        store_down: Cell::new(false),
    };
    World { gate: gate(), host, pair }
}

/// An answer, read.
#[derive(Debug, Clone)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub streamed: bool,
}

impl Got {
    pub fn problem(&self) -> Problem {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json", "{text}");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(problem.status, self.status);
        problem
    }

    pub fn kind(&self) -> String {
        self.problem().type_uri.trim_start_matches("/problems/").to_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl World {
    pub async fn send_from(&self, client: &str, request: Request<Bytes>) -> Got {
        let client: IpAddr = client.parse().unwrap();
        let answer = self.gate.handle(&&self.host, client, request).await;
        let (parts, body) = answer.into_parts();
        assert!(parts.headers.contains_key("flashgate-trace-id"), "{parts:?}");
        let (body, streamed) = match body {
            Body::Bytes(bytes) => (bytes, false),
            Body::Stream(name) => (Bytes::from(name), true),
        };
        Got { status: parts.status.as_u16(), headers: parts.headers, body, streamed }
    }

    pub async fn send(&self, request: Request<Bytes>) -> Got {
        self.send_from("10.0.0.1", request).await
    }

    pub async fn get(&self, path: &str) -> Got {
        self.send(get(path)).await
    }

    /// A good claim of this buyer.
    pub async fn claim(&self, buyer: &str) -> Got {
        self.send(self.claim_request(buyer)).await
    }

    pub fn claim_request(&self, buyer: &str) -> Request<Bytes> {
        Self::claim_with(&self.token(buyer))
    }

    pub fn claim_with(token: &str) -> Request<Bytes> {
        post(CLAIM, &[("idempotency-key", "k"), ("authorization", &format!("Bearer {token}"))])
    }

    pub async fn enter(&self) -> Got {
        self.send(post(ENTER, &[])).await
    }

    pub fn token(&self, buyer: &str) -> String {
        self.sign("k1", &self.entry(buyer))
    }

    pub fn device_token(&self, buyer: &str, device: &str) -> String {
        let mut claims = self.entry(buyer);
        claims["did"] = device.into();
        self.sign("k1", &claims)
    }

    fn entry(&self, buyer: &str) -> Value {
        let now_s = self.host.authority_ms() / 1000;
        json!({"iss": "shop", "aud": SALE, "sub": buyer, "jti": "j", "iat": now_s, "nbf": now_s, "exp": now_s + 600})
    }

    pub fn sign(&self, kid: &str, claims: &Value) -> String {
        self.sign_as(&json!({"typ": "JWT", "alg": "EdDSA", "kid": kid}), claims)
    }

    pub fn sign_as(&self, header: &Value, content: &Value) -> String {
        sign_with(&self.pair, header, content)
    }

    pub fn set_sale(&self, field: &str, value: impl Into<Value>) {
        self.host.doc.borrow_mut().as_mut().unwrap()["sale"][field] = value.into();
    }
}

pub fn get(path: &str) -> Request<Bytes> {
    Request::get(format!("http://shop.example{path}")).body(Bytes::new()).unwrap()
}

pub fn post(path: &str, headers: &[(&str, &str)]) -> Request<Bytes> {
    let mut request = Request::post(format!("http://shop.example{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Bytes::new()).unwrap()
}
