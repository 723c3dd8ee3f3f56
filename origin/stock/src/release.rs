//! Giving units back (`lua/release.lua`), exactly once.

use crate::{Stock, StockError, receipt::letter};
use flashgate_shared::{
    BucketIndex,
    order::{ReceiptState, Release, ReleaseMode},
};

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The units are on offer again.
    Returned,
    /// The receipt is not held with this hold: done before, or never held.
    NoChange,
    /// The bucket is not loaded, or of an older epoch: try again later.
    Keep,
    /// The bucket is newer than the row: the rebuild counted the units.
    Superseded,
}

impl Stock {
    /// Gives units back if, and only if, the buyer's receipt is held with this hold. Repeatable. The home
    /// bucket is where a rebuild puts the receipt.
    pub async fn release(&self, order: &Release, home_bucket: BucketIndex) -> Result<ReleaseReply, StockError> {
        let bucket = if order.hold.epoch == order.epoch { order.hold.bucket } else { home_bucket };
        let keys = self.keys(&order.sale, bucket);
        let state = match order.mode {
            ReleaseMode::Spent => ReceiptState::Released,
            ReleaseMode::Void => ReceiptState::Void,
        };
        let arguments = vec![
            order.epoch.to_string().into(),
            order.buyer.as_str().into(),
            order.hold.to_string().into(),
            order.units.to_string().into(),
            letter(state).into(),
        ];
        let keys = vec![keys.stock, keys.buyers, keys.epoch];
        let answer = self.call(&self.scripts().release, keys, arguments).await?;
        Ok(match answer.as_i64() {
            Some(0) => ReleaseReply::Returned,
            Some(1) => ReleaseReply::NoChange,
            Some(2) => ReleaseReply::Keep,
            Some(3) => ReleaseReply::Superseded,
            _ => return Err(StockError::Protocol(format!("release.lua returned {answer:?}"))),
        })
    }
}
