//! Stores that are away for a while, or whose connections break.

use crate::cuttable::Cuttable;
use anyhow::{Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    SaleId,
    envelope::ClaimEnvelope,
    order::{DriftKind, OrderStatus, Wisher},
    problem::ProblemKind,
    wire::ClaimState,
};
use flashgate_tests::{Claimed, PATIENCE, RESERVED, faults};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn broker_away_for_a_while() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-broker", 5)).await?;
    let buyers = [c.entered(&sale).await?, c.entered(&sale).await?, c.entered(&sale).await?];
    c.rabbit.close();
    // Claims never stop: they wait in the outbox.
    let mut claims = Vec::new();
    for buyer in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        assert_eq!(buyer.status(&accepted.status_url).await?.status, ClaimState::Pending);
        claims.push(accepted);
    }
    ensure!(c.shop.stock.stock_map(&sale, 1).await?.outbox() == 3, "the claims wait in the outbox");
    faults::outage().await;
    let since = Instant::now();
    c.rabbit.speak();
    for (buyer, claim) in buyers.iter().zip(&claims) {
        assert_eq!(buyer.settled(&claim.status_url).await?.status, RESERVED);
    }
    println!("broker away: claims never stopped; settled {} ms after its return", since.elapsed().as_millis());
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (3, 2));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_away_for_a_while() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-postgres", 5)).await?;
    let buyers = [c.entered(&sale).await?, c.entered(&sale).await?];
    let first = buyers[0].claim_at_last("k", 1).await?.accepted()?;
    buyers[0].settled(&first.status_url).await?;
    c.postgres.close();
    // The gate still sells; nobody is told "lost"; a status question hears that the shop does not answer.
    let second = buyers[1].claim_at_last("k", 1).await?.accepted()?;
    let asked = buyers[1].ask(reqwest::Method::GET, &second.status_url, &[], None).await?;
    assert_eq!(asked.problem()?.kind(), Some(ProblemKind::Unavailable));
    until("the message waits in the queue", PATIENCE, || async { Ok(c.shop.queue.depth(&sale).await?.ready == 1) })
        .await?;
    faults::outage().await;
    let since = Instant::now();
    c.postgres.speak();
    assert_eq!(buyers[1].settled(&second.status_url).await?.status, RESERVED);
    println!("Postgres away: claims never stopped; settled {} ms after its return", since.elapsed().as_millis());
    assert_eq!(c.shop.queue.depth(&sale).await?.dead, 0, "nobody was dead-lettered");
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (2, 3, 0));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_all_stores_break_again_and_again() -> Result<()> {
    let c = Cuttable::start().await?;
    // One more than is asked for: a winner whose answer was lost would hear "sold out", and ask my-claim.
    let sale = c.shop.create(&c.shop.sale("stores-cut", 31)).await?;
    let mut buyers = Vec::new();
    for _ in 0..30 {
        buyers.push(c.entered(&sale).await?);
    }
    let buying = async {
        let mut claims = Vec::new();
        for buyer in &buyers {
            claims.push(buyer.claim_at_last("k", 1).await?.accepted()?);
        }
        anyhow::Ok(claims)
    };
    let mut cuts = 0;
    let mut buying = std::pin::pin!(buying);
    let claims = loop {
        tokio::select! {
            bought = &mut buying => break bought?,
            // The pace of the fault, not a wait for something.
            () = tokio::time::sleep(std::time::Duration::from_millis(70)) => {
                let way = [&c.redis, &c.rabbit, &c.postgres][cuts % 3];
                way.cut();
                cuts += 1;
            }
        }
    };
    for (buyer, claim) in buyers.iter().zip(&claims) {
        let status = buyer.settled(&claim.status_url).await?;
        ensure!(status.status == RESERVED, "{status:?}");
    }
    ensure!(cuts > 0, "nothing was cut");
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (30, 1));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_silent_and_the_same_key_asked_again() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-silent", 3)).await?;
    let direct = c.shop.direct(&sale);
    direct.claim("ann", "k", 1).await?.accepted()?;
    c.redis.fall_silent();
    let unanswered = direct.claim("bob", "k", 1).await?;
    let Claimed::Refused(problem) = unanswered else { anyhow::bail!("{unanswered:?}") };
    ensure!(problem.status == 503, "{problem:?}");
    c.redis.speak();
    // Whatever came of it, the same key has one answer, and one unit.
    let accepted = until_accepted(&c, &sale, "bob").await?;
    assert_eq!(direct.claim("bob", "k", 1).await?.accepted()?.claim_id, accepted);
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 1));
    c.shop.stack.stop().await
}

