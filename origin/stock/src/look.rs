//! Whether the gate has gone back in time (`lua/look.lua`).

use crate::{
    Stock, StockError,
    script::{integer, list, text},
};
use flashgate_shared::{Epoch, SaleId};
use futures_util::future::try_join_all;

/// The generation of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// Its epoch; `None` when it is not loaded.
    pub epoch: Option<Epoch>,
    /// Its server has neither been restarted nor replaced since the bucket was loaded: what is in it is
    /// what was written to it.
    pub unbroken: bool,
    /// The epoch that it is being loaded with, while it is.
    pub loading: Option<Epoch>,
}

impl Generation {
    /// Whether the bucket is what was loaded at this epoch, and what became of it since.
    pub fn is(&self, epoch: Epoch) -> bool {
        self.unbroken && self.epoch == Some(epoch)
    }
}

impl Stock {
    /// The generations of all buckets of a sale, by index.
    pub async fn generations(&self, sale: &SaleId, buckets: u16) -> Result<Vec<Generation>, StockError> {
        try_join_all((0..buckets).map(async |bucket| {
            let keys = self.keys(sale, bucket);
            let answer =
                self.call(&self.scripts().look, vec![keys.epoch, keys.server, keys.loading], Vec::new()).await?;
            let answer = list(answer)?;
            Ok(Generation {
                epoch: text(&answer, 0)?.parse().ok(),
                unbroken: integer(&answer, 1)? == 1,
                loading: text(&answer, 2)?.parse().ok(),
            })
        }))
        .await
    }
}
