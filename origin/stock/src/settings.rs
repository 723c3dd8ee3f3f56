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
    /// `aof_last_write_status`: anything but `ok` is a disk that takes no more.
    pub last_write: Option<String>,
    /// `used_memory`, in bytes.
    pub used_bytes: Option<u64>,
    /// `maxmemory`, in bytes; 0 is no limit but the machine's.
    pub max_bytes: Option<u64>,
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
        let command = CustomCommand::new_static("INFO", ClusterHash::Random, false);
        let info = match client.custom::<String, _>(command, Vec::<String>::new()).await {
            Ok(text) => text,
            Err(error) if error.details().starts_with("ERR") || error.details().starts_with("NOPERM") => String::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Persistence {
            last_write: field(&info, "aof_last_write_status").map(str::to_owned),
            used_bytes: field(&info, "used_memory").and_then(|bytes| bytes.parse().ok()),
            max_bytes: field(&info, "maxmemory").and_then(|bytes| bytes.parse().ok()),
            appendonly: setting("appendonly").await?,
            appendfsync: setting("appendfsync").await?,
            maxmemory_policy: setting("maxmemory-policy").await?,
        })
    }
}

/// A field of what INFO tells: lines of `name:value`.
fn field<'t>(info: &'t str, name: &str) -> Option<&'t str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "# Memory\r\nused_memory:7\r\nused_memory_rss:9\r\nmaxmemory:0\r\n";
        assert_eq!(
            (field(info, "used_memory"), field(info, "maxmemory"), field(info, "memory")),
            (Some("7"), Some("0"), None)
        );
    }
}
