//! The table of design §7 on the running system: what comes out of the queue, and what the gate gets
//! back. Each row by itself and two at once is the ledger's own suite; here the parts are together.

use anyhow::Result;
use flashgate_shared::{
    HoldId,
    envelope::ClaimEnvelope,
    ids::home_bucket,
    order::{LostReason, OrderStatus},
};
use flashgate_tests::{Shop, faults, shop};

async fn reason(shop: &Shop, envelope: &ClaimEnvelope) -> Result<Option<String>> {
    let row: Option<(Option<String>,)> = sqlx::query_as("SELECT reason FROM orders WHERE claim_id = $1")
        .bind(envelope.claim_id.0)
        .fetch_optional(&mut shop.database().await?)
        .await?;
    Ok(row.and_then(|row| row.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_delivered_three_times_reserves_once() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("settle-repeat", 3)).await?;
    let claim = faults::claim_and_die(shop, &sale, "ann", "k", 0).await?;
    for _ in 0..3 {
        faults::publish(shop, &claim).await?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_an_older_epoch_is_lost_and_never_released() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("settle-epoch", 3)).await?;
    let mut claim = faults::claim_and_die(shop, &sale, "ann", "k", 0).await?;
    let entry = claim.hold.clone();
    claim.hold = HoldId::new(0, 0, &entry.entry)?;
    faults::publish(shop, &claim).await?;
    flashgate_servers::until("it is settled", flashgate_tests::PATIENCE, || async {
        Ok(reason(shop, &claim).await?.as_deref() == Some(LostReason::GateRebuilt.as_str()))
    })
    .await?;
    let releases: (i64,) = sqlx::query_as("SELECT count(*) FROM gate_releases WHERE sale = $1")
        .bind(sale.as_str())
        .fetch_one(&mut shop.database().await?)
        .await?;
    assert_eq!(releases.0, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_leaked_loses_the_claim_and_burns_what_never_was() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("settle-leak", 2)).await?;
    // A failover that lost decrements: the gate promises three units of two.
    let claims = [
        faults::claim_and_die(shop, &sale, "ann", "k", 0).await?,
        faults::claim_and_die(shop, &sale, "bob", "k", 0).await?,
    ];
    set_stock(shop, &sale, 1).await?;
    let leaked = faults::claim_and_die(shop, &sale, "eve", "k", 0).await?;
    for claim in &claims {
        faults::publish(shop, claim).await?;
    }
    shop.stack.admin().audit(&sale).await?;
    faults::publish(shop, &leaked).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (2, 0, 1));
    assert_eq!(reason(shop, &leaked).await?.as_deref(), Some(LostReason::GateLeaked.as_str()));
    Ok(())
}

async fn set_stock(shop: &Shop, sale: &flashgate_shared::SaleId, units: u32) -> Result<()> {
    faults::set_key(shop, &format!("{{{}:{sale}:0}}:stock", shop.prefix()), &units.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_buyer_past_the_gate_is_lost_and_the_unit_comes_back() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("settle-duplicate", 4);
    config.buckets = 2;
    let sale = shop.create(&config).await?;
    let home = home_bucket(&"ann".parse()?, 2);
    let first = faults::claim_and_die(shop, &sale, "ann", "k1", home).await?;
    let second = faults::claim_and_die(shop, &sale, "ann", "k2", 1 - home).await?;
    // In one batch or in two: the first in the queue's order wins.
    faults::publish(shop, &first).await?;
    faults::publish(shop, &second).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 3, 1));
    assert_eq!(reason(shop, &second).await?.as_deref(), Some(LostReason::Duplicate.as_str()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_the_same_buyers_in_opposite_order_all_settle() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("settle-opposite", 80);
    config.buckets = 2;
    let sale = shop.create(&config).await?;
    let (mut forth, mut back) = (Vec::new(), Vec::new());
    for n in 0..20 {
        let buyer = format!("buyer-{n}");
        let home = home_bucket(&buyer.parse()?, 2);
        forth.push(faults::claim_and_die(shop, &sale, &buyer, "k1", home).await?);
        back.push(faults::claim_and_die(shop, &sale, &buyer, "k2", 1 - home).await?);
    }
    back.reverse();
    let publish = async |claims: &[ClaimEnvelope]| {
        for claim in claims {
            faults::publish(shop, claim).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(publish(&forth), publish(&back))?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (20, 60, 20));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_contradicts_the_ledger_changes_nothing_and_its_neighbours_settle() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("settle-poison", 3)).await?;
    let good = faults::claim_and_die(shop, &sale, "ann", "k", 0).await?;
    // Another buyer under the same claim and hold: class 0, an operator must look.
    faults::publish(shop, &good).await?;
    shop.quiet(&sale).await?;
    let forged = ClaimEnvelope { buyer: "eve".parse()?, ..good.clone() };
    faults::publish(shop, &forged).await?;
    let next = faults::claim_and_die(shop, &sale, "bob", "k", 0).await?;
    faults::publish(shop, &next).await?;
    flashgate_servers::until("the neighbour is settled", flashgate_tests::PATIENCE, || async {
        let row: (i64,) = sqlx::query_as("SELECT count(*) FROM orders WHERE claim_id = $1 AND status = 'RESERVED'")
            .bind(next.claim_id.0)
            .fetch_one(&mut shop.database().await?)
            .await?;
        Ok(row.0 == 1)
    })
    .await?;
    let owner: (String,) = sqlx::query_as("SELECT buyer FROM orders WHERE claim_id = $1")
        .bind(good.claim_id.0)
        .fetch_one(&mut shop.database().await?)
        .await?;
    assert_eq!(owner.0, "ann", "the ledger's row is untouched");
    Ok(())
}
