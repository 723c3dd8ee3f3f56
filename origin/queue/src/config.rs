//! Settings of the connection to RabbitMQ.

use serde::{Deserialize, Serialize};

/// How to reach RabbitMQ, and the limits of doing so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// `amqp://user:password@host:port/vhost`.
    pub url: String,
    /// First part of every queue's name.
    pub prefix: String,
    /// How long connecting, declaring or asking for a depth may take, in milliseconds.
    pub operation_timeout_ms: u64,
    /// How long a publisher waits for the broker's confirm, in milliseconds.
    pub confirm_timeout_ms: u64,
    /// Most messages published and not confirmed yet; more publishers wait their turn.
    pub max_unconfirmed: usize,
    /// Most messages delivered to a consumer and not acknowledged yet.
    pub prefetch: u16,
    /// Most messages in a batch.
    pub batch_max: usize,
    /// How long a batch waits for more after its first message, in milliseconds.
    pub batch_linger_ms: u64,
    /// Deliveries after which a message is dead: far more than any outage causes.
    pub delivery_limit: i64,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            url: "amqp://guest:guest@127.0.0.1:5672/%2f".into(),
            prefix: "flashgate".into(),
            operation_timeout_ms: 5_000,
            confirm_timeout_ms: 1_000,
            max_unconfirmed: 2_000,
            prefetch: 1_000,
            batch_max: 250,
            batch_linger_ms: 5,
            delivery_limit: 20,
        }
    }
}
