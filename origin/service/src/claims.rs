//! The claim's way through the buckets (design §6): home first, then two more, then the fullest.
//!
//! It never tries another bucket after an unknown outcome, and never says "sold out" before it has
//! looked for the buyer's receipt everywhere.

use crate::{App, sales::Sale};
use flashgate_shared::{BucketIndex, ClaimId, HoldId, UnixMs, ids::home_bucket, order::ReceiptState};
use flashgate_stock::{ClaimAttempt, ClaimReply, Receipt, StockError, StockMap};

/// Buckets tried in fixed order after the home bucket, before the map is asked.
const NEIGHBOURS: u16 = 2;
/// How often the fullest buckets are looked up anew; others take the last units meanwhile.
const ROUNDS_MAX: usize = 3;
/// Most buckets tried in one round.
const FULLEST_MAX: usize = 8;

/// How a claim ended at the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Units left the gate now.
    Taken {
        /// The hold.
        hold: HoldId,
        /// By the clock given to the script.
        claimed_at_ms: UnixMs,
    },
    /// This claim was made before.
    Replay(Receipt),
    /// The buyer holds another claim.
    Already(ClaimId),
    /// The buyer had his try.
    AlreadyHad(ClaimId),
    /// Every bucket is known to hold zero, and the buyer holds nothing.
    SoldOut,
    /// No bucket holds as many as asked for; the fullest holds this many.
    NotEnough(u32),
    /// A bucket is of another epoch: the gate is being rebuilt.
    NotLoaded,
    /// Units were seen and gone again, each time.
    Contended,
    /// It may have happened.
    Unknown,
    /// It did not happen, and Redis does not answer.
    Unavailable,
    /// The quantity is out of bounds.
    BadQuantity,
}

/// Takes units for this attempt from whatever bucket has them.
pub async fn take(app: &App, sale: &Sale, attempt: &ClaimAttempt) -> Outcome {
    match visit(app, sale, attempt).await {
        Ok(outcome) => outcome,
        Err(StockError::Unknown(error)) => {
            tracing::warn!(%error, trace = %attempt.trace_id, claim = %attempt.claim_id, "a claim's outcome is unknown");
            Outcome::Unknown
        }
        Err(StockError::Unavailable(error)) => {
            tracing::warn!(%error, trace = %attempt.trace_id, "the gate does not answer");
            Outcome::Unavailable
        }
        Err(StockError::Protocol(error)) => {
            // A script failed in the middle, perhaps: nothing may be concluded.
            tracing::error!(%error, trace = %attempt.trace_id, claim = %attempt.claim_id, "the gate answered nonsense");
            Outcome::Unknown
        }
    }
}

async fn visit(app: &App, sale: &Sale, attempt: &ClaimAttempt) -> Result<Outcome, StockError> {
    let buckets = sale.row.config.buckets.max(1);
    let home = home_bucket(&attempt.buyer, buckets);
    if let Some(outcome) = one(app, attempt, home).await? {
        return Ok(outcome);
    }
    let known = sale.reading();
    let young = app.clock.mono_us() < known.taken_us.saturating_add(crate::sales::MAP_MAX_AGE_US);
    for step in 1..=NEIGHBOURS.min(buckets - 1) {
        let bucket = ((u32::from(home) + u32::from(step)) % u32::from(buckets)) as BucketIndex;
        if young && holds(&known.map, bucket) < i64::from(attempt.quantity) {
            continue;
        }
        if let Some(outcome) = one(app, attempt, bucket).await? {
            return Ok(outcome);
        }
    }
    for _ in 0..ROUNDS_MAX {
        // Asked for now: an older map may hide units that came back.
        let reading = sale.fresh(&app.stock, &app.clock, app.clock.mono_us()).await?;
        if !reading.map.epoch_agrees(attempt.epoch) {
            return Ok(Outcome::NotLoaded);
        }
        let candidates = fullest(&reading.map, attempt.quantity);
        if candidates.is_empty() {
            return refuse(app, sale, attempt, &reading.map).await;
        }
        for bucket in candidates {
            if let Some(outcome) = one(app, attempt, bucket).await? {
                return Ok(outcome);
            }
        }
    }
    Ok(Outcome::Contended)
}

/// One bucket; `None` when it has too few.
async fn one(app: &App, attempt: &ClaimAttempt, bucket: BucketIndex) -> Result<Option<Outcome>, StockError> {
    Ok(Some(match app.stock.claim(attempt, bucket).await? {
        ClaimReply::Ok { hold, .. } => Outcome::Taken { hold, claimed_at_ms: attempt.now_ms },
        ClaimReply::Replay(receipt) => Outcome::Replay(receipt),
        ClaimReply::Already(receipt) => Outcome::Already(receipt.claim_id),
        ClaimReply::AlreadyHad(receipt) => Outcome::AlreadyHad(receipt.claim_id),
        ClaimReply::NotLoaded { .. } => Outcome::NotLoaded,
        ClaimReply::BadQuantity => Outcome::BadQuantity,
        ClaimReply::Empty { .. } => return Ok(None),
    }))
}

