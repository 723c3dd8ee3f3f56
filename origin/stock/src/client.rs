//! The connections.

use crate::{StockConfig, StockError, keys::BucketKeys, script::Scripts};
use flashgate_shared::{BucketIndex, SaleId, UnixMs};
use fred::{
    clients::Client,
    interfaces::ClientLike,
    types::{
        Builder, ClusterHash, CustomCommand, Value,
        config::{Config, ReconnectPolicy},
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Delays between attempts to reconnect, in milliseconds; attempts never end.
const RECONNECT_MIN_MS: u32 = 20;
const RECONNECT_MAX_MS: u32 = 1_000;
/// How often silent connections are looked for.
const UNRESPONSIVE_CHECK: Duration = Duration::from_millis(250);

/// A handle to the gate's Redis; cheap to clone.
#[derive(Clone)]
pub struct Stock {
    inner: Arc<Inner>,
}

struct Inner {
    clients: Vec<Client>,
    next: AtomicUsize,
    prefix: String,
    scripts: Scripts,
}

impl std::fmt::Debug for Stock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stock").field("prefix", &self.inner.prefix).finish_non_exhaustive()
    }
}

impl Stock {
    /// Connects all connections; fails when Redis cannot be reached now. Later losses are mended by
    /// reconnecting for ever.
    pub async fn connect(config: &StockConfig) -> Result<Self, StockError> {
        let mut clients = Vec::with_capacity(config.pool_size.max(1));
        for _ in 0..config.pool_size.max(1) {
            let client = build(config)?;
            let connecting = tokio::time::timeout(Duration::from_millis(config.connect_timeout_ms), client.init());
            match connecting.await {
                Ok(Ok(_task)) => clients.push(client),
                Ok(Err(error)) => return Err(StockError::Unavailable(error.to_string())),
                Err(_) => {
                    return Err(StockError::Unavailable(format!("no connection to {} in time", config.url)));
                }
            }
        }
        let inner =
            Inner { clients, next: AtomicUsize::new(0), prefix: config.prefix.clone(), scripts: Scripts::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether Redis answers.
    pub async fn ping(&self) -> Result<(), StockError> {
        self.client()?.ping::<()>(None).await.map_err(StockError::from)
    }

    /// Redis's own time, in Unix milliseconds: the admission authority's clock.
    pub async fn now_ms(&self) -> Result<UnixMs, StockError> {
        let time = CustomCommand::new_static("TIME", ClusterHash::Random, false);
        let (seconds, micros): (i64, i64) = self.client()?.custom(time, Vec::<Value>::new()).await?;
        Ok(seconds * 1_000 + micros / 1_000)
    }

    /// The next connection in turn.
    pub(crate) fn client(&self) -> Result<&Client, StockError> {
        let turn = self.inner.next.fetch_add(1, Ordering::Relaxed) % self.inner.clients.len().max(1);
        self.inner.clients.get(turn).ok_or_else(|| StockError::Unavailable("no connection".into()))
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.inner.scripts
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    pub(crate) fn keys(&self, sale: &SaleId, bucket: BucketIndex) -> BucketKeys {
        BucketKeys::new(&self.inner.prefix, sale, bucket)
    }
}

fn build(config: &StockConfig) -> Result<Client, StockError> {
    let mut builder = Builder::from_config(Config::from_url(&config.url)?);
    let command_timeout = Duration::from_millis(config.command_timeout_ms);
    builder.with_performance_config(|performance| performance.default_command_timeout = command_timeout);
    builder.with_connection_config(|connection| {
        connection.connection_timeout = Duration::from_millis(config.connect_timeout_ms);
        connection.internal_command_timeout = Duration::from_millis(config.connect_timeout_ms);
        // A command that was sent again after a disconnect could take a second unit.
        connection.max_command_attempts = 1;
        connection.max_command_buffer_len = config.max_buffered_commands;
        connection.unresponsive.max_timeout = Some(command_timeout * 2);
        connection.unresponsive.interval = UNRESPONSIVE_CHECK;
        connection.tcp.nodelay = Some(true);
    });
    builder.set_policy(ReconnectPolicy::new_exponential(0, RECONNECT_MIN_MS, RECONNECT_MAX_MS, 2));
    Ok(builder.build()?)
}
