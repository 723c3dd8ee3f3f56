//! Gives money back: drains `refunds` through the provider, under the row's id. A row that was tried
//! before is asked about first.

use crate::{
    App,
    provider::ProviderError,
    roles::{Next, Pace},
};
use flashgate_ledger::{LedgerError, Refund};
use flashgate_shared::wire::{RefundAnswer, RefundRequest};
use std::time::Duration;

/// Most rows fetched at once.
const BATCH_ROWS: u32 = 20;

/// Drains until shutdown, on a timer and when nudged.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.relay.release_period_ms);
    let mut pace = Pace::new("refunds", Some(&app.refunds), &app.shutdown);
    while pace.goes_on() {
        let more = drain(app).await;
        pace.rest(more.map(|more| if more { Next::AtOnce } else { Next::After(period) })).await;
    }
}

async fn drain(app: &App) -> Result<bool, LedgerError> {
    let rows = app.ledger.refunds_due(BATCH_ROWS).await?;
    let full = rows.len() == BATCH_ROWS as usize;
    for refund in rows {
        match give_back(app, &refund).await {
            Ok(answer) => {
                metrics::counter!("flashgate_refunds_total", "outcome" => "done").increment(1);
                app.ledger.refund_done(refund.id, &answer.refund_id).await?;
            }
            Err(error) => {
                metrics::counter!("flashgate_refunds_total", "outcome" => "failed").increment(1);
                tracing::warn!(%error, refund = %refund.id, attempts = refund.attempts, "a refund is not confirmed; it is tried again");
                app.ledger.refund_failed(refund.id, &error.to_string()).await?;
            }
        }
    }
    Ok(full)
}

async fn give_back(app: &App, refund: &Refund) -> Result<RefundAnswer, ProviderError> {
    if refund.attempts > 0
        && let Some(done) = app.provider.refund_known(refund.id).await?
    {
        return Ok(done);
    }
    let request = RefundRequest { payment_id: refund.payment_id.clone(), amount: refund.amount.clone() };
    app.provider.refund(refund.id, &request).await
}
