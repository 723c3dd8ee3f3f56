//! The ledger: sole owner of Postgres and of `migrations/`, the only truth about a unit.
//!
//! Redis is never trusted with I1 and I2 (design §2): they hold here by constraint. Every transaction
//! that touches `sold`, an order's status or the gate's epoch goes through [`tx::lock_stock`] first
//! (rule R3). A unit goes back to the gate only through a `gate_releases` row written in the same
//! transaction (rule R2). Nothing here speaks to Redis, RabbitMQ or the payment provider: what is to
//! be done there is a row (`gate_releases`, `refunds`) that a worker fetches, does, and marks.
//!
//! Times are Unix milliseconds by the database's clock; no other clock decides anything here.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod audit;
mod chain;
mod config;
mod dead_letters;
mod erase;
mod error;
mod model;
mod orders;
mod pay;
mod rebuild;
mod reconcile;
mod refunds;
mod release;
mod repairs;
mod rows;
mod sales;
mod settle;
mod table;
mod tx;

pub use config::LedgerConfig;
pub use error::{LedgerError, SettleError};
pub use model::*;

use flashgate_shared::{SaleId, UnixMs};
use sqlx::{
    Connection, PgConnection, PgPool,
    migrate::{MigrateError, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    str::FromStr,
    sync::{Arc, RwLock, atomic::AtomicU32},
    time::Duration,
};

type Result<T, E = LedgerError> = std::result::Result<T, E>;

/// Ways to read that the workers never need.
const BY_KEY: [&str; 3] = ["enable_seqscan", "enable_hashjoin", "enable_mergejoin"];

/// A transaction that has to find room on the disk for its data and in the log for its commit.
const PROBE: &str = "CREATE TEMPORARY TABLE flashgate_probe ON COMMIT DROP AS
    SELECT n, repeat(md5(n::text), 32) AS filler FROM generate_series(1, 1024) n";

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// A handle on the ledger; clones share the pools.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// For the workers.
    settle: PgPool,
    /// For the requests.
    reads: PgPool,
    /// For migrations: no statement time-out.
    plain: PgConnectOptions,
    config: LedgerConfig,
    /// How many stock rows each sale has that was asked for; one entry a sale.
    shards: Arc<RwLock<HashMap<SaleId, u16>>>,
    /// Whose turn it is of a sale's stock rows.
    turn: Arc<AtomicU32>,
}

impl Ledger {
    /// Opens both pools and asks Postgres for a sign of life.
    pub async fn connect(config: &LedgerConfig) -> Result<Self> {
        let plain = PgConnectOptions::from_str(&config.url)
            .map_err(|e| LedgerError::Invalid(format!("postgres url: {e}")))?
            .application_name("flashgate-ledger");
        let bounded = plain.clone().options([
            ("statement_timeout", config.statement_timeout_ms.to_string()),
            ("idle_in_transaction_session_timeout", config.idle_in_transaction_timeout_ms.to_string()),
            // Not what the server or the role happens to default to: the rules are written for this.
            ("default_transaction_isolation", "read committed".to_owned()),
        ]);
        // The workers look up by keys alone. A sale that has just begun is not in the planner's statistics: left to
        // them, each batch would read the whole sale. Where they name rows by key and say what state they are in,
        // `(…) IS TRUE` keeps the state out of the choice of an index.
        let by_key = bounded.clone().options(BY_KEY.map(|setting| (setting, "off")));
        let pool = |size: u32, options: PgConnectOptions| {
            PgPoolOptions::new()
                .max_connections(size.max(1))
                .acquire_timeout(Duration::from_millis(config.acquire_timeout_ms))
                .connect_lazy_with(options)
        };
        let ledger = Self {
            settle: pool(config.pool_settle, by_key),
            reads: pool(config.pool_read, bounded),
            plain,
            config: config.clone(),
            shards: Arc::default(),
            // Other processes start elsewhere.
            turn: Arc::new(AtomicU32::new(RandomState::new().hash_one(std::process::id()) as u32)),
        };
        ledger.ping().await?;
        Ok(ledger)
    }

    /// Applies what is missing of `migrations/`. Several processes may try at once: one does it.
    pub async fn migrate(&self) -> Result<()> {
        let mut connection = PgConnection::connect_with(&self.plain).await.map_err(tx::outer)?;
        MIGRATIONS.run(&mut connection).await.map_err(|e| match e {
            MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _) => tx::outer(e),
            other => LedgerError::Bug(other.to_string()),
        })?;
        connection.close().await.map_err(tx::outer)
    }

    /// Connections that are open now, in use or idle.
    pub fn open_connections(&self) -> u32 {
        self.settle.size() + self.reads.size()
    }

    /// Whether Postgres answers a request's connection.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.reads).await.map_err(tx::outer)?;
        Ok(())
    }

    /// Whether Postgres takes writes: a megabyte to its disk, which goes again with its transaction.
    pub async fn takes_writes(&self) -> Result<()> {
        let mut tx = self.reads.begin().await.map_err(tx::outer)?;
        sqlx::raw_sql(PROBE).execute(&mut *tx).await.map_err(tx::outer)?;
        tx.commit().await.map_err(tx::outer)
    }

    /// The database's clock.
    pub async fn now_ms(&self) -> Result<UnixMs> {
        sqlx::query_scalar!(r#"SELECT unix_now_ms() AS "now!""#).fetch_one(&self.reads).await.map_err(tx::outer)
    }
}
