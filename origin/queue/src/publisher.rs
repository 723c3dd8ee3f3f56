//! Publishing with confirms.

use crate::{Queue, QueueConfig, QueueError};
use flashgate_shared::envelope::ClaimEnvelope;
use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};

/// AMQP's delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// What is known of a published claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The broker has it, on disk.
    Confirmed,
    /// It may or may not be in the queue; the reason. Publish it again later.
    Unknown(String),
}

/// The publishing channel and the limit of what is under way on it.
pub(crate) struct Publisher {
    channel: Mutex<Option<Channel>>,
    unconfirmed: Semaphore,
}

impl Publisher {
    pub(crate) fn new(config: &QueueConfig) -> Self {
        Self { channel: Mutex::new(None), unconfirmed: Semaphore::new(config.max_unconfirmed.max(1)) }
    }
}

impl Queue {
    /// Publishes one claim, persistent and mandatory, and waits for its confirm, for a short time.
    /// Many may be under way at once.
    pub async fn publish(&self, envelope: &ClaimEnvelope) -> Published {
        let limit = Duration::from_millis(self.inner.config.confirm_timeout_ms);
        let published = match tokio::time::timeout(limit, self.publish_once(envelope)).await {
            Ok(Ok(())) => Published::Confirmed,
            Ok(Err(reason)) => Published::Unknown(reason),
            // The broker may be blocking the connection: what waits here is bounded by the semaphore.
            Err(_) => Published::Unknown(format!("no confirm within {limit:?}")),
        };
        let outcome = if published == Published::Confirmed { "confirmed" } else { "unknown" };
        metrics::counter!("flashgate_queue_published_total", "outcome" => outcome).increment(1);
        published
    }

    async fn publish_once(&self, envelope: &ClaimEnvelope) -> Result<(), String> {
        let _permit = self.inner.publisher.unconfirmed.acquire().await.map_err(|error| error.to_string())?;
        let channel = self.publishing_channel().await.map_err(|error| error.to_string())?;
        let message_id = envelope.hold.to_string();
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_content_type("application/json".into())
            .with_message_id(message_id.as_str().into());
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = envelope.encode();
        let sending =
            channel.basic_publish(self.exchange().into(), envelope.sale.as_str().into(), mandatory, &body, properties);
        let confirm = sending.await.map_err(|error| error.to_string())?;
        match confirm.await.map_err(|error| error.to_string())? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
                // A returned message may be paired with another's confirm: whichever it was, this
                // one's outcome is not certain.
                Err(format!("returned by the broker: {}", returned.reply_text))
            }
            Confirmation::Nack(None) => Err("refused by the broker: the queue is full".into()),
            Confirmation::NotRequested => Err("the channel has no confirms".into()),
        }
    }

    /// The channel for publishing, opened anew if it was lost. A channel error is not recovered by
    /// the library: the old channel, and every confirm that waits on it, is given up.
    async fn publishing_channel(&self) -> Result<Channel, QueueError> {
        let mut slot = self.inner.publisher.channel.lock().await;
        if let Some(channel) = slot.as_ref()
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        *slot = None;
        let channel = self.channel().await?;
        let selecting = channel.confirm_select(ConfirmSelectOptions::default());
        self.in_time("asking for confirms", selecting).await?;
        *slot = Some(channel.clone());
        Ok(channel)
    }
}
