//! An order seen by its buyer: status, declared loss, checkout, and letting go.

use crate::{
    Checkout, Ledger, LedgerError, Order, Result,
    chain::{NewEntry, append},
    release::expire,
    rows::{self, Refusal},
    sales::settings,
    tx::{Rows, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    BuyerId, ClaimId, SaleId, limits,
    order::{LostReason, OrderStatus},
    sale::SaleState,
    trace::TraceId,
};
use sqlx::PgConnection;

impl Ledger {
    /// The row of a claim, if the ledger has spoken about it.
    pub async fn order(&self, claim_id: &ClaimId) -> Result<Option<Order>> {
        Ok(rows::order(&self.reads, claim_id).await?)
    }

    /// The buyer's live order in the sale, else the newest row.
    pub async fn newest_order(&self, sale: &SaleId, buyer: &BuyerId) -> Result<Option<Order>> {
        Ok(rows::newest_order(&self.reads, sale, buyer).await?)
    }

    /// Rule R4: writes `LOST(gate_lost)` for a claim that the gate forgot, unless the claim has a row, and
    /// returns the row that stands. The caller has seen every bucket answer at the ledger's epoch.
    /// `Conflict` while the gate is being rebuilt. A `quantity` of 0 (unknown) is written as 1.
    pub async fn declare_lost(
        &self,
        sale: &SaleId,
        claim_id: &ClaimId,
        buyer: &BuyerId,
        quantity: u32,
        trace_id: TraceId,
    ) -> Result<Order> {
        let name = "declare_lost";
        let quantity = quantity.clamp(1, limits::PER_BUYER_MAX);
        let shard = self.next_shard(sale).await?;
        transaction!(self.reads, name, |tx| declare_lost(tx, name, sale, shard, *claim_id, buyer, quantity, trace_id))
    }

    /// Starts a checkout, by the database's clock: until `pay_by_ms`, and only for the buyer's own
    /// reserved order. `NotFound` when the claim is unknown or another's.
    pub async fn checkout(&self, claim_id: &ClaimId, buyer: &BuyerId) -> Result<Checkout> {
        let started = sqlx::query!(
            "UPDATE orders SET paying_since_ms = unix_now_ms(), updated_at_ms = unix_now_ms(), updated_by = 'checkout'
             WHERE claim_id = $1 AND buyer = $2 AND status = 'RESERVED' AND pay_by_ms >= unix_now_ms()",
            claim_id.0,
            buyer.as_str()
        )
        .execute(&self.reads)
        .await
        .map_err(outer)?
        .rows_affected();
        let order = own(rows::order(&self.reads, claim_id).await?, buyer)?;
        Ok(match (started, order.status) {
            (1, _) => Checkout::Start { order },
            (_, OrderStatus::Reserved) => Checkout::TooLate,
            _ => Checkout::NotReserved(order),
        })
    }

    /// The buyer gives the units back early, through the path of expiry. Returns the order as it stands
    /// afterwards: `EXPIRED`, or unchanged when it was not `RESERVED` any more.
    pub async fn let_go(&self, claim_id: &ClaimId, buyer: &BuyerId) -> Result<Order> {
        let name = "let_go";
        transaction!(self.reads, name, |tx| let_go(tx, name, claim_id, buyer))
    }
}

#[allow(clippy::too_many_arguments)]
async fn declare_lost(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    shard: i16,
    claim_id: ClaimId,
    buyer: &BuyerId,
    quantity: u32,
    trace_id: TraceId,
) -> Result<Order, TxError> {
    let mut locked = lock_stock(tx, sale, &Rows::one(shard)).await?.ok_or(LedgerError::NotFound)?;
    let (config, state) = settings(tx, sale).await?;
    if state == SaleState::Rebuilding {
        return Err(LedgerError::Conflict("the gate is being rebuilt".into()).into());
    }
    let amount = config.price.times(quantity).unwrap_or(config.price);
    let refusal = Refusal {
        sale,
        claim_id,
        buyer,
        quantity,
        reason: LostReason::GateLost,
        hold: None,
        amount,
        trace_id,
        now_ms: locked.now_ms,
    };
    let order = refusal.into_order();
    let lost = NewEntry::of(shard, &order);
    if rows::insert_orders(tx, name, &[(shard, order)]).await? == 1 {
        append(tx, name, sale, &mut locked, vec![lost]).await?;
    }
    own(rows::order(tx, &claim_id).await?, buyer)
}

/// Another's claim is as good as none.
fn own(order: Option<Order>, buyer: &BuyerId) -> Result<Order, TxError> {
    order.filter(|o| o.buyer == *buyer).ok_or_else(|| LedgerError::NotFound.into())
}

async fn let_go(
    tx: &mut PgConnection,
    name: &'static str,
    claim_id: &ClaimId,
    buyer: &BuyerId,
) -> Result<Order, TxError> {
    // A claim's sale and stock row never change: they may be read before the lock that they name.
    let place = rows::places(&mut *tx, &[claim_id.0]).await?.remove(claim_id);
    let (sale, shard) = place.ok_or(LedgerError::NotFound)?;
    let mut locked = lock_stock(tx, &sale, &Rows::one(shard)).await?.ok_or(LedgerError::NotFound)?;
    let order = own(rows::order(&mut *tx, claim_id).await?, buyer)?;
    if order.status != OrderStatus::Reserved {
        return Ok(order);
    }
    expire(tx, name, &sale, &mut locked, &[claim_id.0]).await?;
    own(rows::order(tx, claim_id).await?, buyer)
}
