//! The settlers: one for each row of a sale's stock and one for its dead letters (design §7).
//!
//! A message is acknowledged only after its transaction has committed. While Postgres cannot be
//! reached nothing is consumed: a requeue in a loop would dead-letter every winner.

use crate::{App, roles::Backoff};
use base64::{Engine, prelude::BASE64_STANDARD};
use flashgate_ledger::{LedgerError, Settled};
use flashgate_queue::{Batch, Consumer, Message, Source};
use flashgate_shared::{Clock, SaleId, envelope::ClaimEnvelope};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// How often new sales are looked for when nobody nudges.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// Keeps a settler for every queue of every sale, until shutdown.
pub async fn run(app: Arc<App>) {
    let mut known = HashSet::new();
    let mut settlers = JoinSet::new();
    while !app.shutdown.is_cancelled() {
        for sale in app.sales.all() {
            if known.insert(sale.id().clone()) {
                // As many at once as the stock has rows: each batch takes one.
                let claims = std::iter::repeat_n(Source::Claims, usize::from(sale.row.config.shards.max(1)));
                for source in claims.chain([Source::Dead]) {
                    settlers.spawn(settler(app.clone(), sale.id().clone(), source));
                }
            }
        }
        super::pause_or(LOOK_PERIOD, app.settlers.notified(), &app.shutdown).await;
    }
    while settlers.join_next().await.is_some() {}
}

async fn settler(app: Arc<App>, sale: SaleId, source: Source) {
    let shutdown = app.shutdown.clone();
    super::supervise("settle", shutdown, || consume(&app, &sale, source)).await;
}

async fn consume(app: &App, sale: &SaleId, source: Source) {
    let mut consumer = app.queue.consume(sale.clone(), source);
    loop {
        // Between batches, not within one: a batch begun is settled and acknowledged.
        let batch = tokio::select! {
            biased;
            () = app.shutdown.cancelled() => break,
            batch = consumer.next_batch() => batch,
        };
        let result = match source {
            Source::Claims => settle(app, sale, batch).await,
            Source::Dead => bury(app, sale, batch).await,
        };
        if let Err(error) = result {
            wait_for_ledger(app, sale, &mut consumer, &error).await;
        }
    }
    consumer.pause().await;
}

/// Stops consuming, so that the messages go back, until the ledger answers again.
async fn wait_for_ledger(app: &App, sale: &SaleId, consumer: &mut Consumer, error: &LedgerError) {
    tracing::error!(%error, %sale, "settling stops; the messages wait in the queue");
    consumer.pause().await;
    let mut backoff = Backoff::new();
    while !app.shutdown.is_cancelled() {
        super::pause(backoff.failed(), &app.shutdown).await;
        if app.ledger.ping().await.is_ok() {
            tracing::info!(%sale, "settling goes on");
            return;
        }
    }
}

/// Settles a batch; on an error nothing is answered, and every message comes again.
async fn settle(app: &App, sale: &SaleId, batch: Batch) -> Result<(), LedgerError> {
    let envelopes: Vec<ClaimEnvelope> =
        batch.messages.iter().filter_map(|m| m.envelope.as_ref().ok()).filter(|e| e.sale == *sale).cloned().collect();
    let outcomes = if envelopes.is_empty() { Vec::new() } else { app.ledger.settle(sale, &envelopes).await? };
    committed(app, sale, &envelopes, &outcomes);
    let clean = envelopes.len() == batch.messages.len() && !outcomes.iter().any(|o| matches!(o, Settled::Mismatch(_)));
    if clean {
        batch.ack_all().await;
        return Ok(());
    }
    let mut outcomes = outcomes.into_iter();
    for message in batch.messages {
        let ours = message.envelope.as_ref().is_ok_and(|e| e.sale == *sale);
        match ours.then(|| outcomes.next()).flatten() {
            Some(Settled::Mismatch(why)) => {
                alarm(sale, &message, &why);
                message.dead_letter().await;
            }
            Some(_) => message.ack().await,
            None => {
                let why = match &message.envelope {
                    Ok(envelope) => format!("a message of the sale {}", envelope.sale),
                    Err(error) => error.to_string(),
                };
                alarm(sale, &message, &why);
                message.dead_letter().await;
            }
        }
    }
    Ok(())
}

/// Dead letters pass the same table. One that cannot be settled at all is kept in the ledger, whole, before it is
/// taken from the queue: its unit shows in the audit, and an operator may send it again.
async fn bury(app: &App, sale: &SaleId, batch: Batch) -> Result<(), LedgerError> {
    for message in batch.messages {
        let hopeless = match &message.envelope {
            Ok(envelope) if envelope.sale == *sale => match app.ledger.settle_dead(envelope).await {
                Ok(Settled::Mismatch(why)) => Some(why),
                Ok(outcome) => {
                    tracing::warn!(%sale, claim = %envelope.claim_id, trace = %envelope.trace_id, ?outcome, "a dead letter was settled");
                    committed(app, sale, std::slice::from_ref(envelope), &[outcome]);
                    None
                }
                Err(error @ (LedgerError::Invalid(_) | LedgerError::NotFound)) => Some(error.to_string()),
                Err(error) => return Err(error),
            },
            Ok(envelope) => Some(format!("a message of the sale {}", envelope.sale)),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = hopeless {
            alarm(sale, &message, &why);
            app.ledger.keep_dead_letter(sale, &message.raw, &why).await?;
        }
        message.ack().await;
    }
    Ok(())
}

fn alarm(sale: &SaleId, message: &Message, why: &str) {
    metrics::counter!("flashgate_dead_letters_total").increment(1);
    let body = BASE64_STANDARD.encode(&message.raw);
    tracing::error!(%sale, why, body, "ALARM: a message that cannot be settled");
}

/// Tells whoever waits.
fn committed(app: &App, sale: &SaleId, envelopes: &[ClaimEnvelope], outcomes: &[Settled]) {
    let mut gives_back = false;
    for (envelope, outcome) in envelopes.iter().zip(outcomes) {
        let word = match outcome {
            Settled::Reserved(_) => "reserved",
            Settled::Repeat => "repeat",
            Settled::Lost(reason) => {
                gives_back = true;
                tracing::warn!(%sale, claim = %envelope.claim_id, trace = %envelope.trace_id, %reason, "a claim is lost");
                "lost"
            }
            Settled::SecondHold => {
                gives_back = true;
                "second_hold"
            }
            Settled::Mismatch(_) => "mismatch",
        };
        metrics::counter!("flashgate_settled_total", "outcome" => word).increment(1);
        app.watchers.news(&envelope.claim_id);
    }
    if gives_back {
        app.releases.notify_one();
    }
    if let Some(sale) = app.sales.get(sale.as_str()).filter(|_| !outcomes.is_empty()) {
        sale.live.traffic.settled(app.clock.now_ms());
    }
}
