//! Payment notices (design §8). Money that cannot buy its order goes back: the refund is recorded in
//! the transaction that could not use the money.
//!
//! Every notice takes the lock of its sale (rule R3), so those that come together are applied together:
//! one lock and one commit for all of them.

use crate::{
    Ledger, LedgerError, NoticeOutcome, Order, RefundReason, Result,
    chain::{NewEntry, append},
    release::expire,
    rows::{self, number, word},
    tx::{Locked, Rows, TxError, lock_stock, transaction},
};
use flashgate_shared::{
    ClaimId, SaleId, UnixMs,
    chain::EntryKind,
    order::OrderStatus,
    wire::{NoticeKind, PaymentNotice},
};
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use uuid::Uuid;

/// Longest payment or refund id of a provider, in bytes.
pub(crate) const PROVIDER_ID_BYTES: usize = 255;
/// Most notices applied in one transaction: bounds how long the stock stays locked.
const NOTICE_TRANSACTION_MESSAGES: usize = 200;

impl Ledger {
    /// Applies one notice: see [`Self::apply_notices`].
    pub async fn apply_notice(&self, notice: &PaymentNotice) -> Result<NoticeOutcome> {
        let answer = self.apply_notices(std::slice::from_ref(notice)).await.pop();
        answer.unwrap_or_else(|| Err(LedgerError::Bug("a notice without an answer".into())))
    }

