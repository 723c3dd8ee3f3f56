//! The gate loses its memory, or remembers a past: it is rebuilt from the ledger (design §9).

use anyhow::{Context, Result, ensure};
use flashgate_ops::stack::StackConfig;
use flashgate_servers::{Redis, until};
use flashgate_shared::{
    SaleId,
    order::{LostReason, OrderStatus},
    problem::ProblemKind,
    sale::{RebuildCause, SaleState},
    wire::ClaimStatus,
};
use flashgate_tests::{Buyer, OwnStores, PATIENCE, RESERVED, Shop, faults};
use std::{process::Command, time::Instant};
use tempfile::TempDir;

/// A shop whose Redis is its own, to be broken.
struct Breakable {
    shop: Shop,
    redis: Redis,
    _dir: TempDir,
}

impl Breakable {
    async fn start(change: impl FnOnce(&mut StackConfig)) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let redis = Redis::start(dir.path()).await?;
        let shop = Shop::start_on(OwnStores::redis(redis.url()), |_| Ok(()), change).await?;
        Ok(Self { shop, redis, _dir: dir })
    }

    async fn sale(&self, id: &str, total: u32) -> Result<SaleId> {
        let mut config = self.shop.sale(id, total);
        config.buckets = 3;
        self.shop.create(&config).await
    }

    async fn reserved(&self, sale: &SaleId) -> Result<(Buyer, ClaimStatus)> {
        self.shop.reserved(sale).await
    }

    async fn stop(self) -> Result<()> {
        self.shop.stack.stop().await?;
        self.redis.stop().await
    }
}

