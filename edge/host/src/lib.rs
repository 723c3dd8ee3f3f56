//! Flashgate's own edge: serves the Spin component without Spin, close to the metal.
//!
//! It knows nothing of sales. It gives a component what Spin gives (WASI 0.3, HTTP, variables, a
//! key-value store, the client's address in `spin-client-addr`) and takes from clients and component no more than the
//! limits allow. It must never decide anything that the gate decides, and never let the component
//! call a host that is not on the list.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod access_log;
mod admin;
mod answer;
mod component;
mod config;
mod connection;
mod gauge;
mod guest_log;
mod instance;
mod key_value;
mod metrics;
mod outgoing;
mod request;
mod server;
mod tls;
mod variables;
mod worker;

pub use component::Compiled;
pub use config::{Config, Limits};
pub use metrics::Metrics;
pub use server::Server;
