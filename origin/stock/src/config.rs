//! Settings of the connection to Redis.

use serde::{Deserialize, Serialize};

/// How to reach Redis, and the limits of doing so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StockConfig {
    /// `redis://host:port`.
    pub url: String,
    /// First part of every key, so that deployments and tests can share a server.
    pub prefix: String,
    /// Connections, used in turn.
    pub pool_size: usize,
    /// How long one command may take, in milliseconds; after that its outcome is unknown.
    pub command_timeout_ms: u64,
    /// How long connecting may take, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Most commands that wait in one connection's buffer.
    pub max_buffered_commands: usize,
}

impl Default for StockConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".into(),
            prefix: "fg".into(),
            pool_size: 4,
            command_timeout_ms: 1_000,
            connect_timeout_ms: 2_000,
            max_buffered_commands: 10_000,
        }
    }
}
