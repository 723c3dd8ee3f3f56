//! Named transactions: a name (metric label and `updated_by`), a body that may run again, bounded
//! retries. And the first step of those that rule R3 binds: the stock lock.
//!
//! A commit whose answer is lost is never repeated here: the caller hears `Unavailable` and repeats
//! the whole operation, which finds its own row.

use crate::{LedgerError, Result, chain::hash};
use flashgate_shared::{Epoch, SaleId, UnixMs, chain::Hash};
use sqlx::PgConnection;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Most runs of one body after deadlocks and serialization failures.
const DEADLOCK_RUNS: u32 = 8;
/// Most runs of one body after it met a row that its first reading did not show.
const CONFLICT_RUNS: u32 = 4;
/// The wait before the second run, in milliseconds; it doubles with every further one.
const FIRST_WAIT_MS: u64 = 4;

/// Why a body did not reach its commit.
#[derive(Debug)]
pub(crate) enum TxError {
    /// Postgres said so.
    Db(sqlx::Error),
    /// A row appeared since the body read: reading again will show it.
    Again(String),
    /// The body is sure.
    Stop(LedgerError),
}

impl From<sqlx::Error> for TxError {
    fn from(e: sqlx::Error) -> Self {
        Self::Db(e)
    }
}

impl From<LedgerError> for TxError {
    fn from(e: LedgerError) -> Self {
        Self::Stop(e)
    }
}

impl From<TxError> for LedgerError {
    /// For a single statement, which needs no transaction of its own.
    fn from(e: TxError) -> Self {
        match e {
            TxError::Db(e) => outer(e),
            TxError::Again(what) => Self::Conflict(what),
            TxError::Stop(e) => e,
        }
    }
}

/// Runs a body in a transaction of the pool, under a name. A body that fails is rolled back; after a
/// deadlock or a conflict it runs again.
macro_rules! transaction {
    ($pool:expr, $name:expr, |$tx:ident| $body:expr) => {{
        let mut attempts = $crate::tx::Attempts::new($name);
        loop {
            let outcome = async {
                let mut transaction = $pool.begin().await?;
                let $tx: &mut sqlx::PgConnection = &mut transaction;
                let value = $body.await?;
                transaction.commit().await?;
                Ok::<_, $crate::tx::TxError>(value)
            }
            .await;
            if let Some(end) = attempts.judge(outcome).await {
                break end;
            }
        }
    }};
}
pub(crate) use transaction;

/// The runs of one named body.
pub(crate) struct Attempts {
    name: &'static str,
    since: Instant,
    deadlocks: u32,
    conflicts: u32,
}

impl Attempts {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, since: Instant::now(), deadlocks: 0, conflicts: 0 }
    }

    /// The end of the transaction, or `None` when the body is to run again.
    pub(crate) async fn judge<T>(&mut self, outcome: Result<T, TxError>) -> Option<Result<T>> {
        let end = match outcome {
            Ok(value) => Ok(value),
            Err(TxError::Stop(e)) => Err(e),
            Err(TxError::Again(what)) => {
                self.conflicts += 1;
                if self.conflicts < CONFLICT_RUNS {
                    self.count("conflict");
                    return None;
                }
                Err(LedgerError::Conflict(what))
            }
            Err(TxError::Db(e)) if is_deadlock(&e) => {
                self.deadlocks += 1;
                if self.deadlocks < DEADLOCK_RUNS {
                    self.count("deadlock");
                    let wait_ms = FIRST_WAIT_MS << self.deadlocks;
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    return None;
                }
                Err(LedgerError::Unavailable(e.to_string()))
            }
            Err(TxError::Db(e)) => Err(outer(e)),
        };
        self.count(match &end {
            Ok(_) => "committed",
            Err(LedgerError::Unavailable(_)) => "unavailable",
            Err(LedgerError::Bug(_)) => "bug",
            Err(_) => "refused",
        });
        metrics::histogram!("flashgate_ledger_transaction_seconds", "name" => self.name)
            .record(self.since.elapsed().as_secs_f64());
        Some(end)
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!("flashgate_ledger_transactions_total", "name" => self.name, "outcome" => outcome)
            .increment(1);
    }
}

fn sqlstate(e: &sqlx::Error) -> Option<String> {
    e.as_database_error().and_then(|d| d.code()).map(|c| c.into_owned())
}

