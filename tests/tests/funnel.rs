//! The whole path, through the real gate: a crowd, few units, one each.

use anyhow::{Result, ensure};
use flashgate_shared::{order::OrderStatus, problem::ProblemKind, wire::ClaimState};
use flashgate_tests::{Claimed, shop};
use futures_util::future::try_join_all;

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
