//! The edge gate: every decision that the edge takes, and nothing of the runtime it runs in.
//!
//! The gate says no cheaply, far from the database, in the order of design §5: request, sale state,
//! address, admission, entry token; only then is a permit spent and the origin asked. It must never
//! read a clock, draw a random number or open a connection itself: the runtime lends those through
//! [`Host`]. It must never verify a signature for a request that a cheaper check refuses, and it
//! must never admit anybody without a permit of the authority.
//!
//! Everything that it remembers is a cache with a named bound: a restarted gate asks again.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod address;
mod authority;
mod documents;
mod draws;
mod entry;
mod forward;
mod gate;
mod host;
mod lease;
pub mod limits;
mod page;
mod refresh;
mod refuse;
mod route;
mod sales;
mod steps;
mod sublease;
mod view;

pub use address::shield_key;
pub use draws::Draws;
pub use gate::{Answer, Gate, GateConfig};
pub use host::{Body, BodyError, Host, KvError, OriginError, RequestBody, Terms};
pub use sublease::{Sublessor, lease_question};
