//! Gives units back to the gate: drains `gate_releases` (rule R2). A crash anywhere repeats a step
//! that changes nothing.

use crate::{
    App,
    roles::{Next, Pace},
};
use flashgate_ledger::{LedgerError, ReleaseOutcome, ReleaseRow};
use flashgate_shared::ids::home_bucket;
use flashgate_stock::ReleaseReply;
use futures_util::{StreamExt, stream};
use std::time::Duration;

/// Most rows fetched at once.
const BATCH_ROWS: u32 = 200;
/// Rows under way at once.
const UNDER_WAY_MAX: usize = 16;

/// Drains until shutdown, on a timer and when nudged.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.relay.release_period_ms);
    let mut pace = Pace::new("releases", Some(&app.releases), &app.shutdown);
    while pace.goes_on() {
        let more = drain(app).await;
        pace.rest(more.map(|more| if more { Next::AtOnce } else { Next::After(period) })).await;
    }
}

/// One batch; whether there is more that can be done now.
async fn drain(app: &App) -> Result<bool, LedgerError> {
    let rows = app.ledger.releases_due(BATCH_ROWS).await?;
    let full = rows.len() == BATCH_ROWS as usize;
    let mut done = stream::iter(rows.into_iter().map(|row| give_back(app, row))).buffer_unordered(UNDER_WAY_MAX);
    while let Some(result) = done.next().await {
        result?;
    }
    Ok(full)
}

async fn give_back(app: &App, row: ReleaseRow) -> Result<(), LedgerError> {
    let home_bucket = home_bucket(&row.release.buyer, row.buckets);
    let outcome = match app.stock.release(&row.release, home_bucket).await {
        Ok(ReleaseReply::Returned) => ReleaseOutcome::Returned,
        Ok(ReleaseReply::NoChange) => ReleaseOutcome::NoChange,
        Ok(ReleaseReply::Superseded) => ReleaseOutcome::Superseded,
        Ok(ReleaseReply::Keep) => return app.ledger.release_again(row.id).await,
        Err(error) => {
            tracing::warn!(%error, release = row.id, trace = %row.trace_id, "a release had no answer; it is tried again");
            return app.ledger.release_again(row.id).await;
        }
    };
    metrics::counter!("flashgate_releases_total", "outcome" => outcome.as_str()).increment(1);
    app.ledger.release_done(row.id, outcome).await
}
