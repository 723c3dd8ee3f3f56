//! The embedded scripts and how they are called.

use crate::{Stock, StockError};
use fred::{
    interfaces::{ClientLike, LuaInterface},
    types::Value,
    util::sha1_hash,
};

/// A script and the hash Redis knows it by.
pub(crate) struct Script {
    text: &'static str,
    sha: String,
}

/// All scripts, from `lua/`.
pub(crate) struct Scripts {
    pub claim: Script,
    pub release: Script,
    pub load: Script,
    pub look: Script,
    pub lease: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let script = |text: &'static str| Script { text, sha: sha1_hash(text) };
        Self {
            claim: script(include_str!("../../../lua/claim.lua")),
            release: script(include_str!("../../../lua/release.lua")),
            load: script(include_str!("../../../lua/load.lua")),
            look: script(include_str!("../../../lua/look.lua")),
            lease: script(include_str!("../../../lua/lease.lua")),
        }
    }
}

impl Stock {
    /// Calls a script by its hash; where the server does not know it (restart, failover), loads it
    /// and calls it once more, which is safe because the first call did nothing.
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: Vec<String>,
        arguments: Vec<Value>,
    ) -> Result<Value, StockError> {
        let client = self.client()?;
        let first = client.evalsha::<Value, _, _, _>(script.sha.as_str(), keys.clone(), arguments.clone()).await;
        match first {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                if client.is_clustered() {
                    let _: String = client.script_load_cluster(script.text).await?;
                } else {
                    let _: String = client.script_load(script.text).await?;
                }
                Ok(client.evalsha(script.sha.as_str(), keys, arguments).await?)
            }
            other => Ok(other?),
        }
    }
}

/// The integer at a place of a script's answer.
pub(crate) fn integer(answer: &[Value], place: usize) -> Result<i64, StockError> {
    let value = answer.get(place).and_then(Value::as_i64);
    value.ok_or_else(|| StockError::Protocol(format!("no integer at {place} in {answer:?}")))
}

/// The text at a place of a script's answer.
pub(crate) fn text(answer: &[Value], place: usize) -> Result<String, StockError> {
    let value = answer.get(place).and_then(Value::as_string);
    value.ok_or_else(|| StockError::Protocol(format!("no text at {place} in {answer:?}")))
}

/// A script's answer as a list.
pub(crate) fn list(answer: Value) -> Result<Vec<Value>, StockError> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(StockError::Protocol(format!("no list: {other:?}"))),
    }
}
