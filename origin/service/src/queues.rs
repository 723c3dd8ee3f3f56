//! The queue of a sale: made with the sale, and again when the broker has lost it.

use crate::App;
use flashgate_queue::QueueError;
use flashgate_shared::sale::SaleConfig;

/// Messages that a queue holds beyond two for each unit: repeats by the relay and second holds.
const MARGIN_MESSAGES: u64 = 1_000;

/// Declares the sale's queues. Repeating it changes nothing.
pub async fn declare(app: &App, config: &SaleConfig) -> Result<(), QueueError> {
    app.queue.declare(&config.id, u64::from(config.total) * 2 + MARGIN_MESSAGES).await
}

/// Declares the queues of a sale that has been set up, if they are gone: somebody deleted them, or the broker
/// came back from an older state. What was in them is published again by the relay or the reconciler.
pub async fn restore(app: &App, config: &SaleConfig) -> Result<(), QueueError> {
    match app.queue.depth(&config.id).await {
        Err(QueueError::NotFound) => {}
        other => return other.map(drop),
    }
    metrics::counter!("flashgate_queues_lost_total").increment(1);
    tracing::error!(sale = %config.id, "ALARM: the broker has no queue of this sale any more; it is declared again");
    declare(app, config).await
}