/// A buyer gets a unit through the edge; says how long after `since`.
async fn sells(b: &Breakable, sale: &SaleId, what: &str, since: Instant) -> Result<()> {
    b.reserved(sale).await?;
    println!("{what}: claims are accepted again after {} ms", since.elapsed().as_millis());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_empty() -> Result<()> {
    let mut b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-empty", 10).await?;
    let (holder, held) = b.reserved(&sale).await?;
    let (payer, paying) = b.reserved(&sale).await?;
    payer.pay_and_wait(&paying, "ok").await?;
    let (gone, ended) = b.reserved(&sale).await?;
    faults::expire_now(&b.shop, ended.claim_id).await?;
    gone.status_after(&ended.status_url, RESERVED).await?;
    b.shop.quiet(&sale).await?;
    // Nothing is published of this one: it dies with Redis.
    let forgotten = faults::claim_and_die(&b.shop, &sale, "forgotten", "k", 0).await?;
    let since = Instant::now();
    b.redis = b.redis.restart_empty().await?;
    let rebuild = b.shop.rebuilt(&sale, 1).await?;
    sells(&b, &sale, "Redis empty, 10 units", since).await?;
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::NotLoaded, Some(8)));
    // The holder holds, under his key and any other; whoever had his try has had it; the forgotten one buys.
    let again = holder.claim_at_last("k", 1).await?.accepted()?;
    assert_eq!(again.claim_id, held.claim_id);
    assert_eq!(holder.claim_at_last("other", 1).await?.refused()?, ProblemKind::AlreadyClaimed);
    assert_eq!(payer.claim_at_last("other", 1).await?.refused()?, ProblemKind::AlreadyClaimed);
    assert_eq!(gone.claim_at_last("other", 1).await?.refused()?, ProblemKind::AlreadyHad);
    let direct = b.shop.direct(&sale);
    let bought = direct.claim("forgotten", "k", 1).await?.accepted()?;
    assert_eq!(bought.claim_id, forgotten.claim_id);
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (4, 6));
    // An order of before the rebuild gives its unit back to the new gate.
    faults::expire_now(&b.shop, held.claim_id).await?;
    holder.status_after(&held.status_url, RESERVED).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (3, 7));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_empty_in_a_sale_of_ten_thousand() -> Result<()> {
    const SOLD: usize = 4_000;
    let mut b = Breakable::start(|_| {}).await?;
    let mut config = b.shop.sale("gate-large", 10_000);
    (config.buckets, config.shards) = (10, 2);
    let sale = b.shop.create(&config).await?;
    let names: Vec<String> = (0..SOLD).map(|n| format!("buyer-{n}")).collect();
    faults::claims_and_die(&b.shop, &sale, &names, config.buckets).await?;
    until("all of it is settled", PATIENCE, || async {
        Ok(b.shop.stack.admin().show(&sale).await?.sold as usize == SOLD)
    })
    .await?;
    b.shop.quiet(&sale).await?;
    let since = Instant::now();
    b.redis = b.redis.restart_empty().await?;
    let rebuild = b.shop.rebuilt(&sale, 1).await?;
    sells(&b, &sale, "Redis empty, 10,000 units, 4,000 of them sold", since).await?;
    assert_eq!(rebuild.on_offer, Some(6_000));
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (4_001, 5_999));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_from_a_past_that_had_not_sold_yet() -> Result<()> {
    let mut b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-past-decrements", 6).await?;
    let past = b.redis.copy_data()?;
    for _ in 0..4 {
        b.reserved(&sale).await?;
    }
    b.shop.quiet(&sale).await?;
    let since = Instant::now();
    b.redis = b.redis.restart_from(&past).await?;
    let rebuild = b.shop.rebuilt(&sale, 1).await?;
    sells(&b, &sale, "Redis from a past without decrements", since).await?;
    assert_eq!((rebuild.cause, rebuild.on_offer), (RebuildCause::ServerChanged, Some(2)));
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (5, 1));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_from_a_past_that_had_not_got_units_back_yet() -> Result<()> {
    let mut b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-past-releases", 3).await?;
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(b.reserved(&sale).await?);
    }
    b.shop.quiet(&sale).await?;
    let past = b.redis.copy_data()?;
    for (buyer, status) in &taken {
        faults::expire_now(&b.shop, status.claim_id).await?;
        buyer.status_after(&status.status_url, RESERVED).await?;
    }
    b.shop.audit(&sale).await?;
    let since = Instant::now();
    b.redis = b.redis.restart_from(&past).await?;
    b.shop.rebuilt(&sale, 1).await?;
    sells(&b, &sale, "Redis from a past without releases", since).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2), "nothing is stranded");
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_of_another_shop() -> Result<()> {
    let b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-foreign", 3).await?;
    b.reserved(&sale).await?;
    for bucket in 0..3 {
        let key = format!("{{{}:{sale}:{bucket}}}:epoch", b.shop.prefix());
        faults::set_key(&b.shop, &key, "70").await?;
    }
    let rebuild = b.shop.rebuilt(&sale, 1).await?;
    assert_eq!((rebuild.cause, rebuild.epoch, rebuild.on_offer), (RebuildCause::OtherEpoch, Some(71), Some(2)));
    b.reserved(&sale).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 1));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_while_messages_outbox_entries_and_releases_are_on_their_way() -> Result<()> {
    let b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-in-flight", 40).await?;
    let (_, ending) = b.reserved(&sale).await?;
    let (_, held) = b.reserved(&sale).await?;
    b.shop.quiet(&sale).await?;
    let mut claims = Vec::new();
    for n in 0..20 {
        let claim = faults::claim_and_die(&b.shop, &sale, &format!("buyer-{n}"), "k", n % 3).await?;
        if n % 2 == 0 {
            faults::publish(&b.shop, &claim).await?;
        }
        claims.push(claim);
    }
    faults::expire_now(&b.shop, ending.claim_id).await?;
    b.shop.stack.admin().rebuild(&sale).await?;
    let rebuild = b.shop.rebuilt(&sale, 1).await?;
    assert_eq!(rebuild.cause, RebuildCause::Operator);
    let live = async |units: i64| {
        until(&format!("{units} units are sold"), PATIENCE, || async {
            Ok(b.shop.stack.admin().audit(&sale).await?.live_units == units)
        })
        .await
    };
    live(21).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (21, 19, 0), "all are honoured");
    // A message of before, delivered again after: a repeat. One that the gate forgot: lost, and nothing goes back.
    faults::publish(&b.shop, claims.first().context("a claim")?).await?;
    let mut late = claims.pop().context("a claim")?;
    late.claim_id = flashgate_shared::ClaimId::derive(&sale, &"late".parse()?, &"k".parse()?);
    late.buyer = "late".parse()?;
    faults::publish(&b.shop, &late).await?;
    until("the late message is settled", PATIENCE, || async {
        let reason: Option<(Option<String>,)> = sqlx::query_as("SELECT reason FROM orders WHERE claim_id = $1")
            .bind(late.claim_id.0)
            .fetch_optional(&mut b.shop.database().await?)
            .await?;
        Ok(reason.is_some_and(|(reason,)| reason.as_deref() == Some(LostReason::GateRebuilt.as_str())))
    })
    .await?;
    faults::expire_now(&b.shop, held.claim_id).await?;
    live(20).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (20, 20, 1));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_origins_find_the_same_broken_gate() -> Result<()> {
    let mut b = Breakable::start(|config| {
        config.origin_roles = vec![vec!["serve", "work", "relay", "sweep"], vec!["serve", "work", "relay"]]
    })
    .await?;
    let sale = b.sale("gate-two", 5).await?;
    b.reserved(&sale).await?;
    b.redis = b.redis.restart_empty().await?;
    b.shop.rebuilt(&sale, 1).await?;
    b.reserved(&sale).await?;
    let rebuilds = b.shop.stack.admin().rebuilds(&sale).await?;
    assert_eq!(rebuilds.len(), 1, "one of them did it: {rebuilds:?}");
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 3));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_dies_in_the_middle_of_a_rebuild() -> Result<()> {
    let mut b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-dies", 4).await?;
    b.reserved(&sale).await?;
    b.shop.quiet(&sale).await?;
    b.shop.stack.kill_origin(0).await?;
    b.redis = b.redis.restart_empty().await?;
    // As a process leaves it that dies right after its cut: the epoch is raised, the gate is not loaded.
    let orphaned = "
        INSERT INTO gate_rebuilds (sale, cause, owner, owned_until_ms, epoch, on_offer, receipts, superseded, cut_at_ms, updated_by)
        VALUES ('gate-dies', 'not_loaded', gen_random_uuid(), unix_now_ms() + 1000, 2, 3, 1, 0, unix_now_ms(), 'test');
        UPDATE stock SET epoch = 2 WHERE sale = 'gate-dies';
        UPDATE sales SET state = 'rebuilding', state_after = 'open', version = version + 1 WHERE id = 'gate-dies'";
    sqlx::raw_sql(orphaned).execute(&mut b.shop.database().await?).await?;
    b.shop.stack.start_origin(0).await?;
    let rebuild = b.shop.rebuilt(&sale, 2).await?;
    assert_eq!((rebuild.epoch, rebuild.on_offer), (Some(3), Some(3)));
    b.reserved(&sale).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 2));
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_rebuilds_and_pauses_meanwhile() -> Result<()> {
    let b = Breakable::start(|_| {}).await?;
    let sale = b.sale("gate-by-hand", 5).await?;
    b.reserved(&sale).await?;
    let command = |verb: &str| {
        let mut command = Command::new(b.shop.stack.origin_program().with_file_name("flashgate"));
        command.args(["sale", verb, sale.as_str(), "--origin", b.shop.stack.origin_url()]);
        command.arg("--admin-token-file").arg(b.shop.stack.admin_token_file());
        command
    };
    let mut rebuild = command("rebuild");
    let rebuild = tokio::task::spawn_blocking(move || rebuild.output()).await??;
    let told = String::from_utf8(rebuild.stdout)?;
    ensure!(rebuild.status.success() && told.contains("epoch 2, 4 units on offer"), "{told}");
    b.reserved(&sale).await?;
    // Paused before the rebuild comes to its end: it stays paused.
    b.shop.stack.admin().rebuild(&sale).await?;
    let paused = b.shop.stack.admin().pause(&sale).await?;
    assert_eq!(paused.state_after.unwrap_or(paused.state), SaleState::Paused);
    b.shop.rebuilt(&sale, 2).await?;
    let now = b.shop.stack.admin().show(&sale).await?;
    assert_eq!((now.state, now.state_after), (SaleState::Paused, None));
    b.shop.stack.admin().resume(&sale).await?;
    b.reserved(&sale).await?;
    let books = b.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (3, 2));
    b.stop().await
}
