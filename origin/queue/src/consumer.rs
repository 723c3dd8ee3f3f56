//! Consuming in batches, over losses of the connection.

use crate::{Queue, QueueError, backoff::Backoff};
use bytes::Bytes;
use flashgate_shared::{
    SaleId,
    envelope::{ClaimEnvelope, EnvelopeError},
};
use futures_util::StreamExt;
use lapin::{
    Channel,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions},
    types::FieldTable,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A tag is unique within its channel, and a channel has one consumer.
const CONSUMER_TAG: &str = "flashgate";

/// Which of a sale's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The claims.
    Claims,
    /// The dead letters.
    Dead,
}

/// The delivery tags of one channel that were taken and are not answered yet.
#[derive(Debug, Clone, Default)]
struct Unanswered(Arc<Mutex<BTreeSet<u64>>>);

impl Unanswered {
    fn tags(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One message. Dropped without a word, it is delivered again when the channel ends.
#[derive(Debug)]
pub struct Message {
    /// The claim, or why it is none.
    pub envelope: Result<ClaimEnvelope, EnvelopeError>,
    /// The body as it came.
    pub raw: Bytes,
    /// Whether it was delivered before.
    pub redelivered: bool,
    delivery: Delivery,
    unanswered: Unanswered,
    source: Source,
}

impl Message {
    fn new(mut delivery: Delivery, unanswered: &Unanswered, source: Source) -> Self {
        unanswered.tags().insert(delivery.delivery_tag);
        Self {
            envelope: ClaimEnvelope::decode(&delivery.data),
            raw: Bytes::from(std::mem::take(&mut delivery.data)),
            redelivered: delivery.redelivered,
            delivery,
            unanswered: unanswered.clone(),
            source,
        }
    }

    /// It is settled. On a lost channel this does nothing, and the message comes again.
    pub async fn ack(self) {
        self.unanswered.tags().remove(&self.delivery.delivery_tag);
        log_lost(self.delivery.acker.ack(BasicAckOptions::default()).await);
    }

    /// It cannot be settled: to the dead letters. A dead letter has nowhere to go: it is left
    /// unanswered, and comes again when the channel ends.
    pub async fn dead_letter(self) {
        if self.source == Source::Dead {
            tracing::error!("a dead letter cannot be dead-lettered: it stays where it is");
            return;
        }
        self.unanswered.tags().remove(&self.delivery.delivery_tag);
        log_lost(self.delivery.acker.reject(BasicRejectOptions { requeue: false }).await);
    }
}

fn log_lost(answered: lapin::Result<bool>) {
    match answered {
        Ok(true) => {}
        Ok(false) => tracing::debug!("an acknowledgement came after its channel's end; the message comes again"),
        Err(error) => tracing::debug!(%error, "an acknowledgement was lost with its channel; the message comes again"),
    }
}

/// Messages in the order of the queue, all of one channel.
#[derive(Debug)]
pub struct Batch {
    /// At least one.
    pub messages: Vec<Message>,
}

impl Batch {
    /// All that are left in the batch are settled: one acknowledgement for the whole of it, unless that
    /// would cover a message which somebody else has taken and not answered.
    pub async fn ack_all(self) {
        let Some(last) = self.messages.last() else { return };
        let covers_others = {
            let mut tags = last.unanswered.tags();
            let covered = tags.range(..=last.delivery.delivery_tag).count();
            let ours = self.messages.iter().filter(|message| tags.remove(&message.delivery.delivery_tag)).count();
            covered > ours
        };
        if !covers_others {
            log_lost(last.delivery.acker.ack(BasicAckOptions { multiple: true }).await);
            return;
        }
        for message in self.messages {
            message.ack().await;
        }
    }
}

/// A consumer of one of a sale's queues. Opens a channel when a batch is asked for.
pub struct Consumer {
    queue: Queue,
    sale: SaleId,
    source: Source,
    open: Option<Open>,
    backoff: Backoff,
}

struct Open {
    channel: Channel,
    deliveries: lapin::Consumer,
    unanswered: Unanswered,
    /// Taken for a batch that is not full yet: kept here, so that a cancelled wait loses nothing.
    taken: Vec<Message>,
}

impl Queue {
    /// A consumer; nothing is asked of the broker until the first batch is.
    pub fn consume(&self, sale: SaleId, source: Source) -> Consumer {
        let backoff = Backoff::new(self.inner.seed);
        Consumer { queue: self.clone(), sale, source, open: None, backoff }
    }
}

impl Consumer {
    /// Waits for messages: the first, and what else comes within the linger, up to the maximum. Loses
    /// and finds the broker as often as need be; never ends.
    ///
    /// Cancel-safe: what a cancelled call has taken, the next call returns.
    pub async fn next_batch(&mut self) -> Batch {
        loop {
            match self.try_next_batch().await {
                Ok(batch) => {
                    self.backoff.reset();
                    return batch;
                }
                Err(error) => {
                    tracing::warn!(%error, sale = %self.sale, source = ?self.source, "the consumer lost its channel, trying again");
                    self.pause().await;
                    tokio::time::sleep(self.backoff.failed()).await;
                }
            }
        }
    }

    async fn try_next_batch(&mut self) -> Result<Batch, QueueError> {
        // What a lost channel has delivered would be worked on in vain: it comes again.
        if self.open.as_ref().is_some_and(|open| !open.channel.status().connected()) {
            self.pause().await;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(open(&self.queue, &self.sale, self.source).await?),
        };
        let config = &self.queue.inner.config;
        open.fill(self.source, config.batch_max.max(1), Duration::from_millis(config.batch_linger_ms)).await?;
        Ok(Batch { messages: std::mem::take(&mut open.taken) })
    }

    /// Stops consuming; what is not acknowledged goes back to the queue. The next batch resumes.
    pub async fn pause(&mut self) {
        if let Some(open) = self.open.take() {
            drop(open.deliveries);
            self.queue.inner.work.close(open.channel).await;
        }
    }
}

impl Open {
    /// Takes messages until there are `batch_max`, or the linger after the first has passed.
    async fn fill(&mut self, source: Source, batch_max: usize, linger: Duration) -> Result<(), QueueError> {
        let ended = || QueueError::Unavailable("the broker ended the delivery".into());
        if self.taken.is_empty() {
            let first = self.deliveries.next().await.ok_or_else(ended)??;
            self.taken.push(Message::new(first, &self.unanswered, source));
        }
        let deadline = tokio::time::Instant::now() + linger;
        while self.taken.len() < batch_max {
            match tokio::time::timeout_at(deadline, self.deliveries.next()).await {
                Ok(Some(Ok(delivery))) => self.taken.push(Message::new(delivery, &self.unanswered, source)),
                // The channel is lost, and what it delivered comes again.
                Ok(Some(Err(error))) => return Err(error.into()),
                Ok(None) => return Err(ended()),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

async fn open(queue: &Queue, sale: &SaleId, source: Source) -> Result<Open, QueueError> {
    let name = match source {
        Source::Claims => queue.claims_queue(sale),
        Source::Dead => queue.dead_queue(sale),
    };
    let work = &queue.inner.work;
    work.wait().await?;
    let channel = work.channel().await?;
    // A prefetch of 0 would mean no limit.
    let qos = channel.basic_qos(queue.inner.config.prefetch.max(1), BasicQosOptions::default());
    work.in_time("setting the prefetch", qos).await?;
    let consuming =
        channel.basic_consume(name.into(), CONSUMER_TAG.into(), BasicConsumeOptions::default(), FieldTable::default());
    let deliveries = work.in_time("consuming", consuming).await?;
    Ok(Open { channel, deliveries, unanswered: Unanswered::default(), taken: Vec::new() })
}
