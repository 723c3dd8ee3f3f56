//! A broker of the test's own, and claims to publish.

use anyhow::{Context, Result, ensure};
use flashgate_queue::{Batch, Consumer, Depth, Message, Published, Queue, QueueConfig};
use flashgate_servers::{shared, until};
use flashgate_shared::{
    ClaimId, HoldId, SaleId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    trace::TraceId,
};
use std::{collections::BTreeSet, sync::Mutex, time::Duration};
use tokio::task::JoinSet;

/// How long anything may take before the test is given up; never how long something should take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A cap that no test reaches by chance.
pub const ROOMY: u64 = 100_000;

/// Settings for a virtual host of this name, which is made.
pub async fn config(vhost: &str) -> Result<QueueConfig> {
    let url = shared().await?.rabbit().add_vhost(vhost).await?;
    // Long enough for a busy machine: a confirm that is late would be no fault of the queue's.
    Ok(QueueConfig { url, confirm_timeout_ms: 30_000, operation_timeout_ms: 30_000, ..QueueConfig::default() })
}

/// A connected queue with this sale declared.
pub async fn declared(config: &QueueConfig, cap: u64) -> Result<Queue> {
    let queue = Queue::connect(config).await?;
    queue.declare(&sale(), cap).await?;
    Ok(queue)
}

pub fn sale() -> SaleId {
    "phones".parse().unwrap()
}

/// The claim with this number: no two have a field in common by chance.
pub fn claim(sale: &SaleId, number: u64) -> ClaimEnvelope {
    let buyer = format!("buyer-{number}").parse().unwrap();
    ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: sale.clone(),
        claim_id: ClaimId::derive(sale, &buyer, &format!("key-{number}").parse().unwrap()),
        buyer,
        quantity: 1 + u32::try_from(number % 3).unwrap(),
        hold: format!("1.0.{number}-1").parse().unwrap(),
        claimed_at_ms: 1_000 + i64::try_from(number).unwrap(),
        trace_id: TraceId::from_random(number.into()),
    }
}

pub fn is_unknown(published: &Published) -> bool {
    matches!(published, Published::Unknown(_))
}

/// Publishes until it is confirmed, as the relay does.
pub async fn publish_surely(queue: &Queue, envelope: &ClaimEnvelope) -> Result<()> {
    until("a claim is confirmed", PATIENCE, || async { Ok(queue.publish(envelope).await == Published::Confirmed) })
        .await
}

/// Publishes all at once; what came of each, in the same order.
pub async fn publish_all(queue: &Queue, envelopes: &[ClaimEnvelope]) -> Result<Vec<Published>> {
    let mut tasks = JoinSet::new();
    for (at, envelope) in envelopes.iter().cloned().enumerate() {
        let queue = queue.clone();
        tasks.spawn(async move { (at, queue.publish(&envelope).await) });
    }
    let mut outcomes = tokio::time::timeout(PATIENCE, tasks.join_all()).await.context("publishing does not end")?;
    outcomes.sort_by_key(|(at, _)| *at);
    Ok(outcomes.into_iter().map(|(_, published)| published).collect())
}

pub async fn batch(consumer: &mut Consumer) -> Result<Batch> {
    tokio::time::timeout(PATIENCE, consumer.next_batch()).await.context("no batch came")
}

/// Exactly so many messages, over as many batches as it takes.
pub async fn take(consumer: &mut Consumer, count: usize) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.extend(batch(consumer).await?.messages);
    }
    ensure!(messages.len() == count, "{} messages instead of {count}", messages.len());
    Ok(messages)
}

/// Acknowledges whatever comes until every one of `wanted` has come; all that came.
pub async fn drain(consumer: &mut Consumer, wanted: &BTreeSet<HoldId>) -> Result<BTreeSet<HoldId>> {
    let mut seen = BTreeSet::new();
    while !wanted.is_subset(&seen) {
        let came = batch(consumer).await.with_context(|| format!("{} of {} came", seen.len(), wanted.len()))?;
        for message in &came.messages {
            seen.insert(message.envelope.as_ref().unwrap().hold.clone());
        }
        came.ack_all().await;
    }
    Ok(seen)
}

/// Waits for this depth. Nothing may hold messages unanswered meanwhile: the broker does not count them.
pub async fn settles_at(queue: &Queue, ready: u64, dead: u64) -> Result<()> {
    let wanted = Depth { ready, dead };
    let last = Mutex::new(None);
    until("the depth settles", PATIENCE, || async {
        let depth = queue.depth(&sale()).await?;
        *last.lock().unwrap() = Some(depth);
        Ok(depth == wanted)
    })
    .await
    .with_context(|| format!("wanted {wanted:?}, last {:?}", last.lock().unwrap()))
}
