//! Postgres and its users lose each other at the worst moments of a transaction.

use crate::cuttable::Cuttable;
use anyhow::{Context, Result, bail, ensure};
use flashgate_servers::{shared, until};
use flashgate_shared::{
    ClaimId,
    order::{DriftKind, OrderStatus},
};
use flashgate_tests::{PATIENCE, RESERVED, Shop, faults};
use sqlx::{Connection, PgConnection};

/// Waits until a connection to this database waits for a lock of this sort.
async fn somebody_waits_for_a_lock(shop: &Shop, sort: &str) -> Result<()> {
    until("a transaction waits for a lock", PATIENCE, || async {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = $1",
        )
        .bind(sort)
        .fetch_one(&mut shop.database().await?)
        .await?;
        Ok(waiting > 0)
    })
    .await
}

async fn has_order(shop: &Shop, claim: ClaimId) -> Result<bool> {
    let order = sqlx::query("SELECT FROM orders WHERE claim_id = $1").bind(claim.0);
    Ok(order.fetch_optional(&mut shop.database().await?).await?.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_outcome_nobody_heard() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("database-commit", 3)).await?;
    // Commits of orders wait in the middle: on a lock that is ours, when nothing but the commit is left.
    let slow = "
        CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait_at_commit()";
    sqlx::raw_sql(slow).execute(&mut c.shop.database().await?).await?;
    let mut gate = c.shop.database().await?;
    sqlx::query("SELECT pg_advisory_lock(77)").execute(&mut gate).await?;
    let buyer = c.entered(&sale).await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    somebody_waits_for_a_lock(&c.shop, "advisory").await?;
    // The worker is cut off in mid-commit: it cannot know, and Postgres commits.
    c.postgres.close();
    sqlx::query("SELECT pg_advisory_unlock(77)").execute(&mut gate).await?;
    until("Postgres has committed", PATIENCE, || async { has_order(&c.shop, accepted.claim_id).await }).await?;
    c.postgres.speak();
    assert_eq!(buyer.settled(&accepted.status_url).await?.status, RESERVED);
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 2, 0));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_before_its_commit() -> Result<()> {
    let shop = Shop::start(|config| config.origin_roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]]).await?;
    let sale = shop.create(&shop.sale("database-before", 3)).await?;
    let mut database = shop.database().await?;
    let mut lock = database.begin().await?;
    sqlx::query("SELECT FROM stock WHERE sale = $1 FOR UPDATE").bind(sale.as_str()).execute(&mut *lock).await?;
    let claim = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    faults::publish(&shop, &claim).await?;
    somebody_waits_for_a_lock(&shop, "transactionid").await?;
    shop.stack.kill_origin(1).await?;
    lock.rollback().await?;
    ensure!(!has_order(&shop, claim.claim_id).await?, "nothing was written");
    shop.stack.start_origin(1).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 2, 0));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_after_its_commit_and_before_its_acknowledgement() -> Result<()> {
    let roles = vec![vec!["serve", "relay", "sweep"], vec!["work"]];
    let c = Cuttable::start_with(|config| config.origin_roles = roles).await?;
    let sale = c.shop.create(&c.shop.sale("database-after", 3)).await?;
    // A first message shows that the worker consumes; from then on it is delivered to and not heard.
    let first = faults::claim_and_die(&c.shop, &sale, "first", "k", 0).await?;
    faults::publish(&c.shop, &first).await?;
    c.shop.quiet(&sale).await?;
    c.rabbit.withhold_questions();
    let claim = faults::claim_and_die(&c.shop, &sale, "ann", "k", 0).await?;
    faults::publish(&c.shop, &claim).await?;
    until("the worker has committed", PATIENCE, || async { has_order(&c.shop, claim.claim_id).await }).await?;
    c.shop.stack.kill_origin(1).await?;
    c.rabbit.cut();
    c.rabbit.speak();
    until("the message is in the queue again", PATIENCE, || async { Ok(c.shop.queue.depth(&sale).await?.ready == 1) })
        .await?;
    c.shop.stack.start_origin(1).await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (2, 1, 0), "a repeat");
    c.shop.stack.stop().await
}

/// A statement of the whole server's, such as making a database.
async fn at_the_server(statement: String) -> Result<()> {
    let mut server = PgConnection::connect(&shared().await?.postgres().url("postgres")).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut server).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_acknowledged_commits() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("database-failover", 4)).await?;
    let bought = async || shop.reserved(&sale).await;
    bought().await?;
    shop.quiet(&sale).await?;
    let (database, standby) = (shop.prefix().to_owned(), format!("{}standby", shop.prefix()));
    shop.stack.kill_origin(0).await?;
    at_the_server(format!("CREATE DATABASE {standby} TEMPLATE {database}")).await?;
    shop.stack.start_origin(0).await?;
    // Commits that were acknowledged, and that an asynchronous standby had not got.
    let (payer, paying) = bought().await?;
    payer.pay_and_wait(&paying, "ok").await?;
    let (_, reserved) = bought().await?;
    shop.quiet(&sale).await?;
    shop.stack.kill_origin(0).await?;
    at_the_server(format!("DROP DATABASE {database} WITH (FORCE)")).await?;
    at_the_server(format!("ALTER DATABASE {standby} RENAME TO {database}")).await?;
    shop.stack.start_origin(0).await?;
    ensure!(!has_order(&shop, paying.claim_id).await?, "the standby never knew of it");
    // The gate still holds what the ledger forgot, and the provider has the money: both are found, and mended.
    let admin = shop.stack.admin();
    let told = admin.reconcile(&sale, false, 0).await?;
    let count = |kind: DriftKind| told.drifts.iter().filter(|drift| drift.kind == kind).count();
    assert_eq!((count(DriftKind::LostMessage), count(DriftKind::UnnoticedPayment)), (2, 1), "{told:?}");
    admin.reconcile(&sale, true, 0).await?;
    until("both orders are there again", PATIENCE, || async {
        Ok(has_order(&shop, paying.claim_id).await? && has_order(&shop, reserved.claim_id).await?)
    })
    .await?;
    let again = admin.reconcile(&sale, true, 0).await?;
    let [drift] = &again.drifts[..] else { bail!("only the payment was left: {again:?}") };
    ensure!(drift.kind == DriftKind::UnnoticedPayment && drift.repair.is_some(), "{drift:?}");
    assert_eq!(admin.reconcile(&sale, true, 0).await?.drifts, []);
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.live_units, books.on_offer), (1, 3, 1));
    let kept = shop.stack.provider().ledger();
    let kept = kept.kept(&sale).next().context("the money went back")?;
    assert_eq!(kept.claim_id, paying.claim_id);
    shop.stack.stop().await
}
