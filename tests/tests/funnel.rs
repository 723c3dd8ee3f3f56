//! The whole path, through the real gate: a crowd, few units, one each.

use anyhow::{Result, bail, ensure};
use flashgate_servers::until;
use flashgate_shared::{order::OrderStatus, problem::ProblemKind, wire::ClaimState};
use flashgate_tests::{Claimed, PATIENCE, Shop, faults, shop};
use futures_util::future::try_join_all;
use reqwest::Method;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_200_meets_20_units_and_every_unit_is_sold_once() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("funnel-crowd", 20);
    config.buckets = 4;
    let sale = shop.create(&config).await?;
    let crowd = (0..200).map(|n| {
        let (mut buyer, sale) = (shop.buyer(&sale), &sale);
        async move {
            buyer.enter().await?;
            let status = match buyer.claim(&format!("key-{n}"), 1).await? {
                Claimed::Accepted(accepted) => buyer.settled(&accepted.status_url).await?,
                Claimed::Refused(problem) => {
                    ensure!(problem.kind() == Some(ProblemKind::SoldOut), "{sale}: {problem:?}");
                    return Ok(false);
                }
            };
            ensure!(status.status == ClaimState::Ledger(OrderStatus::Reserved), "{status:?}");
            let paid = buyer.pay_and_wait(&status, "ok").await?;
            ensure!(paid.status == ClaimState::Ledger(OrderStatus::Paid), "{paid:?}");
            Ok(true)
        }
    });
    let winners = try_join_all(crowd).await?.into_iter().filter(|won| *won).count();
    let books = shop.audit(&sale).await?;
    assert_eq!((winners, books.count(OrderStatus::Paid), books.on_offer), (20, 20, 0));
    let traffic = shop.stack.admin().traffic(&sale).await?;
    assert!(traffic.claims_peak_1s as f64 <= traffic.bound_1s, "{traffic:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_gets_one_claim_whatever_keys_he_tries() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("funnel-one-each", 5)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let first = buyer.claim("k1", 1).await?.accepted()?;
    for key in ["k2", "k3"] {
        let Claimed::Refused(problem) = buyer.claim(key, 1).await? else { panic!("a second unit") };
        assert_eq!(problem.kind(), Some(ProblemKind::AlreadyClaimed));
        assert_eq!(problem.claim_id, Some(first.claim_id), "his own claim is named");
    }
    assert_eq!(shop.audit(&sale).await?.count(OrderStatus::Reserved), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sold_out_is_told_at_the_edge_and_ends_when_units_come_back() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("funnel-sold-out", 1)).await?;
    let (mut winner, mut loser) = (shop.buyer(&sale), shop.buyer(&sale));
    winner.enter().await?;
    loser.enter().await?;
    let won = winner.claim("k", 1).await?.accepted()?;
    let status = winner.settled(&won.status_url).await?;
    assert_eq!(loser.claim("k", 1).await?.refused()?, ProblemKind::SoldOut);
    // The winner lets it go; the next who asks finds a sale that sells again.
    let (path, query) = status.status_url.split_once('?').unwrap();
    let gone = winner.ask(Method::POST, &format!("{path}/release?{query}"), &[], None).await?;
    assert_eq!(gone.status, 200, "{}", String::from_utf8_lossy(&gone.body));
    shop.quiet(&sale).await?;
    until("the sale sells again", PATIENCE, || async {
        Ok(matches!(loser.claim("k", 1).await?, Claimed::Accepted(_)))
    })
    .await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Reserved), books.count(OrderStatus::Expired)), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_units_are_found_in_whatever_bucket_they_are() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("funnel-buckets", 10);
    config.buckets = 10;
    let sale = shop.create(&config).await?;
    let direct = shop.direct(&sale);
    // One unit a bucket: with ten buyers hardly any finds all homes distinct.
    for n in 0..10 {
        direct.claim(&format!("buyer-{n}"), "k", 1).await?.accepted()?;
    }
    assert_eq!(direct.claim("buyer-10", "k", 1).await?.refused()?, ProblemKind::SoldOut);
    assert_eq!(shop.audit(&sale).await?.live_units, 10);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_than_asked_for_is_told_with_the_number_left() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("funnel-few", 3);
    config.per_buyer_limit = 3;
    let sale = shop.create(&config).await?;
    let direct = shop.direct(&sale);
    for bad in [0, -1, 4, 1_000_000] {
        assert_eq!(direct.claim("buyer-3", "k", bad).await?.refused()?, ProblemKind::Unprocessable, "{bad}");
    }
    direct.claim("buyer-1", "k", 2).await?.accepted()?;
    let Claimed::Refused(problem) = direct.claim("buyer-2", "k", 2).await? else { panic!("oversold") };
    assert_eq!((problem.kind(), problem.left), (Some(ProblemKind::NotEnoughLeft), Some(1)));
    direct.claim("buyer-2", "k", 1).await?.accepted()?;
    assert_eq!(shop.audit(&sale).await?.live_units, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_backlog_refuses_before_the_claim() -> Result<()> {
    // Nobody relays or settles here: the backlog stays what it is.
    let shop = Shop::start(|config| config.origin_roles = vec![vec!["migrate", "serve"]]).await?;
    let mut config = shop.sale("funnel-backlog", 10);
    config.backlog_limit = 1;
    let sale = shop.create(&config).await?;
    faults::claim_and_die(&shop, &sale, "waiting", "k", 0).await?;
    let direct = shop.direct(&sale);
    // The backlog is read ten times a second: from the first refusal on, nobody is let through.
    until("the backlog is seen", PATIENCE, || async {
        Ok(matches!(direct.claim("first", "k", 1).await?, Claimed::Refused(p) if p.kind() == Some(ProblemKind::BacklogFull)))
    })
    .await?;
    let on_offer = shop.stack.admin().show(&sale).await?.on_offer;
    for n in 0..5 {
        let Claimed::Refused(problem) = direct.claim(&format!("buyer-{n}"), "k", 1).await? else {
            bail!("taken over the backlog")
        };
        assert_eq!(problem.kind(), Some(ProblemKind::BacklogFull));
        assert!(problem.retry_after_ms.is_some(), "told no and not when to come back: {problem:?}");
    }
    assert_eq!(shop.stack.admin().show(&sale).await?.on_offer, on_offer, "nothing was taken");
    shop.stack.stop().await
}
