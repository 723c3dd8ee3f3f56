//! The refund outbox (design §8): money that goes back, recorded beside its cause, done by a worker.

use crate::{
    Ledger, LedgerError, Refund, Result,
    pay::PROVIDER_ID_BYTES,
    rows::{money, number},
    tx::outer,
};
use uuid::Uuid;

/// Longest error text kept of a refund's last try, in characters.
const ERROR_CHARS: usize = 500;

impl Ledger {
    /// Hands out up to `limit` refunds that are due and hides them from others for `refund_lease_ms`; those
    /// of a worker that died come again, with `attempts` above 0.
    pub async fn refunds_due(&self, limit: u32) -> Result<Vec<Refund>> {
        let rows = sqlx::query!(
            "WITH due AS MATERIALIZED (
                 SELECT id FROM refunds
                 WHERE provider_refund_id IS NULL AND next_try_at_ms <= (SELECT unix_now_ms())
                 ORDER BY next_try_at_ms, id LIMIT $1 FOR UPDATE SKIP LOCKED)
             UPDATE refunds r
             SET attempts = attempts + 1, next_try_at_ms = unix_now_ms() + $2,
                 updated_at_ms = unix_now_ms(), updated_by = 'refunds_due'
             FROM due WHERE r.id = due.id
             RETURNING r.id, r.payment_id, r.amount_minor, r.currency, r.attempts",
            i64::from(limit),
            self.config.refund_lease_ms
        )
        .fetch_all(&self.settle)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|r| {
                Ok(Refund {
                    id: r.id,
                    payment_id: r.payment_id,
                    amount: money(r.amount_minor, r.currency)?,
                    attempts: number("attempts", r.attempts.saturating_sub(1))?,
                })
            })
            .collect()
    }

    /// The provider has given the money back. Repeating it is safe; the first id stands.
    pub async fn refund_done(&self, id: Uuid, provider_refund_id: &str) -> Result<()> {
        if !(1..=PROVIDER_ID_BYTES).contains(&provider_refund_id.len()) {
            return Err(LedgerError::Invalid(format!("a refund id has 1 to {PROVIDER_ID_BYTES} bytes")));
        }
        let known = sqlx::query!(
            "UPDATE refunds SET provider_refund_id = COALESCE(provider_refund_id, $2), last_error = NULL,
                    updated_at_ms = unix_now_ms(), updated_by = 'refund_done'
             WHERE id = $1",
            id,
            provider_refund_id
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?
        .rows_affected();
        if known == 1 { Ok(()) } else { Err(LedgerError::NotFound) }
    }

    /// The provider refused or did not answer: the refund comes again, later every time.
    pub async fn refund_failed(&self, id: Uuid, error: &str) -> Result<()> {
        let error: String = error.chars().filter(|c| *c != '\0').take(ERROR_CHARS).collect();
        sqlx::query!(
            "UPDATE refunds
             SET next_try_at_ms = unix_now_ms() + LEAST($3, 500 * (1::bigint << LEAST(GREATEST(attempts - 1, 0), 20))),
                 last_error = $2, updated_at_ms = unix_now_ms(), updated_by = 'refund_failed'
             WHERE id = $1 AND provider_refund_id IS NULL",
            id,
            error,
            self.config.backoff_max_ms
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?;
        Ok(())
    }
}
