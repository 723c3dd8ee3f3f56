//! Exchanges and queues of a sale.

use crate::{Queue, QueueError};
use flashgate_shared::SaleId;
use lapin::{
    Channel, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

/// How often a declaration is tried, and the pause between two tries.
const DECLARE_ATTEMPTS: u32 = 4;
const DECLARE_PAUSE: std::time::Duration = std::time::Duration::from_millis(250);

/// How many messages wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Ready in the sale's queue. The broker does not count those being worked on here.
    pub ready: u64,
    /// Ready in the sale's queue of dead letters.
    pub dead: u64,
}

impl Queue {
    fn exchange(&self) -> String {
        exchange(&self.inner.config.prefix)
    }

    fn dead_exchange(&self) -> String {
        format!("{}.dead", self.inner.config.prefix)
    }

    pub(crate) fn claims_queue(&self, sale: &SaleId) -> String {
        format!("{}.claims.{sale}", self.inner.config.prefix)
    }

    pub(crate) fn dead_queue(&self, sale: &SaleId) -> String {
        format!("{}.dead.{sale}", self.inner.config.prefix)
    }

    /// Declares what a sale needs: its queue, capped at `cap` messages, and its queue of dead letters.
    /// Repeatable; with another cap it is refused. A broker under the load of many declarations at once
    /// may answer with an internal error and close the connection: then it is asked again.
    pub async fn declare(&self, sale: &SaleId, cap: u64) -> Result<(), QueueError> {
        for _ in 1..DECLARE_ATTEMPTS {
            match self.declare_once(sale, cap).await {
                Err(QueueError::Unavailable(reason)) => {
                    tracing::warn!(%sale, reason, "the queue could not be declared, trying again");
                    tokio::time::sleep(DECLARE_PAUSE).await;
                }
                done => return done,
            }
        }
        self.declare_once(sale, cap).await
    }

    async fn declare_once(&self, sale: &SaleId, cap: u64) -> Result<(), QueueError> {
        // A channel of its own: a refusal closes it.
        let channel = self.inner.work.channel().await?;
        let done = self.declare_on(&channel, sale, cap).await;
        self.inner.work.close(channel).await;
        done
    }

    async fn declare_on(&self, channel: &Channel, sale: &SaleId, cap: u64) -> Result<(), QueueError> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        for exchange in [self.exchange(), self.dead_exchange()] {
            let declaring =
                channel.exchange_declare(exchange.into(), ExchangeKind::Direct, durable, FieldTable::default());
            self.inner.work.in_time("declaring an exchange", declaring).await?;
        }
        let mut dead = quorum();
        // A dead letter that cannot be settled waits for a person: it has no limit of its own.
        dead.insert("x-overflow".into(), text("reject-publish"));
        self.declare_queue(channel, self.dead_queue(sale), self.dead_exchange(), sale, dead).await?;
        let mut claims = quorum();
        claims.insert("x-max-length".into(), AMQPValue::LongLongInt(i64::try_from(cap).unwrap_or(i64::MAX)));
        claims.insert("x-overflow".into(), text("reject-publish"));
        claims.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(self.inner.config.delivery_limit));
        claims.insert("x-dead-letter-exchange".into(), text(&self.dead_exchange()));
        claims.insert("x-dead-letter-routing-key".into(), text(sale.as_str()));
        claims.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        self.declare_queue(channel, self.claims_queue(sale), self.exchange(), sale, claims).await
    }

    async fn declare_queue(
        &self,
        channel: &Channel,
        queue: String,
        exchange: String,
        sale: &SaleId,
        arguments: FieldTable,
    ) -> Result<(), QueueError> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declaring = channel.queue_declare(queue.as_str().into(), durable, arguments);
        self.inner.work.in_time("declaring a queue", declaring).await?;
        let binding = channel.queue_bind(
            queue.into(),
            exchange.into(),
            sale.as_str().into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        self.inner.work.in_time("binding a queue", binding).await
    }

    /// How many messages wait for this sale.
    pub async fn depth(&self, sale: &SaleId) -> Result<Depth, QueueError> {
        // Of its own too: asking for a queue that is missing closes it.
        let channel = self.inner.work.channel().await?;
        let passive = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
        let count = async |queue: String| {
            let asking = channel.queue_declare(queue.into(), passive, FieldTable::default());
            Ok::<_, QueueError>(u64::from(self.inner.work.in_time("asking for a depth", asking).await?.message_count()))
        };
        let depth = async {
            Ok(Depth { ready: count(self.claims_queue(sale)).await?, dead: count(self.dead_queue(sale)).await? })
        };
        let depth = depth.await;
        self.inner.work.close(channel).await;
        depth
    }
}

/// The exchange that claims are published to.
pub(crate) fn exchange(prefix: &str) -> String {
    format!("{prefix}.claims")
}

fn quorum() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}
