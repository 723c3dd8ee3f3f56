//! Writing the chain (format: [`flashgate_shared::chain`]). `sold` and a shard's `total` change here and nowhere
//! else, so that they cannot change without an entry.

use crate::{
    Ledger, LedgerError, Order, Result,
    rows::word,
    tx::{Locked, TxError, outer},
};
use flashgate_shared::{
    BuyerId, ClaimId, SaleId,
    chain::{Entry, EntryKind, Hash, Head, buyer_tag},
};
use sqlx::PgConnection;
use std::collections::BTreeMap;
use uuid::Uuid;

/// An entry about to be written.
pub(crate) struct NewEntry {
    pub shard: i16,
    pub kind: EntryKind,
    /// Claim, buyer and units, if it is about one.
    pub claim: Option<(ClaimId, BuyerId, u32)>,
    /// By how much `sold` changes.
    pub units: i64,
    /// By how much the shard's stock changes: free units that come from another one.
    pub gained: i64,
    pub detail: Option<String>,
}

impl NewEntry {
    /// What the chain says of a new order row: reserved, or lost.
    pub(crate) fn of(shard: i16, order: &Order) -> Self {
        let live = order.status.is_live();
        Self {
            shard,
            kind: if live { EntryKind::Reserved } else { EntryKind::Lost },
            claim: Some((order.claim_id, order.buyer.clone(), order.quantity)),
            units: if live { i64::from(order.quantity) } else { 0 },
            gained: 0,
            detail: order.reason.map(|reason| reason.to_string()),
        }
    }

    /// What is about the shard itself.
    pub(crate) fn of_shard(shard: i16, kind: EntryKind, detail: Option<String>) -> Self {
        Self { shard, kind, claim: None, units: 0, gained: 0, detail }
    }

    /// Free units go from one shard to another: what each of the two says of it.
    pub(crate) fn moved(from: i16, to: i16, units: i64) -> [Self; 2] {
        let side = |shard, other: i16, gained| Self {
            gained,
            ..Self::of_shard(shard, EntryKind::Moved, Some(other.to_string()))
        };
        [side(from, to, -units), side(to, from, units)]
    }
}

/// Appends entries in this order, and moves `sold` by what they say. May be called again in the transaction.
pub(crate) async fn append(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    locked: &mut Locked,
    entries: Vec<NewEntry>,
) -> Result<(), TxError> {
    if entries.is_empty() {
        return Ok(());
    }
    let before: BTreeMap<i16, i64> = locked.shards.iter().map(|shard| (shard.shard, shard.chain_seq)).collect();
    let mut written = Vec::with_capacity(entries.len());
    for new in entries {
        written.push(next(sale, locked, new)?);
    }
    insert(tx, name, sale, &written).await?;
    for shard in &locked.shards {
        let seq = before.get(&shard.shard).copied().unwrap_or_default();
        if shard.chain_seq == seq {
            continue;
        }
        let rows = sqlx::query!(
            "UPDATE stock SET sold = $3, chain_seq = $4, chain_head = $5, updated_at_ms = $6, updated_by = $7, total = $9
             WHERE sale = $1 AND shard = $2 AND chain_seq = $8",
            sale.as_str(),
            shard.shard,
            shard.sold,
            shard.chain_seq,
            &shard.chain_head.0[..],
            locked.now_ms,
            name,
            seq,
            shard.total
        )
        .execute(&mut *tx)
        .await?
        .rows_affected();
        if rows != 1 {
            return Err(
                LedgerError::Bug(format!("{name}: the chain of {sale}/{} moved {rows} rows", shard.shard)).into()
            );
        }
    }
    Ok(())
}

