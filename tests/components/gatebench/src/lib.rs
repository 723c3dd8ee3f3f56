//! Times the gate's decisions in memory, against a scripted host: no sockets, no runtime. The same
//! [`run`] is called natively by the benchmark and, in Wasm, by the component that this crate is too,
//! so that the two figures differ by the compiler's target alone.

mod script;

#[cfg(target_family = "wasm")]
mod component;

use bytes::Bytes;
use flashgate_gate::{Gate, GateConfig};
use http::{Request, StatusCode};
use script::Script;
use serde::{Deserialize, Serialize};
use std::{
    future::Future,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

/// The sale that is claimed.
pub const SALE: &str = "phones";
/// The `iss` that tokens must have.
pub const ISSUER: &str = "bench";
/// The script's clock in the beginning, Unix ms: tokens must be valid from here for an hour.
pub const NOW_MS: i64 = 1_700_000_000_000;
/// Decisions before the clock is started: the gate fetches the sale and learns the demand.
const WARM_UP: u32 = 500;
/// Buyers come from so many addresses.
const ADDRESSES: u32 = 4_096;

/// Which decision is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// A claim in a sold-out sale: 410.
    SoldOut,
    /// A claim that is let through: address, permit and token checked, forwarded, 202.
    Admitted,
}

/// What to time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Which decision.
    pub case: Case,
    /// How many.
    pub count: u32,
    /// The public key of the token, a JWK.
    pub jwk: serde_json::Value,
    /// The buyer's entry token.
    pub token: String,
}

/// Makes the decisions; the nanoseconds that each took on average.
///
/// # Errors
/// A request that cannot be built, or an answer that is not the one expected of the case.
pub fn run(job: &Job) -> Result<f64, String> {
    let gate = Gate::new(GateConfig { edge_key: "edge-key".to_owned(), document_keys: String::new() });
    let script = Script::new(job.case, &job.jwk);
    let expected = match job.case {
        Case::SoldOut => StatusCode::GONE,
        Case::Admitted => StatusCode::ACCEPTED,
    };
    for n in 0..WARM_UP {
        decide(&gate, &script, job, n)?;
    }
    let started = Instant::now();
    for n in 0..job.count {
        let status = decide(&gate, &script, job, n)?;
        if status != expected {
            return Err(format!("decision {n}: {status} instead of {expected}"));
        }
    }
    Ok(started.elapsed().as_nanos() as f64 / f64::from(job.count.max(1)))
}

/// One claim, built as a runtime would hand it over.
fn decide(gate: &Gate, script: &Script, job: &Job, n: u32) -> Result<StatusCode, String> {
    script.tick(n);
    let request = Request::post("http://shop.example/v1/sales/phones/claim")
        .header("host", "shop.example")
        .header("idempotency-key", "bench")
        .header("authorization", format!("Bearer {}", job.token))
        .body(Bytes::new())
        .map_err(|e| e.to_string())?;
    let client = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n % ADDRESSES));
    let answer = at_once(gate.handle(&script, client, black_box(request)))?;
    Ok(black_box(answer).status())
}

/// The result of a future that the script never keeps waiting.
fn at_once<T>(future: impl Future<Output = T>) -> Result<T, String> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err("the script keeps nobody waiting".to_owned()),
    }
}
