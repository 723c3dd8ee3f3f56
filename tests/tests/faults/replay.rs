//! The same request again moves nothing and gets the same answer (design I5).

use anyhow::{Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    ids::home_bucket,
    order::{LostReason, OrderStatus},
    problem::ProblemKind,
    wire::ClaimState,
};
use flashgate_tests::{PATIENCE, faults, shop};
use futures_util::future::try_join_all;

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_twice_is_the_same_claim() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("replay-twice", 5)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let first = buyer.claim("k", 1).await?.accepted()?;
    let again = buyer.claim("k", 1).await?.accepted()?;
    assert_eq!((first.claim_id, &first.status_url), (again.claim_id, &again.status_url));
    buyer.settled(&first.status_url).await?;
    let settled = buyer.claim("k", 1).await?.accepted()?;
    assert_eq!(settled.claim_id, first.claim_id, "after success too");
    assert_eq!(shop.audit(&sale).await?.live_units, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_in_parallel_takes_one_unit() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("replay-parallel", 50);
    config.buckets = 5;
    let sale = shop.create(&config).await?;
    let direct = shop.direct(&sale);
    let claims = try_join_all((0..20).map(|_| direct.claim("ann", "k", 1))).await?;
    let mut ids = Vec::new();
    for claim in claims {
        ids.push(claim.accepted()?.claim_id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(shop.audit(&sale).await?.live_units, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_another_quantity_is_refused_as_changed() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("replay-changed", 5);
    config.per_buyer_limit = 2;
    let sale = shop.create(&config).await?;
    let direct = shop.direct(&sale);
    direct.claim("ann", "k", 1).await?.accepted()?;
    assert_eq!(direct.claim("ann", "k", 2).await?.refused()?, ProblemKind::Changed);
    assert_eq!(shop.audit(&sale).await?.live_units, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_through_my_claim() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("replay-lost", 2)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    assert_eq!(buyer.my_claim().await?, None, "nothing known: repeat with the same key");
    // The buyer never reads this answer.
    drop(buyer.claim("k", 1).await?);
    let mine = buyer.my_claim().await?;
    ensure!(mine.is_some(), "the claim is not found");
    let status = buyer.settled(&mine.map(|claim| claim.status_url).unwrap_or_default()).await?;
    assert_eq!(status.status, ClaimState::Ledger(OrderStatus::Reserved));
    shop.audit(&sale).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_reaches_another_bucket_gives_its_second_unit_back() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("replay-bucket", 4);
    config.buckets = 2;
    let sale = shop.create(&config).await?;
    let home = home_bucket(&"ann".parse()?, 2);
    // Twice through the gate with one claim id, in different buckets: two holds, one claim.
    let first = faults::claim_and_die(shop, &sale, "ann", "k", home).await?;
    let second = faults::claim_and_die(shop, &sale, "ann", "k", 1 - home).await?;
    assert_eq!(first.claim_id, second.claim_id);
    faults::publish(shop, &first).await?;
    faults::publish(shop, &second).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 3, 0), "{books:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_the_same_key_hears_the_loss_and_another_key_is_a_new_claim() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("replay-loss", 4);
    config.buckets = 2;
    let sale = shop.create(&config).await?;
    let home = home_bucket(&"ann".parse()?, 2);
    // Past the gate with two keys in two buckets: the second is a duplicate.
    let winner = faults::claim_and_die(shop, &sale, "ann", "k1", home).await?;
    faults::publish(shop, &winner).await?;
    shop.quiet(&sale).await?;
    let loser = faults::claim_and_die(shop, &sale, "ann", "k2", 1 - home).await?;
    faults::publish(shop, &loser).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 3, 1));
    let reason: (String,) = sqlx::query_as("SELECT reason FROM orders WHERE claim_id = $1")
        .bind(loser.claim_id.0)
        .fetch_one(&mut shop.database().await?)
        .await?;
    assert_eq!(reason.0, LostReason::Duplicate.as_str());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_expiry_the_same_key_stays_expired_and_another_is_no_second_try() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("replay-expired", 2)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim("k", 1).await?.accepted()?;
    faults::expire_now(shop, buyer.settled(&accepted.status_url).await?.claim_id).await?;
    let expired = buyer.status_after(&accepted.status_url, ClaimState::Ledger(OrderStatus::Reserved)).await?;
    assert_eq!(expired.status, ClaimState::Ledger(OrderStatus::Expired));
    until("the unit is on offer again", PATIENCE, || async {
        Ok(shop.stack.admin().show(&sale).await?.on_offer == Some(2))
    })
    .await?;
    let again = buyer.claim("k", 1).await?.accepted()?;
    assert_eq!(buyer.status(&again.status_url).await?.status, ClaimState::Ledger(OrderStatus::Expired));
    assert_eq!(buyer.claim("another", 1).await?.refused()?, ProblemKind::AlreadyHad);
    let books = shop.audit(&sale).await?;
    assert_eq!((books.on_offer, books.count(OrderStatus::Expired)), (2, 1));
    Ok(())
}
