//! The handle to RabbitMQ.

use crate::{QueueConfig, link::Link, publisher::Publisher};
use lapin::{
    BasicProperties, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};

/// Why the queue did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The broker cannot be reached, or did not answer in time.
    #[error("RabbitMQ is unavailable: {0}")]
    Unavailable(String),
    /// The sale's queue exists with other settings, or the name is not allowed: an operator must look.
    #[error("RabbitMQ refused: {0}")]
    Refused(String),
    /// The sale has no queue.
    #[error("there is no queue for this sale")]
    NotFound,
}

impl From<lapin::Error> for QueueError {
    fn from(error: lapin::Error) -> Self {
        use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
        if let lapin::ErrorKind::ProtocolError(protocol) = error.kind() {
            match protocol.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => return Self::NotFound,
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::ACCESSREFUSED) => {
                    return Self::Refused(error.to_string());
                }
                _ => {}
            }
        }
        Self::Unavailable(error.to_string())
    }
}

/// A handle to RabbitMQ; cheap to clone. The connections close when the last clone is dropped.
#[derive(Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: QueueConfig,
    /// Consuming, declaring, measuring. A broker that runs out of memory or disk blocks connections
    /// that publish, and nothing at all can be written on a blocked one. So this one never publishes:
    /// acknowledgements go on and empty the queue.
    pub work: Link,
    /// Publishing only.
    publishing: Link,
    pub publisher: Publisher,
    /// Tells this process's waits from those of others.
    pub seed: u64,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("prefix", &self.inner.config.prefix).finish_non_exhaustive()
    }
}

impl Queue {
    /// Connects; fails when the broker cannot be reached now. Connections lost later come back by
    /// themselves.
    pub async fn connect(config: &QueueConfig) -> Result<Self, QueueError> {
        // A hasher of the standard library is seeded at random: good enough for jitter.
        let seed = RandomState::new().build_hasher().finish();
        let (work, publishing) = tokio::try_join!(
            Link::start(config, "flashgate work", seed),
            Link::start(config, "flashgate publish", !seed),
        )?;
        let publisher = Publisher::start(config, publishing.clone());
        Ok(Self { inner: Arc::new(Inner { config: config.clone(), work, publishing, publisher, seed }) })
    }

    /// Whether both connections stand, as far as is known without asking.
    pub async fn is_connected(&self) -> bool {
        self.inner.work.now().is_some() && self.inner.publishing.now().is_some()
    }

    /// Whether the broker takes messages, on the connection that claims are published on: one that belongs to
    /// no queue is sent, and comes back. A broker that is short of memory or disk lets it wait.
    pub async fn takes_messages(&self) -> Result<(), QueueError> {
        let way = &self.inner.publishing;
        let channel = way.channel().await?;
        let probe = async {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let nowhere = format!("{}.nowhere", self.inner.config.prefix);
            let back = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            channel.basic_publish("".into(), nowhere.into(), back, b"", BasicProperties::default()).await?.await
        };
        let answered = way.in_time("taking a message", probe).await;
        way.close(channel).await;
        match answered? {
            Confirmation::Nack(_) => Err(QueueError::Unavailable("the broker refused a message".into())),
            Confirmation::Ack(_) | Confirmation::NotRequested => Ok(()),
        }
    }

    /// Whether the broker answers, waiting for a lost connection to come back within the time of an
    /// operation.
    pub async fn ping(&self) -> Result<(), QueueError> {
        let work = &self.inner.work;
        work.close(work.channel().await?).await;
        Ok(())
    }
}
