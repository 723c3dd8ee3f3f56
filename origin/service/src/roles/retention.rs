//! Erases who bought in sales that are over for as long as the shop has set.

use crate::{
    App,
    roles::{Next, Pace},
};
use std::time::Duration;

/// How often sales are looked at.
const PERIOD: Duration = Duration::from_secs(600);

/// Ticks until shutdown; nothing to do where buyers are kept until somebody erases them.
pub async fn run(app: &App) {
    let after_s = app.config.retention.after_s;
    if after_s == 0 {
        return;
    }
    let mut pace = Pace::new("retention", None, &app.shutdown);
    while pace.goes_on() {
        let done = erase(app, i64::try_from(after_s.saturating_mul(1_000)).unwrap_or(i64::MAX)).await;
        pace.rest(done.map(|()| Next::After(PERIOD))).await;
    }
}

/// A sale that cannot be erased yet holds up no other.
async fn erase(app: &App, closed_for_ms: i64) -> Result<(), flashgate_ledger::LedgerError> {
    let mut failed = Ok(());
    for sale in app.ledger.sales_to_erase(closed_for_ms).await? {
        match app.ledger.erase(&sale, None).await {
            Ok(erasure) => {
                metrics::counter!("flashgate_erased_buyers_total").increment(erasure.buyers.unsigned_abs());
                tracing::warn!(%sale, buyers = erasure.buyers, "the retention time is over: personal data was erased");
                app.rebuilds.notify_one();
            }
            Err(error) => failed = Err(error),
        }
    }
    failed
}
