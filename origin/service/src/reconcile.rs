//! Reconciling a sale (design §9): gate, outbox, queue and ledger compared, each drift named with its cause.
//!
//! What is on its way looks like drift. So a claim counts as lost only when it is old, nothing of it is in the
//! outbox, and the queue is empty; and counters are compared only at rest. Repairs act on one hold, and may be
//! repeated; counters change by a rebuild alone.

use crate::{
    App,
    audit::{AuditError, audit},
    roles::rebuild,
};
use flashgate_ledger::{LedgerError, SaleRow};
use flashgate_queue::Published;
use flashgate_shared::{
    Clock, HoldId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    order::{DriftKind, ReceiptState},
    trace::TraceId,
    wire::{Drift, Reconciliation},
};
use flashgate_stock::HeldReceipt;
use std::collections::HashSet;

/// How old a claim is at least before it counts as lost, unless an operator says otherwise, in milliseconds.
pub const OLDER_THAN_MS: i64 = 60_000;
/// Most claims that are published again at once.
const REPUBLISH_MAX: usize = 1_000;

/// What is compared, and what is done about it.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Mend what can be mended.
    pub repair: bool,
    /// Rebuild the gate where only that mends. The scheduled reconciliation leaves that to people.
    pub rebuild: bool,
    /// Younger claims, releases and refunds may be on their way.
    pub older_than_ms: i64,
}

/// Compares, and repairs if that is wished.
pub async fn reconcile(app: &App, row: &SaleRow, wish: Wish) -> Result<Reconciliation, AuditError> {
    let mut drifts = lost_messages(app, row, wish).await?;
    drifts.extend(money_and_releases(app, row, wish).await?);
    let mut broken = missing_receipts(app, row).await?;
    let report = audit(app, row).await?;
    if report.sold != report.live_units {
        let (sold, live) = (report.sold, report.live_units);
        let cause = format!("the stock row says {sold} units are sold, the live orders hold {live}");
        drifts.push(drift(DriftKind::SoldMismatch, sold - live, cause));
    }
    // Lost messages are stranded units as well: they are named already.
    let named: i64 = drifts.iter().filter(|d| d.kind == DriftKind::LostMessage).map(|d| d.units).sum();
    if report.quiet && report.drift != named {
        let (total, offer, live) = (report.total, report.on_offer, report.live_units);
        let cause = format!("{offer} units on offer and {live} sold do not make {total}");
        broken.push(drift(DriftKind::Counter, report.drift - named, cause));
    }
    if wish.repair && wish.rebuild && !broken.is_empty() {
        rebuild::order(app, &row.config.id).await?;
        for drift in &mut broken {
            drift.repair = Some("the gate is rebuilt".to_owned());
        }
    }
    drifts.extend(broken);
    for drift in &drifts {
        metrics::counter!("flashgate_drifts_total", "kind" => drift.kind.as_str()).increment(1);
        tracing::warn!(
            sale = %row.config.id, kind = %drift.kind, units = drift.units, cause = drift.cause,
            repair = drift.repair, "drift"
        );
    }
    Ok(Reconciliation { sale: row.config.id.clone(), drifts, quiet: report.quiet })
}

fn drift(kind: DriftKind, units: i64, cause: String) -> Drift {
    Drift { kind, claim_id: None, units, cause, repair: None }
}

/// Held receipts of old claims that the ledger does not know, while nothing is on its way.
async fn lost_messages(app: &App, row: &SaleRow, wish: Wish) -> Result<Vec<Drift>, AuditError> {
    let (sale, buckets) = (&row.config.id, row.config.buckets);
    let held = app.stock.held(sale, buckets).await.map_err(AuditError::Stock)?;
    // Read after the receipts: what left the outbox or the queue since is in the ledger by the next question.
    let map = app.stock.stock_map(sale, buckets).await.map_err(AuditError::Stock)?;
    let depth = app.queue.depth(sale).await.map_err(AuditError::Queue)?;
    if map.outbox() > 0 || depth.ready > 0 || depth.dead > 0 {
        return Ok(Vec::new());
    }
    let old_ms = app.clock.now_ms().saturating_sub(wish.older_than_ms);
    let old: Vec<HeldReceipt> =
        held.into_iter().filter(|h| h.receipt.hold.epoch == row.epoch && h.receipt.claimed_at_ms <= old_ms).collect();
    let holds: Vec<_> = old.iter().map(|h| (h.receipt.claim_id, h.receipt.hold.clone())).collect();
    let mut drifts = Vec::new();
    for place in app.ledger.unanswered_holds(&holds).await?.into_iter().take(REPUBLISH_MAX) {
        let Some(held) = old.get(place) else { continue };
        let mut lost = Drift {
            claim_id: Some(held.receipt.claim_id),
            ..drift(
                DriftKind::LostMessage,
                i64::from(held.receipt.quantity),
                format!("the gate holds {} for it, and its message is nowhere", held.receipt.hold),
            )
        };
        if wish.repair {
            lost.repair = publish(app, row, held).await;
        }
        drifts.push(lost);
    }
    Ok(drifts)
}

