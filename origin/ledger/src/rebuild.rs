//! Rebuilding a sale's gate from the ledger (design §9): ordered, owned by one process at a time, cut, ended.
//!
//! A process that lost the ownership and does not know it can do no harm: its cut finds another owner, its
//! load of the gate meets a newer epoch, and it cannot end a rebuild whose epoch is not its own.

use crate::{
    Cut, Ledger, LedgerError, Result, Standing,
    chain::{NewEntry, append},
    rows::{number, word},
    tx::{Locked, Rows, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    ClaimId, Epoch, SaleId,
    chain::EntryKind,
    sale::{RebuildCause, SaleState},
    wire::Rebuild,
};
use sqlx::PgConnection;
use uuid::Uuid;

/// Most rebuilds that are told of.
const REBUILDS_TOLD: i64 = 100;

impl Ledger {
    /// Orders a rebuild: from now on the sale asks its buyers to wait. Whether there is one to be done now
    /// that was not ordered before; none if `seen`, the epoch that the cause was seen at, is not the
    /// ledger's any more. `Conflict` for a sale that was never loaded.
    pub async fn order_rebuild(&self, sale: &SaleId, cause: RebuildCause, seen: Option<Epoch>) -> Result<bool> {
        let name = "order_rebuild";
        transaction!(self.settle, name, |tx| order(tx, name, sale, cause, seen))
    }

    /// Makes this process the owner of the sale's rebuild for so long, if there is one and nobody else
    /// owns it; its row. An owner may call this again.
    pub async fn own_rebuild(&self, sale: &SaleId, owner: Uuid, for_ms: i64) -> Result<Option<i64>> {
        sqlx::query_scalar!(
            "UPDATE gate_rebuilds SET owner = $2, owned_until_ms = unix_now_ms() + $3, updated_by = 'own_rebuild'
             WHERE sale = $1 AND ended_at_ms IS NULL AND (owner = $2 OR owned_until_ms <= unix_now_ms())
             RETURNING id",
            sale.as_str(),
            owner,
            for_ms
        )
        .fetch_optional(&self.settle)
        .await
        .map_err(outer)
    }

    /// The cut: raises the epoch above the ledger's and above `gate_epoch`, the highest that was found in the
    /// gate, takes over the releases under way, and tells what the gate is to hold. `Conflict` when this
    /// process does not own the rebuild any more.
    pub async fn cut(&self, sale: &SaleId, rebuild: i64, owner: Uuid, gate_epoch: Epoch) -> Result<Cut> {
        let name = "cut";
        transaction!(self.settle, name, |tx| cut(tx, name, sale, rebuild, owner, gate_epoch))
    }

    /// Gives the sale its state again, if the ledger's epoch is still that of this cut; whether it was.
    pub async fn end_rebuild(&self, sale: &SaleId, rebuild: i64, epoch: Epoch) -> Result<bool> {
        let name = "end_rebuild";
        transaction!(self.settle, name, |tx| end(tx, name, sale, rebuild, epoch))
    }

    /// The sale's rebuilds, the newest first.
    pub async fn rebuilds(&self, sale: &SaleId) -> Result<Vec<Rebuild>> {
        let rows = sqlx::query!(
            "SELECT id, cause, epoch, on_offer, began_at_ms, ended_at_ms FROM gate_rebuilds
             WHERE sale = $1 ORDER BY id DESC LIMIT $2",
            sale.as_str(),
            REBUILDS_TOLD
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| {
                Ok(Rebuild {
                    id: row.id,
                    cause: word("cause", &row.cause)?,
                    epoch: row.epoch,
                    on_offer: row.on_offer,
                    began_at_ms: row.began_at_ms,
                    ended_at_ms: row.ended_at_ms,
                })
            })
            .collect()
    }
}

/// The body of an order; also part of an erasure.
pub(crate) async fn order(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    cause: RebuildCause,
    seen: Option<Epoch>,
) -> Result<bool, TxError> {
    let locked = lock_stock(tx, sale, &Rows::All).await?.ok_or(LedgerError::NotFound)?;
    if seen.is_some_and(|epoch| epoch != locked.epoch) {
        return Ok(false);
    }
    let begun = sqlx::query!(
        "UPDATE sales SET state = 'rebuilding', state_after = state, version = version + 1, updated_at_ms = $2, updated_by = $3
         WHERE id = $1 AND state IN ('open', 'paused', 'closed')",
        sale.as_str(),
        locked.now_ms,
        name
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if begun == 0 {
        return match state(tx, sale).await? {
            SaleState::Rebuilding => Ok(false),
            state => Err(LedgerError::Conflict(format!("the sale is {state}: its gate was never loaded")).into()),
        };
    }
    sqlx::query!(
        "INSERT INTO gate_rebuilds (sale, cause, began_at_ms, updated_by) VALUES ($1, $2, $3, $4)",
        sale.as_str(),
        cause.as_str(),
        locked.now_ms,
        name
    )
    .execute(tx)
    .await?;
    Ok(true)
}

/// The sale's state, locked: after the stock, as everywhere.
async fn state(tx: &mut PgConnection, sale: &SaleId) -> Result<SaleState, TxError> {
    let state = sqlx::query_scalar!("SELECT state FROM sales WHERE id = $1 FOR UPDATE", sale.as_str());
    Ok(word("state", &state.fetch_one(tx).await?)?)
}

async fn cut(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    rebuild: i64,
    owner: Uuid,
    gate_epoch: Epoch,
) -> Result<Cut, TxError> {
    let mut locked = lock_stock(tx, sale, &Rows::All).await?.ok_or(LedgerError::NotFound)?;
    let mine = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM gate_rebuilds WHERE id = $1 AND owner = $2 AND ended_at_ms IS NULL) AS "mine!""#,
        rebuild,
        owner
    )
    .fetch_one(&mut *tx)
    .await?;
    if !mine || state(tx, sale).await? != SaleState::Rebuilding {
        return Err(LedgerError::Conflict("another process does this rebuild, or did".into()).into());
    }
    let epoch = locked.epoch.max(gate_epoch) + 1;
    sqlx::query!(
        "UPDATE stock SET epoch = $2, updated_at_ms = $3, updated_by = $4 WHERE sale = $1",
        sale.as_str(),
        epoch,
        locked.now_ms,
        name
    )
    .execute(&mut *tx)
    .await?;
    let rebuilt = |shard: i16| NewEntry::of_shard(shard, EntryKind::Rebuilt, Some(epoch.to_string()));
    let rebuilt = locked.shards.iter().map(|at| rebuilt(at.shard)).collect();
    append(tx, name, sale, &mut locked, rebuilt).await?;
    let superseded = sqlx::query!(
        "UPDATE gate_releases SET outcome = 'superseded', updated_at_ms = $2, updated_by = $3
         WHERE sale = $1 AND outcome IS NULL",
        sale.as_str(),
        locked.now_ms,
        name
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    let standings = standings(tx, sale).await?;
    let on_offer: u32 = number("sold", free(&locked))?;
    sqlx::query!(
        "UPDATE gate_rebuilds SET epoch = $2, on_offer = $3, receipts = $4, superseded = $5, cut_at_ms = $6, updated_by = $7
         WHERE id = $1",
        rebuild,
        epoch,
        i64::from(on_offer),
        number::<usize, i64>("receipts", standings.len())?,
        number::<u64, i64>("superseded", superseded)?,
        locked.now_ms,
        name
    )
    .execute(tx)
    .await?;
    Ok(Cut { epoch, on_offer, standings, superseded })
}

fn free(locked: &Locked) -> i64 {
    locked.shards.iter().map(|shard| shard.total - shard.sold).sum()
}

async fn standings(tx: &mut PgConnection, sale: &SaleId) -> Result<Vec<Standing>, TxError> {
    let rows = sqlx::query!(
        r#"SELECT DISTINCT ON (buyer COLLATE "C") buyer, claim_id, status, hold, quantity, created_at_ms FROM orders
           WHERE sale = $1
           ORDER BY buyer COLLATE "C",
                    CASE WHEN status IN ('RESERVED', 'PAID') THEN 0 WHEN status = 'EXPIRED' THEN 1 ELSE 2 END,
                    created_at_ms DESC, claim_id"#,
        sale.as_str()
    )
    .fetch_all(tx)
    .await?;
    let standings = rows.into_iter().map(|row| {
        Ok(Standing {
            buyer: word("buyer", &row.buyer)?,
            claim_id: ClaimId(row.claim_id),
            status: word("status", &row.status)?,
            hold: row.hold.map(|hold| word("hold", &hold)).transpose()?,
            quantity: number("quantity", row.quantity)?,
            created_at_ms: row.created_at_ms,
        })
    });
    Ok(standings.collect::<Result<_>>()?)
}

async fn end(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    rebuild: i64,
    epoch: Epoch,
) -> Result<bool, TxError> {
    let locked = lock_stock(tx, sale, &Rows::All).await?.ok_or(LedgerError::NotFound)?;
    if locked.epoch != epoch || state(tx, sale).await? != SaleState::Rebuilding {
        return Ok(false);
    }
    sqlx::query!(
        "UPDATE sales SET state = state_after, state_after = NULL, version = version + 1, updated_at_ms = $2, updated_by = $3
         WHERE id = $1 AND state = 'rebuilding'",
        sale.as_str(),
        locked.now_ms,
        name
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE gate_rebuilds SET ended_at_ms = $2, updated_by = $3 WHERE id = $1",
        rebuild,
        locked.now_ms,
        name
    )
    .execute(tx)
    .await?;
    Ok(true)
}
