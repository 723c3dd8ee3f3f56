//! Processes that stop for a while and go on as if nothing had been, that meet each other, or die half way.

use crate::cuttable::Cuttable;
use anyhow::{Context, Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    SaleId,
    order::OrderStatus,
    wire::{ClaimState, ClaimStatus},
};
use flashgate_tests::{Buyer, EXPIRED, PAID, PATIENCE, RESERVED, Shop, faults};

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_stops_with_messages_in_its_hands_and_another_goes_on() -> Result<()> {
    let shop = Shop::start(|config| {
        config.origin_roles =
            vec![vec!["serve", "relay", "sweep"], vec!["serve", "work", "relay"], vec!["serve", "work"]];
    })
    .await?;
    let sale = shop.create(&shop.sale("processes-stopped", 40)).await?;
    for n in 0..10 {
        let claim = faults::claim_and_die(&shop, &sale, &format!("before-{n}"), "k", 0).await?;
        faults::publish(&shop, &claim).await?;
    }
    let stopped = faults::Stopped::new(shop.stack.origin_pid(1))?;
    let mut buyers = Vec::new();
    for _ in 0..10 {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        buyers.push((buyer.claim_at_last("k", 1).await?.accepted()?, buyer));
    }
    drop(stopped);
    for (accepted, buyer) in &buyers {
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == ClaimState::Ledger(OrderStatus::Reserved), "{status:?}");
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (20, 20));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_origin_stops_under_claims_and_what_it_had_begun_is_found() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("processes-serving", 10)).await?;
    let mut buyers = Vec::new();
    for _ in 0..5 {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        buyers.push(buyer);
    }
    let stopped = faults::Stopped::new(shop.stack.origin_pid(0))?;
    let claims = buyers.iter().map(|buyer| buyer.claim_once("k", 1));
    let unanswered = futures_util::future::join_all(claims).await;
    for answer in unanswered {
        // No answer in time at the edge: unknown, or please wait.
        let refused = answer?.refused()?;
        ensure!(refused.status() == 503, "{refused:?}");
    }
    drop(stopped);
    for buyer in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        buyer.settled(&accepted.status_url).await?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (5, 5), "one unit each, however often they asked");
    shop.stack.stop().await
}