async fn until_accepted(c: &Cuttable, sale: &SaleId, buyer: &str) -> Result<flashgate_shared::ClaimId> {
    let direct = c.shop.direct(sale);
    until("the claim is accepted", PATIENCE, || async {
        Ok(matches!(direct.claim(buyer, "k", 1).await?, Claimed::Accepted(_)))
    })
    .await?;
    Ok(direct.claim(buyer, "k", 1).await?.accepted()?.claim_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_nowhere_any_more_is_found_and_published_again() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-lost-message", 3)).await?;
    // The gate said yes; outbox entry and message are gone, whatever took them.
    let claim = faults::claim_and_die(&c.shop, &sale, "ann", "k", 0).await?;
    c.shop.stock.outbox_delete(&sale, std::slice::from_ref(&claim.hold)).await?;
    let admin = c.shop.stack.admin();
    let young = admin.reconcile(&sale, false, 60_000).await?;
    ensure!(young.drifts.iter().all(|drift| drift.kind != DriftKind::LostMessage), "it may be on its way: {young:?}");
    let told = admin.reconcile(&sale, false, 0).await?;
    let [drift] = &told.drifts[..] else { anyhow::bail!("{told:?}") };
    assert_eq!((drift.kind, drift.claim_id, drift.units), (DriftKind::LostMessage, Some(claim.claim_id), 1));
    assert_eq!(drift.repair, None, "only looked");
    let mended = admin.reconcile(&sale, true, 0).await?;
    ensure!(mended.drifts.iter().all(|drift| drift.repair.is_some()), "{mended:?}");
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2));
    assert_eq!(admin.reconcile(&sale, true, 0).await?.drifts, []);
    // It is on record what was done, and by whose wish.
    let repairs = admin.repairs(&sale).await?;
    let [repair] = &repairs[..] else { anyhow::bail!("{repairs:?}") };
    assert_eq!((repair.wished_by, &repair.drift), (Wisher::Operator, &mended.drifts[0]));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_somebody_changed_is_found_and_the_gate_is_rebuilt() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-counter", 5)).await?;
    let buyer = c.entered(&sale).await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    buyer.settled(&accepted.status_url).await?;
    c.shop.quiet(&sale).await?;
    faults::set_key(&c.shop, &format!("{{{}:{sale}:0}}:stock", c.shop.prefix()), "2").await?;
    let admin = c.shop.stack.admin();
    let told = admin.reconcile(&sale, true, 0).await?;
    let [drift] = &told.drifts[..] else { anyhow::bail!("{told:?}") };
    assert_eq!((drift.kind, drift.units, drift.repair.is_some()), (DriftKind::Counter, 2, true));
    c.shop.rebuilt(&sale, 1).await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 4));
    let report = admin.report(&sale).await?;
    assert_eq!((report.oversold, report.stranded, report.reserved_units, report.rebuilds), (0, 0, 1, 1));
    assert_eq!(report.heads.len(), 1);
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_settled_is_kept_for_an_operator_who_may_send_it_again() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-dead", 3)).await?;
    let claim = faults::claim_and_die(&c.shop, &sale, "ann", "k", 0).await?;
    faults::publish(&c.shop, &claim).await?;
    c.shop.quiet(&sale).await?;
    // The same claim and hold, of another buyer: no row of the table fits.
    let lie = ClaimEnvelope { buyer: "eve".parse()?, ..claim.clone() };
    faults::publish(&c.shop, &lie).await?;
    let admin = c.shop.stack.admin();
    let kept = async |count: usize| {
        until(&format!("{count} dead letters are kept"), PATIENCE, || async {
            Ok(admin.dead_letters(&sale).await?.len() == count)
        })
        .await?;
        anyhow::Ok(admin.dead_letters(&sale).await?)
    };
    let letters = kept(1).await?;
    assert_eq!(letters[0].envelope.as_ref(), Some(&lie));
    ensure!(letters[0].why.contains("buyer"), "{:?}", letters[0].why);
    let sent = admin.replay(&sale, letters[0].id).await?;
    ensure!(sent.replayed_at_ms.is_some());
    // The ledger still says no: it is back.
    let letters = kept(2).await?;
    ensure!(letters[0].replayed_at_ms.is_none() && letters[1].replayed_at_ms.is_some(), "{letters:?}");
    assert_eq!(admin.replay(&sale, 0).await.err().and_then(|e| e.kind()), Some(ProblemKind::NotFound));
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (1, 2));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_forgotten_all_scripts() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-scripts", 4)).await?;
    let direct = c.shop.direct(&sale);
    direct.claim("ann", "k", 1).await?.accepted()?;
    // As after a failover to a server that never got them: claim, release, relay and lease meet NOSCRIPT.
    faults::forget_scripts(&c.shop).await?;
    let second = direct.claim("bob", "k", 1).await?.accepted()?;
    c.shop.quiet(&sale).await?;
    faults::forget_scripts(&c.shop).await?;
    faults::expire_now(&c.shop, second.claim_id).await?;
    until("the unit is back", PATIENCE, || async { Ok(c.shop.stock.stock_map(&sale, 1).await?.on_offer() == 3) })
        .await?;
    faults::forget_scripts(&c.shop).await?;
    let buyer = c.entered(&sale).await?;
    let third = buyer.claim_at_last("k", 1).await?.accepted()?;
    buyer.settled(&third.status_url).await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (2, 2));
    c.shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_stores_answer_late() -> Result<()> {
    let c = Cuttable::start().await?;
    let sale = c.shop.create(&c.shop.sale("stores-late", 8)).await?;
    let buyers = [c.entered(&sale).await?, c.entered(&sale).await?, c.entered(&sale).await?];
    // Slow, and within the time that each has: nothing is lost, and nothing is done twice.
    for way in [&c.redis, &c.rabbit, &c.postgres] {
        way.be_late(Duration::from_millis(60));
    }
    for buyer in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == RESERVED, "{status:?}");
    }
    // Later than Redis may be: outcomes are unknown, and the same key finds them.
    c.redis.be_late(Duration::from_secs(3));
    let direct = c.shop.direct(&sale);
    let unanswered = direct.claim("late", "k", 1).await?;
    let Claimed::Refused(problem) = unanswered else { anyhow::bail!("{unanswered:?}") };
    ensure!(problem.status == 503, "{problem:?}");
    for way in [&c.redis, &c.rabbit, &c.postgres] {
        way.speak();
    }
    until_accepted(&c, &sale, "late").await?;
    let books = c.shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (4, 4));
    c.shop.stack.stop().await
}