/// 40001 serialization_failure, 40P01 deadlock_detected.
fn is_deadlock(e: &sqlx::Error) -> bool {
    matches!(sqlstate(e).as_deref(), Some("40001" | "40P01"))
}

/// A database error as the caller hears it, by SQLSTATE class (PostgreSQL manual, appendix A).
pub(crate) fn outer(e: sqlx::Error) -> LedgerError {
    let Some(code) = sqlstate(&e) else {
        return match e {
            sqlx::Error::RowNotFound
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Encode(_)
            | sqlx::Error::Decode(_) => LedgerError::Bug(e.to_string()),
            // Everything else has to do with the way to the server: connection, TLS, pool, protocol.
            _ => LedgerError::Unavailable(e.to_string()),
        };
    };
    match (code.get(..2), code.as_str()) {
        // Data exceptions, broken constraints, RAISE in a trigger: this row cannot be.
        (Some("22" | "23"), _) | (_, "P0001") => LedgerError::Invalid(e.to_string()),
        // The schema or the statement is wrong.
        (Some("42" | "0A"), _) => LedgerError::Bug(e.to_string()),
        // Connection, authorization, rollback, resources, operator's intervention, read-only standby...
        _ => LedgerError::Unavailable(e.to_string()),
    }
}

/// One stock row, locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    pub shard: i16,
    pub total: i64,
    pub sold: i64,
    /// The last entry of its chain, and that entry's hash.
    pub chain_seq: i64,
    pub chain_head: Hash,
}

/// Which of a sale's stock rows a transaction locks. An order is counted in one row and remembers it. Two
/// transactions about one buyer or one claim may run side by side on different rows: the second insert waits for
/// the first, finds its row, and is judged again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All of them: what is about the whole sale, and what fits no single row.
    All,
    /// These alone: others may change meanwhile.
    Of(BTreeSet<i16>),
}

impl Rows {
    /// A single row.
    pub fn one(shard: i16) -> Self {
        Self::Of([shard].into())
    }
}

/// Stock rows of a sale, locked (rule R3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locked {
    pub shards: Vec<Shard>,
    /// The ledger's epoch of the gate.
    pub epoch: Epoch,
    /// The database's clock, read after the lock was taken.
    pub now_ms: UnixMs,
    /// Hides buyers in the chain.
    pub salt: Vec<u8>,
}

struct Row {
    shard: i16,
    total: i64,
    sold: i64,
    epoch: Epoch,
    chain_seq: i64,
    chain_head: Vec<u8>,
    salt: Vec<u8>,
}

/// Rule R3: locks stock rows of the sale in ascending shard order. `None` for an unknown sale.
pub(crate) async fn lock_stock(tx: &mut PgConnection, sale: &SaleId, rows: &Rows) -> Result<Option<Locked>, TxError> {
    let only: Option<Vec<i16>> = match rows {
        Rows::All => None,
        Rows::Of(shards) => Some(shards.iter().copied().collect()),
    };
    let rows = sqlx::query_as!(
        Row,
        "SELECT t.shard, t.total, t.sold, t.epoch, t.chain_seq, t.chain_head, s.salt
         FROM stock t JOIN sales s ON s.id = t.sale
         WHERE t.sale = $1 AND ($2::smallint[] IS NULL OR t.shard = ANY($2))
         ORDER BY t.shard FOR UPDATE OF t",
        sale.as_str(),
        only.as_deref()
    )
    .fetch_all(&mut *tx)
    .await?;
    let Some(epoch) = rows.iter().map(|r| r.epoch).max() else {
        return Ok(None);
    };
    // A statement of its own: in the locking one the clock would be read before the wait.
    let now_ms = sqlx::query_scalar!(r#"SELECT unix_now_ms() AS "now!""#).fetch_one(&mut *tx).await?;
    let salt = rows.first().map(|row| row.salt.clone()).unwrap_or_default();
    let shard = |r: Row| -> Result<Shard> {
        let chain_head = hash("chain_head", &r.chain_head)?;
        Ok(Shard { shard: r.shard, total: r.total, sold: r.sold, chain_seq: r.chain_seq, chain_head })
    };
    let shards = rows.into_iter().map(shard).collect::<Result<_>>()?;
    Ok(Some(Locked { shards, epoch, now_ms, salt }))
}
