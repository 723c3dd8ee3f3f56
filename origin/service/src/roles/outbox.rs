//! The relay: publishes again whatever has stayed in the outbox (design §6), and deletes it once the
//! broker has confirmed. It composes nothing: an entry carries its own epoch and trace.

use crate::{
    App, queues,
    roles::{Next, Pace},
    sales::Sale,
};
use flashgate_queue::Published;
use flashgate_shared::{BucketIndex, HoldId, limits, sale::SaleState};
use flashgate_stock::{StockError, StockMap};
use futures_util::{StreamExt, stream};
use std::{sync::Arc, time::Duration};

/// Publications under way at once.
const PUBLISHING_MAX: usize = 64;
/// A closed sale is looked at in one tick of so many.
const CLOSED_EVERY_TICKS: u64 = 20;

/// Ticks until shutdown.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.relay.period_ms);
    let mut pace = Pace::new("relay", None, &app.shutdown);
    let mut tick: u64 = 0;
    while pace.goes_on() {
        let mut done = Ok(Next::After(period));
        for sale in app.sales.all() {
            if sale.row.state == SaleState::Closed && !tick.is_multiple_of(CLOSED_EVERY_TICKS) {
                continue;
            }
            // One sale's trouble does not keep the others waiting.
            if let Err(error) = relay(app, &sale).await {
                done = Err(error);
            }
        }
        tick = tick.wrapping_add(1);
        pace.rest(done).await;
    }
}

async fn relay(app: &App, sale: &Arc<Sale>) -> Result<(), StockError> {
    let map = app.stock.stock_map(sale.id(), sale.row.config.buckets).await?;
    metrics::gauge!("flashgate_outbox_entries", "sale" => sale.id().to_string()).set(map.outbox() as f64);
    metrics::gauge!("flashgate_on_offer_units", "sale" => sale.id().to_string()).set(map.on_offer() as f64);
    relay_buckets(app, sale, &map, limits::RELAY_AFTER_MS).await
}

/// What has waited so long, in every bucket whose outbox is not empty.
pub async fn relay_buckets(app: &App, sale: &Sale, map: &StockMap, older_than_ms: i64) -> Result<(), StockError> {
    for (bucket, state) in (0..).zip(&map.buckets) {
        if state.outbox > 0 {
            relay_bucket(app, sale, bucket, older_than_ms).await?;
        }
    }
    Ok(())
}

/// What has waited so long in one bucket, page by page, until a page is not wholly confirmed.
async fn relay_bucket(app: &App, sale: &Sale, bucket: BucketIndex, older_than_ms: i64) -> Result<(), StockError> {
    let page_max = app.config.relay.batch_entries;
    while !app.shutdown.is_cancelled() {
        let page = app.stock.outbox(sale.id(), bucket, older_than_ms, page_max).await?;
        let read = page.len();
        let publishing = page.into_iter().map(async |envelope| match app.queue.publish(&envelope).await {
            Published::Confirmed => Some(envelope.hold),
            Published::Unknown(error) => {
                tracing::debug!(%error, claim = %envelope.claim_id, trace = %envelope.trace_id, "still not confirmed");
                None
            }
        });
        let confirmed: Vec<HoldId> =
            stream::iter(publishing).buffer_unordered(PUBLISHING_MAX).filter_map(async |hold| hold).collect().await;
        if !confirmed.is_empty() {
            app.stock.outbox_delete(sale.id(), &confirmed).await?;
            metrics::counter!("flashgate_relayed_total").increment(confirmed.len() as u64);
        }
        if confirmed.len() < read {
            // A broker that is away has lost nothing, as far as is known.
            if let Err(error) = queues::restore(app, &sale.row.config).await {
                tracing::debug!(%error, sale = %sale.id(), "what was not confirmed waits");
            }
            break;
        }
        if read < page_max as usize {
            break;
        }
    }
    Ok(())
}
