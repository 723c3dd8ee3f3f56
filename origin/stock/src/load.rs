//! Loading buckets (`lua/load.lua`).

use crate::{
    Receipt, Stock, StockError,
    script::{integer, list},
};
use flashgate_shared::{BucketIndex, BuyerId, Epoch, SaleId};
use fred::types::Value;
use std::collections::HashSet;

/// Receipts written in one call, so that no call blocks the server for long.
const RECEIPTS_PER_CALL: usize = 500;

/// What one bucket is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLoad {
    /// The bucket.
    pub bucket: BucketIndex,
    /// Units on offer.
    pub stock: u32,
    /// Receipts that survive, by buyer.
    pub receipts: Vec<(BuyerId, Receipt)>,
}

/// What became of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadReply {
    /// All buckets are loaded.
    Loaded,
    /// A bucket is, or is being loaded, at this or a newer epoch; nothing was written over it.
    Refused {
        /// The first such bucket.
        bucket: BucketIndex,
        /// Its epoch.
        epoch: Epoch,
    },
}

impl Stock {
    /// Loads the buckets of a sale at this epoch. No claim passes a bucket while it is being loaded.
    /// May be called again after any error, until it is loaded or refused.
    pub async fn load(&self, sale: &SaleId, epoch: Epoch, buckets: &[BucketLoad]) -> Result<LoadReply, StockError> {
        for load in buckets {
            if let Some(newer) = self.load_bucket(sale, epoch, load).await? {
                return Ok(LoadReply::Refused { bucket: load.bucket, epoch: newer });
            }
        }
        Ok(LoadReply::Loaded)
    }

    async fn load_bucket(&self, sale: &SaleId, epoch: Epoch, load: &BucketLoad) -> Result<Option<Epoch>, StockError> {
        let keys = self.keys(sale, load.bucket);
        let keys = vec![keys.stock, keys.buyers, keys.epoch, keys.loading, keys.server];
        let step = async |name: &'static str, more: Vec<Value>| {
            let mut arguments: Vec<Value> = vec![name.into(), epoch.to_string().into()];
            arguments.extend(more);
            let answer = list(self.call(&self.scripts().load, keys.clone(), arguments).await?)?;
            match integer(&answer, 0)? {
                0 => Ok(None),
                1 => Ok(Some(integer(&answer, 1)?)),
                // The bucket stays closed until a load is complete.
                2 => Err(StockError::Unavailable(format!("a late step of another load met bucket {}", load.bucket))),
                code => Err(StockError::Protocol(format!("load.lua returned {code}"))),
            }
        };
        if let Some(newer) = step("begin", Vec::new()).await? {
            return Ok(Some(newer));
        }
        for chunk in load.receipts.chunks(RECEIPTS_PER_CALL) {
            let pairs = chunk
                .iter()
                .flat_map(|(buyer, receipt)| [Value::from(buyer.as_str()), Value::from(receipt.to_string())]);
            if let Some(newer) = step("receipts", pairs.collect()).await? {
                return Ok(Some(newer));
            }
        }
        let buyers: HashSet<_> = load.receipts.iter().map(|(buyer, _)| buyer).collect();
        step("finish", vec![load.stock.to_string().into(), buyers.len().to_string().into()]).await
    }
}
