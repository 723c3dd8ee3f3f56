//! A shop for tests.

use crate::{Buyer, Direct, PATIENCE, RESERVED};
use anyhow::{Context, Result, ensure};
use flashgate_ops::stack::{Backends, Stack, StackConfig};
use flashgate_queue::{Queue, QueueConfig};
use flashgate_servers::{shared, until};
use flashgate_shared::{
    Epoch, Money, SaleId,
    sale::{AddressLimits, BucketLimit, SaleConfig},
    wire::{ClaimStatus, Rebuild},
};
use flashgate_stock::{Stock, StockConfig};
use std::{
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::{OnceCell, oneshot};

/// Names of shops and of loopback addresses, one after the other in this process.
static NEXT_SHOP: AtomicU32 = AtomicU32::new(0);
static NEXT_ADDRESS: AtomicU32 = AtomicU32::new(1);

/// Stores that a shop has to itself, by their addresses; the others are the shared ones.
#[derive(Debug, Default)]
pub struct OwnStores {
    /// Redis.
    pub redis_url: Option<String>,
    /// RabbitMQ: a virtual host.
    pub rabbit_url: Option<String>,
    /// Postgres: an empty database.
    pub postgres_url: Option<String>,
}

impl OwnStores {
    /// Its own Redis.
    pub fn redis(url: String) -> Self {
        Self { redis_url: Some(url), ..Self::default() }
    }

    /// Its own RabbitMQ.
    pub fn rabbit(url: String) -> Self {
        Self { rabbit_url: Some(url), ..Self::default() }
    }

    /// Its own Postgres.
    pub fn postgres(url: String) -> Self {
        Self { postgres_url: Some(url), ..Self::default() }
    }
}

/// A running shop, with handles to its stores for looking and for playing tricks.
pub struct Shop {
    /// Its processes.
    pub stack: Stack,
    /// Where its stores are.
    pub backends: Backends,
    /// The gate's Redis.
    pub stock: Stock,
    /// The queue.
    pub queue: Queue,
    /// A client for whatever the helpers do not do.
    pub http: reqwest::Client,
    prefix: String,
}

impl Shop {
    /// Starts one on the shared servers, with a database, vhost and prefix of its own.
    pub async fn start(change: impl FnOnce(&mut StackConfig)) -> Result<Self> {
        Self::start_on(OwnStores::default(), |_| Ok(()), change).await
    }

    /// The same, with stores of its own, and with stores that its processes reach by other ways than the tests do.
    pub async fn start_on(
        own: OwnStores,
        detour: impl FnOnce(&mut Backends) -> Result<()>,
        change: impl FnOnce(&mut StackConfig),
    ) -> Result<Self> {
        let servers = shared().await?;
        let name = format!("t{}x{}", std::process::id(), NEXT_SHOP.fetch_add(1, Ordering::Relaxed));
        let backends = Backends {
            redis_url: own.redis_url.unwrap_or_else(|| servers.redis().url()),
            rabbit_url: match own.rabbit_url {
                Some(url) => url,
                None => servers.rabbit().add_vhost(&name).await?,
            },
            postgres_url: match own.postgres_url {
                Some(url) => url,
                None => servers.postgres().create_database(&name).await?,
            },
        };
        let mut config = StackConfig {
            prefix: name.clone(),
            bin_dir: Some(target_dir()?.join("debug")),
            // Goes with the servers: a shop for all tests of a process is never dropped.
            data_dir: Some(servers.dir().join(&name)),
            ..StackConfig::default()
        };
        for (key, value) in [("REDIS__POOL_SIZE", "2"), ("POSTGRES__POOL_SETTLE", "3"), ("POSTGRES__POOL_READ", "6")] {
            config.origin_env.push((format!("FLASHGATE_{key}"), value.into()));
        }
        config.edge_args = vec!["--instances".into(), "1".into()];
        change(&mut config);
        let mut ways = backends.clone();
        detour(&mut ways)?;
        let stack = Stack::start(&ways, config).await?;
        let stock = StockConfig {
            url: backends.redis_url.clone(),
            prefix: name.clone(),
            pool_size: 1,
            command_timeout_ms: 10_000,
            ..StockConfig::default()
        };
        let prefix = name.clone();
        let queue = QueueConfig { url: backends.rabbit_url.clone(), prefix: name, ..QueueConfig::default() };
        Ok(Self {
            stock: Stock::connect(&stock).await?,
            queue: Queue::connect(&queue).await?,
            // No kept connections: they would belong to the runtime of the test that made them.
            http: reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?,
            prefix,
            stack,
            backends,
        })
    }

    /// Settings of a sale that is open now, for an hour, and lets a test's few buyers through freely.
    pub fn sale(&self, id: &str, total: u32) -> SaleConfig {
        let now_ms = wall_clock_ms();
        let free = BucketLimit { rate_per_s: 1_000.0, burst: 1_000.0 };
        SaleConfig {
            id: id.parse().expect("a sale id"),
            version: 1,
            title: format!("Test sale {id}"),
            description: String::new(),
            price: Money { amount_minor: 19_900, currency: "EUR".to_owned().try_into().expect("a currency") },
            total,
            per_buyer_limit: 1,
            opens_at_ms: now_ms - 60_000,
            closes_at_ms: now_ms + 3_600_000,
            buckets: 1,
            shards: 1,
            admit_factor: 100.0,
            enter_rate_per_s: 1_000.0,
            pay_window_ms: 600_000,
            grace_ms: 1_000,
            second_try: false,
            anonymous_entry: true,
            backlog_limit: 10_000,
            address_limits: AddressLimits { claim: free, enter: free, status: free, read: free },
        }
    }

    /// A connection to its database: a new one, because a pool's would belong to the runtime of the test
    /// that made them.
    pub async fn database(&self) -> Result<sqlx::PgConnection> {
        Ok(<sqlx::PgConnection as sqlx::Connection>::connect(&self.backends.postgres_url).await?)
    }

    /// First part of its Redis keys and queue names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The gate's epoch.
    pub async fn epoch(&self, sale: &SaleId) -> Result<Epoch> {
        Ok(self.stack.admin().show(sale).await?.epoch)
    }

    /// Waits until the gate was rebuilt, and the sale has its state again: the newest rebuild.
    pub async fn rebuilt(&self, sale: &SaleId, after: Epoch) -> Result<Rebuild> {
        let newest = Mutex::new(None);
        until(&format!("the gate of {sale} is rebuilt"), PATIENCE, || async {
            let rebuilds = self.stack.admin().rebuilds(sale).await?;
            let done = rebuilds.into_iter().next().filter(|r| r.ended_at_ms.is_some() && r.epoch > Some(after));
            let found = done.is_some();
            *newest.lock().expect("nobody panicked") = done;
            Ok(found)
        })
        .await?;
        newest.into_inner().expect("nobody panicked").context("no rebuild")
    }

    /// Creates a sale.
    pub async fn create(&self, sale: &SaleConfig) -> Result<SaleId> {
        self.stack.admin().create_sale(sale).await?;
        Ok(sale.id.clone())
    }

    /// A buyer with an address of his own, at the first edge.
    pub fn buyer(&self, sale: &SaleId) -> Buyer {
        self.buyer_at(self.stack.edge_url(0), sale)
    }

    /// A buyer with an address of his own, at whatever edge has this address.
    pub fn buyer_at(&self, edge_url: &str, sale: &SaleId) -> Buyer {
        let n = NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed);
        let [_, b, c, d] = n.to_be_bytes();
        Buyer::new(edge_url, sale, [127, b.wrapping_add(1), c, d].into())
    }

    /// A new buyer with a reservation of one unit.
    pub async fn reserved(&self, sale: &SaleId) -> Result<(Buyer, ClaimStatus)> {
        let mut buyer = self.buyer(sale);
        buyer.enter().await?;
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == RESERVED, "{status:?}");
        Ok((buyer, status))
    }

    /// A caller that stands behind the gate, with the edge's key.
    pub fn direct(&self, sale: &SaleId) -> Direct<'_> {
        Direct::new(self, sale.clone())
    }

    /// Waits until nothing of the sale is in motion.
    pub async fn quiet(&self, sale: &SaleId) -> Result<()> {
        until(&format!("sale {sale} is quiet"), PATIENCE, || async {
            let report = self.stack.admin().audit(sale).await?;
            ensure!(report.quiet, "still in motion: {report:?}");
            Ok(true)
        })
        .await
    }
}

/// The shop that the tests of this binary share.
pub async fn shop() -> Result<&'static Shop> {
    static SHOP: OnceCell<Shop> = OnceCell::const_new();
    SHOP.get_or_try_init(|| async {
        let (tell, told) = oneshot::channel();
        // Each test has a runtime of its own, which ends with it: the shop needs one that stays.
        // It stays without being held: nobody joins it.
        thread::Builder::new().name("test-shop".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    let _ = tell.send(Shop::start(|_| {}).await);
                    std::future::pending::<()>().await;
                }),
                Err(error) => drop(tell.send(Err(error.into()))),
            }
        })?;
        told.await.context("the thread that starts the shop ended")?
    })
    .await
}

/// The clock of this machine.
pub(crate) fn wall_clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock before the year 292 million")
}

/// `target/`, from the place of the test's own executable (`target/debug/deps/…`).
pub(crate) fn target_dir() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let deps = me.parent().context("no directory")?;
    let dir = if deps.ends_with("deps") { deps.parent() } else { Some(deps) };
    Ok(dir.and_then(|dir| dir.parent()).context("not under target/")?.to_owned())
}
