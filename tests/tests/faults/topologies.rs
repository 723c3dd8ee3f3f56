//! Redis in more than one piece.

use anyhow::Result;
use flashgate_servers::{Cluster, Sentinels};
use flashgate_shared::{SaleId, sale::RebuildCause};
use flashgate_tests::{OwnStores, Shop};
use std::time::Instant;

/// So many buyers with a unit each.
async fn sell(shop: &Shop, sale: &SaleId, units: usize) -> Result<()> {
    for _ in 0..units {
        shop.reserved(sale).await?;
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

/// A sale of twenty units in ten buckets over a cluster: something happens to a primary, the gate is rebuilt, and all
/// of it is sold.
async fn sells_out_over(
    redis: &mut Cluster,
    id: &str,
    what: &str,
    fault: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), |_| {}).await?;
    let mut config = shop.sale(id, 20);
    config.buckets = 10;
    let sale = shop.create(&config).await?;
    sell(&shop, &sale, 6).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (6, 14));
    let since = Instant::now();
    fault(redis).await?;
    let rebuild = shop.rebuilt(&sale, 1).await?;
    sell(&shop, &sale, 1).await?;
    println!("{what}: claims are accepted again after {} ms", since.elapsed().as_millis());
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::ServerChanged, Some(14)));
    sell(&shop, &sale, 13).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (20, 0));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_buckets_over_a_cluster_and_one_of_its_primaries_starts_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut redis = Cluster::start(dir.path()).await?;
    let what = "a cluster's primary restarted";
    sells_out_over(&mut redis, "topologies-cluster", what, async |redis| redis.restart(1).await).await?;
    redis.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_of_a_cluster_dies_and_its_replica_takes_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut redis = Cluster::start_with_replicas(dir.path()).await?;
    let what = "a cluster's replica took over";
    sells_out_over(&mut redis, "topologies-replica", what, async |redis| redis.kill_primary().await).await?;
    redis.stop().await
}
