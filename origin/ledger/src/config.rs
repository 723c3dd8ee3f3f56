//! Where Postgres is, and how long anything may take there.

use serde::Deserialize;
use std::fmt;

/// How the ledger reaches Postgres. Every limit has its unit in its name.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerConfig {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Most connections of the workers: settle, sweep, releases, refunds.
    pub pool_settle: u32,
    /// Most connections of the requests: status, pay, sales, audit. Apart from the workers', so that a
    /// surge of settling cannot starve a buyer's question.
    pub pool_read: u32,
    /// The server ends a statement that takes longer.
    pub statement_timeout_ms: u64,
    /// The server ends a transaction that idles longer: a paused client must not keep the stock locked.
    pub idle_in_transaction_timeout_ms: u64,
    /// How long to wait for a connection from a pool.
    pub acquire_timeout_ms: u64,
    /// How long a release handed to a worker stays hidden from the others.
    pub release_lease_ms: i64,
    /// How long a refund handed to a worker stays hidden from the others.
    pub refund_lease_ms: i64,
    /// The longest wait between two tries of one release or refund.
    pub backoff_max_ms: i64,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            url: "postgres://flashgate@127.0.0.1:5432/flashgate".into(),
            pool_settle: 8,
            pool_read: 16,
            statement_timeout_ms: 5_000,
            idle_in_transaction_timeout_ms: 10_000,
            acquire_timeout_ms: 3_000,
            release_lease_ms: 5_000,
            refund_lease_ms: 30_000,
            backoff_max_ms: 300_000,
        }
    }
}

impl fmt::Debug for LedgerConfig {
    /// Leaves the URL out: it holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerConfig")
            .field("pool_settle", &self.pool_settle)
            .field("pool_read", &self.pool_read)
            .field("statement_timeout_ms", &self.statement_timeout_ms)
            .finish_non_exhaustive()
    }
}
