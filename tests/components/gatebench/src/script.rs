//! The runtime and the origin behind it, as a script: it answers at once, and its clock moves with
//! the decisions.

use crate::{Case, ISSUER, NOW_MS, SALE};
use bytes::Bytes;
use flashgate_gate::{Body, Host, KvError, OriginError, Terms};
use flashgate_shared::{
    UnixMs,
    sale::SaleState,
    wire::{LeaseAnswer, LeaseRequest},
};
use http::{Request, Response, header::CONTENT_TYPE};
use serde_json::{Value, json};
use std::cell::Cell;

/// How often the edge may ask for permits, in milliseconds.
const RETRY_MS: i64 = 10;
/// Decisions in a millisecond of the script's clock: about as fast as each case really goes.
const SOLD_OUT_PER_MS: u32 = 100;
/// See [`SOLD_OUT_PER_MS`].
const ADMITTED_PER_MS: u32 = 5;

/// The scripted runtime.
pub(crate) struct Script {
    clock_ms: Cell<UnixMs>,
    drawn: Cell<u64>,
    per_ms: u32,
    sold_out: bool,
    sale: String,
}

impl Script {
    pub(crate) fn new(case: Case, jwk: &Value) -> Self {
        let free = json!({"rate_per_s": 1e6, "burst": 1e6});
        let sale = json!({
            "sale": {
                "id": SALE, "version": 1, "title": "Phones", "price": {"amount_minor": 19_900, "currency": "EUR"},
                "total": 100, "per_buyer_limit": 1, "opens_at_ms": NOW_MS - 60_000, "closes_at_ms": NOW_MS + 86_400_000,
                "buckets": 4, "admit_factor": 5.0, "enter_rate_per_s": 100.0, "pay_window_ms": 600_000,
                "grace_ms": 30_000, "second_try": false, "anonymous_entry": true, "backlog_limit": 1_000,
                "address_limits": {"claim": free, "enter": free, "status": free, "read": free}
            },
            "state": "open", "jwks": {"keys": [jwk]}, "issuer": ISSUER, "now_ms": NOW_MS
        });
        let (per_ms, sold_out) = match case {
            Case::SoldOut => (SOLD_OUT_PER_MS, true),
            Case::Admitted => (ADMITTED_PER_MS, false),
        };
        Self { clock_ms: Cell::new(NOW_MS), drawn: Cell::new(0), per_ms, sold_out, sale: sale.to_string() }
    }

    /// Time passes with the decisions.
    pub(crate) fn tick(&self, n: u32) {
        if n.is_multiple_of(self.per_ms) {
            self.clock_ms.set(self.clock_ms.get() + 1);
        }
    }

    fn lease(&self, body: &[u8]) -> Option<String> {
        let ask: LeaseRequest = serde_json::from_slice(body).ok()?;
        let now_ms = self.clock_ms.get();
        serde_json::to_string(&LeaseAnswer {
            granted: if self.sold_out { 0 } else { ask.want },
            granted_at_ms: now_ms,
            ttl_ms: 250,
            retry_ms: RETRY_MS,
            now_ms,
            state: SaleState::Open,
            sold_out: self.sold_out,
            epoch: 1,
            config_version: 1,
            key_ids: None,
        })
        .ok()
    }
}

impl Host for &Script {
    type Stream = ();

    fn now_ms(&self) -> UnixMs {
        self.clock_ms.get()
    }

    fn random_u64(&self) -> u64 {
        self.drawn.set(self.drawn.get().wrapping_add(1));
        // Any fixed bijection will do.
        self.drawn.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    async fn origin(&self, request: Request<Bytes>, _: Terms) -> Result<Response<Body<()>>, OriginError> {
        let path = request.uri().path();
        let (status, body) = if path.starts_with("/v1/edge/sales/") {
            (200, self.sale.clone())
        } else if path == "/v1/edge/leases" {
            (200, self.lease(request.body()).ok_or(OriginError::NoAnswer)?)
        } else {
            (202, "{\"claim_id\":\"0\",\"status_url\":\"/\",\"poll_after_ms\":300}".to_owned())
        };
        let answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
        answer.body(Body::Bytes(Bytes::from(body))).map_err(|_| OriginError::NoAnswer)
    }

    async fn pause(&self, ms: u64) {
        self.clock_ms.set(self.clock_ms.get().saturating_add_unsigned(ms));
    }

    async fn kv_get(&self, _: &str) -> Result<Option<Vec<u8>>, KvError> {
        Err(KvError)
    }

    async fn kv_put(&self, _: &str, _: &[u8]) -> Result<(), KvError> {
        Err(KvError)
    }
}
