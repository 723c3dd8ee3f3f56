//! Clocks that are wrong, or jump. (Edges: `degraded`.)

use anyhow::{Result, ensure};
use flashgate_servers::{Postgres, until};
use flashgate_shared::order::OrderStatus;
use flashgate_tests::{OwnStores, PAID, PATIENCE, RESERVED, Shop, faults};

#[tokio::test(flavor = "multi_thread")]
async fn an_origins_clock_jumps_and_nobody_notices() -> Result<()> {
    let clock = faults::SteppedClock::new()?;
    let shop = Shop::start(|config| {
        config.origin_env.extend(clock.environment().unwrap_or_default());
    })
    .await?;
    let sale = shop.create(&shop.sale("clocks-origin", 8)).await?;
    // An hour ahead, then an hour behind: window, tokens, permits, payments and status links go by the authority's.
    for seconds in [0, 3_600, -3_600] {
        clock.step(seconds)?;
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == RESERVED, "{seconds}: {status:?}");
        let paid = buyer.pay_and_wait(&status, "ok").await?;
        ensure!(paid.status == PAID, "{seconds}: {paid:?}");
    }
    let claim = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    until("the relay publishes it", PATIENCE, || async { Ok(shop.stack.admin().audit(&sale).await?.live_units == 4) })
        .await?;
    faults::expire_now(&shop, claim.claim_id).await?;
    until("it is swept", PATIENCE, || async { Ok(shop.stack.admin().audit(&sale).await?.live_units == 3) }).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.live_units, books.on_offer), (3, 3, 5));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_databases_clock_jumps_ahead_and_no_reservation_is_ended() -> Result<()> {
    let (clock, dir) = (faults::SteppedClock::new()?, tempfile::tempdir()?);
    let postgres = Postgres::start_with(dir.path(), clock.environment()?).await?;
    let url = postgres.create_database("jumps").await?;
    let shop = Shop::start_on(OwnStores::postgres(url), |_| Ok(()), |_| {}).await?;
    let sale = shop.create(&shop.sale("clocks-database", 4)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    let status = buyer.settled(&accepted.status_url).await?;
    // The sweeper has seen the right time: a hold that is over by it has ended.
    let over = faults::claim_and_die(&shop, &sale, "over", "k", 0).await?;
    faults::publish(&shop, &over).await?;
    shop.quiet(&sale).await?;
    faults::expire_now(&shop, over.claim_id).await?;
    until("the sweeper is at work", PATIENCE, || async { Ok(shop.stack.admin().audit(&sale).await?.live_units == 1) })
        .await?;
    // By the database's clock every reservation is over now.
    clock.step(3_600)?;
    until("the sweeper has stopped and says so", PATIENCE, || async {
        let text = shop.http.get(format!("{}/metrics", shop.stack.origin_url())).send().await?.text().await?;
        Ok(text.lines().any(|line| line.starts_with("flashgate_clock_jumps_total") && !line.ends_with(" 0")))
    })
    .await?;
    assert_eq!(buyer.status(&status.status_url).await?.status, RESERVED, "nothing was swept");
    clock.step(0)?;
    let paid = buyer.pay_and_wait(&status, "ok").await?;
    ensure!(paid.status == PAID, "{paid:?}");
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.live_units, books.on_offer), (1, 1, 3));
    shop.stack.stop().await?;
    postgres.stop().await
}
