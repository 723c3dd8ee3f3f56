//! Reconciles every sale now and then: what a single hold mends is mended, the rest is told.

use crate::{
    App,
    reconcile::{OLDER_THAN_MS, Wish, reconcile},
    roles::{Next, Pace},
};
use flashgate_shared::sale::SaleState;
use std::time::Duration;

/// Ticks until shutdown.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.reconcile.period_ms);
    let wish = Wish { repair: true, rebuild: false, older_than_ms: OLDER_THAN_MS };
    let mut pace = Pace::new("reconcile", None, &app.shutdown);
    while pace.goes_on() {
        let mut done: Result<_, String> = Ok(Next::After(period));
        for sale in app.sales.all() {
            if matches!(sale.row.state, SaleState::Loading | SaleState::Rebuilding) || app.shutdown.is_cancelled() {
                continue;
            }
            if let Err(error) = reconcile(app, &sale.row, wish).await {
                done = Err(format!("{}: {error}", sale.id()));
            }
        }
        pace.rest(done).await;
    }
}
