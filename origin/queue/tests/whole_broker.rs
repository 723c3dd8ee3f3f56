//! What a whole broker does: it runs short of memory, it is full, it restarts. Brokers of their own,
//! since no other test could work beside these.

use anyhow::{Context, Result, ensure};
use flashgate_queue::{Consumer, Published, Queue, QueueConfig, QueueError, Source};
use flashgate_servers::{Rabbit, free_port, until};
use flashgate_shared::{
    ClaimId, HoldId, SaleId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    trace::TraceId,
};
use std::{collections::BTreeSet, time::Duration};
use tokio::task::JoinSet;

/// How long anything may take before the test is given up; never how long something should take.
const PATIENCE: Duration = Duration::from_secs(60);

fn sale() -> SaleId {
    "phones".parse().unwrap()
}

fn claim(number: u32) -> ClaimEnvelope {
    let buyer = format!("buyer-{number}").parse().unwrap();
    ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: sale(),
        claim_id: ClaimId::derive(&sale(), &buyer, &"key".parse().unwrap()),
        buyer,
        quantity: 1,
        hold: format!("1.0.{number}-1").parse().unwrap(),
        claimed_at_ms: 1_000,
        trace_id: TraceId::from_random(number.into()),
    }
}

fn config(url: String, confirm_timeout_ms: u64) -> QueueConfig {
    QueueConfig { url, confirm_timeout_ms, operation_timeout_ms: 30_000, ..QueueConfig::default() }
}

async fn confirmed(queue: &Queue, numbers: std::ops::Range<u32>) -> Result<BTreeSet<HoldId>> {
    let mut holds = BTreeSet::new();
    for number in numbers {
        let published = queue.publish(&claim(number)).await;
        ensure!(published == Published::Confirmed, "{published:?}");
        holds.insert(claim(number).hold);
    }
    Ok(holds)
}

/// Consumes and acknowledges until all of these have come.
async fn drain(consumer: &mut Consumer, mut missing: BTreeSet<HoldId>) -> Result<()> {
    while !missing.is_empty() {
        let waiting = tokio::time::timeout(PATIENCE, consumer.next_batch());
        let batch = waiting.await.with_context(|| format!("{} never came", missing.len()))?;
        for message in &batch.messages {
            missing.remove(&message.envelope.as_ref().unwrap().hold);
        }
        batch.ack_all().await;
    }
    Ok(())
}

async fn until_ready(queue: &Queue, ready: u64) -> Result<()> {
    until("the depth settles", PATIENCE, || async {
        let depth = queue.depth(&sale()).await?;
        ensure!((depth.ready, depth.dead) == (ready, 0), "{depth:?}");
        Ok(true)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_short_of_memory_blocks_publishers_and_not_the_consumers_that_empty_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let rabbit = Rabbit::start(dir.path()).await?;
    let queue = Queue::connect(&config(rabbit.url(), 30_000)).await?;
    queue.declare(&sale(), 1_000).await?;
    let held = confirmed(&queue, 0..10).await?;
    rabbit.ctl(&["set_vm_memory_high_watermark", "0"]).await?;

    // The broker blocks a connection when it next publishes; what is sent at that moment times out.
    let impatient = Queue::connect(&config(rabbit.url(), 200)).await?;
    until("publishers are told of the block", PATIENCE, || async {
        Ok(matches!(impatient.publish(&claim(100)).await, Published::Unknown(why) if why.contains("blocks")))
    })
    .await?;
    ensure!(impatient.is_connected().await, "blocked is not lost");
    // Nothing can be written on a blocked connection, so acknowledgements have another.
    let mut consumer = impatient.consume(sale(), Source::Claims);
    drain(&mut consumer, held).await?;
    consumer.pause().await;

    rabbit.ctl(&["set_vm_memory_high_watermark", "0.6"]).await?;
    until("publishing goes on", PATIENCE, || async {
        Ok(impatient.publish(&claim(101)).await == Published::Confirmed)
    })
    .await?;
    drain(&mut consumer, BTreeSet::from([claim(101).hold])).await?;
    rabbit.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_survives_a_restart_and_old_acknowledgements_mean_nothing_after_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let rabbit = Rabbit::start(dir.path()).await?;
    let queue = Queue::connect(&config(rabbit.url(), 30_000)).await?;
    queue.declare(&sale(), 1_000).await?;
    let held = confirmed(&queue, 0..50).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    let before = tokio::time::timeout(PATIENCE, consumer.next_batch()).await?;
    let rabbit = rabbit.restart().await?;
    until("connected again", PATIENCE, || async { Ok(queue.is_connected().await) }).await?;
    // Delivered again with the same tags, on another channel.
    let after = tokio::time::timeout(PATIENCE, consumer.next_batch()).await?;
    before.ack_all().await;
    drop(after);
    consumer.pause().await;
    until_ready(&queue, 50).await?;
    drain(&mut consumer, held).await?;
    let later = confirmed(&queue, 60..61).await?;
    drain(&mut consumer, later).await?;
    consumer.pause().await;
    until_ready(&queue, 0).await?;
    rabbit.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_the_cap_no_refused_claim_passes_for_a_confirmed_one() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let rabbit = Rabbit::start(dir.path()).await?;
    let queue = Queue::connect(&config(rabbit.url(), 30_000)).await?;
    queue.declare(&sale(), 200).await?;
    // Acks and nacks in one stream, asked for by many threads: each must reach its own claim.
    let mut publishing = JoinSet::new();
    for number in 0..2_000 {
        let queue = queue.clone();
        publishing.spawn(async move { (queue.publish(&claim(number)).await, claim(number).hold) });
    }
    let outcomes = publishing.join_all().await;
    let believed: BTreeSet<_> =
        outcomes.iter().filter(|(published, _)| *published == Published::Confirmed).map(|(_, h)| h.clone()).collect();
    ensure!(believed.len() < outcomes.len(), "two thousand claims fitted into a queue of two hundred");
    drain(&mut queue.consume(sale(), Source::Claims), believed).await?;

    let listed = rabbit.ctl(&["list_queues", "--quiet", "name", "type", "durable", "arguments"]).await?;
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).context(listed.clone());
    let claims = line("flashgate.claims.phones")?;
    for part in ["quorum", "true", "at-least-once", "reject-publish", "200", "x-delivery-limit", "flashgate.dead"] {
        ensure!(claims.contains(part), "no {part} in {claims}");
    }
    let dead = line("flashgate.dead.phones")?;
    ensure!(dead.contains("quorum") && !dead.contains("x-max-length"), "dead letters are never refused: {dead}");
    rabbit.stop().await
}

#[tokio::test]
async fn connecting_to_nobody_is_unavailable_and_to_no_broker_is_refused() -> Result<()> {
    let nobody = format!("amqp://guest:guest@127.0.0.1:{}/%2f", free_port()?);
    assert!(matches!(Queue::connect(&config(nobody, 1_000)).await, Err(QueueError::Unavailable(_))));
    let another = "postgres://127.0.0.1/shop".into();
    assert!(matches!(Queue::connect(&config(another, 1_000)).await, Err(QueueError::Refused(_))));
    Ok(())
}
