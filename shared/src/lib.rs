//! The vocabulary of Flashgate: what the edge, the origin and the tools say to each other.
//!
//! This crate does no I/O, reads no clock and draws no randomness: time and random numbers are
//! arguments. It builds for the native target, `wasm32-unknown-unknown` and `wasm32-wasip2`. No
//! host, database or broker type may enter here.

pub mod admission;
pub mod chain;
pub mod clock;
pub mod document;
pub mod envelope;
pub mod ids;
pub mod limits;
pub mod money;
pub mod order;
pub mod problem;
pub mod sale;
pub mod token;
pub mod trace;
pub mod wire;

pub use clock::{Clock, UnixMs};
pub use ids::{BucketIndex, BuyerId, ClaimId, Epoch, HoldId, IdError, IdempotencyKey, SaleId};
pub use money::Money;
