//! The ledger is busy.

use anyhow::Result;
use flashgate_servers::until;
use flashgate_shared::{order::OrderStatus, wire::ClaimState};
use flashgate_tests::{PATIENCE, Shop, faults, shop};
use sqlx::Connection;

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_row_is_locked_and_status_questions_are_answered_all_the_same() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("ledger-locked", 20)).await?;
    let mut known = shop.buyer(&sale);
    known.enter().await?;
    let held = known.claim_at_last("k", 1).await?.accepted()?;
    known.settled(&held.status_url).await?;
    // Somebody holds the stock's lock: every settler waits, with every connection of its pool.
    let mut database = shop.database().await?;
    let mut lock = database.begin().await?;
    sqlx::query("SELECT FROM stock WHERE sale = $1 FOR UPDATE").bind(sale.as_str()).execute(&mut *lock).await?;
    let mut waiting = Vec::new();
    for n in 0..8 {
        let claim = faults::claim_and_die(shop, &sale, &format!("buyer-{n}"), "k", 0).await?;
        faults::publish(shop, &claim).await?;
        waiting.push(claim);
    }
    for _ in 0..20 {
        let status = known.status(&held.status_url).await?;
        assert_eq!(status.status, ClaimState::Ledger(OrderStatus::Reserved));
    }
    lock.rollback().await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (9, 11));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settling_is_cut_short_by_the_statement_timeout_and_goes_on() -> Result<()> {
    let shop = Shop::start(|config| {
        config.origin_env.push(("FLASHGATE_POSTGRES__STATEMENT_TIMEOUT_MS".into(), "300".into()));
    })
    .await?;
    let sale = shop.create(&shop.sale("ledger-timeout", 3)).await?;
    let mut database = shop.database().await?;
    let mut lock = database.begin().await?;
    sqlx::query("SELECT FROM stock WHERE sale = $1 FOR UPDATE").bind(sale.as_str()).execute(&mut *lock).await?;
    let claim = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    faults::publish(&shop, &claim).await?;
    until("a settler was cut short", PATIENCE, || async {
        let text = shop.http.get(format!("{}/metrics", shop.stack.origin_url())).send().await?.text().await?;
        Ok(text.lines().any(|line| {
            line.starts_with("flashgate_ledger_transactions_total")
                && line.contains("name=\"settle\"")
                && line.contains("outcome=\"unavailable\"")
        }))
    })
    .await?;
    lock.rollback().await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 2, 0));
    shop.stack.stop().await
}
