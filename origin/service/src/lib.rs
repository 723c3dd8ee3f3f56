//! The origin: the one service behind the edges, and its workers, as roles of one binary.
//!
//! `serve` answers HTTP, `work` settles, `relay` publishes again what the queue never confirmed and
//! gives units and money back, and rebuilds a gate that Redis has lost, `sweep` ends unpaid reservations. Every role may run any number of
//! times at once and may die at any moment: what was begun is a record in Redis or Postgres, and
//! whoever comes next finishes it. Nothing here holds a truth in memory.
//!
//! The crates `stock`, `queue` and `ledger` own Redis, RabbitMQ and Postgres; nothing here speaks to
//! those servers but through them.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod app;
pub mod audit;
pub mod claims;
pub mod clock;
pub mod config;
pub mod gate;
pub mod http;
pub mod notices;
pub mod provider;
pub mod queues;
pub mod reconcile;
pub mod roles;
pub mod run;
pub mod sales;
pub mod secrets;
pub mod status;
pub mod status_url;
pub mod traffic;
pub mod watchers;
pub mod webhooks;

pub use app::App;
pub use config::Config;
