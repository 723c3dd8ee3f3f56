//! The edge gate as a Spin component: translation only, every decision is in `flashgate-gate`.
//!
//! An instance serves many requests, several at a time, and may end at any moment: what the gate
//! remembers is a cache. The client's address is the one that the runtime vouches for.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod translate;

use bytes::Bytes;
use flashgate_gate::{Body, BodyError, Draws, Gate, GateConfig, Host, KvError, OriginError, Terms};
use flashgate_shared::UnixMs;
use http::{HeaderMap, HeaderValue, Uri, header::CONTENT_LENGTH, uri::Parts};
use http_body_util::Full;
use spin_sdk::{
    http::send,
    key_value::{self, Store},
    variables,
    wasip3::{
        clocks::monotonic_clock,
        exports::http::handler::Guest,
        http::types::{self, ErrorCode},
        http_compat::IncomingResponseBody,
        random::random,
    },
};
use std::{
    cell::OnceCell,
    future::{Future, poll_fn},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{SystemTime, UNIX_EPOCH},
};

/// The header in which the runtime tells the client's socket address.
const CLIENT_ADDRESS: &str = "spin-client-addr";

/// What lives as long as the instance.
struct Instance {
    gate: Gate,
    /// Scheme and authority of the origin; `None` when the variable is unusable: nobody is admitted.
    origin: Option<Parts>,
    draws: Draws,
}

thread_local! {
    static INSTANCE: OnceCell<Rc<Instance>> = const { OnceCell::new() };
}

async fn instance() -> Rc<Instance> {
    if let Some(instance) = INSTANCE.with(|cell| cell.get().cloned()) {
        return instance;
    }
    let read = |name: &'static str| async move {
        variables::get(name).await.unwrap_or_else(|e| {
            eprintln!("flashgate: variable {name}: {e}");
            String::new()
        })
    };
    let (origin_url, edge_key) = (read("origin_url").await, read("edge_key").await);
    let document_keys = read("document_keys").await;
    let made = Instance {
        gate: Gate::new(GateConfig { edge_key, document_keys }),
        origin: origin_url.parse::<Uri>().ok().map(Uri::into_parts),
        draws: Draws::new([random::get_random_u64(), random::get_random_u64()]),
    };
    // Another request may have been faster during the awaits: the first one made stays.
    INSTANCE.with(|cell| cell.get_or_init(|| Rc::new(made)).clone())
}

/// The ports of the gate on this runtime.
struct Runtime(Rc<Instance>);

impl Host for Runtime {
    type Stream = IncomingResponseBody;

    fn now_ms(&self) -> UnixMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs::try_from(since.as_millis()).unwrap_or(UnixMs::MAX)
    }

    fn random_u64(&self) -> u64 {
        self.0.draws.next()
    }

    async fn origin(
        &self,
        request: http::Request<Bytes>,
        terms: Terms,
    ) -> Result<http::Response<Body<IncomingResponseBody>>, OriginError> {
        let request = self.outgoing(request).ok_or(OriginError::Unreachable)?;
        let work = async {
            let answer = send(request).await.map_err(|e| origin_error(&e))?;
            let (parts, body) = answer.into_parts();
            if terms.stream && parts.status.is_success() {
                return Ok(http::Response::from_parts(parts, Body::Stream(body)));
            }
            let bytes = translate::collect(body, terms.max_bytes).await.map_err(|e| match e {
                BodyError::TooLarge => OriginError::TooLarge,
                BodyError::Broken => OriginError::NoAnswer,
            })?;
            Ok(http::Response::from_parts(parts, Body::Bytes(bytes)))
        };
        within(terms.deadline_ms, work).await.unwrap_or(Err(OriginError::NoAnswer))
    }

    async fn pause(&self, ms: u64) {
        monotonic_clock::wait_for(ms.saturating_mul(1_000_000)).await;
    }

    async fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        let store = Store::open_default().await.map_err(|e| kv_error(&e))?;
        store.get(key).await.map_err(|e| kv_error(&e))
    }

    async fn kv_put(&self, key: &str, value: &[u8]) -> Result<(), KvError> {
        let store = Store::open_default().await.map_err(|e| kv_error(&e))?;
        store.set(key, value).await.map_err(|e| kv_error(&e))
    }
}

/// What the gate need not know is told to the operator.
fn kv_error(error: &key_value::Error) -> KvError {
    eprintln!("flashgate: key-value store: {error:?}");
    KvError
}

impl Runtime {
    /// The request with the origin's scheme and authority.
    fn outgoing(&self, request: http::Request<Bytes>) -> Option<http::Request<Full<Bytes>>> {
        let origin = self.0.origin.as_ref()?;
        let (mut parts, body) = request.into_parts();
        let mut uri = parts.uri.into_parts();
        uri.scheme = origin.scheme.clone();
        uri.authority = origin.authority.clone();
        parts.uri = Uri::from_parts(uri).ok()?;
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Some(http::Request::from_parts(parts, Full::new(body)))
    }
}

/// Whether a failed request surely had no effect.
fn origin_error(error: &ErrorCode) -> OriginError {
    match error {
        ErrorCode::DnsTimeout
        | ErrorCode::DnsError(_)
        | ErrorCode::DestinationNotFound
        | ErrorCode::DestinationUnavailable
        | ErrorCode::DestinationIpProhibited
        | ErrorCode::DestinationIpUnroutable
        | ErrorCode::ConnectionRefused
        | ErrorCode::ConnectionTimeout
        | ErrorCode::ConnectionLimitReached
        | ErrorCode::TlsProtocolError
        | ErrorCode::TlsCertificateError
        | ErrorCode::HttpRequestDenied => OriginError::Unreachable,
        _ => OriginError::NoAnswer,
    }
}

/// The work's result, or `None` when the time is over first; the work is then cancelled.
async fn within<T>(ms: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut time = pin!(monotonic_clock::wait_for(ms.saturating_mul(1_000_000)));
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        time.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// The address that the runtime vouches for. Without one all clients share a bucket.
fn client_address(headers: &HeaderMap) -> IpAddr {
    headers
        .get(CLIENT_ADDRESS)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<SocketAddr>().map(|a| a.ip()).or_else(|_| v.parse()).ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// What the component exports: `wasi:http/handler`.
struct Edge;

spin_sdk::wasip3::http::service::export!(Edge);

impl Guest for Edge {
    async fn handle(message: types::Request) -> Result<types::Response, ErrorCode> {
        let request = translate::request(message)?;
        let instance = instance().await;
        let client = client_address(request.headers());
        let runtime = Runtime(instance.clone());
        translate::response(instance.gate.handle(&runtime, client, request).await)
    }
}
