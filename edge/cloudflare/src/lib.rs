//! The edge gate for Cloudflare Workers: translation only, every decision is in `flashgate-gate`.
//!
//! An isolate serves many requests at once and may end at any moment: what the gate remembers is a
//! cache. Leases are asked of a Durable Object, one per sale and location ([`LeaseDesk`]), which asks
//! the origin for all isolates near it. The client's address is the one that Cloudflare vouches for.
//! What a panic does is in `entry.mjs`.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod lessor;
mod translate;

use bytes::Bytes;
use flashgate_gate::{Body, Draws, Gate, GateConfig, Host, KvError, OriginError, Terms};
use flashgate_shared::{UnixMs, problem::ProblemKind};
use futures_util::{
    future::{Either, select},
    task::AtomicWaker,
};
use http::HeaderMap;
use std::{
    cell::OnceCell,
    future::{Future, poll_fn},
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context as TaskContext, Poll, Wake, Waker},
    time::Duration,
};
use worker::{
    AbortController, Delay, Env, Fetch, Stub, js_sys,
    wasm_bindgen::{self, JsValue, prelude::wasm_bindgen},
    wasm_bindgen_futures::future_to_promise,
    web_sys::{self, ReadableStream},
};

pub use lessor::LeaseDesk;

/// The header in which Cloudflare tells the client's address; it overwrites what a client sends.
const CLIENT_ADDRESS: &str = "cf-connecting-ip";
/// Bindings, as `wrangler.toml` names them.
const ORIGIN_URL: &str = "ORIGIN_URL";
const EDGE_KEY: &str = "EDGE_KEY";
const LEASES: &str = "LEASES";
const SHIELD: &str = "SHIELD";
const SALES: &str = "SALES";
const DOCUMENT_KEYS: &str = "DOCUMENT_KEYS";

/// What lives as long as the isolate.
struct Instance {
    gate: Gate,
    place: Rc<Place>,
    /// Whether the shield is bound: looking for what is not there costs more than a refusal.
    shielded: bool,
}

/// What does not change while an isolate, or a Durable Object, lives.
struct Place {
    /// Scheme and authority of the origin, without a slash at the end.
    origin: String,
    /// The data centre: an isolate never leaves it.
    colo: String,
    draws: Draws,
}

thread_local! {
    static INSTANCE: OnceCell<Rc<Instance>> = const { OnceCell::new() };
}

impl Place {
    fn new(env: &Env, colo: String) -> Self {
        Self {
            origin: env.var(ORIGIN_URL).map(|v| v.to_string()).unwrap_or_default().trim_end_matches('/').to_owned(),
            colo,
            // It does not fail within a request. If it did, jitter and trace ids could be guessed.
            draws: Draws::new([getrandom::u64().unwrap_or_default(), getrandom::u64().unwrap_or_default()]),
        }
    }
}

fn gate_config(env: &Env) -> GateConfig {
    GateConfig {
        edge_key: env.secret(EDGE_KEY).map(|v| v.to_string()).unwrap_or_default(),
        document_keys: env.var(DOCUMENT_KEYS).map(|v| v.to_string()).unwrap_or_default(),
    }
}

/// The ports of the gate on this runtime, for one request: no I/O object of another one is in it.
struct Runtime {
    place: Rc<Place>,
    env: Env,
    /// Whether leases are asked of the sale's Durable Object, and not of the origin itself.
    sub_leases: bool,
}

impl Host for Runtime {
    type Stream = ReadableStream;

    fn now_ms(&self) -> UnixMs {
        // Whole milliseconds, far below 2^53.
        js_sys::Date::now() as UnixMs
    }

    fn random_u64(&self) -> u64 {
        self.place.draws.next()
    }

