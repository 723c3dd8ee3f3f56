//! Messages that could not be settled: kept whole, for a person.

use crate::{DeadLetterRow, Ledger, LedgerError, Result, tx::outer};
use flashgate_shared::SaleId;

/// Most dead letters that are told.
const TOLD_MAX: i64 = 100;

impl Ledger {
    /// Keeps a message that cannot be settled.
    pub async fn keep_dead_letter(&self, sale: &SaleId, body: &[u8], why: &str) -> Result<()> {
        sqlx::query!(
            "INSERT INTO dead_letters (sale, body, why, updated_by) VALUES ($1, $2, $3, 'keep_dead_letter')",
            sale.as_str(),
            body,
            why
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?;
        Ok(())
    }

    /// The sale's dead letters, the newest first; at most 100.
    pub async fn dead_letters(&self, sale: &SaleId) -> Result<Vec<DeadLetterRow>> {
        sqlx::query_as!(
            DeadLetterRow,
            "SELECT id, body, why, seen_at_ms, replayed_at_ms FROM dead_letters WHERE sale = $1 ORDER BY id DESC LIMIT $2",
            sale.as_str(),
            TOLD_MAX
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)
    }

    /// One of them. `NotFound` when the sale has no such one.
    pub async fn dead_letter(&self, sale: &SaleId, id: i64) -> Result<DeadLetterRow> {
        sqlx::query_as!(
            DeadLetterRow,
            "SELECT id, body, why, seen_at_ms, replayed_at_ms FROM dead_letters WHERE sale = $1 AND id = $2",
            sale.as_str(),
            id
        )
        .fetch_optional(&self.reads)
        .await
        .map_err(outer)?
        .ok_or(LedgerError::NotFound)
    }

    /// It was sent again.
    pub async fn dead_letter_replayed(&self, id: i64) -> Result<()> {
        sqlx::query!(
            "UPDATE dead_letters SET replayed_at_ms = unix_now_ms(), updated_by = 'dead_letter_replayed' WHERE id = $1",
            id
        )
        .execute(&self.reads)
        .await
        .map_err(outer)?;
        Ok(())
    }
}
