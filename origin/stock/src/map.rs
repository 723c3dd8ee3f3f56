//! The stock map: what every bucket holds, read in one pipeline.

use crate::{Stock, StockError};
use flashgate_shared::{Epoch, SaleId};
use fred::{
    interfaces::{KeysInterface, StreamsInterface},
    types::Value,
};

/// One bucket of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketStock {
    /// Its epoch; `None` when it is not loaded.
    pub epoch: Option<Epoch>,
    /// Units on offer.
    pub stock: i64,
    /// Entries in its outbox.
    pub outbox: u64,
}

/// All buckets of a sale, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StockMap {
    /// The buckets.
    pub buckets: Vec<BucketStock>,
}

impl StockMap {
    /// Units on offer, all buckets together.
    pub fn on_offer(&self) -> u64 {
        self.buckets.iter().map(|bucket| u64::try_from(bucket.stock).unwrap_or(0)).sum()
    }

    /// Entries in the outboxes, all buckets together.
    pub fn outbox(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.outbox).sum()
    }

    /// Whether every bucket is known to hold zero at this epoch.
    pub fn sold_out(&self, epoch: Epoch) -> bool {
        self.epoch_agrees(epoch) && self.buckets.iter().all(|bucket| bucket.stock <= 0)
    }

    /// Whether every bucket is loaded at this epoch.
    pub fn epoch_agrees(&self, epoch: Epoch) -> bool {
        !self.buckets.is_empty() && self.buckets.iter().all(|bucket| bucket.epoch == Some(epoch))
    }
}

impl Stock {
    /// Reads the map.
    pub async fn stock_map(&self, sale: &SaleId, buckets: u16) -> Result<StockMap, StockError> {
        let pipeline = self.client()?.pipeline();
        for bucket in 0..buckets {
            let keys = self.keys(sale, bucket);
            let () = pipeline.get(keys.epoch).await?;
            let () = pipeline.get(keys.stock).await?;
            let () = pipeline.xlen(keys.claims).await?;
        }
        let answers: Vec<Value> = pipeline.all().await?;
        let number = |value: Option<&Value>| match value {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_i64().map(Some).ok_or_else(|| StockError::Protocol(format!("no integer: {value:?}")))
            }
        };
        let buckets = answers.chunks(3).map(|triple| {
            Ok::<_, StockError>(BucketStock {
                epoch: number(triple.first())?,
                stock: number(triple.get(1))?.unwrap_or(0),
                outbox: u64::try_from(number(triple.get(2))?.unwrap_or(0)).unwrap_or(0),
            })
        });
        Ok(StockMap { buckets: buckets.collect::<Result<_, _>>()? })
    }
}