/// Before a "no", the buyer's receipt in all buckets: an earlier attempt may have won elsewhere.
async fn refuse(app: &App, sale: &Sale, attempt: &ClaimAttempt, map: &StockMap) -> Result<Outcome, StockError> {
    // Reading takes nothing: a time-out here is no unknown claim.
    let receipts = app.stock.receipts(sale.id(), sale.row.config.buckets, &attempt.buyer).await;
    let receipts = receipts.map_err(|e| StockError::Unavailable(e.to_string()))?;
    let receipts: Vec<Receipt> = receipts.into_iter().filter_map(|r| r.receipt).collect();
    Ok(judge(&receipts, attempt).unwrap_or_else(|| {
        let most = map.buckets.iter().map(|b| b.stock).max().unwrap_or(0);
        match u32::try_from(most) {
            Ok(left) if left > 0 => Outcome::NotEnough(left),
            _ => Outcome::SoldOut,
        }
    }))
}

/// What the receipts of a buyer say about an attempt, in the script's own order of reasons.
fn judge(receipts: &[Receipt], attempt: &ClaimAttempt) -> Option<Outcome> {
    if let Some(mine) = receipts.iter().find(|r| r.claim_id == attempt.claim_id) {
        return Some(Outcome::Replay(mine.clone()));
    }
    let in_state = |state| receipts.iter().find(|r| r.state == state).map(|r| r.claim_id);
    if let Some(other) = in_state(ReceiptState::Held) {
        return Some(Outcome::Already(other));
    }
    in_state(ReceiptState::Released).filter(|_| !attempt.second_try).map(Outcome::AlreadyHad)
}

fn holds(map: &StockMap, bucket: BucketIndex) -> i64 {
    map.buckets.get(usize::from(bucket)).map_or(0, |b| b.stock)
}

/// Buckets that hold enough, the fullest first.
fn fullest(map: &StockMap, quantity: u32) -> Vec<BucketIndex> {
    let mut enough: Vec<(i64, BucketIndex)> = (0..)
        .zip(&map.buckets)
        .filter(|(_, b)| b.stock >= i64::from(quantity))
        .map(|(index, b)| (b.stock, index))
        .collect();
    enough.sort_by(|a, b| b.cmp(a));
    enough.truncate(FULLEST_MAX);
    enough.into_iter().map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::trace::TraceId;
    use flashgate_stock::BucketStock;

    fn map(stocks: &[i64]) -> StockMap {
        StockMap { buckets: stocks.iter().map(|&stock| BucketStock { epoch: Some(1), stock, outbox: 0 }).collect() }
    }

    fn attempt(key: &str) -> ClaimAttempt {
        let (sale, buyer) = ("s".parse().unwrap(), "b".parse().unwrap());
        ClaimAttempt {
            claim_id: ClaimId::derive(&sale, &buyer, &key.parse().unwrap()),
            sale,
            buyer,
            epoch: 1,
            quantity: 1,
            per_buyer_limit: 1,
            second_try: false,
            now_ms: 0,
            trace_id: TraceId::from_random(1),
        }
    }

    fn receipt(state: ReceiptState, key: &str) -> Receipt {
        Receipt {
            state,
            claim_id: attempt(key).claim_id,
            hold: "1.0.5-1".parse().unwrap(),
            quantity: 1,
            claimed_at_ms: 5,
        }
    }

    #[test]
    fn the_fullest_buckets_come_first_and_too_small_ones_never() {
        assert_eq!(fullest(&map(&[0, 3, 1, 9]), 2), [3, 1]);
        assert!(fullest(&map(&[0, 0, 1]), 2).is_empty());
    }

    #[test]
    fn a_receipt_anywhere_wins_over_sold_out() {
        let mine = receipt(ReceiptState::Void, "k");
        assert_eq!(judge(std::slice::from_ref(&mine), &attempt("k")), Some(Outcome::Replay(mine)));
        let other = receipt(ReceiptState::Held, "other");
        assert_eq!(judge(std::slice::from_ref(&other), &attempt("k")), Some(Outcome::Already(other.claim_id)));
        let ended = receipt(ReceiptState::Released, "other");
        assert_eq!(judge(std::slice::from_ref(&ended), &attempt("k")), Some(Outcome::AlreadyHad(ended.claim_id)));
        let again = ClaimAttempt { second_try: true, ..attempt("k") };
        assert_eq!(judge(&[ended], &again), None);
        assert_eq!(judge(&[receipt(ReceiptState::Void, "other")], &attempt("k")), None);
    }
}
