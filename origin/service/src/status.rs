//! What a claim is (design §7): the ledger's row first, then the gate's receipt, then, after 30 s and
//! only when every bucket has answered at the ledger's epoch, a row that says *lost*. Absence alone
//! proves nothing (rule R4).

use crate::{
    App,
    http::problem::jitter,
    sales::Sale,
    status_url::{Facts, StatusQuery},
};
use flashgate_ledger::{LedgerError, Order};
use flashgate_shared::{
    BuyerId, ClaimId, Clock, UnixMs, limits,
    order::{OrderStatus, ReceiptState},
    sale::SaleState,
    trace::TraceId,
    wire::{ClaimState, ClaimStatus},
};
use flashgate_stock::{BucketReceipt, Receipt, StockError};

/// When to ask again while the ledger has not spoken.
const PENDING_POLL_MS: u64 = 500;
/// When to ask again while a payment is on its way.
const PAYING_POLL_MS: u64 = 700;
/// When to ask again while nothing but the buyer is awaited.
const RESERVED_POLL_MS: u64 = 4_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Not his, or nothing known.
    #[error("no such claim")]
    NotFound,
    /// The ledger does not answer.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The gate does not answer.
    #[error(transparent)]
    Stock(#[from] StockError),
}

/// The state of this buyer's claim.
pub async fn of_claim(
    app: &App,
    sale: &Sale,
    claim_id: ClaimId,
    buyer: &BuyerId,
    query: &StatusQuery,
    trace: TraceId,
) -> Result<ClaimStatus, StatusError> {
    let vouched = vouched(app, sale, claim_id, buyer, query)?;
    if let Some(order) = app.ledger.order(&claim_id).await? {
        if order.buyer != *buyer || order.sale != *sale.id() {
            return Err(StatusError::NotFound);
        }
        return Ok(from_order(app, &order, vouched.map(|v| v.claimed_at_ms)));
    }
    let receipts = app.stock.receipts(sale.id(), sale.row.config.buckets, buyer).await?;
    if let Some(receipt) = held(&receipts, |r| r.claim_id == claim_id) {
        return Ok(pending(app, sale, buyer, receipt));
    }
    let Some(facts) = vouched else { return Err(StatusError::NotFound) };
    let now_ms = app.clock.now_ms();
    // The row as it is now: a rebuild may have begun since the cache was filled.
    let row = app.ledger.sale(sale.id()).await?.ok_or(StatusError::NotFound)?;
    let old = now_ms.saturating_sub(facts.claimed_at_ms) >= limits::LOST_AFTER_MS;
    let complete = receipts.len() == usize::from(row.config.buckets)
        && receipts.iter().all(|r| r.epoch == Some(row.epoch))
        && !matches!(row.state, SaleState::Rebuilding | SaleState::Loading);
    if !(old && complete) {
        return Ok(waiting(app, facts, now_ms));
    }
    let order = app.ledger.declare_lost(sale.id(), &claim_id, buyer, facts.quantity, trace).await?;
    tracing::warn!(%trace, claim = %claim_id, status = %order.status, "a claim was forgotten by the gate and is declared lost");
    app.watchers.news(&claim_id);
    Ok(from_order(app, &order, Some(facts.claimed_at_ms)))
}

/// The buyer's newest claim in a sale.
pub async fn newest(app: &App, sale: &Sale, buyer: &BuyerId) -> Result<Option<ClaimStatus>, StatusError> {
    let order = app.ledger.newest_order(sale.id(), buyer).await?;
    if let Some(order) = order.as_ref().filter(|o| o.status.is_live()) {
        return Ok(Some(from_order(app, order, None)));
    }
    let receipts = app.stock.receipts(sale.id(), sale.row.config.buckets, buyer).await?;
    let ended = order.as_ref().map(|o| o.claim_id);
    if let Some(receipt) = held(&receipts, |r| Some(r.claim_id) != ended) {
        return Ok(Some(pending(app, sale, buyer, receipt)));
    }
    Ok(order.map(|order| from_order(app, &order, None)))
}

/// The facts of a link when it carries them; a MAC that does not fit is no link of ours.
fn vouched<'a>(
    app: &App,
    sale: &'a Sale,
    claim_id: ClaimId,
    buyer: &'a BuyerId,
    query: &StatusQuery,
) -> Result<Option<Facts<'a>>, StatusError> {
    let (Some(claimed_at_ms), Some(mac)) = (query.t, query.m.as_deref()) else { return Ok(None) };
    let facts = Facts { claim_id, sale: sale.id(), buyer, quantity: query.q.unwrap_or(1), claimed_at_ms };
    if facts.verify(&app.secrets.status_macs, mac) { Ok(Some(facts)) } else { Err(StatusError::NotFound) }
}

fn held(receipts: &[BucketReceipt], wanted: impl Fn(&Receipt) -> bool) -> Option<&Receipt> {
    receipts.iter().filter_map(|r| r.receipt.as_ref()).find(|r| r.state == ReceiptState::Held && wanted(r))
}

fn pending(app: &App, sale: &Sale, buyer: &BuyerId, receipt: &Receipt) -> ClaimStatus {
    let facts = Facts {
        claim_id: receipt.claim_id,
        sale: sale.id(),
        buyer,
        quantity: receipt.quantity,
        claimed_at_ms: receipt.claimed_at_ms,
    };
    waiting(app, facts, app.clock.now_ms())
}

fn waiting(app: &App, facts: Facts<'_>, now_ms: UnixMs) -> ClaimStatus {
    ClaimStatus {
        claim_id: facts.claim_id,
        sale: facts.sale.clone(),
        status: ClaimState::Pending,
        quantity: facts.quantity,
        amount: None,
        pay_by_ms: None,
        paying: false,
        reason: None,
        refunded: false,
        now_ms,
        poll_after_ms: Some(jitter(PENDING_POLL_MS)),
        status_url: facts.url(&app.secrets.status_macs),
    }
}

/// What the buyer is told of a row.
pub fn from_order(app: &App, order: &Order, claimed_at_ms: Option<UnixMs>) -> ClaimStatus {
    let facts = Facts {
        claim_id: order.claim_id,
        sale: &order.sale,
        buyer: &order.buyer,
        quantity: order.quantity,
        claimed_at_ms: claimed_at_ms.unwrap_or(order.created_at_ms),
    };
    let reserved = order.status == OrderStatus::Reserved;
    let lost = order.status == OrderStatus::Lost;
    ClaimStatus {
        claim_id: order.claim_id,
        sale: order.sale.clone(),
        status: ClaimState::Ledger(order.status),
        quantity: order.quantity,
        amount: (!lost).then(|| order.amount.clone()),
        pay_by_ms: order.pay_by_ms.filter(|_| reserved),
        paying: reserved && order.paying,
        reason: order.reason,
        refunded: order.refunded,
        now_ms: app.clock.now_ms(),
        poll_after_ms: reserved.then(|| jitter(if order.paying { PAYING_POLL_MS } else { RESERVED_POLL_MS })),
        status_url: facts.url(&app.secrets.status_macs),
    }
}

/// Whether nothing more will happen to the claim by itself.
pub fn is_final(status: &ClaimStatus) -> bool {
    status.poll_after_ms.is_none()
}