/// So many buyers with a reservation each.
async fn reserved(shop: &Shop, sale: &SaleId, count: usize) -> Result<Vec<(Buyer, ClaimStatus)>> {
    let mut reserved = Vec::new();
    for _ in 0..count {
        reserved.push(shop.reserved(sale).await?);
    }
    Ok(reserved)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sweepers_and_each_unit_comes_back_once() -> Result<()> {
    let roles = vec![vec!["serve", "work", "relay", "sweep"], vec!["relay", "sweep"], vec!["sweep"]];
    let shop = Shop::start(|config| config.origin_roles = roles).await?;
    let sale = shop.create(&shop.sale("processes-sweepers", 12)).await?;
    let buyers = reserved(&shop, &sale, 12).await?;
    let all_over = "UPDATE orders SET reserved_at_ms = unix_now_ms() - 3, pay_by_ms = unix_now_ms() - 2,
                                      hold_until_ms = unix_now_ms() - 1";
    sqlx::query(all_over).execute(&mut shop.database().await?).await?;
    for (buyer, status) in &buyers {
        buyer.status_after(&status.status_url, RESERVED).await?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Expired)), (0, 12, 12));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweeper_dies_between_its_commit_and_the_release() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("processes-release", 3)).await?;
    let buyers = reserved(&c.shop, &sale, 1).await?;
    let (_, status) = buyers.first().context("a buyer")?;
    c.shop.quiet(&sale).await?;
    // The gate cannot be reached: the order ends, and its unit does not come back yet.
    c.redis.close();
    faults::expire_now(&c.shop, status.claim_id).await?;
    until("the release is recorded", PATIENCE, || async {
        let due: i64 = sqlx::query_scalar("SELECT count(*) FROM gate_releases WHERE sale = $1 AND outcome IS NULL")
            .bind(sale.as_str())
            .fetch_one(&mut c.shop.database().await?)
            .await?;
        Ok(due == 1)
    })
    .await?;
    c.shop.stack.kill_origin(0).await?;
    c.redis.speak();
    c.shop.stack.start_origin(0).await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (0, 3));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_payment_at_the_same_moment() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let mut config = shop.sale("processes-moment", 10);
    config.second_try = true;
    let sale = shop.create(&config).await?;
    let buyers = reserved(&shop, &sale, 10).await?;
    let both = buyers.iter().map(async |(buyer, status)| {
        let (paid, over) = tokio::join!(buyer.pay(status, "ok"), faults::expire_now(&shop, status.claim_id));
        // Whoever came second hears so: an order that was paid is not over, one that is over starts no payment.
        let paid = paid?.status;
        ensure!(paid.is_success() || over.is_ok(), "{paid} {over:?}");
        let end = buyer.status_after(&status.status_url, RESERVED).await?;
        ensure!(matches!(end.status, PAID | EXPIRED), "{end:?}");
        anyhow::Ok(end.status)
    });
    let ends = futures_util::future::try_join_all(both).await?;
    let books = shop.audit(&sale).await?;
    let paid = ends.iter().filter(|end| **end == PAID).count();
    assert_eq!((books.count(OrderStatus::Paid), books.live_units), (paid as i64, paid as i64));
    // Whoever's money came too late gets it back: the provider keeps exactly what bought an order.
    until("all other money went back", PATIENCE, || async {
        Ok(shop.stack.provider().ledger().kept(&sale).count() == paid)
    })
    .await?;
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_lost_its_rebuild_wakes_and_changes_nothing() -> Result<()> {
    let roles = vec![vec!["serve", "sweep", "relay"], vec!["relay"], vec!["work"]];
    let shop = Shop::start(|config| config.origin_roles = roles).await?;
    let sale = shop.create(&shop.sale("processes-zombie", 4)).await?;
    reserved(&shop, &sale, 1).await?;
    shop.quiet(&sale).await?;
    // A message that nobody settles keeps the rebuild waiting before its cut.
    shop.stack.kill_origin(2).await?;
    let waiting = faults::claim_and_die(&shop, &sale, "waiting", "k", 0).await?;
    faults::publish(&shop, &waiting).await?;
    let other = faults::Stopped::new(shop.stack.origin_pid(1))?;
    shop.stack.admin().rebuild(&sale).await?;
    let owned = "UPDATE gate_rebuilds SET owned_until_ms = 0
                 WHERE sale = $1 AND owner IS NOT NULL AND cut_at_ms IS NULL RETURNING owner";
    let zombie = {
        until("somebody has begun the rebuild", PATIENCE, || async {
            let begun: Option<uuid::Uuid> = sqlx::query_scalar("SELECT owner FROM gate_rebuilds WHERE sale = $1")
                .bind(sale.as_str())
                .fetch_one(&mut shop.database().await?)
                .await?;
            Ok(begun.is_some())
        })
        .await?;
        faults::Stopped::new(shop.stack.origin_pid(0))?
    };
    let first: uuid::Uuid =
        sqlx::query_scalar(owned).bind(sale.as_str()).fetch_one(&mut shop.database().await?).await?;
    drop(other);
    until("the other has taken over and is done", PATIENCE, || async {
        let done: Option<uuid::Uuid> =
            sqlx::query_scalar("SELECT owner FROM gate_rebuilds WHERE sale = $1 AND ended_at_ms IS NOT NULL")
                .bind(sale.as_str())
                .fetch_optional(&mut shop.database().await?)
                .await?;
        Ok(done.is_some_and(|owner| owner != first))
    })
    .await?;
    drop(zombie);
    shop.stack.start_origin(2).await?;
    // It is awake, and the epoch is still the other's.
    reserved(&shop, &sale, 1).await?;
    let rebuilds = shop.stack.admin().rebuilds(&sale).await?;
    assert_eq!((rebuilds.len(), shop.epoch(&sale).await?), (1, 2), "{rebuilds:?}");
    let books = shop.audit(&sale).await?;
    // What kept it waiting came after the cut: lost, and told so.
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (2, 2, 1), "{books:?}");
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_serves_nobody_tells_its_health() -> Result<()> {
    let roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]];
    let c = Cuttable::start_with(|config| config.origin_roles = roles).await?;
    let sale = c.shop.create(&c.shop.sale("processes-health", 3)).await?;
    reserved(&c.shop, &sale, 1).await?;
    let url = c.shop.stack.origin_url_of(1);
    let get = async |path: &str| c.shop.http.get(format!("{url}{path}")).send().await;
    let metrics = get("/metrics").await?.text().await?;
    ensure!(metrics.contains("flashgate_ledger_settled_total"), "{metrics}");
    assert_eq!(get(&format!("/v1/sales/{sale}")).await?.status(), 404, "it serves nobody else");
    c.postgres.close();
    until("it is not ready", PATIENCE, || async { Ok(get("/readyz").await?.status() == 503) }).await?;
    assert_eq!(get("/healthz").await?.status(), 204);
    c.postgres.speak();
    until("it is ready", PATIENCE, || async { Ok(get("/readyz").await?.status() == 204) }).await?;
    c.shop.audit(&sale).await?;
    c.shop.stack.stop().await
}
