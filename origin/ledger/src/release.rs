//! Ends of holds and the units' way back: expiry (sweep, let go, late money) and the `gate_releases`
//! outbox (rule R2, design §8). Ledger first, gate second.

use crate::{
    Ledger, LedgerError, ReleaseOutcome, ReleaseRow, Result, SweepReport,
    chain::{NewEntry, append},
    rows::{number, word},
    sales::all_shards,
    tx::{Locked, Rows, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    BuyerId, ClaimId, Epoch, HoldId, SaleId, UnixMs,
    chain::EntryKind,
    order::{Release, ReleaseMode},
    trace::TraceId,
};
use sqlx::PgConnection;
use uuid::Uuid;

/// A release about to be recorded.
pub(crate) struct NewRelease {
    pub claim_id: ClaimId,
    pub hold: HoldId,
    pub buyer: BuyerId,
    pub units: u32,
    pub mode: ReleaseMode,
    pub trace_id: TraceId,
}

/// Records releases with the ledger's epoch read under the lock. A hold that has its release keeps it.
pub(crate) async fn insert_releases(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    epoch: Epoch,
    now_ms: UnixMs,
    releases: &[NewRelease],
) -> Result<(), TxError> {
    if releases.is_empty() {
        return Ok(());
    }
    let text = |f: &dyn Fn(&NewRelease) -> String| releases.iter().map(f).collect::<Vec<_>>();
    let claims: Vec<Uuid> = releases.iter().map(|r| r.claim_id.0).collect();
    let units = releases.iter().map(|r| number("units", r.units)).collect::<Result<Vec<i32>>>()?;
    sqlx::query!(
        "INSERT INTO gate_releases (claim_id, hold, sale, buyer, units, mode, epoch, trace_id,
             next_try_at_ms, created_at_ms, updated_at_ms, updated_by)
         SELECT claim_id, hold, $1, buyer, units, mode, $2, trace_id, $3, $3, $3, $4
         FROM UNNEST($5::uuid[], $6::text[], $7::text[], $8::integer[], $9::text[], $10::text[])
           AS d (claim_id, hold, buyer, units, mode, trace_id)
         ORDER BY claim_id, hold
         ON CONFLICT ON CONSTRAINT gate_releases_once_per_hold DO NOTHING",
        sale.as_str(),
        epoch,
        now_ms,
        name,
        &claims,
        &text(&|r| r.hold.to_string()),
        &text(&|r| r.buyer.to_string()),
        &units,
        &text(&|r| r.mode.to_string()),
        &text(&|r| r.trace_id.to_string())
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// RESERVED → EXPIRED for these claims of the sale, whose stock is locked: `sold` goes down, the units'
/// way back is recorded. Every claim must be RESERVED.
pub(crate) async fn expire(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    locked: &mut Locked,
    claims: &[Uuid],
) -> Result<(), TxError> {
    let ended = sqlx::query!(
        r#"UPDATE orders SET status = 'EXPIRED', ended_at_ms = $3, paying_since_ms = NULL,
                  updated_at_ms = $3, updated_by = $4
           WHERE claim_id = ANY($1) AND (sale = $2 AND status = 'RESERVED') IS TRUE
           RETURNING claim_id, shard, buyer, quantity, hold AS "hold!", trace_id"#,
        claims,
        sale.as_str(),
        locked.now_ms,
        name
    )
    .fetch_all(&mut *tx)
    .await?;
    if ended.len() != claims.len() {
        let (ended, asked) = (ended.len(), claims.len());
        return Err(LedgerError::Bug(format!("{name}: {ended} of {asked} orders were RESERVED")).into());
    }
    let mut entries = Vec::with_capacity(ended.len());
    let mut releases = Vec::with_capacity(ended.len());
    for row in ended {
        let (claim_id, buyer): (_, BuyerId) = (ClaimId(row.claim_id), word("buyer", &row.buyer)?);
        let units = number("quantity", row.quantity)?;
        entries.push(NewEntry {
            shard: row.shard,
            kind: EntryKind::Expired,
            claim: Some((claim_id, buyer.clone(), units)),
            units: -i64::from(row.quantity),
            gained: 0,
            detail: None,
        });
        releases.push(NewRelease {
            claim_id,
            hold: word("hold", &row.hold)?,
            buyer,
            units,
            mode: ReleaseMode::Spent,
            trace_id: word("trace_id", &row.trace_id)?,
        });
    }
    append(tx, name, sale, locked, entries).await?;
    insert_releases(tx, name, sale, locked.epoch, locked.now_ms, &releases).await
}

/// Ends due holds that are counted in one stock row; how many.
async fn sweep(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    shard: i16,
    limit: u32,
) -> Result<u32, TxError> {
    let mut locked = lock_stock(tx, sale, &Rows::one(shard)).await?.ok_or(LedgerError::NotFound)?;
    let due = sqlx::query_scalar!(
        "SELECT claim_id FROM orders
         WHERE claim_id IN (SELECT claim_id FROM orders WHERE sale = $1 AND status = 'RESERVED' AND hold_until_ms <= $2
                              AND shard = $4
                            ORDER BY hold_until_ms, claim_id LIMIT $3)
         ORDER BY claim_id FOR UPDATE",
        sale.as_str(),
        locked.now_ms,
        i64::from(limit),
        shard
    )
    .fetch_all(&mut *tx)
    .await?;
    expire(tx, name, sale, &mut locked, &due).await?;
    Ok(number("due", due.len())?)
}

impl Ledger {
    /// Expires up to `limit` holds whose time is over. Repeating it is safe, several sweepers too.
    pub async fn sweep(&self, sale: &SaleId, limit: u32) -> Result<SweepReport> {
        let mut expired = 0;
        for shard in all_shards(self.shards(sale).await?) {
            let left = limit.saturating_sub(expired);
            if left == 0 {
                break;
            }
            expired += transaction!(self.settle, "sweep", |tx| sweep(tx, "sweep", sale, shard, left))?;
        }
        Ok(SweepReport { expired: expired.into() })
    }

    /// Sales that have a hold whose time is over.
    pub async fn sales_with_due(&self) -> Result<Vec<SaleId>> {
        let sales = sqlx::query_scalar!(
            "SELECT id FROM sales s WHERE EXISTS (
                 SELECT FROM orders o
                 WHERE o.sale = s.id AND o.status = 'RESERVED' AND o.hold_until_ms <= (SELECT unix_now_ms()))
             ORDER BY id"
        )
        .fetch_all(&self.settle)
        .await
        .map_err(outer)?;
        sales.iter().map(|s| word("id", s)).collect()
    }

    /// Hands out up to `limit` releases that are due and hides them from others for `release_lease_ms`;
    /// those of a worker that died come again.
    pub async fn releases_due(&self, limit: u32) -> Result<Vec<ReleaseRow>> {
        let rows = sqlx::query!(
            r#"WITH due AS MATERIALIZED (
                   SELECT id FROM gate_releases
                   WHERE outcome IS NULL AND next_try_at_ms <= (SELECT unix_now_ms())
                   ORDER BY next_try_at_ms, id LIMIT $1 FOR UPDATE SKIP LOCKED)
               UPDATE gate_releases r
               SET attempts = attempts + 1, next_try_at_ms = unix_now_ms() + $2,
                   updated_at_ms = unix_now_ms(), updated_by = 'releases_due'
               FROM due, sales s
               WHERE r.id = due.id AND s.id = r.sale
               RETURNING r.id, r.sale, r.buyer, r.claim_id, r.hold, r.units, r.mode, r.epoch, r.attempts, r.trace_id,
                         (s.config ->> 'buckets')::integer AS "buckets!""#,
            i64::from(limit),
            self.config.release_lease_ms
        )
        .fetch_all(&self.settle)
        .await
        .map_err(outer)?;
        let mut due = rows
            .into_iter()
            .map(|r| {
                Ok(ReleaseRow {
                    id: r.id,
                    release: Release {
                        sale: word("sale", &r.sale)?,
                        buyer: word("buyer", &r.buyer)?,
                        claim_id: ClaimId(r.claim_id),
                        hold: word("hold", &r.hold)?,
                        units: number("units", r.units)?,
                        mode: word("mode", &r.mode)?,
                        epoch: r.epoch,
                    },
                    buckets: number("buckets", r.buckets)?,
                    attempts: number("attempts", r.attempts.saturating_sub(1))?,
                    trace_id: word("trace_id", &r.trace_id)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        due.sort_by_key(|r| r.id);
        Ok(due)
    }

    /// The gate answered: the release is over. Repeating it is safe; the first answer stands.
    pub async fn release_done(&self, id: i64, outcome: ReleaseOutcome) -> Result<()> {
        let known = sqlx::query!(
            "UPDATE gate_releases SET outcome = COALESCE(outcome, $2), updated_at_ms = unix_now_ms(), updated_by = 'release_done'
             WHERE id = $1",
            id,
            outcome.as_str()
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?
        .rows_affected();
        if known == 1 { Ok(()) } else { Err(LedgerError::NotFound) }
    }

    /// The gate did not answer, or keeps the row: it comes again, later every time.
    pub async fn release_again(&self, id: i64) -> Result<()> {
        sqlx::query!(
            "UPDATE gate_releases
             SET next_try_at_ms = unix_now_ms() + LEAST($2, 100 * (1::bigint << LEAST(GREATEST(attempts - 1, 0), 20))),
                 updated_at_ms = unix_now_ms(), updated_by = 'release_again'
             WHERE id = $1 AND outcome IS NULL",
            id,
            self.config.backoff_max_ms.min(RELEASE_BACKOFF_MAX_MS)
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?;
        Ok(())
    }
}

/// The longest wait between two tries of one release: units on their way back are units nobody can buy.
const RELEASE_BACKOFF_MAX_MS: i64 = 5_000;
