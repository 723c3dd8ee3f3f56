//! The broker is short of room, full, gone with its queues, or not heard.

use crate::cuttable::Cuttable;
use anyhow::{Context, Result, bail, ensure};
use flashgate_queue::Published;
use flashgate_servers::{Rabbit, shared, until};
use flashgate_shared::{SaleId, order::OrderStatus, wire::ClaimState};
use flashgate_tests::{Buyer, OwnStores, PATIENCE, RESERVED, Shop, faults};
use std::time::Instant;

/// A buyer claims, whatever the broker does; where his claim is told.
async fn claims(shop: &Shop, sale: &SaleId) -> Result<(Buyer, String)> {
    let mut buyer = shop.buyer(sale);
    buyer.enter().await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    Ok((buyer, accepted.status_url))
}

async fn all_reserved(claims: &[(Buyer, String)]) -> Result<()> {
    for (buyer, status_url) in claims {
        let status = buyer.settled(status_url).await?;
        ensure!(status.status == RESERVED, "{status:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn short_of_memory_then_of_disk_then_restarted_and_claims_never_stop() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let rabbit = Rabbit::start(dir.path()).await?;
    let shop = Shop::start_on(OwnStores::rabbit(rabbit.url()), |_| Ok(()), |_| {}).await?;
    let sale = shop.create(&shop.sale("broker-short", 12)).await?;
    for (short, enough) in [
        (["set_vm_memory_high_watermark", "0"], ["set_vm_memory_high_watermark", "0.6"]),
        (["set_disk_free_limit", "1000000GB"], ["set_disk_free_limit", "50MB"]),
    ] {
        rabbit.ctl(&short).await?;
        // The broker blocks a connection that publishes: nothing is confirmed, and the claims wait in the outbox.
        let waiting = [claims(&shop, &sale).await?, claims(&shop, &sale).await?];
        for (buyer, status_url) in &waiting {
            assert_eq!(buyer.status(status_url).await?.status, ClaimState::Pending, "{short:?}");
        }
        let since = Instant::now();
        rabbit.ctl(&enough).await?;
        all_reserved(&waiting).await?;
        println!("{short:?}: claims never stopped; settled {} ms after there was room", since.elapsed().as_millis());
    }
    // It restarts while people claim.
    let (restarted, bought) = tokio::join!(rabbit.restart(), async {
        let mut bought = Vec::new();
        for _ in 0..4 {
            bought.push(claims(&shop, &sale).await?);
        }
        anyhow::Ok(bought)
    });
    let rabbit = restarted?;
    all_reserved(&bought?).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (8, 4));
    shop.stack.stop().await?;
    rabbit.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_full_and_is_drained() -> Result<()> {
    let shop = Shop::start(|config| config.origin_roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]]).await?;
    let sale = shop.create(&shop.sale("broker-full", 2)).await?;
    let known = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    faults::publish(&shop, &known).await?;
    shop.quiet(&sale).await?;
    shop.stack.kill_origin(1).await?;
    // Nobody settles: the same message again and again, until the queue takes no more.
    let mut held = 0;
    while shop.queue.publish(&known).await == Published::Confirmed {
        held += 1;
        ensure!(held < 10_000, "the queue has no end");
    }
    ensure!(held > 1_000, "full after {held} messages");
    let (buyer, status_url) = claims(&shop, &sale).await?;
    assert_eq!(buyer.status(&status_url).await?.status, ClaimState::Pending, "accepted, and kept in the outbox");
    ensure!(shop.stock.stock_map(&sale, 1).await?.outbox() == 1);
    shop.stack.start_origin(1).await?;
    all_reserved(&[(buyer, status_url)]).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 0));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_gone_and_is_declared_again() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("broker-gone", 4)).await?;
    let before = claims(&shop, &sale).await?;
    all_reserved(std::slice::from_ref(&before)).await?;
    let rabbit = shared().await?.rabbit();
    let vhost = shop.prefix();
    let listed = rabbit.ctl(&["list_queues", "--quiet", "--no-table-headers", "--vhost", vhost, "name"]).await?;
    let names: Vec<&str> = listed.lines().map(str::trim).filter(|name| name.contains(sale.as_str())).collect();
    ensure!(names.len() == 2, "a queue and its dead letters: {names:?}");
    for name in names {
        rabbit.ctl(&["delete_queue", "--vhost", vhost, name]).await?;
    }
    // A message without a queue comes back unroutable: the claim waits in the outbox.
    let after = claims(&shop, &sale).await?;
    all_reserved(&[after]).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 2));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmed_and_not_deleted_from_the_outbox() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("broker-confirmed", 3)).await?;
    // The origin died between the confirm and the deletion.
    let claim = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    faults::publish(&shop, &claim).await?;
    until("the claim is settled", PATIENCE, || async { Ok(shop.stack.admin().audit(&sale).await?.live_units == 1) })
        .await?;
    until("the relay has cleared the outbox", PATIENCE, || async {
        Ok(shop.stock.stock_map(&sale, 1).await?.outbox() == 0)
    })
    .await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 2, 0));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirm_that_never_comes_though_the_message_is_in_the_queue() -> Result<()> {
    let roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]];
    let c = Cuttable::start_with(|config| config.origin_roles = roles).await?;
    let sale = c.shop.create(&c.shop.sale("broker-unheard", 3)).await?;
    // A first claim makes the channels: no handshake is left to be answered.
    let first = claims(&c.shop, &sale).await?;
    all_reserved(&[first]).await?;
    c.shop.quiet(&sale).await?;
    c.shop.stack.kill_origin(1).await?;
    let buyer = c.entered(&sale).await?;
    // The broker hears the origin, and the origin hears nothing: half a connection.
    c.rabbit.withhold_answers();
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    until("the message is in the queue", PATIENCE, || async { Ok(c.shop.queue.depth(&sale).await?.ready > 0) }).await?;
    assert_eq!(buyer.status(&accepted.status_url).await?.status, ClaimState::Pending);
    c.rabbit.speak();
    c.shop.stack.start_origin(1).await?;
    all_reserved(&[(buyer, accepted.status_url)]).await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 1), "however often it was published");
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_the_queue_dies_with_the_broker_and_is_published_again() -> Result<()> {
    let shop = Shop::start(|config| config.origin_roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]]).await?;
    let sale = shop.create(&shop.sale("broker-lost", 3)).await?;
    shop.stack.kill_origin(1).await?;
    let (buyer, status_url) = claims(&shop, &sale).await?;
    until("the outbox is empty", PATIENCE, || async { Ok(shop.stock.stock_map(&sale, 1).await?.outbox() == 0) })
        .await?;
    // A broker that comes back without what it had confirmed.
    let rabbit = shared().await?.rabbit();
    let vhost = shop.prefix();
    let listed = rabbit.ctl(&["list_queues", "--quiet", "--no-table-headers", "--vhost", vhost, "name"]).await?;
    let queue = listed.lines().map(str::trim).find(|name| name.ends_with(sale.as_str())).context(listed.clone())?;
    rabbit.ctl(&["purge_queue", "--vhost", vhost, queue]).await?;
    shop.stack.start_origin(1).await?;
    assert_eq!(buyer.status(&status_url).await?.status, ClaimState::Pending);
    let mended = shop.stack.admin().reconcile(&sale, true, 0).await?;
    let [drift] = &mended.drifts[..] else { bail!("{mended:?}") };
    ensure!(drift.repair.is_some(), "{drift:?}");
    all_reserved(&[(buyer, status_url)]).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2));
    shop.stack.stop().await
}
