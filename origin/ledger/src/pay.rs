//! Payment notices and refunds (design §8). Money that cannot buy its order goes back: the refund is
//! recorded in the transaction that could not use the money.

use crate::{
    Ledger, LedgerError, NoticeOutcome, Order, Refund, RefundReason, Result,
    release::expire,
    rows::{self, money, number},
    tx::{Locked, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    SaleId,
    order::OrderStatus,
    wire::{NoticeKind, PaymentNotice},
};
use sqlx::PgConnection;
use uuid::Uuid;

/// Longest payment or refund id of a provider, in bytes.
const PROVIDER_ID_BYTES: usize = 255;
/// Longest error text kept of a refund's last try, in characters.
const ERROR_CHARS: usize = 500;

impl Ledger {
    /// Applies a provider's notice, in one transaction. Repeating it is safe.
    pub async fn apply_notice(&self, notice: &PaymentNotice) -> Result<NoticeOutcome> {
        if !(1..=PROVIDER_ID_BYTES).contains(&notice.payment_id.len()) {
            return Err(LedgerError::Invalid(format!("a payment id has 1 to {PROVIDER_ID_BYTES} bytes")));
        }
        if notice.amount.amount_minor < 0 {
            return Err(LedgerError::Invalid("a payment is not negative".into()));
        }
        let name = "apply_notice";
        let outcome = transaction!(self.reads, name, |tx| async {
            match notice.kind {
                NoticeKind::Failed => failed(tx, name, notice).await,
                NoticeKind::Succeeded => succeeded(tx, name, notice).await,
            }
        })?;
        let word = match &outcome {
            NoticeOutcome::Paid => "paid",
            NoticeOutcome::Repeat => "repeat",
            NoticeOutcome::FailedNoted => "failed",
            NoticeOutcome::Refunding { reason } => reason.as_str(),
            NoticeOutcome::Mismatch { .. } => "mismatch",
            NoticeOutcome::UnknownClaim => "unknown_claim",
        };
        metrics::counter!("flashgate_ledger_notices_total", "outcome" => word).increment(1);
        Ok(outcome)
    }

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

/// A failed payment leaves the hold as it is: the buyer may try another card.
async fn failed(tx: &mut PgConnection, name: &'static str, notice: &PaymentNotice) -> Result<NoticeOutcome, TxError> {
    sqlx::query!(
        "UPDATE orders SET paying_since_ms = NULL, updated_at_ms = unix_now_ms(), updated_by = $3
         WHERE claim_id = $1 AND sale = $2 AND status = 'RESERVED'",
        notice.claim_id.0,
        notice.sale.as_str(),
        name
    )
    .execute(&mut *tx)
    .await?;
    Ok(match rows::order(tx, &notice.claim_id).await? {
        Some(_) => NoticeOutcome::FailedNoted,
        None => NoticeOutcome::UnknownClaim,
    })
}

async fn succeeded(
    tx: &mut PgConnection,
    name: &'static str,
    notice: &PaymentNotice,
) -> Result<NoticeOutcome, TxError> {
    // A claim's sale never changes: it may be read before the lock that it names.
    let known = rows::order(&mut *tx, &notice.claim_id).await?;
    let sale = known.map_or_else(|| notice.sale.clone(), |o| o.sale);
    let Some(locked) = lock_stock(tx, &sale).await? else {
        return Ok(NoticeOutcome::UnknownClaim);
    };
    if !note_payment(tx, name, notice).await? {
        return Ok(NoticeOutcome::Repeat);
    }
    let Some(order) = rows::order(&mut *tx, &notice.claim_id).await? else {
        refund(tx, name, notice, RefundReason::UnknownClaim).await?;
        return Ok(NoticeOutcome::UnknownClaim);
    };
    if notice.amount != order.amount || notice.sale != order.sale {
        refund(tx, name, notice, RefundReason::Mismatch).await?;
        return Ok(NoticeOutcome::Mismatch { expected: order.amount, paid: notice.amount.clone() });
    }
    if buy(tx, name, &sale, &locked, notice).await? {
        return Ok(NoticeOutcome::Paid);
    }
    let reason = too_late(tx, name, &sale, &locked, &order).await?;
    refund(tx, name, notice, reason).await?;
    Ok(NoticeOutcome::Refunding { reason })
}

/// Whether this payment is new.
async fn note_payment(tx: &mut PgConnection, name: &'static str, notice: &PaymentNotice) -> Result<bool, TxError> {
    let rows = sqlx::query!(
        "INSERT INTO payments (provider_payment_id, claim_id, sale, amount_minor, currency, paid_at_ms, updated_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        notice.payment_id,
        notice.claim_id.0,
        notice.sale.as_str(),
        notice.amount.amount_minor,
        notice.amount.currency.as_str(),
        notice.at_ms,
        name
    )
    .execute(tx)
    .await?
    .rows_affected();
    Ok(rows == 1)
}

/// RESERVED and in time → PAID. Whether it was.
async fn buy(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    locked: &Locked,
    notice: &PaymentNotice,
) -> Result<bool, TxError> {
    let rows = sqlx::query!(
        "UPDATE orders SET status = 'PAID', payment_id = $4, ended_at_ms = $3, paying_since_ms = NULL,
                updated_at_ms = $3, updated_by = $5
         WHERE claim_id = $1 AND sale = $2 AND status = 'RESERVED' AND hold_until_ms > $3",
        notice.claim_id.0,
        sale.as_str(),
        locked.now_ms,
        notice.payment_id,
        name
    )
    .execute(tx)
    .await?
    .rows_affected();
    Ok(rows == 1)
}

/// Why the order could not be bought; a hold that is over and was not swept yet ends here.
async fn too_late(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    locked: &Locked,
    order: &Order,
) -> Result<RefundReason, TxError> {
    Ok(match order.status {
        OrderStatus::Reserved => {
            expire(tx, name, sale, locked, &[order.claim_id.0]).await?;
            RefundReason::Expired
        }
        OrderStatus::Expired => RefundReason::Expired,
        OrderStatus::Lost => RefundReason::Lost,
        // The payment was new, so another one had paid.
        OrderStatus::Paid => RefundReason::AlreadyPaid,
    })
}

/// Records that the payment goes back, in full. Nothing is owed for a payment of nothing.
async fn refund(
    tx: &mut PgConnection,
    name: &'static str,
    notice: &PaymentNotice,
    reason: RefundReason,
) -> Result<(), TxError> {
    if notice.amount.amount_minor == 0 {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO refunds (payment_id, claim_id, sale, amount_minor, currency, reason, updated_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        notice.payment_id,
        notice.claim_id.0,
        notice.sale.as_str(),
        notice.amount.amount_minor,
        notice.amount.currency.as_str(),
        reason.as_str(),
        name
    )
    .execute(tx)
    .await?;
    Ok(())
}
