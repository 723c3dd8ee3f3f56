//! Settings: a commented default in the binary, then a file, then the environment.

use figment::{
    Figment,
    providers::{Env, Format, Toml},
};
use flashgate_ledger::LedgerConfig;
use flashgate_queue::QueueConfig;
use flashgate_stock::StockConfig;
use serde::Deserialize;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// The commented default; `flashgate-origin config` prints it.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// All settings; `default.toml` says what each is for.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Config {
    pub server: ServerConfig,
    pub secrets: SecretsConfig,
    pub token: TokenConfig,
    pub redis: StockConfig,
    pub rabbitmq: QueueConfig,
    pub postgres: LedgerConfig,
    pub payment: PaymentConfig,
    pub relay: RelayConfig,
    pub sweep: SweepConfig,
    pub reconcile: ReconcileConfig,
    pub retention: RetentionConfig,
    pub log: LogConfig,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    #[serde(default, deserialize_with = "address_or_empty")]
    pub health_listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub header_read_timeout_ms: u64,
    pub request_timeout_ms: u64,
    pub max_in_flight: usize,
    pub max_event_streams: usize,
    pub shutdown_grace_ms: u64,
}

/// `[secrets]`: where they are, not what they are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SecretsConfig {
    pub edge_key_file: PathBuf,
    pub admin_token_file: PathBuf,
    pub status_mac_key_file: PathBuf,
    pub entry_signing_key_file: PathBuf,
    pub entry_kid: String,
    pub entry_previous_jwks_file: PathBuf,
    pub document_key_file: PathBuf,
    pub webhook_secret_file: PathBuf,
}

/// `[token]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TokenConfig {
    pub issuer: String,
    pub ttl_s: i64,
    pub shop_jwks_file: PathBuf,
    pub shop_issuer: String,
}

/// `[payment]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PaymentConfig {
    pub provider_url: String,
    pub timeout_ms: u64,
}

/// `[relay]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RelayConfig {
    pub period_ms: u64,
    pub batch_entries: u32,
    pub release_period_ms: u64,
}

/// `[reconcile]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ReconcileConfig {
    pub period_ms: u64,
}

/// `[retention]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RetentionConfig {
    pub after_s: u64,
}

/// `[sweep]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SweepConfig {
    pub period_ms: u64,
    pub batch_orders: u32,
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LogConfig {
    pub filter: String,
}

/// An address; empty is none.
fn address_or_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| serde::de::Error::custom(format!("{text:?} is no address such as 127.0.0.1:8081")))
}

/// Why the settings are no good: one line for the operator.
#[derive(Debug, thiserror::Error)]
#[error("settings: {0}")]
pub struct ConfigError(String);

impl Config {
    /// Reads default, file and environment, the later winning.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Toml::string(DEFAULT_TOML));
        if let Some(path) = file {
            if !path.is_file() {
                return Err(ConfigError(format!("{}: no such file", path.display())));
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        // Only names with a section are ours: FLASHGATE_STATE and the like belong to other tools.
        let env = Env::prefixed("FLASHGATE_").filter(|key| key.as_str().contains("__")).split("__");
        let config: Self = figment.merge(env).extract().map_err(|e| ConfigError(one_line(&e.to_string())))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let s = &self.server;
        for (name, value) in [
            ("server.max_connections", s.max_connections as u64),
            ("server.max_in_flight", s.max_in_flight as u64),
            ("server.header_read_timeout_ms", s.header_read_timeout_ms),
            ("server.request_timeout_ms", s.request_timeout_ms),
            ("payment.timeout_ms", self.payment.timeout_ms),
            ("relay.period_ms", self.relay.period_ms),
            ("relay.batch_entries", u64::from(self.relay.batch_entries)),
            ("relay.release_period_ms", self.relay.release_period_ms),
            ("reconcile.period_ms", self.reconcile.period_ms),
            ("sweep.period_ms", self.sweep.period_ms),
            ("sweep.batch_orders", u64::from(self.sweep.batch_orders)),
        ] {
            if value == 0 {
                return Err(ConfigError(format!("{name} must be at least 1")));
            }
        }
        if self.token.ttl_s <= 0 {
            return Err(ConfigError("token.ttl_s must be at least 1".into()));
        }
        if !self.payment.provider_url.starts_with("http") {
            return Err(ConfigError("payment.provider_url must be an http or https URL".into()));
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("origin.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path))
    }

    #[test]
    fn the_default_is_complete() {
        let config = Config::load(None).unwrap();
        assert_eq!(config.redis.prefix, "fg");
    }

    #[test]
    fn a_file_overrides_and_unknown_keys_are_refused_in_one_line() {
        assert_eq!(load("[token]\nissuer = \"x\"").unwrap().token.issuer, "x");
        for bad in [
            "[server]\nhealth_listen = \"here\"",
            "[token]\nisuer = \"x\"",
            "[nonsense]\na = 1",
            "[redis]\nurll = \"x\"",
            "[server]\nmax_in_flight = 0",
        ] {
            let error = load(bad).err().unwrap().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
