//! What can go wrong between us and Redis.

use fred::error::{Error, ErrorKind};

/// Why a command has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StockError {
    /// It may or may not have been carried out: repeat it with the same ids, in the same bucket.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// It was not carried out.
    #[error("Redis is unavailable: {0}")]
    Unavailable(String),
    /// Redis or a script said something that this code does not understand: a bug.
    #[error("unexpected answer from Redis: {0}")]
    Protocol(String),
}

impl From<Error> for StockError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Timeout | ErrorKind::IO | ErrorKind::Canceled => Self::Unknown(text),
            ErrorKind::Auth | ErrorKind::Config | ErrorKind::Routing | ErrorKind::Backpressure | ErrorKind::Url => {
                Self::Unavailable(text)
            }
            // Refused by the server before the first write: read-only replica, out of memory,
            // loading its file, too few replicas.
            _ if ["READONLY", "OOM", "LOADING", "NOREPLICAS", "MASTERDOWN", "MISCONF", "BUSY"]
                .iter()
                .any(|code| error.details().contains(code)) =>
            {
                Self::Unavailable(text)
            }
            _ => Self::Protocol(text),
        }
    }
}