    async fn origin(
        &self,
        request: http::Request<Bytes>,
        terms: Terms,
    ) -> Result<http::Response<Body<ReadableStream>>, OriginError> {
        let desk = self.desk(&request);
        let outgoing = translate::outgoing(&self.place.origin, request).ok_or(OriginError::Unreachable)?;
        let abort = AbortController::default();
        let signal = abort.signal();
        let work = async {
            let answer = match desk {
                Some(desk) => desk.fetch_with_request(outgoing).await,
                None => Fetch::Request(outgoing).send_with_signal(&signal).await,
            };
            // The runtime does not say whether a failed request was sent.
            translate::incoming(answer.map_err(|_| OriginError::NoAnswer)?, terms).await
        };
        match select(pin!(work), pin!(self.pause(terms.deadline_ms))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                abort.abort();
                Err(OriginError::NoAnswer)
            }
        }
    }

    async fn pause(&self, ms: u64) {
        Delay::from(Duration::from_millis(ms)).await;
    }

    async fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        let store = self.env.kv(SALES).map_err(|_| KvError)?;
        store.get(key).bytes().await.map_err(|_| KvError)
    }

    async fn kv_put(&self, key: &str, value: &[u8]) -> Result<(), KvError> {
        let store = self.env.kv(SALES).map_err(|_| KvError)?;
        store.put_bytes(key, value).map_err(|_| KvError)?.execute().await.map_err(|_| KvError)
    }
}

impl Runtime {
    /// The Durable Object to which this request goes, if it is a question for a lease. Without the
    /// binding the isolate asks the origin itself.
    fn desk(&self, request: &http::Request<Bytes>) -> Option<Stub> {
        let sale = flashgate_gate::lease_question(request).filter(|_| self.sub_leases)?;
        let desks = self.env.durable_object(LEASES).ok()?;
        desks.id_from_name(&format!("{sale}@{}", self.place.colo)).ok()?.get_stub().ok()
    }

    /// Whether the coarse shield lets this client through: counted per location by Cloudflare itself,
    /// far above the gate's own limits. It is optional: without the binding, or when it fails, it does.
    async fn shield_lets_through(&self, client: IpAddr) -> bool {
        let Ok(shield) = self.env.rate_limiter(SHIELD) else {
            return true;
        };
        shield.limit(flashgate_gate::shield_key(client)).await.map_or(true, |outcome| outcome.success)
    }
}

/// The address that Cloudflare vouches for. Without one all clients share a bucket.
fn client_address(headers: &HeaderMap) -> IpAddr {
    headers
        .get(CLIENT_ADDRESS)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Answers a request: at once, or with a promise when it must wait for something.
///
/// Nearly everybody is refused from memory, and a promise costs more than such a refusal. The entry's own
/// function instead of the library's `event`, which always makes one.
#[wasm_bindgen]
pub fn fetch(message: web_sys::Request, env: Env) -> Result<JsValue, JsValue> {
    let mut work = Box::pin(answer(message, env));
    let later = Arc::new(Later(AtomicWaker::new()));
    let waker = Waker::from(later.clone());
    if let Poll::Ready(response) = work.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
        return Ok(response?.into());
    }
    let rest = poll_fn(move |task| {
        later.0.register(task.waker());
        work.as_mut().poll(&mut TaskContext::from_waker(&waker))
    });
    Ok(future_to_promise(async move { Ok(rest.await?.into()) }).into())
}

/// Wakes whatever task polls the work by now. Some of the library's futures keep the first waker that they
/// see, and there is no task yet when the work is polled first.
struct Later(AtomicWaker);

impl Wake for Later {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

async fn answer(message: web_sys::Request, env: Env) -> worker::Result<web_sys::Response> {
    let make = || Instance {
        gate: Gate::new(gate_config(&env)),
        place: Rc::new(Place::new(&env, translate::colo(&message))),
        shielded: env.rate_limiter(SHIELD).is_ok(),
    };
    let instance = INSTANCE.with(|cell| cell.get_or_init(|| Rc::new(make())).clone());
    let gate = &instance.gate;
    let runtime = Runtime { place: instance.place.clone(), env, sub_leases: true };
    let Some(request) = translate::request(message) else {
        return translate::response(gate.refuse(&runtime, &http::Request::new(()), ProblemKind::BadRequest));
    };
    let client = client_address(request.headers());
    if instance.shielded && !runtime.shield_lets_through(client).await {
        return translate::response(gate.refuse(&runtime, &request, ProblemKind::SlowDown));
    }
    translate::response(gate.handle(&runtime, client, request).await)
}
