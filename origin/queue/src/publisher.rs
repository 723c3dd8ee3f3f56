//! Publishing with confirms.
//!
//! One task owns the channel and does all the publishing. The client library numbers a publication
//! and queues its frames in two steps: two tasks on one channel could get each other's confirms, and
//! a refused claim be taken for a confirmed one.

use crate::{
    Queue, QueueConfig, QueueError,
    link::Link,
    topology::exchange,
    under_way::{UnderWay, Waiter},
};
use flashgate_shared::envelope::ClaimEnvelope;
use lapin::{
    BasicProperties, Channel,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, timeout_at},
};

/// AMQP's delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;
/// Most requests taken at once, before confirms are looked at again.
const REQUESTS_AT_ONCE: usize = 64;

/// What is known of a published claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The broker has it, on disk.
    Confirmed,
    /// It may or may not be in the queue; the reason. Publish it again later.
    Unknown(String),
}

struct Request {
    sale: String,
    message_id: String,
    body: Vec<u8>,
    waiter: Waiter,
}

/// The way to the publishing task; it ends when this is dropped.
pub(crate) struct Publisher {
    link: Link,
    /// Bounded by the permits that requests carry.
    requests: mpsc::UnboundedSender<Request>,
    unconfirmed: Arc<Semaphore>,
}

impl Publisher {
    pub(crate) fn start(config: &QueueConfig, link: Link) -> Self {
        let (requests, taken) = mpsc::unbounded_channel();
        let work = Work { link: link.clone(), exchange: exchange(&config.prefix), channel: None };
        tokio::spawn(work.run(taken));
        let unconfirmed = config.max_unconfirmed.clamp(1, Semaphore::MAX_PERMITS);
        Self { link, requests, unconfirmed: Arc::new(Semaphore::new(unconfirmed)) }
    }
}

impl Queue {
    /// Publishes one claim, persistent and mandatory, and waits for its confirm, for a short time.
    /// Many may be under way at once; past the limit, they wait their turn within the same time.
    pub async fn publish(&self, envelope: &ClaimEnvelope) -> Published {
        let limit = Duration::from_millis(self.inner.config.confirm_timeout_ms);
        let published = match timeout_at(Instant::now() + limit, self.inner.publisher.publish(envelope)).await {
            Ok(Ok(published)) => published,
            Ok(Err(reason)) => Published::Unknown(reason.into()),
            Err(_) => Published::Unknown(format!("no confirm within {limit:?}")),
        };
        let outcome = if published == Published::Confirmed { "confirmed" } else { "unknown" };
        metrics::counter!("flashgate_queue_published_total", "outcome" => outcome).increment(1);
        published
    }
}

impl Publisher {
    async fn publish(&self, envelope: &ClaimEnvelope) -> Result<Published, &'static str> {
        let connection = self.link.now().ok_or("not connected")?;
        if connection.status().blocked() {
            return Err("the broker blocks publishers: it is short of memory or disk");
        }
        // Not kept: a publisher that waits must not hold a lost connection open.
        drop(connection);
        let permit = Arc::clone(&self.unconfirmed).acquire_owned().await.map_err(|_| ENDED)?;
        let (tell, told) = oneshot::channel();
        let request = Request {
            sale: envelope.sale.to_string(),
            message_id: envelope.hold.to_string(),
            body: envelope.encode(),
            waiter: Waiter { tell, _permit: permit },
        };
        self.requests.send(request).map_err(|_| ENDED)?;
        told.await.map_err(|_| ENDED)
    }
}

const ENDED: &str = "the publishing task ended";

/// The publishing task.
struct Work {
    link: Link,
    exchange: String,
    channel: Option<Channel>,
}

impl Work {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let mut under_way = UnderWay::default();
        let mut taken = Vec::with_capacity(REQUESTS_AT_ONCE);
        loop {
            let count = tokio::select! {
                biased;
                () = under_way.settle(), if !under_way.is_empty() => None,
                count = requests.recv_many(&mut taken, REQUESTS_AT_ONCE) => Some(count),
            };
            if count == Some(0) {
                return;
            }
            for request in taken.drain(..) {
                self.begin(&mut under_way, request).await;
            }
            if under_way.has_failed() {
                under_way.give_up("the channel is lost");
                self.channel = None;
            }
        }
    }

    async fn begin(&mut self, under_way: &mut UnderWay, request: Request) {
        let Request { sale, message_id, body, waiter } = request;
        if waiter.tell.is_closed() {
            // Nobody waits any longer, and nothing was sent.
            return;
        }
        if !self.channel.as_ref().is_some_and(|channel| channel.status().connected()) {
            under_way.give_up("the channel is lost");
            self.channel = None;
        }
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => match open(&self.link).await {
                Ok(channel) => self.channel.insert(channel).clone(),
                Err(error) => return waiter.unknown(&error.to_string()),
            },
        };
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_content_type("application/json".into())
            .with_message_id(message_id.as_str().into());
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let exchange = self.exchange.as_str().into();
        let confirming = Box::pin(async move {
            let confirm = channel.basic_publish(exchange, sale.into(), mandatory, &body, properties).await?;
            confirm.await
        });
        under_way.add(message_id, confirming, waiter).await;
    }
}

/// A channel with confirms.
async fn open(link: &Link) -> Result<Channel, QueueError> {
    let channel = link.channel().await?;
    let selecting = channel.confirm_select(ConfirmSelectOptions::default());
    link.in_time("asking for confirms", selecting).await?;
    Ok(channel)
}