/// The message, once more: by its hold a repeat is known as one.
async fn publish(app: &App, row: &SaleRow, held: &HeldReceipt) -> Option<String> {
    let envelope = ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: row.config.id.clone(),
        claim_id: held.receipt.claim_id,
        buyer: held.buyer.clone(),
        quantity: held.receipt.quantity,
        hold: held.receipt.hold.clone(),
        claimed_at_ms: held.receipt.claimed_at_ms,
        // The claim's own went with its message.
        trace_id: TraceId::from_random(uuid::Uuid::new_v4().as_u128()),
    };
    match app.queue.publish(&envelope).await {
        Published::Confirmed => Some("published again".to_owned()),
        Published::Unknown(error) => {
            tracing::warn!(%error, claim = %envelope.claim_id, "a lost message could not be published again");
            None
        }
    }
}

/// Live orders whose hold the gate does not know.
async fn missing_receipts(app: &App, row: &SaleRow) -> Result<Vec<Drift>, AuditError> {
    let (sale, buckets) = (&row.config.id, row.config.buckets);
    let live = app.ledger.live_orders(sale).await?;
    // After the orders: a receipt is there before its order.
    let held = app.stock.held(sale, buckets).await.map_err(AuditError::Stock)?;
    let known: HashSet<(_, &HoldId)> = held.iter().map(|h| (h.receipt.claim_id, &h.receipt.hold)).collect();
    let mut drifts = Vec::new();
    for (buyer, claim_id, hold, quantity) in live {
        let Some(hold) = hold else { continue };
        if known.contains(&(claim_id, &hold)) {
            continue;
        }
        // It may have ended, and its units gone back, meanwhile.
        let receipts = app.stock.receipts(sale, buckets, &buyer).await.map_err(AuditError::Stock)?;
        let is_held = receipts
            .iter()
            .filter_map(|r| r.receipt.as_ref())
            .any(|receipt| receipt.state == ReceiptState::Held && receipt.claim_id == claim_id && receipt.hold == hold);
        let still_live = app.ledger.order(&claim_id).await?.is_some_and(|order| order.status.is_live());
        if !is_held && still_live {
            let cause = format!("the gate does not know its hold {hold}: its unit could not come back");
            let missing = drift(DriftKind::MissingReceipt, i64::from(quantity), cause);
            drifts.push(Drift { claim_id: Some(claim_id), ..missing });
        }
    }
    Ok(drifts)
}

async fn money_and_releases(app: &App, row: &SaleRow, wish: Wish) -> Result<Vec<Drift>, LedgerError> {
    let sale = &row.config.id;
    let mut drifts = Vec::new();
    for payment in app.ledger.unmatched_payments(sale).await? {
        let cause = format!("payment {} neither paid the order nor goes back", payment.payment_id);
        let claim_id = Some(payment.claim_id);
        drifts.push(Drift { claim_id, ..drift(DriftKind::UnmatchedPayment, 0, cause) });
    }
    for release in app.ledger.stuck_releases(sale, wish.older_than_ms).await? {
        let cause = format!("the gate has not taken back {} in {} tries", release.hold, release.attempts);
        let claim_id = Some(release.claim_id);
        drifts.push(Drift { claim_id, ..drift(DriftKind::StuckRelease, i64::from(release.units), cause) });
    }
    for claim_id in app.ledger.stuck_refunds(sale, wish.older_than_ms).await? {
        let cause = "the provider has not confirmed its refund".to_owned();
        drifts.push(Drift { claim_id: Some(claim_id), ..drift(DriftKind::StuckRefund, 0, cause) });
    }
    Ok(drifts)
}
