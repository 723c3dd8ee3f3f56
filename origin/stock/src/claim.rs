//! One claim in one bucket (`lua/claim.lua`).

use crate::{
    Receipt, Stock, StockError,
    script::{integer, list, text},
};
use flashgate_shared::{BucketIndex, BuyerId, ClaimId, Epoch, HoldId, SaleId, UnixMs, trace::TraceId};

/// What is claimed, by whom, under which rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimAttempt {
    /// The sale.
    pub sale: SaleId,
    /// The epoch that the caller knows.
    pub epoch: Epoch,
    /// The claim.
    pub claim_id: ClaimId,
    /// Who claims.
    pub buyer: BuyerId,
    /// Units.
    pub quantity: u32,
    /// Most units a buyer may claim.
    pub per_buyer_limit: u32,
    /// Whether a buyer whose order ended may claim again.
    pub second_try: bool,
    /// Now, by the caller's clock.
    pub now_ms: UnixMs,
    /// The request's trace.
    pub trace_id: TraceId,
}

/// The bucket's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimReply {
    /// The units are the buyer's.
    Ok {
        /// The hold.
        hold: HoldId,
        /// Units left in this bucket.
        left: u32,
    },
    /// This very claim was made before; its receipt.
    Replay(Receipt),
    /// The buyer holds another claim.
    Already(Receipt),
    /// The buyer's other claim ended, and the sale allows no second try.
    AlreadyHad(Receipt),
    /// Fewer are left in this bucket than asked for.
    Empty {
        /// How many.
        left: u32,
    },
    /// The bucket is of another epoch, or not loaded.
    NotLoaded {
        /// Its epoch.
        epoch: Option<Epoch>,
    },
    /// Not 1 to the limit.
    BadQuantity,
}

impl Stock {
    /// Claims in one bucket, in one atomic step.
    ///
    /// # Errors
    /// [`StockError::Unknown`]: the unit may be taken. Do not try another bucket; the same attempt in
    /// the same bucket finds out.
    pub async fn claim(&self, attempt: &ClaimAttempt, bucket: BucketIndex) -> Result<ClaimReply, StockError> {
        let keys = self.keys(&attempt.sale, bucket);
        let arguments = vec![
            attempt.epoch.to_string().into(),
            attempt.claim_id.to_string().into(),
            attempt.buyer.as_str().into(),
            attempt.quantity.to_string().into(),
            attempt.per_buyer_limit.to_string().into(),
            if attempt.second_try { "1" } else { "0" }.into(),
            attempt.now_ms.to_string().into(),
            bucket.to_string().into(),
            attempt.trace_id.to_string().into(),
        ];
        let keys = vec![keys.stock, keys.buyers, keys.claims, keys.epoch];
        let answer = list(self.call(&self.scripts().claim, keys, arguments).await?)?;
        let units = |place| u32::try_from(integer(&answer, place)?.max(0)).map_err(protocol);
        Ok(match integer(&answer, 0)? {
            0 => {
                let entry = text(&answer, 1)?;
                let hold = HoldId::new(attempt.epoch, bucket, &entry).map_err(protocol)?;
                ClaimReply::Ok { hold, left: units(2)? }
            }
            1 => ClaimReply::Replay(text(&answer, 1)?.parse()?),
            2 => ClaimReply::Already(text(&answer, 1)?.parse()?),
            3 => ClaimReply::AlreadyHad(text(&answer, 1)?.parse()?),
            4 => ClaimReply::Empty { left: units(1)? },
            5 => ClaimReply::NotLoaded { epoch: text(&answer, 1)?.parse().ok() },
            6 => ClaimReply::BadQuantity,
            code => return Err(StockError::Protocol(format!("claim.lua returned {code}"))),
        })
    }
}

fn protocol(error: impl std::fmt::Display) -> StockError {
    StockError::Protocol(error.to_string())
}
