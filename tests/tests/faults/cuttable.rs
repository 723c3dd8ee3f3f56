//! A shop whose ways to its stores can be cut.

use anyhow::{Context, Result};
use flashgate_ops::stack::StackConfig;
use flashgate_servers::{Proxy, shared};
use flashgate_shared::SaleId;
use flashgate_tests::{Buyer, OwnStores, Shop};

/// A shop that reaches its stores by ways that can be cut.
pub struct Cuttable {
    pub shop: Shop,
    pub redis: Proxy,
    pub rabbit: Proxy,
    pub postgres: Proxy,
}

impl Cuttable {
    pub async fn start() -> Result<Self> {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut StackConfig)) -> Result<Self> {
        let servers = shared().await?;
        let (redis_port, rabbit_port, postgres_port) =
            (servers.redis().port(), servers.rabbit().port(), servers.postgres().port());
        let (redis, rabbit, postgres) =
            (Proxy::before(redis_port).await?, Proxy::before(rabbit_port).await?, Proxy::before(postgres_port).await?);
        let shop = Shop::start_on(
            OwnStores::default(),
            |ways| {
                ways.redis_url = format!("redis://127.0.0.1:{}", redis.port());
                ways.rabbit_url = rabbit.through(&ways.rabbit_url, rabbit_port).context("no way to RabbitMQ")?;
                ways.postgres_url =
                    postgres.through(&ways.postgres_url, postgres_port).context("no way to Postgres")?;
                Ok(())
            },
            change,
        )
        .await?;
        Ok(Self { shop, redis, rabbit, postgres })
    }

    /// A buyer who has entered.
    pub async fn entered(&self, sale: &SaleId) -> Result<Buyer> {
        let mut buyer = self.shop.buyer(sale);
        buyer.enter().await?;
        Ok(buyer)
    }
}