    /// Applies a provider's notices, those of a sale in one transaction. Repeating any of them is safe.
    /// The answers have the notices' length and order; a notice that cannot be applied spoils no other.
    pub async fn apply_notices(&self, notices: &[PaymentNotice]) -> Vec<Result<NoticeOutcome>> {
        let mut answers: Vec<Option<Result<NoticeOutcome>>> = notices.iter().map(refused).collect();
        let claims: Vec<Uuid> = notices.iter().map(|n| n.claim_id.0).collect();
        let places = match rows::places(&self.settle, &claims).await.map_err(LedgerError::from) {
            Ok(places) => places,
            Err(error) => return answers.into_iter().map(|a| a.unwrap_or_else(|| Err(error.clone()))).collect(),
        };
        // A claim's sale and stock row never change: they may be read before the lock that they name.
        let mut groups: BTreeMap<&SaleId, Vec<usize>> = BTreeMap::new();
        for (at, (notice, answer)) in notices.iter().zip(&answers).enumerate() {
            if answer.is_none() {
                groups.entry(places.get(&notice.claim_id).map_or(&notice.sale, |(sale, _)| sale)).or_default().push(at);
            }
        }
        for (sale, group) in groups {
            let mut parts: Vec<&[usize]> = group.chunks(NOTICE_TRANSACTION_MESSAGES).rev().collect();
            while let Some(part) = parts.pop() {
                let of_part: Vec<&PaymentNotice> = part.iter().filter_map(|&at| notices.get(at)).collect();
                // A claim without a row may get one before the lock is taken, in whatever row of the stock.
                let shards: Option<BTreeSet<i16>> =
                    of_part.iter().map(|n| places.get(&n.claim_id).map(|(_, shard)| *shard)).collect();
                let lock = shards.map_or(Rows::All, Rows::Of);
                let name = "apply_notices";
                match transaction!(self.settle, name, |tx| apply(tx, name, sale, &lock, &of_part)) {
                    Ok(outcomes) => {
                        outcomes.iter().for_each(count);
                        put(&mut answers, part, outcomes.into_iter().map(Ok));
                    }
                    Err(LedgerError::Invalid(why)) if part.len() > 1 => {
                        tracing::warn!(%sale, notices = part.len(), why, "notices were refused for their data: halved");
                        let (left, right) = part.split_at(part.len() / 2);
                        parts.extend([right, left]);
                    }
                    Err(error) => put(&mut answers, part, part.iter().map(|_| Err(error.clone()))),
                }
            }
        }
        let missing = || Err(LedgerError::Bug("a notice without an answer".into()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }
}

/// What no transaction needs to be asked about.
fn refused(notice: &PaymentNotice) -> Option<Result<NoticeOutcome>> {
    let why = if !(1..=PROVIDER_ID_BYTES).contains(&notice.payment_id.len()) {
        format!("a payment id has 1 to {PROVIDER_ID_BYTES} bytes")
    } else if notice.amount.amount_minor < 0 {
        "a payment is not negative".to_owned()
    } else {
        return None;
    };
    Some(Err(LedgerError::Invalid(why)))
}

fn put(
    answers: &mut [Option<Result<NoticeOutcome>>],
    part: &[usize],
    outcomes: impl Iterator<Item = Result<NoticeOutcome>>,
) {
    for (&at, outcome) in part.iter().zip(outcomes) {
        if let Some(answer) = answers.get_mut(at) {
            *answer = Some(outcome);
        }
    }
}

fn count(outcome: &NoticeOutcome) {
    let word = match outcome {
        NoticeOutcome::Paid => "paid",
        NoticeOutcome::Repeat => "repeat",
        NoticeOutcome::FailedNoted => "failed",
        NoticeOutcome::Refunding { reason } => reason.as_str(),
        NoticeOutcome::Mismatch { .. } => "mismatch",
        NoticeOutcome::UnknownClaim => "unknown_claim",
    };
    metrics::counter!("flashgate_ledger_notices_total", "outcome" => word).increment(1);
}

/// The body: lock, note the payments, read, judge in the order of the notices, write.
async fn apply(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    lock: &Rows,
    notices: &[&PaymentNotice],
) -> Result<Vec<NoticeOutcome>, TxError> {
    let Some(mut locked) = lock_stock(tx, sale, lock).await? else {
        return Ok(notices.iter().map(|_| NoticeOutcome::UnknownClaim).collect());
    };
    let mut judge = Judge {
        fresh: note_payments(tx, name, notices).await?,
        orders: rows::orders(&mut *tx, notices.iter().map(|n| n.claim_id.0).collect()).await?,
        now_ms: locked.now_ms,
        writes: Writes::default(),
    };
    let outcomes = notices.iter().map(|notice| judge.outcome(notice)).collect();
    judge.writes.write(tx, name, sale, &mut locked).await?;
    Ok(outcomes)
}

/// What the ledger knows under the lock, changed as the notices are judged: earlier ones count.
struct Judge<'a> {
    /// Payments that were not noted before.
    fresh: HashSet<String>,
    orders: HashMap<ClaimId, Order>,
    now_ms: UnixMs,
    writes: Writes<'a>,
}

impl<'a> Judge<'a> {
    fn outcome(&mut self, notice: &'a PaymentNotice) -> NoticeOutcome {
        let order = self.orders.get_mut(&notice.claim_id);
        if notice.kind == NoticeKind::Failed {
            if order.is_some() {
                self.writes.failed.push(notice.claim_id.0);
                return NoticeOutcome::FailedNoted;
            }
            return NoticeOutcome::UnknownClaim;
        }
        if !self.fresh.remove(&notice.payment_id) {
            return NoticeOutcome::Repeat;
        }
        let Some(order) = order else {
            self.writes.refunds.push((notice, RefundReason::UnknownClaim));
            return NoticeOutcome::UnknownClaim;
        };
        if notice.amount != order.amount || notice.sale != order.sale {
            self.writes.refunds.push((notice, RefundReason::Mismatch));
            return NoticeOutcome::Mismatch { expected: order.amount.clone(), paid: notice.amount.clone() };
        }
        let reason = match order.status {
            OrderStatus::Reserved if order.hold_until_ms.is_some_and(|until| until > self.now_ms) => {
                order.status = OrderStatus::Paid;
                self.writes.bought.push((notice.claim_id.0, &notice.payment_id));
                return NoticeOutcome::Paid;
            }
            // A hold that is over and was not swept yet ends here.
            OrderStatus::Reserved => {
                order.status = OrderStatus::Expired;
                self.writes.expired.push(notice.claim_id.0);
                RefundReason::Expired
            }
            OrderStatus::Expired => RefundReason::Expired,
            OrderStatus::Lost => RefundReason::Lost,
            // The payment was new, so another one had paid.
            OrderStatus::Paid => RefundReason::AlreadyPaid,
        };
        self.writes.refunds.push((notice, reason));
        NoticeOutcome::Refunding { reason }
    }
}

/// What the notices of one transaction change.
#[derive(Default)]
struct Writes<'a> {
    /// Claims and the payments that pay them.
    bought: Vec<(Uuid, &'a str)>,
    expired: Vec<Uuid>,
    failed: Vec<Uuid>,
    refunds: Vec<(&'a PaymentNotice, RefundReason)>,
}

impl Writes<'_> {
    async fn write(
        self,
        tx: &mut PgConnection,
        name: &'static str,
        sale: &SaleId,
        locked: &mut Locked,
    ) -> Result<(), TxError> {
        if !self.bought.is_empty() {
            buy(tx, name, sale, locked, &self.bought).await?;
        }
        if !self.expired.is_empty() {
            expire(tx, name, sale, locked, &self.expired).await?;
        }
        if !self.failed.is_empty() {
            release_checkouts(tx, name, sale, &self.failed).await?;
        }
        // Nothing is owed for a payment of nothing.
        let owed: Vec<_> = self.refunds.into_iter().filter(|(notice, _)| notice.amount.amount_minor > 0).collect();
        if !owed.is_empty() {
            refund(tx, name, &owed).await?;
        }
        Ok(())
    }
}

/// Notes the payments; returns those that are new. Of two notices of one payment the first counts.
async fn note_payments(
    tx: &mut PgConnection,
    name: &'static str,
    notices: &[&PaymentNotice],
) -> Result<HashSet<String>, TxError> {
    let paid: Vec<&PaymentNotice> =
        notices.iter().copied().filter(|notice| notice.kind == NoticeKind::Succeeded).collect();
    if paid.is_empty() {
        return Ok(HashSet::new());
    }
    let text = |f: &dyn Fn(&PaymentNotice) -> String| paid.iter().map(|n| f(n)).collect::<Vec<_>>();
    let rows = sqlx::query_scalar!(
        "INSERT INTO payments (provider_payment_id, claim_id, sale, amount_minor, currency, paid_at_ms, updated_by)
         SELECT payment_id, claim_id, sale, amount_minor, currency, at_ms, $1
         FROM UNNEST($2::text[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::bigint[]) WITH ORDINALITY
           AS d (payment_id, claim_id, sale, amount_minor, currency, at_ms, place)
         ORDER BY place
         ON CONFLICT DO NOTHING
         RETURNING provider_payment_id",
        name,
        &text(&|n| n.payment_id.clone()),
        &paid.iter().map(|n| n.claim_id.0).collect::<Vec<_>>(),
        &text(&|n| n.sale.to_string()),
        &paid.iter().map(|n| n.amount.amount_minor).collect::<Vec<_>>(),
        &text(&|n| n.amount.currency.as_str().to_owned()),
        &paid.iter().map(|n| n.at_ms).collect::<Vec<_>>()
    )
    .fetch_all(tx)
    .await?;
    Ok(rows.into_iter().collect())
}

/// RESERVED and in time → PAID, for orders that the lock showed to be so.
async fn buy(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    locked: &mut Locked,
    bought: &[(Uuid, &str)],
) -> Result<(), TxError> {
    let (claims, payments): (Vec<Uuid>, Vec<String>) =
        bought.iter().map(|(claim, payment)| (*claim, (*payment).to_owned())).unzip();
    let rows = sqlx::query!(
        "UPDATE orders o SET status = 'PAID', payment_id = d.payment_id, ended_at_ms = $2, paying_since_ms = NULL,
                updated_at_ms = $2, updated_by = $3
         FROM UNNEST($4::uuid[], $5::text[]) AS d (claim_id, payment_id)
         WHERE o.claim_id = d.claim_id AND (o.sale = $1 AND o.status = 'RESERVED' AND o.hold_until_ms > $2) IS TRUE
         RETURNING o.claim_id, o.shard, o.buyer, o.quantity",
        sale.as_str(),
        locked.now_ms,
        name,
        &claims,
        &payments
    )
    .fetch_all(&mut *tx)
    .await?;
    if rows.len() != bought.len() {
        let (were, asked) = (rows.len(), bought.len());
        return Err(LedgerError::Bug(format!("{name}: {were} of {asked} orders were RESERVED")).into());
    }
    let paid = rows.into_iter().map(|row| {
        Ok(NewEntry {
            shard: row.shard,
            kind: EntryKind::Paid,
            claim: Some((ClaimId(row.claim_id), word("buyer", &row.buyer)?, number("quantity", row.quantity)?)),
            units: 0,
            gained: 0,
            detail: None,
        })
    });
    append(tx, name, sale, locked, paid.collect::<Result<_>>()?).await
}

/// A failed payment leaves the hold as it is: the buyer may try another card.
async fn release_checkouts(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    claims: &[Uuid],
) -> Result<(), TxError> {
    sqlx::query!(
        "UPDATE orders SET paying_since_ms = NULL, updated_at_ms = unix_now_ms(), updated_by = $3
         WHERE claim_id = ANY($1) AND (sale = $2 AND status = 'RESERVED') IS TRUE",
        claims,
        sale.as_str(),
        name
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Records that payments go back, in full.
async fn refund(
    tx: &mut PgConnection,
    name: &'static str,
    refunds: &[(&PaymentNotice, RefundReason)],
) -> Result<(), TxError> {
    let text = |f: &dyn Fn(&PaymentNotice) -> String| refunds.iter().map(|(notice, _)| f(notice)).collect::<Vec<_>>();
    sqlx::query!(
        "INSERT INTO refunds (payment_id, claim_id, sale, amount_minor, currency, reason, updated_by)
         SELECT payment_id, claim_id, sale, amount_minor, currency, reason, $1
         FROM UNNEST($2::text[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::text[])
           AS d (payment_id, claim_id, sale, amount_minor, currency, reason)",
        name,
        &text(&|n| n.payment_id.clone()),
        &refunds.iter().map(|(n, _)| n.claim_id.0).collect::<Vec<_>>(),
        &text(&|n| n.sale.to_string()),
        &refunds.iter().map(|(n, _)| n.amount.amount_minor).collect::<Vec<_>>(),
        &text(&|n| n.amount.currency.as_str().to_owned()),
        &refunds.iter().map(|(_, reason)| reason.as_str().to_owned()).collect::<Vec<_>>()
    )
    .execute(tx)
    .await?;
    Ok(())
}
