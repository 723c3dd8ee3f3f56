//! Errors, split by who acts.

/// What the ledger could not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Postgres cannot be reached, or did not answer in time. Nothing is known of a commit under way;
    /// every operation may be repeated. For the operator.
    #[error("the ledger is unavailable: {0}")]
    Unavailable(String),
    /// Another state than the one named. For the caller.
    #[error("conflict: {0}")]
    Conflict(String),
    /// No such row, or not this buyer's.
    #[error("not found")]
    NotFound,
    /// A value that the ledger does not take. For the caller.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A state that cannot be. For the programmer.
    #[error("bug in the ledger: {0}")]
    Bug(String),
}

/// What keeps a batch from being settled: `Unavailable` means keep the messages and stop consuming.
pub type SettleError = LedgerError;
