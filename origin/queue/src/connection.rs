//! One connection, made again whenever it is lost.

use crate::QueueConfig;
use lapin::{Channel, Connection, ConnectionProperties};
use std::{sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// Delays between attempts to connect, in milliseconds; attempts never end.
pub(crate) const RECONNECT_MIN_MS: u64 = 50;
pub(crate) const RECONNECT_MAX_MS: u64 = 2_000;

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

/// A handle to RabbitMQ; cheap to clone.
#[derive(Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: QueueConfig,
    connection: Mutex<Option<Arc<Connection>>>,
    pub publisher: crate::publisher::Publisher,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("prefix", &self.inner.config.prefix).finish_non_exhaustive()
    }
}

impl Queue {
    /// Connects; fails when the broker cannot be reached now. Later losses are mended when the
    /// connection is next needed.
    pub async fn connect(config: &QueueConfig) -> Result<Self, QueueError> {
        let queue = Self {
            inner: Arc::new(Inner {
                config: config.clone(),
                connection: Mutex::new(None),
                publisher: crate::publisher::Publisher::new(config),
            }),
        };
        queue.connection().await?;
        Ok(queue)
    }

    /// Whether the connection stands, as far as is known without asking.
    pub async fn is_connected(&self) -> bool {
        self.inner.connection.lock().await.as_ref().is_some_and(|connection| connection.status().connected())
    }

    /// Whether the broker answers, with a connection made anew if need be.
    pub async fn ping(&self) -> Result<(), QueueError> {
        crate::topology::close(self.channel().await?).await;
        Ok(())
    }

    /// The connection, made anew if it was lost. Only one caller at a time makes it.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, QueueError> {
        let mut slot = self.inner.connection.lock().await;
        if let Some(connection) = slot.as_ref()
            && connection.status().connected()
        {
            return Ok(Arc::clone(connection));
        }
        *slot = None;
        let properties = ConnectionProperties::default().with_connection_name("flashgate".into());
        let connecting = Connection::connect(&self.inner.config.url, properties);
        let connection = Arc::new(self.in_time("connecting", connecting).await?);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// A new channel.
    pub(crate) async fn channel(&self) -> Result<Channel, QueueError> {
        let connection = self.connection().await?;
        self.in_time("opening a channel", connection.create_channel()).await
    }

    /// Runs one operation within the configured time.
    pub(crate) async fn in_time<T>(
        &self,
        what: &str,
        operation: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, QueueError> {
        let limit = Duration::from_millis(self.inner.config.operation_timeout_ms);
        match tokio::time::timeout(limit, operation).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(QueueError::Unavailable(format!("{what} took longer than {limit:?}"))),
        }
    }
}
