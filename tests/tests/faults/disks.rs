//! Disks that are full. (RabbitMQ's: `broker`.)

use anyhow::{Result, ensure};
use flashgate_servers::{Postgres, Redis, SmallDisk, free_port, until};
use flashgate_shared::{order::OrderStatus, problem::ProblemKind};
use flashgate_tests::{Claimed, OwnStores, PATIENCE, RESERVED, Shop};

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_redis_is_full() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let disk = SmallDisk::mount(&dir.path().join("redis"), 16).await?;
    let redis = Redis::start_on(&disk).await?;
    let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), |_| {}).await?;
    let sale = shop.create(&shop.sale("disks-redis", 400)).await?;
    let direct = shop.direct(&sale);
    direct.claim("first", "k", 1).await?.accepted()?;
    shop.quiet(&sale).await?;
    disk.fill()?;
    // With `appendfsync always` Redis ends rather than say yes to what it cannot keep.
    let mut accepted = Vec::new();
    let unknown = loop {
        let name = format!("buyer-{}", accepted.len());
        match direct.claim(&name, "k", 1).await? {
            Claimed::Accepted(claim) => accepted.push((name, claim.claim_id)),
            Claimed::Refused(problem) => {
                ensure!(problem.status == 503, "{problem:?}");
                break name;
            }
        }
        ensure!(accepted.len() < 390, "a full disk takes everything");
    };
    until("Redis has ended", PATIENCE, || async { Ok(redis.process().check_running().is_err()) }).await?;
    disk.clear()?;
    let again = Redis::again_on(&disk, redis.port()).await?;
    drop(redis);
    shop.rebuilt(&sale, 1).await?;
    // Whoever heard yes has his unit; whoever heard nothing asks again.
    until("claims are taken again", PATIENCE, || async {
        Ok(direct.claim(&unknown, "k", 1).await?.accepted().is_ok())
    })
    .await?;
    for (name, claim_id) in &accepted {
        assert_eq!(direct.claim(name, "k", 1).await?.accepted()?.claim_id, *claim_id);
    }
    let sold = i64::try_from(accepted.len())? + 2;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (sold, 400 - sold, 0));
    shop.stack.stop().await?;
    again.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_postgres_is_full() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let disk = SmallDisk::mount(&dir.path().join("postgres"), 160).await?;
    let mut postgres = Postgres::start_on(&disk).await?;
    let url = postgres.create_database("full").await?;
    let shop = Shop::start_on(OwnStores::postgres(url), |_| Ok(()), |_| {}).await?;
    let sale = shop.create(&shop.sale("disks-postgres", 60)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    buyer.settled(&accepted.status_url).await?;
    disk.fill()?;
    let check = shop.stack.admin().check(&sale).await;
    let full = check.is_err()
        || check.is_ok_and(|checks| {
            checks.iter().any(|c| c.what == "postgres" && c.finding == flashgate_shared::wire::Finding::No)
        });
    ensure!(full, "the check before a sale sees no full disk");
    // The gate goes on; what settling cannot write waits in the queue.
    let direct = shop.direct(&sale);
    let mut claimed = 0;
    for n in 0..50 {
        match direct.claim(&format!("buyer-{n}"), "k", 1).await? {
            Claimed::Accepted(_) => claimed += 1,
            Claimed::Refused(problem) => {
                ensure!(problem.kind() == Some(ProblemKind::Unavailable), "{problem:?}");
                break;
            }
        }
    }
    ensure!(claimed > 0, "claims stopped with the ledger");
    disk.clear()?;
    if postgres.process().check_running().is_err() {
        // It ended for want of room for its log: whoever runs it starts it again.
        postgres = Postgres::again_on(&disk, postgres.port()).await?;
    }
    until("everything is settled", PATIENCE, || async {
        Ok(shop.stack.admin().audit(&sale).await?.live_units == 1 + claimed)
    })
    .await?;
    assert_eq!(buyer.status(&accepted.status_url).await?.status, RESERVED);
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1 + claimed, 59 - claimed, 0));
    assert_eq!(shop.queue.depth(&sale).await?.dead, 0, "nobody was dead-lettered");
    shop.stack.stop().await?;
    postgres.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_the_access_log_is_full() -> Result<()> {
    let admin = format!("127.0.0.1:{}", free_port()?);
    // A device that is always full.
    let shop = Shop::start(|config| {
        config.edge_args.extend(["--access-log", "/dev/full", "--admin-listen", &admin].map(str::to_owned));
    })
    .await?;
    let sale = shop.create(&shop.sale("disks-access-log", 3)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    buyer.settled(&accepted.status_url).await?;
    until("lines are lost, and counted", PATIENCE, || async {
        buyer.status(&accepted.status_url).await?;
        let text = shop.http.get(format!("http://{admin}/metrics")).send().await?.text().await?;
        let lost = text.lines().find_map(|line| line.strip_prefix("flashgate_edge_access_log_dropped_total "));
        Ok(lost.is_some_and(|count| count != "0"))
    })
    .await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2));
    shop.stack.stop().await
}
