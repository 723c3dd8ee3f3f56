//! Processes that die: what they had begun is finished by whoever comes next.

use anyhow::{Context, Result};
use flashgate_servers::until;
use flashgate_shared::{order::OrderStatus, wire::ClaimState};
use flashgate_tests::{Claimed, PATIENCE, Shop, faults, shop};
use futures_util::future::join_all;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_origin_died_before_publishing_is_published_by_the_relay() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("crash-publish", 2)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.token = Some(shop.direct(&sale).token("ann")?);
    let sent = faults::claim_and_die(shop, &sale, "ann", "k", 0).await?;
    // The buyer heard nothing: my-claim knows, before the ledger does.
    let found = buyer.my_claim().await?.context("my-claim knows nothing")?;
    assert_eq!(found.claim_id, sent.claim_id);
    let status = buyer.settled(&found.status_url).await?;
    assert_eq!(status.status, ClaimState::Ledger(OrderStatus::Reserved));
    let again = buyer.claim("k", 1).await?.accepted()?;
    assert_eq!(again.claim_id, sent.claim_id, "a repeat with the same key is the same claim");
    assert_eq!(shop.audit(&sale).await?.live_units, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_killed_in_the_crowd_loses_no_unit_and_sells_none_twice() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let mut config = shop.sale("crash-crowd", 40);
    config.buckets = 4;
    let sale = shop.create(&config).await?;
    let mut buyers = Vec::new();
    for _ in 0..80 {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        buyers.push(buyer);
    }
    // Half of them click while the origin dies; whatever they hear, they ask again with the same key.
    let (first, second) = buyers.split_at(40);
    let clicks = join_all(first.iter().map(|buyer| buyer.claim_once("k", 1)));
    let (_heard, killed) = tokio::join!(clicks, shop.stack.kill_origin(0));
    killed?;
    shop.stack.start_origin(0).await?;
    let mut live = 0;
    for buyer in first.iter().chain(second) {
        until("the buyer has an answer", PATIENCE, || async { Ok(buyer.my_claim().await.is_ok()) }).await?;
        match buyer.claim_at_last("k", 1).await? {
            Claimed::Accepted(accepted) => {
                let status = buyer.settled(&accepted.status_url).await?;
                live += i64::from(status.status == ClaimState::Ledger(OrderStatus::Reserved));
            }
            Claimed::Refused(problem) => assert_eq!(problem.status, 410, "{problem:?}"),
        }
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((live, books.live_units, books.on_offer), (40, 40, 0), "{books:?}");
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_killed_and_started_again_goes_on_where_the_sale_is() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("crash-edge", 5)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim("k", 1).await?.accepted()?;
    shop.stack.kill_edge(0).await?;
    shop.stack.start_edge(0).await?;
    let status = buyer.settled(&accepted.status_url).await?;
    assert_eq!(buyer.pay_and_wait(&status, "ok").await?.status, ClaimState::Ledger(OrderStatus::Paid));
    let mut next = shop.buyer(&sale);
    next.enter().await?;
    next.claim("k", 1).await?.accepted()?;
    assert_eq!(shop.audit(&sale).await?.live_units, 2);
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_asked_to_end_finishes_what_it_began() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("crash-term", 20)).await?;
    let direct = shop.direct(&sale);
    for n in 0..20 {
        direct.claim(&format!("buyer-{n}"), "k", 1).await?.accepted()?;
    }
    shop.stack.term_origin(0).await?;
    shop.stack.start_origin(0).await?;
    assert_eq!(shop.audit(&sale).await?.live_units, 20);
    shop.stack.stop().await
}
