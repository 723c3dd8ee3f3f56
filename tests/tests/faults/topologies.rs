//! Redis in more than one piece.

use anyhow::{Result, ensure};
use flashgate_servers::{Cluster, Sentinels};
use flashgate_shared::{SaleId, order::OrderStatus, sale::RebuildCause, wire::ClaimState};
use flashgate_tests::{OwnStores, Shop};
use std::time::Instant;

/// So many buyers with a unit each.
async fn sell(shop: &Shop, sale: &SaleId, units: usize) -> Result<()> {
    for _ in 0..units {
        let mut buyer = shop.buyer(sale);
        buyer.enter().await?;
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == ClaimState::Ledger(OrderStatus::Reserved), "{status:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_dies_and_the_sentinels_promote_its_replica() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut redis = Sentinels::start(dir.path()).await?;
    let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), |_| {}).await?;
    let mut config = shop.sale("topologies-sentinel", 8);
    config.buckets = 3;
    let sale = shop.create(&config).await?;
    sell(&shop, &sale, 3).await?;
    shop.quiet(&sale).await?;
    let since = Instant::now();
    redis.kill_primary().await?;
    let rebuild = shop.rebuilt(&sale, 1).await?;
    sell(&shop, &sale, 1).await?;
    println!("sentinel failover: claims are accepted again after {} ms", since.elapsed().as_millis());
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::ServerChanged, Some(5)));
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (4, 4));
    shop.stack.stop().await?;
    redis.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_buckets_over_a_cluster_and_one_of_its_primaries_starts_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut redis = Cluster::start(dir.path()).await?;
    let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), |_| {}).await?;
    let mut config = shop.sale("topologies-cluster", 20);
    config.buckets = 10;
    let sale = shop.create(&config).await?;
    sell(&shop, &sale, 6).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (6, 14));
    let since = Instant::now();
    redis.restart(1).await?;
    let rebuild = shop.rebuilt(&sale, 1).await?;
    sell(&shop, &sale, 1).await?;
    println!("a cluster's primary restarted: claims are accepted again after {} ms", since.elapsed().as_millis());
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::ServerChanged, Some(14)));
    sell(&shop, &sale, 13).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (20, 0));
    shop.stack.stop().await?;
    redis.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_of_a_cluster_dies_and_its_replica_takes_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut redis = Cluster::start_with_replicas(dir.path()).await?;
    let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), |_| {}).await?;
    let mut config = shop.sale("topologies-replica", 20);
    config.buckets = 10;
    let sale = shop.create(&config).await?;
    sell(&shop, &sale, 6).await?;
    shop.quiet(&sale).await?;
    let since = Instant::now();
    redis.kill_primary().await?;
    let rebuild = shop.rebuilt(&sale, 1).await?;
    sell(&shop, &sale, 1).await?;
    println!("a cluster's replica took over: claims are accepted again after {} ms", since.elapsed().as_millis());
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::ServerChanged, Some(14)));
    sell(&shop, &sale, 13).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (20, 0));
    shop.stack.stop().await?;
    redis.stop().await
}
