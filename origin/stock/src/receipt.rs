//! Receipts: the gate's note of a hold, one a buyer and bucket.

use crate::{Stock, StockError};
use flashgate_shared::{BucketIndex, BuyerId, ClaimId, Epoch, HoldId, SaleId, UnixMs, order::ReceiptState};
use fred::{
    interfaces::{HashesInterface, KeysInterface},
    types::Value,
};
use futures_util::TryStreamExt;
use std::{fmt, str::FromStr};

/// How many receipts one step of a scan asks for.
const SCAN_COUNT: u32 = 1_000;

/// A receipt, as kept in the buyers' hash: `state claim_id hold quantity claimed_at_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Whether the unit is out.
    pub state: ReceiptState,
    /// The claim.
    pub claim_id: ClaimId,
    /// The hold.
    pub hold: HoldId,
    /// Units.
    pub quantity: u32,
    /// When the gate said OK.
    pub claimed_at_ms: UnixMs,
}

/// The one-letter form of a receipt's state.
pub(crate) const fn letter(state: ReceiptState) -> &'static str {
    match state {
        ReceiptState::Held => "h",
        ReceiptState::Released => "r",
        ReceiptState::Void => "v",
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, claim_id, hold, quantity, claimed_at_ms } = self;
        write!(f, "{} {claim_id} {hold} {quantity} {claimed_at_ms}", letter(*state))
    }
}

impl FromStr for Receipt {
    type Err = StockError;
    fn from_str(text: &str) -> Result<Self, StockError> {
        let malformed = || StockError::Protocol(format!("malformed receipt {text:?}"));
        let mut parts = text.split(' ');
        let mut next = || parts.next().ok_or_else(malformed);
        let state = match next()? {
            "h" => ReceiptState::Held,
            "r" => ReceiptState::Released,
            "v" => ReceiptState::Void,
            _ => return Err(malformed()),
        };
        Ok(Self {
            state,
            claim_id: next()?.parse().map_err(|_| malformed())?,
            hold: next()?.parse().map_err(|_| malformed())?,
            quantity: next()?.parse().map_err(|_| malformed())?,
            claimed_at_ms: next()?.parse().map_err(|_| malformed())?,
        })
    }
}

/// What one bucket knows of a buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketReceipt {
    /// The bucket.
    pub bucket: BucketIndex,
    /// Its epoch; `None` when it is not loaded.
    pub epoch: Option<Epoch>,
    /// The buyer's receipt there.
    pub receipt: Option<Receipt>,
}

/// A held receipt, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldReceipt {
    /// The bucket.
    pub bucket: BucketIndex,
    /// Whose.
    pub buyer: BuyerId,
    /// The receipt.
    pub receipt: Receipt,
}

impl Stock {
    /// A buyer's receipts in all buckets, in one pipeline, with each bucket's epoch.
    pub async fn receipts(
        &self,
        sale: &SaleId,
        buckets: u16,
        buyer: &BuyerId,
    ) -> Result<Vec<BucketReceipt>, StockError> {
        let pipeline = self.client()?.pipeline();
        for bucket in 0..buckets {
            let keys = self.keys(sale, bucket);
            let () = pipeline.get(keys.epoch).await?;
            let () = pipeline.hget(keys.buyers, buyer.as_str()).await?;
        }
        let answers: Vec<Value> = pipeline.all().await?;
        (0..buckets)
            .zip(answers.chunks(2))
            .map(|(bucket, pair)| {
                let text = |place: usize| pair.get(place).and_then(Value::as_string);
                let epoch = text(0).map(|epoch| epoch.parse()).transpose();
                let epoch = epoch.map_err(|_| StockError::Protocol("an epoch is no integer".into()))?;
                let receipt = text(1).map(|receipt| receipt.parse()).transpose()?;
                Ok(BucketReceipt { bucket, epoch, receipt })
            })
            .collect()
    }

    /// All held receipts of a sale. At most as many as the sale has units.
    pub async fn held(&self, sale: &SaleId, buckets: u16) -> Result<Vec<HeldReceipt>, StockError> {
        let mut held = Vec::new();
        for bucket in 0..buckets {
            let mut pages = Box::pin(self.client()?.hscan(self.keys(sale, bucket).buyers, "*", Some(SCAN_COUNT)));
            while let Some(mut page) = pages.try_next().await? {
                if let Some(results) = fred::types::scan::Scanner::take_results(&mut page) {
                    for (buyer, value) in results.inner() {
                        let buyer = buyer.into_string().unwrap_or_default();
                        let buyer = buyer.parse().map_err(|_| StockError::Protocol(format!("buyer {buyer:?}")))?;
                        let receipt: Receipt = value.into_string().unwrap_or_default().parse()?;
                        if receipt.state == ReceiptState::Held {
                            held.push(HeldReceipt { bucket, buyer, receipt });
                        }
                    }
                }
                fred::types::scan::Scanner::next(page);
            }
        }
        // A scan may show an element twice while the hash is rehashed.
        held.sort_by(|a, b| (a.bucket, &a.buyer).cmp(&(b.bucket, &b.buyer)));
        held.dedup_by(|a, b| a.bucket == b.bucket && a.buyer == b.buyer);
        Ok(held)
    }
}
