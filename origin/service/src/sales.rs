//! What this process knows of each sale: the ledger's row (≤ 250 ms old) and the gate's stock map.
//!
//! The row decides what buyers meet; the map decides nothing that Redis would not decide again,
//! except the "sold out" short cut, which holds only while the map is young (design §6).

use crate::{clock::AuthorityClock, traffic::Traffic};
use flashgate_ledger::{Ledger, LedgerError, SaleRow};
use flashgate_queue::Queue;
use flashgate_shared::{
    SaleId, UnixMs,
    sale::{SalePhase, SaleState},
};
use flashgate_stock::{Stock, StockError, StockMap};
use futures_util::future::join_all;
use std::{
    collections::HashMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// How old a stock map may be to decide anything, in microseconds (design §6: 100 ms).
pub const MAP_MAX_AGE_US: u64 = 100_000;
/// How often the map of a sale in demand is read.
const MAP_PERIOD: Duration = Duration::from_millis(40);
/// How often the queue of a sale in demand is measured.
const DEPTH_PERIOD: Duration = Duration::from_millis(80);
/// How often the ledger's rows are read.
const ROWS_PERIOD: Duration = Duration::from_millis(200);
/// A sale stays in demand this long after the last claim or lease, in microseconds.
const DEMAND_US: u64 = 5_000_000;

/// A stock map and when it was asked for.
#[derive(Debug, Default)]
pub struct Reading {
    /// The map.
    pub map: StockMap,
    /// Monotonic time before it was asked for, in microseconds; 0 is never.
    pub taken_us: u64,
}

/// What is measured of a sale; outlives changes of its row.
#[derive(Debug, Default)]
pub struct Live {
    reading: RwLock<Arc<Reading>>,
    refreshing: tokio::sync::Mutex<()>,
    /// Monotonic microseconds until which "sold out" is known; 0 when it is not.
    sold_out_until_us: AtomicU64,
    demanded_us: AtomicU64,
    queue_depth: AtomicU64,
    /// What passed.
    pub traffic: Traffic,
}

/// A sale as this process knows it.
#[derive(Debug)]
pub struct Sale {
    /// The ledger's row.
    pub row: SaleRow,
    /// What is measured.
    pub live: Arc<Live>,
}

impl Sale {
    /// Its id.
    pub fn id(&self) -> &SaleId {
        &self.row.config.id
    }

    /// Whether every bucket is known to hold zero, by a map that is young enough.
    pub fn sold_out(&self, mono_us: u64) -> bool {
        mono_us < self.live.sold_out_until_us.load(Ordering::Relaxed)
    }

    /// What a buyer meets.
    pub fn phase(&self, now_ms: UnixMs, mono_us: u64) -> SalePhase {
        self.row.config.phase(self.row.state, now_ms, self.sold_out(mono_us))
    }

    /// Notes that somebody wants to buy: keeps the map fresh for a while.
    pub fn demand(&self, mono_us: u64) {
        self.live.demanded_us.store(mono_us, Ordering::Relaxed);
    }

    /// The newest map, however old.
    pub fn reading(&self) -> Arc<Reading> {
        self.live.reading.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Messages in the queue when it was last measured.
    pub fn queue_depth(&self) -> u64 {
        self.live.queue_depth.load(Ordering::Relaxed)
    }

    /// A map asked for at or after `not_before_us`; reads one if need be, one reader at a time.
    pub async fn fresh(
        &self,
        stock: &Stock,
        clock: &AuthorityClock,
        not_before_us: u64,
    ) -> Result<Arc<Reading>, StockError> {
        let known = self.reading();
        if known.taken_us >= not_before_us && known.taken_us > 0 {
            return Ok(known);
        }
        let _one = self.live.refreshing.lock().await;
        let known = self.reading();
        if known.taken_us >= not_before_us && known.taken_us > 0 {
            return Ok(known);
        }
        let taken_us = clock.mono_us().max(1);
        let map = stock.stock_map(self.id(), self.row.config.buckets).await?;
        let until = if map.sold_out(self.row.epoch) { taken_us + MAP_MAX_AGE_US } else { 0 };
        let reading = Arc::new(Reading { map, taken_us });
        *self.live.reading.write().unwrap_or_else(|e| e.into_inner()) = reading.clone();
        self.live.sold_out_until_us.store(until, Ordering::Relaxed);
        Ok(reading)
    }

    /// As [`Sale::fresh`], for a map that is young enough to decide.
    pub async fn young(&self, stock: &Stock, clock: &AuthorityClock) -> Result<Arc<Reading>, StockError> {
        self.fresh(stock, clock, clock.mono_us().saturating_sub(MAP_MAX_AGE_US)).await
    }
}

/// All sales.
#[derive(Debug, Default)]
pub struct Sales {
    table: RwLock<Arc<HashMap<String, Arc<Sale>>>>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Sales {
    fn table(&self) -> Arc<HashMap<String, Arc<Sale>>> {
        self.table.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// One sale, by its id's text.
    pub fn get(&self, id: &str) -> Option<Arc<Sale>> {
        self.table.read().unwrap_or_else(|e| e.into_inner()).get(id).cloned()
    }

    /// All, in no order.
    pub fn all(&self) -> Vec<Arc<Sale>> {
        self.table().values().cloned().collect()
    }

    /// Reads the ledger's rows.
    pub async fn refresh(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        // The lock comes before the read, so that an older answer never replaces a newer one.
        let _one = self.refreshing.lock().await;
        let rows = ledger.sales().await?;
        let old = self.table();
        let table = rows.into_iter().map(|row| {
            let id = row.config.id.to_string();
            let sale = match old.get(&id) {
                Some(known) if known.row == row => known.clone(),
                Some(known) => {
                    if known.row.epoch != row.epoch {
                        known.live.sold_out_until_us.store(0, Ordering::Relaxed);
                    }
                    Arc::new(Sale { row, live: known.live.clone() })
                }
                None => Arc::new(Sale { row, live: Arc::default() }),
            };
            (id, sale)
        });
        let table = Arc::new(table.collect());
        *self.table.write().unwrap_or_else(|e| e.into_inner()) = table;
        Ok(())
    }

    /// Keeps the rows fresh.
    pub async fn run_rows(&self, ledger: &Ledger, shutdown: &CancellationToken) {
        let mut failing = false;
        while !shutdown.is_cancelled() {
            let result = self.refresh(ledger).await;
            match &result {
                Err(error) if !failing => {
                    tracing::warn!(%error, "sales: the ledger does not answer; the last known rows stand");
                }
                Ok(()) if failing => tracing::info!("sales: the ledger answers again"),
                _ => {}
            }
            failing = result.is_err();
            crate::roles::pause(ROWS_PERIOD, shutdown).await;
        }
    }

    /// Keeps the maps of sales in demand fresh.
    pub async fn run_maps(&self, stock: &Stock, clock: &AuthorityClock, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let now_us = clock.mono_us();
            let wanted = self.in_demand(now_us);
            let reads = wanted.iter().map(|sale| sale.fresh(stock, clock, now_us));
            // A failure leaves the old map, which stops deciding when it is 100 ms old.
            let _ = join_all(reads).await;
            crate::roles::pause(MAP_PERIOD, shutdown).await;
        }
    }

    /// Keeps the queue depths of sales in demand fresh.
    pub async fn run_depths(&self, queue: &Queue, clock: &AuthorityClock, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            for sale in self.in_demand(clock.mono_us()) {
                // A broker that is down does not bound the backlog: the outbox does, and is counted.
                if let Ok(depth) = queue.depth(sale.id()).await {
                    sale.live.queue_depth.store(depth.ready, Ordering::Relaxed);
                }
            }
            crate::roles::pause(DEPTH_PERIOD, shutdown).await;
        }
    }

    fn in_demand(&self, now_us: u64) -> Vec<Arc<Sale>> {
        let mut all = self.all();
        all.retain(|sale| {
            let demanded_us = sale.live.demanded_us.load(Ordering::Relaxed);
            sale.row.state == SaleState::Open && demanded_us > 0 && now_us < demanded_us + DEMAND_US
        });
        all
    }
}
