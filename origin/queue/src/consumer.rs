//! Consuming in batches, over losses of the connection.

use crate::{
    Queue, QueueError,
    connection::{RECONNECT_MAX_MS, RECONNECT_MIN_MS},
    topology::close,
};
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
use std::time::Duration;

/// Which of a sale's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The claims.
    Claims,
    /// The dead letters.
    Dead,
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
}

impl Message {
    /// It is settled. On a lost channel this does nothing, and the message comes again.
    pub async fn ack(self) {
        log_lost(self.delivery.acker.ack(BasicAckOptions::default()).await);
    }

    /// It cannot be settled: to the dead letters. From the dead letters it would be dropped: never
    /// call it there.
    pub async fn dead_letter(self) {
        log_lost(self.delivery.acker.reject(BasicRejectOptions { requeue: false }).await);
    }
}

fn log_lost<T>(answered: lapin::Result<T>) {
    if let Err(error) = answered {
        tracing::debug!(%error, "an acknowledgement was lost with its channel; the message comes again");
    }
}

/// Messages in the order of the queue, all of one channel.
#[derive(Debug)]
pub struct Batch {
    /// At least one.
    pub messages: Vec<Message>,
}

impl Batch {
    /// All are settled: one acknowledgement for the whole batch. Only for a batch of which no message
    /// was answered singly.
    pub async fn ack_all(self) {
        if let Some(last) = self.messages.last() {
            log_lost(last.delivery.acker.ack(BasicAckOptions { multiple: true }).await);
        }
    }
}

/// A consumer of one of a sale's queues. Opens a channel when a batch is asked for.
pub struct Consumer {
    queue: Queue,
    sale: SaleId,
    source: Source,
    open: Option<Open>,
    /// Counts consumers, so that each attempt has a tag of its own.
    attempt: u64,
}

struct Open {
    channel: Channel,
    deliveries: lapin::Consumer,
}

impl Queue {
    /// A consumer; nothing is asked of the broker until the first batch is.
    pub fn consume(&self, sale: SaleId, source: Source) -> Consumer {
        Consumer { queue: self.clone(), sale, source, open: None, attempt: 0 }
    }
}

impl Consumer {
    /// Waits for messages: the first, and what else comes within the linger, up to the maximum. Loses
    /// and finds the broker as often as need be; never ends.
    ///
    /// Cancel-safe in the sense that matters: a message taken and not answered comes again.
    pub async fn next_batch(&mut self) -> Batch {
        let mut delay_ms = RECONNECT_MIN_MS;
        loop {
            match self.try_next_batch().await {
                Ok(batch) => return batch,
                Err(error) => {
                    tracing::warn!(%error, sale = %self.sale, "the consumer lost its channel, trying again");
                    self.pause().await;
                    // Jitter from the attempt's number keeps a fleet's workers apart well enough.
                    let jitter_ms = (self.attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) % RECONNECT_MIN_MS;
                    tokio::time::sleep(Duration::from_millis(delay_ms + jitter_ms)).await;
                    delay_ms = (delay_ms * 2).min(RECONNECT_MAX_MS);
                }
            }
        }
    }

    async fn try_next_batch(&mut self) -> Result<Batch, QueueError> {
        let (batch_max, linger) = {
            let config = &self.queue.inner.config;
            (config.batch_max.max(1), Duration::from_millis(config.batch_linger_ms))
        };
        if self.open.is_none() {
            self.open = Some(self.open().await?);
        }
        let Some(open) = self.open.as_mut() else {
            return Err(QueueError::Unavailable("no channel".into()));
        };
        let ended = || QueueError::Unavailable("the broker ended the delivery".into());
        let first = open.deliveries.next().await.ok_or_else(ended)??;
        let mut messages = vec![message(first)];
        let deadline = tokio::time::Instant::now() + linger;
        while messages.len() < batch_max {
            match tokio::time::timeout_at(deadline, open.deliveries.next()).await {
                Ok(Some(Ok(delivery))) => messages.push(message(delivery)),
                // The next call finds out; what came is good.
                Ok(Some(Err(_)) | None) | Err(_) => break,
            }
        }
        Ok(Batch { messages })
    }

    async fn open(&mut self) -> Result<Open, QueueError> {
        self.attempt += 1;
        let queue = &self.queue;
        let name = match self.source {
            Source::Claims => queue.claims_queue(&self.sale),
            Source::Dead => queue.dead_queue(&self.sale),
        };
        let channel = queue.channel().await?;
        let qos = channel.basic_qos(queue.inner.config.prefetch, BasicQosOptions::default());
        queue.in_time("setting the prefetch", qos).await?;
        let tag = format!("flashgate-{}", self.attempt);
        let consuming =
            channel.basic_consume(name.into(), tag.into(), BasicConsumeOptions::default(), FieldTable::default());
        let deliveries = queue.in_time("consuming", consuming).await?;
        Ok(Open { channel, deliveries })
    }

    /// Stops consuming; what is not acknowledged goes back to the queue. The next batch resumes.
    pub async fn pause(&mut self) {
        if let Some(open) = self.open.take() {
            drop(open.deliveries);
            close(open.channel).await;
        }
    }
}

fn message(mut delivery: Delivery) -> Message {
    Message {
        envelope: ClaimEnvelope::decode(&delivery.data),
        raw: Bytes::from(std::mem::take(&mut delivery.data)),
        redelivered: delivery.redelivered,
        delivery,
    }
}
