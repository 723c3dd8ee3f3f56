//! The outbox: claims that the queue has not confirmed yet.

use crate::{Stock, StockError};
use flashgate_shared::{
    BucketIndex, HoldId, SaleId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
};
use fred::interfaces::StreamsInterface;
use std::collections::{BTreeMap, HashMap};

impl Stock {
    /// The oldest entries of a bucket's outbox that have waited at least `older_than_ms`, by Redis's
    /// clock; at most `count`.
    pub async fn outbox(
        &self,
        sale: &SaleId,
        bucket: BucketIndex,
        older_than_ms: i64,
        count: u32,
    ) -> Result<Vec<ClaimEnvelope>, StockError> {
        let newest = self.now_ms().await?.saturating_sub(older_than_ms).max(0);
        let key = self.keys(sale, bucket).claims;
        let entries: Vec<(String, HashMap<String, String>)> =
            self.client()?.xrange(key, "-", newest.to_string(), Some(u64::from(count))).await?;
        entries.into_iter().map(|(entry, fields)| envelope(sale, bucket, &entry, &fields)).collect()
    }

    /// Removes entries that the queue has confirmed; how many there were.
    pub async fn outbox_delete(&self, sale: &SaleId, holds: &[HoldId]) -> Result<u64, StockError> {
        let mut by_bucket: BTreeMap<BucketIndex, Vec<&str>> = BTreeMap::new();
        for hold in holds {
            by_bucket.entry(hold.bucket).or_default().push(&hold.entry);
        }
        let mut deleted = 0;
        for (bucket, entries) in by_bucket {
            let key = self.keys(sale, bucket).claims;
            deleted += self.client()?.xdel::<u64, _, _>(key, entries).await?;
        }
        Ok(deleted)
    }
}

fn envelope(
    sale: &SaleId,
    bucket: BucketIndex,
    entry: &str,
    fields: &HashMap<String, String>,
) -> Result<ClaimEnvelope, StockError> {
    let malformed = || StockError::Protocol(format!("malformed outbox entry {entry} in bucket {bucket}"));
    let field = |name: &str| fields.get(name).map(String::as_str).ok_or_else(malformed);
    let epoch = field("e")?.parse().map_err(|_| malformed())?;
    Ok(ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: sale.clone(),
        claim_id: field("c")?.parse().map_err(|_| malformed())?,
        buyer: field("b")?.parse().map_err(|_| malformed())?,
        quantity: field("q")?.parse().map_err(|_| malformed())?,
        hold: HoldId::new(epoch, bucket, entry).map_err(|_| malformed())?,
        claimed_at_ms: field("t")?.parse().map_err(|_| malformed())?,
        trace_id: field("r")?.parse().map_err(|_| malformed())?,
    })
}