/// The next entry of its shard, whose place in the chain it takes.
fn next(sale: &SaleId, locked: &mut Locked, new: NewEntry) -> Result<Entry, LedgerError> {
    let (now_ms, salt) = (locked.now_ms, &locked.salt);
    let shard = locked.shards.iter_mut().find(|shard| shard.shard == new.shard);
    let shard = shard.ok_or_else(|| LedgerError::Bug(format!("{sale} has no shard {}", new.shard)))?;
    let (sold, total) = (shard.sold + new.units, shard.total + new.gained);
    if !(0..=total).contains(&sold) {
        let now = shard.sold;
        return Err(LedgerError::Bug(format!("{} units on {now} sold of {total} in {sale}/{}", new.units, new.shard)));
    }
    let mut entry = Entry {
        shard: new.shard,
        seq: shard.chain_seq + 1,
        at_ms: now_ms,
        kind: new.kind,
        claim_id: new.claim.as_ref().map(|(claim_id, ..)| *claim_id),
        buyer: new.claim.as_ref().map(|(_, buyer, _)| buyer_tag(salt, buyer)),
        quantity: new.claim.as_ref().map_or(0, |(.., quantity)| i64::from(*quantity)),
        units: new.units,
        sold,
        total,
        detail: new.detail,
        hash: Hash::ZERO,
    };
    entry.hash = entry.hash_after(&shard.chain_head, sale);
    (shard.sold, shard.total) = (sold, total);
    (shard.chain_seq, shard.chain_head) = (entry.seq, entry.hash);
    Ok(entry)
}

async fn insert(tx: &mut PgConnection, name: &'static str, sale: &SaleId, entries: &[Entry]) -> Result<(), TxError> {
    let numbers = |f: &dyn Fn(&Entry) -> i64| entries.iter().map(f).collect::<Vec<i64>>();
    sqlx::query!(
        "INSERT INTO ledger_entries (sale, shard, seq, at_ms, kind, claim_id, buyer, quantity, units, sold, total, detail, hash, written_by)
         SELECT $1, shard, seq, at_ms, kind, claim_id, buyer, quantity, units, sold, total, detail, hash, $2
         FROM UNNEST($3::smallint[], $4::bigint[], $5::bigint[], $6::text[], $7::uuid[], $8::text[], $9::bigint[],
               $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bytea[])
           AS d (shard, seq, at_ms, kind, claim_id, buyer, quantity, units, sold, total, detail, hash)",
        sale.as_str(),
        name,
        &entries.iter().map(|e| e.shard).collect::<Vec<_>>(),
        &numbers(&|e| e.seq),
        &numbers(&|e| e.at_ms),
        &entries.iter().map(|e| e.kind.to_string()).collect::<Vec<_>>(),
        &entries.iter().map(|e| e.claim_id.map(|id| id.0)).collect::<Vec<_>>() as &[Option<Uuid>],
        &entries.iter().map(|e| e.buyer.clone()).collect::<Vec<_>>() as &[Option<String>],
        &numbers(&|e| e.quantity),
        &numbers(&|e| e.units),
        &numbers(&|e| e.sold),
        &numbers(&|e| e.total),
        &entries.iter().map(|e| e.detail.clone()).collect::<Vec<_>>() as &[Option<String>],
        &entries.iter().map(|e| e.hash.0.to_vec()).collect::<Vec<_>>()
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// A hash as the database keeps it.
pub(crate) fn hash(column: &str, bytes: &[u8]) -> Result<Hash> {
    let wrong = |_| LedgerError::Bug(format!("column {column} holds {} bytes", bytes.len()));
    bytes.try_into().map(Hash).map_err(wrong)
}

impl Ledger {
    /// Where the sale's chains end now; empty for an unknown sale.
    pub async fn heads(&self, sale: &SaleId) -> Result<Vec<Head>> {
        let rows = sqlx::query!(
            "SELECT shard, chain_seq, chain_head FROM stock WHERE sale = $1 ORDER BY shard",
            sale.as_str()
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| Ok(Head { shard: row.shard, seq: row.chain_seq, hash: hash("chain_head", &row.chain_head)? }))
            .collect()
    }

    /// At most so many entries of a shard after one, in order.
    pub async fn entries(&self, sale: &SaleId, shard: i16, after: i64, limit: u32) -> Result<Vec<Entry>> {
        let rows = sqlx::query!(
            "SELECT seq, at_ms, kind, claim_id, buyer, quantity, units, sold, total, detail, hash FROM ledger_entries
             WHERE sale = $1 AND shard = $2 AND seq > $3 ORDER BY seq LIMIT $4",
            sale.as_str(),
            shard,
            after,
            i64::from(limit)
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| {
                Ok(Entry {
                    shard,
                    seq: row.seq,
                    at_ms: row.at_ms,
                    kind: word("kind", &row.kind)?,
                    claim_id: row.claim_id.map(ClaimId),
                    buyer: row.buyer,
                    quantity: row.quantity,
                    units: row.units,
                    sold: row.sold,
                    total: row.total,
                    detail: row.detail,
                    hash: hash("hash", &row.hash)?,
                })
            })
            .collect()
    }
}
