//! How Redis is set up, for the check before a sale.

use crate::{Stock, StockError};
use fred::{
    interfaces::ClientLike,
    types::{ClusterHash, CustomCommand, Value},
};

/// The settings that decide what Redis forgets. `None` where it does not tell: managed servers may not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Persistence {
    /// `appendonly`: must be `yes`.
    pub appendonly: Option<String>,
    /// `appendfsync`: `always`, or a measured reason against it.
    pub appendfsync: Option<String>,
    /// `maxmemory-policy`: must be `noeviction`.
    pub maxmemory_policy: Option<String>,
}

impl Stock {
    /// Asks one server.
    pub async fn persistence(&self) -> Result<Persistence, StockError> {
        let client = self.client()?;
        let setting = async |name: &'static str| -> Result<Option<String>, StockError> {
            let command = CustomCommand::new_static("CONFIG", ClusterHash::Random, false);
            match client.custom::<Vec<Value>, _>(command, vec!["GET", name]).await {
                Ok(pair) => Ok(pair.get(1).and_then(Value::as_string)),
                // It answers, and will not say.
                Err(error) if error.details().starts_with("ERR") || error.details().starts_with("NOPERM") => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        Ok(Persistence {
            appendonly: setting("appendonly").await?,
            appendfsync: setting("appendfsync").await?,
            maxmemory_policy: setting("maxmemory-policy").await?,
        })
    }
}
