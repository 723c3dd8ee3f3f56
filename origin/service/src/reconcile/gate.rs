//! The gate's receipts against the ledger's orders.

use super::{Wish, drift};
use crate::{App, audit::AuditError};
use flashgate_ledger::{LiveOrder, SaleRow};
use flashgate_queue::Published;
use flashgate_shared::{
    Clock, HoldId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    order::{DriftKind, ReceiptState},
    trace::TraceId,
    wire::Drift,
};
use flashgate_stock::HeldReceipt;
use std::collections::HashSet;

/// Most claims that are published again at once.
const REPUBLISH_MAX: usize = 1_000;

/// Gate and ledger as they were read.
pub struct View {
    live: Vec<LiveOrder>,
    held: Vec<HeldReceipt>,
    /// Nothing was in the outbox or the queue, after the receipts were read.
    nothing_on_its_way: bool,
}

/// Reads both. The order matters: a receipt is there before its order, and what left outbox and queue since the
/// receipts were read is in the ledger by the next question.
pub async fn view(app: &App, row: &SaleRow) -> Result<View, AuditError> {
    let (sale, buckets) = (&row.config.id, row.config.buckets);
    let live = app.ledger.live_orders(sale).await?;
    let held = app.stock.held(sale, buckets).await.map_err(AuditError::Stock)?;
    let map = app.stock.stock_map(sale, buckets).await.map_err(AuditError::Stock)?;
    let depth = app.queue.depth(sale).await.map_err(AuditError::Queue)?;
    Ok(View { live, held, nothing_on_its_way: map.outbox() == 0 && depth.ready == 0 && depth.dead == 0 })
}

/// Held receipts of old claims that the ledger does not know, while nothing is on its way.
pub async fn lost_messages(app: &App, row: &SaleRow, view: &View, wish: Wish) -> Result<Vec<Drift>, AuditError> {
    if !view.nothing_on_its_way {
        return Ok(Vec::new());
    }
    let old_ms = app.clock.now_ms().saturating_sub(wish.older_than_ms);
    let is_old = |h: &&HeldReceipt| h.receipt.hold.epoch == row.epoch && h.receipt.claimed_at_ms <= old_ms;
    let old: Vec<&HeldReceipt> = view.held.iter().filter(is_old).collect();
    let holds: Vec<_> = old.iter().map(|h| (h.receipt.claim_id, h.receipt.hold.clone())).collect();
    let mut drifts = Vec::new();
    for place in app.ledger.unanswered_holds(&holds).await?.into_iter().take(REPUBLISH_MAX) {
        let Some(held) = old.get(place) else { continue };
        let cause = format!("the gate holds {} for it, and its message is nowhere", held.receipt.hold);
        let lost = drift(DriftKind::LostMessage, i64::from(held.receipt.quantity), cause);
        let repair = if wish.repair { publish(app, row, held).await } else { None };
        drifts.push(Drift { claim_id: Some(held.receipt.claim_id), repair, ..lost });
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
pub async fn missing_receipts(app: &App, row: &SaleRow, view: &View) -> Result<Vec<Drift>, AuditError> {
    let (sale, buckets) = (&row.config.id, row.config.buckets);
    let known: HashSet<(_, &HoldId)> = view.held.iter().map(|h| (h.receipt.claim_id, &h.receipt.hold)).collect();
    let mut drifts = Vec::new();
    for (buyer, claim_id, hold, quantity) in &view.live {
        let Some(hold) = hold else { continue };
        if known.contains(&(*claim_id, hold)) {
            continue;
        }
        // It may have ended, and its units gone back, meanwhile.
        let receipts = app.stock.receipts(sale, buckets, buyer).await.map_err(AuditError::Stock)?;
        let is_held = receipts.iter().filter_map(|r| r.receipt.as_ref()).any(|receipt| {
            receipt.state == ReceiptState::Held && receipt.claim_id == *claim_id && receipt.hold == *hold
        });
        let still_live = app.ledger.order(claim_id).await?.is_some_and(|order| order.status.is_live());
        if !is_held && still_live {
            let cause = format!("the gate does not know its hold {hold}: its unit could not come back");
            let missing = drift(DriftKind::MissingReceipt, i64::from(*quantity), cause);
            drifts.push(Drift { claim_id: Some(*claim_id), ..missing });
        }
    }
    Ok(drifts)
}
