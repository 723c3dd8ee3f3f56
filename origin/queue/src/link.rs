//! A supervised connection: made again whenever it is lost, for ever, with bounded backoff.
//!
//! The client library's own recovery stays off: it would bring channels back with confirms and
//! delivery tags of the old one half alive. Here a lost connection takes all of its channels along.

use crate::{QueueConfig, QueueError, backoff::Backoff};
use futures_util::StreamExt;
use lapin::{Channel, Connection, ConnectionProperties, uri::AMQPUri};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// Heartbeat asked of the broker, in seconds, unless the URL names one: a connection cut without a
/// word is noticed after twice as long.
const HEARTBEAT_S: u16 = 10;
/// How often the connection's state is looked at, in milliseconds, should no event tell of its end.
const LOOK_PERIOD_MS: u64 = 250;

/// A connection that comes back by itself. Its supervisor ends, and closes it, when the last clone
/// is dropped.
#[derive(Clone)]
pub(crate) struct Link {
    connection: watch::Receiver<Option<Arc<Connection>>>,
    limit: Duration,
}

impl Link {
    /// Connects, and keeps connected from then on.
    pub(crate) async fn start(config: &QueueConfig, name: &'static str, seed: u64) -> Result<Self, QueueError> {
        let mut uri: AMQPUri = config.url.parse().map_err(|error| QueueError::Refused(format!("url: {error}")))?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
        let maker = Maker { uri, name, limit: Duration::from_millis(config.operation_timeout_ms) };
        let first = maker.connect().await?;
        let (sender, connection) = watch::channel(Some(Arc::new(first)));
        let limit = maker.limit;
        tokio::spawn(keep(maker, sender, Backoff::new(seed)));
        Ok(Self { connection, limit })
    }

    /// The connection, if it stands now.
    pub(crate) fn now(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().as_ref().filter(|connection| connection.status().connected()).map(Arc::clone)
    }

    /// The connection, as soon as it stands.
    async fn standing(&self) -> Result<Arc<Connection>, QueueError> {
        let mut watched = self.connection.clone();
        loop {
            let seen = watched.borrow_and_update().clone();
            if let Some(connection) = seen.filter(|connection| connection.status().connected()) {
                return Ok(connection);
            }
            // A connection lost and not yet taken out is replaced by a change as well.
            watched.changed().await.map_err(|_| QueueError::Unavailable("the supervisor ended".into()))?;
        }
    }

    /// Waits, without end, for the connection to stand.
    pub(crate) async fn wait(&self) -> Result<(), QueueError> {
        self.standing().await.map(drop)
    }

    /// A new channel, within the time of an operation, reconnecting included.
    pub(crate) async fn channel(&self) -> Result<Channel, QueueError> {
        let opening = async { Ok::<_, QueueError>(self.standing().await?.create_channel().await?) };
        match tokio::time::timeout(self.limit, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(QueueError::Unavailable(format!("no channel within {:?}", self.limit))),
        }
    }

    /// Runs one operation within its time.
    pub(crate) async fn in_time<T>(
        &self,
        what: &str,
        operation: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, QueueError> {
        in_time(self.limit, what, operation).await
    }

    /// Closes a channel that may be closed already.
    pub(crate) async fn close(&self, channel: Channel) {
        if channel.status().connected() {
            // Nothing waits on it; a failure means that it is gone.
            let _ = self.in_time("closing a channel", channel.close(200, "done".into())).await;
        }
    }
}

async fn in_time<T>(
    limit: Duration,
    what: &str,
    operation: impl Future<Output = lapin::Result<T>>,
) -> Result<T, QueueError> {
    match tokio::time::timeout(limit, operation).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(QueueError::Unavailable(format!("{what} took longer than {limit:?}"))),
    }
}

struct Maker {
    uri: AMQPUri,
    name: &'static str,
    limit: Duration,
}

impl Maker {
    async fn connect(&self) -> Result<Connection, QueueError> {
        let properties = ConnectionProperties::default().with_connection_name(self.name.into());
        in_time(self.limit, "connecting", Connection::connect_uri(self.uri.clone(), properties)).await
    }
}

/// The supervisor of one connection.
async fn keep(maker: Maker, sender: watch::Sender<Option<Arc<Connection>>>, mut backoff: Backoff) {
    loop {
        let current = sender.borrow().clone();
        if let Some(connection) = current {
            tokio::select! {
                () = sender.closed() => return,
                () = lost(&connection) => {}
            }
            sender.send_replace(None);
            metrics::counter!("flashgate_queue_connections_lost_total", "name" => maker.name).increment(1);
            tracing::warn!(name = maker.name, "the connection to RabbitMQ is lost");
        }
        let attempt = tokio::select! {
            () = sender.closed() => return,
            attempt = maker.connect() => attempt,
        };
        match attempt {
            Ok(connection) => {
                backoff.reset();
                tracing::info!(name = maker.name, "connected to RabbitMQ again");
                sender.send_replace(Some(Arc::new(connection)));
            }
            Err(error) => {
                let wait = backoff.failed();
                tracing::warn!(%error, name = maker.name, ?wait, "cannot connect to RabbitMQ");
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        }
    }
}

/// Returns when the connection stands no longer.
async fn lost(connection: &Connection) {
    let mut events = std::pin::pin!(connection.events_listener());
    while connection.status().connected() {
        // An event is a hint to look; an end of the events is none, so the period stays.
        let look = tokio::time::sleep(Duration::from_millis(LOOK_PERIOD_MS));
        tokio::select! {
            Some(_) = events.next() => {}
            () = look => {}
        }
    }
}
