//! The queue: sole owner of RabbitMQ (design §6, §7).
//!
//! A sale has a durable quorum queue, `<prefix>.claims.<sale>`, whose length is capped by rejecting
//! publishers (never by dropping the oldest winners), and a queue of dead letters,
//! `<prefix>.dead.<sale>`, reached at least once. Only the broker's plain *ack* of our own message id
//! counts as success; whatever else happens is *unknown*, and the relay publishes again.
//!
//! Connections and channels are not recovered by the client library but by the loops here: a lost
//! channel is thrown away with all that waited on it, and a new one is opened. One task publishes,
//! since the library may mix up the confirms of tasks that share a channel.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod backoff;
mod config;
mod connection;
mod consumer;
mod link;
mod publisher;
mod topology;
mod under_way;

pub use config::QueueConfig;
pub use connection::{Queue, QueueError};
pub use consumer::{Batch, Consumer, Message, Source};
pub use publisher::Published;
pub use topology::Depth;
