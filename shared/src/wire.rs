//! The bodies and headers of the HTTP API. Field names are the vocabulary of design §4.

mod buyers;
mod edges;
mod operators;
mod payments;

pub use buyers::*;
pub use edges::*;
pub use operators::*;
pub use payments::*;

/// The edge's own credential towards the origin.
pub const EDGE_KEY_HEADER: &str = "flashgate-edge-key";
/// The permit of a forwarded claim; see [`crate::admission::Permit`].
pub const PERMIT_HEADER: &str = "flashgate-permit";
/// The buyer's idempotency key.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// W3C trace context.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// On every answer of edge and origin: the trace id.
pub const TRACE_ID_HEADER: &str = "flashgate-trace-id";
