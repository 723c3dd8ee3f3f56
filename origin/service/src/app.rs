//! What all roles and requests share.

use crate::{
    Config, clock::AuthorityClock, notices::NoticeDesk, provider::Provider, roles::confirmed::Confirmed, sales::Sales,
    secrets::Secrets, watchers::Watchers,
};
use anyhow::Context;
use flashgate_ledger::Ledger;
use flashgate_queue::Queue;
use flashgate_stock::Stock;
use metrics_exporter_prometheus::PrometheusHandle;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

/// The process's shared parts.
pub struct App {
    /// The settings.
    pub config: Config,
    /// The secrets.
    pub secrets: Secrets,
    /// Redis.
    pub stock: Stock,
    /// RabbitMQ.
    pub queue: Queue,
    /// Postgres.
    pub ledger: Ledger,
    /// Payment notices on their way to the ledger.
    pub notices: NoticeDesk,
    /// The payment provider.
    pub provider: Provider,
    /// The authority's clock.
    pub clock: AuthorityClock,
    /// The sales.
    pub sales: Sales,
    /// Holds whose outbox entries may go.
    pub confirmed: Confirmed,
    /// The event streams.
    pub watchers: Arc<Watchers>,
    /// Event streams that may still open.
    pub streams: Arc<Semaphore>,
    /// Requests that may still come in.
    pub in_flight: Semaphore,
    /// Wakes the worker that gives units back.
    pub releases: Notify,
    /// Wakes the worker that gives money back.
    pub refunds: Notify,
    /// Wakes the worker that rebuilds gates.
    pub rebuilds: Notify,
    /// Wakes the settlers' supervisor.
    pub settlers: Notify,
    /// Cancelled when the process is to end.
    pub shutdown: CancellationToken,
    /// Renders the metrics.
    pub metrics: PrometheusHandle,
}

impl App {
    /// Connects to all that is needed.
    pub async fn connect(config: Config, metrics: PrometheusHandle) -> anyhow::Result<Arc<Self>> {
        let secrets = Secrets::load(&config.secrets, &config.token)?;
        let timeout = Duration::from_millis(config.payment.timeout_ms);
        let provider = Provider::new(&config.payment.provider_url, timeout)?;
        let (stock, queue, ledger) = tokio::join!(
            Stock::connect(&config.redis),
            Queue::connect(&config.rabbitmq),
            Ledger::connect(&config.postgres)
        );
        let ledger = ledger.context("postgres")?;
        let app = Self {
            secrets,
            stock: stock.context("redis")?,
            queue: queue.context("rabbitmq")?,
            notices: NoticeDesk::open(ledger.clone()),
            ledger,
            provider,
            clock: AuthorityClock::default(),
            sales: Sales::default(),
            confirmed: Confirmed::default(),
            watchers: Arc::default(),
            streams: Arc::new(Semaphore::new(config.server.max_event_streams)),
            in_flight: Semaphore::new(config.server.max_in_flight),
            releases: Notify::new(),
            refunds: Notify::new(),
            rebuilds: Notify::new(),
            settlers: Notify::new(),
            shutdown: CancellationToken::new(),
            metrics,
            config,
        };
        app.clock.sample(&app.stock).await.context("redis")?;
        Ok(Arc::new(app))
    }
}
