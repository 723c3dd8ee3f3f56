//! The ports: what a runtime lends the gate.

use bytes::Bytes;
use flashgate_shared::UnixMs;
use std::future::Future;

/// What the runtime lends the gate for one request.
///
/// The futures need not be `Send`: an instance is single-threaded on every runtime.
pub trait Host {
    /// An event stream of the origin that is handed through.
    type Stream;

    /// The edge's own clock. Admission and windows follow the authority's clock instead.
    fn now_ms(&self) -> UnixMs;

    /// A random number: for jitter, trace ids and the address table's seed.
    fn random_u64(&self) -> u64;

    /// Sends a request, whose target is a path and query, to the origin.
    fn origin(
        &self,
        request: http::Request<Bytes>,
        terms: Terms,
    ) -> impl Future<Output = Result<http::Response<Body<Self::Stream>>, OriginError>>;

    /// Comes back after about this time.
    fn pause(&self, ms: u64) -> impl Future<Output = ()>;

    /// What is under this key in the runtime's key-value store, which all its instances share.
    fn kv_get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, KvError>>;

    /// Puts a value under this key.
    fn kv_put(&self, key: &str, value: &[u8]) -> impl Future<Output = Result<(), KvError>>;
}

/// The key-value store does not answer, or there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key-value store does not answer")]
pub struct KvError;

/// How an answer of the origin is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Give up after this time, in milliseconds: the whole answer, or a stream's headers.
    pub deadline_ms: u64,
    /// Largest body that is collected, in bytes; a larger one is [`OriginError::TooLarge`].
    pub max_bytes: usize,
    /// Hand a successful answer's body through as a stream instead of collecting it.
    pub stream: bool,
}

/// Why the origin gave no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// No connection: the request surely had no effect.
    #[error("the origin cannot be reached")]
    Unreachable,
    /// No answer in time, or the connection broke: the outcome is unknown.
    #[error("the origin did not answer")]
    NoAnswer,
    /// The answer is larger than the limit.
    #[error("the origin's answer is too large")]
    TooLarge,
}

/// The body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<S> {
    /// All of it.
    Bytes(Bytes),
    /// An event stream, handed through.
    Stream(S),
}

/// Why a request's body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Larger than the limit.
    #[error("the body is too large")]
    TooLarge,
    /// It broke off.
    #[error("the body broke off")]
    Broken,
}

/// The body of a request: read only when the request is forwarded, so that refusals stay cheap.
pub trait RequestBody {
    /// All of it, at most `max_bytes`.
    fn read(self, max_bytes: usize) -> impl Future<Output = Result<Bytes, BodyError>>;
}

impl RequestBody for Bytes {
    async fn read(self, max_bytes: usize) -> Result<Bytes, BodyError> {
        if self.len() > max_bytes {
            return Err(BodyError::TooLarge);
        }
        Ok(self)
    }
}
