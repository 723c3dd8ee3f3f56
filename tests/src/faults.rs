//! What goes wrong on purpose: origins that die half way, messages that come twice.

use crate::Shop;
use anyhow::{Result, bail};
use flashgate_queue::Published;
use flashgate_shared::{
    BucketIndex, ClaimId, SaleId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    trace::TraceId,
};
use flashgate_stock::{ClaimAttempt, ClaimReply};

/// Takes one unit at the gate as an origin does that dies before it publishes: the receipt and the
/// outbox entry are left. The envelope is what it would have sent.
pub async fn claim_and_die(
    shop: &Shop,
    sale: &SaleId,
    buyer: &str,
    key: &str,
    bucket: BucketIndex,
) -> Result<ClaimEnvelope> {
    let buyer = buyer.parse()?;
    let attempt = ClaimAttempt {
        claim_id: ClaimId::derive(sale, &buyer, &key.parse()?),
        sale: sale.clone(),
        epoch: 1,
        buyer,
        quantity: 1,
        per_buyer_limit: 1,
        second_try: false,
        now_ms: shop.stock.now_ms().await?,
        trace_id: TraceId::from_random(uuid::Uuid::new_v4().as_u128()),
    };
    match shop.stock.claim(&attempt, bucket).await? {
        ClaimReply::Ok { hold, .. } => Ok(ClaimEnvelope {
            v: ENVELOPE_VERSION,
            sale: attempt.sale,
            claim_id: attempt.claim_id,
            buyer: attempt.buyer,
            quantity: attempt.quantity,
            hold,
            claimed_at_ms: attempt.now_ms,
            trace_id: attempt.trace_id,
        }),
        other => bail!("the gate does not take the claim: {other:?}"),
    }
}

/// Publishes an envelope as an origin does.
pub async fn publish(shop: &Shop, envelope: &ClaimEnvelope) -> Result<()> {
    match shop.queue.publish(envelope).await {
        Published::Confirmed => Ok(()),
        other => bail!("not confirmed: {other:?}"),
    }
}

/// Lets a reservation's time be over now: both the time to pay and the hold.
pub async fn expire_now(shop: &Shop, claim: ClaimId) -> Result<()> {
    let moved = sqlx::query(
        "UPDATE orders SET reserved_at_ms = unix_now_ms() - 3, pay_by_ms = unix_now_ms() - 2, hold_until_ms = unix_now_ms() - 1
         WHERE claim_id = $1 AND status = 'RESERVED'",
    );
    let moved = moved.bind(claim.0).execute(&mut shop.database().await?).await?.rows_affected();
    if moved == 1 { Ok(()) } else { bail!("{claim} is not reserved") }
}

/// Lets only the time to pay be over; the grace still runs.
pub async fn end_pay_window(shop: &Shop, claim: ClaimId) -> Result<()> {
    let moved = sqlx::query(
        "UPDATE orders SET reserved_at_ms = unix_now_ms() - 3, pay_by_ms = unix_now_ms() - 2
         WHERE claim_id = $1 AND status = 'RESERVED'",
    );
    let moved = moved.bind(claim.0).execute(&mut shop.database().await?).await?.rows_affected();
    if moved == 1 { Ok(()) } else { bail!("{claim} is not reserved") }
}
