//! The sale's window: before, at, after; and whose clock counts.

use anyhow::Result;
use flashgate_shared::{
    problem::ProblemKind,
    sale::SalePhase,
    wire::{SaleView, TimeAnswer},
};
use flashgate_tests::{Claimed, PATIENCE, shop};
use reqwest::Method;

#[tokio::test(flavor = "multi_thread")]
async fn before_the_opening_the_answer_is_425_with_the_time_and_afterwards_it_sells() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("window-before", 2);
    let now_ms = shop.stock.now_ms().await?;
    config.opens_at_ms = now_ms + 4_000;
    let sale = shop.create(&config).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let Claimed::Refused(problem) = buyer.claim("k", 1).await? else { panic!("sold before the opening") };
    assert_eq!((problem.kind(), problem.opens_at_ms), (Some(ProblemKind::NotOpen), Some(config.opens_at_ms)));
    // Behind the gate the origin judges for itself.
    assert_eq!(shop.direct(&sale).claim("early", "k", 1).await?.refused()?, ProblemKind::NotOpen);
    // At the opening, by the server's clock and not a moment earlier.
    flashgate_servers::until("the claim is taken", PATIENCE, || async {
        match buyer.claim("k", 1).await? {
            Claimed::Accepted(_) => Ok(true),
            Claimed::Refused(problem) => {
                anyhow::ensure!(problem.kind() == Some(ProblemKind::NotOpen), "{problem:?}");
                Ok(false)
            }
        }
    })
    .await?;
    assert!(shop.stock.now_ms().await? >= config.opens_at_ms);
    shop.audit(&sale).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_end_the_answer_is_410_but_a_reservation_can_still_be_paid() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("window-after", 2)).await?;
    let (mut holder, mut late) = (shop.buyer(&sale), shop.buyer(&sale));
    holder.enter().await?;
    late.enter().await?;
    let held = holder.claim("k", 1).await?.accepted()?;
    let status = holder.settled(&held.status_url).await?;
    shop.stack.admin().close(&sale).await?;
    flashgate_servers::until("the edge knows", PATIENCE, || async {
        Ok(late.claim("k", 1).await?.refused()? == ProblemKind::Closed)
    })
    .await?;
    assert_eq!(shop.direct(&sale).claim("later", "k", 1).await?.refused()?, ProblemKind::Closed);
    let paid = holder.pay_and_wait(&status, "ok").await?;
    assert_eq!(paid.status, flashgate_shared::wire::ClaimState::Ledger(flashgate_shared::order::OrderStatus::Paid));
    shop.audit(&sale).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_stops_claims_and_a_resume_lets_them_through() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("window-pause", 2)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    shop.stack.admin().pause(&sale).await?;
    flashgate_servers::until("the edge knows of the pause", PATIENCE, || async {
        let kind = match shop.buyer(&sale).claim("k", 1).await? {
            Claimed::Refused(problem) => problem.kind(),
            Claimed::Accepted(_) => anyhow::bail!("sold without a token"),
        };
        Ok(kind == Some(ProblemKind::Paused))
    })
    .await?;
    assert_eq!(shop.direct(&sale).claim("b", "k", 1).await?.refused()?, ProblemKind::Paused);
    shop.stack.admin().resume(&sale).await?;
    flashgate_servers::until("it sells again", PATIENCE, || async {
        Ok(matches!(buyer.claim("k", 1).await?, Claimed::Accepted(_)))
    })
    .await?;
    shop.audit(&sale).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_time_comes_with_a_bound_and_a_client_clock_changes_nothing() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("window-clock", 1);
    config.opens_at_ms = shop.stock.now_ms().await? + 3_600_000;
    config.closes_at_ms = config.opens_at_ms + 1_000;
    let sale = shop.create(&config).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let view: SaleView = buyer.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?.json()?;
    assert_eq!(view.phase, SalePhase::Scheduled);
    // What a client says of the time is not asked.
    let headers =
        [("date", "Tue, 01 Jan 2030 00:00:00 GMT"), ("idempotency-key", "k"), ("content-type", "application/json")];
    let answer = buyer
        .ask(Method::POST, &format!("/v1/sales/{sale}/claim"), &headers, Some(b"{\"quantity\":1}".to_vec()))
        .await?;
    assert_eq!(answer.problem()?.kind(), Some(ProblemKind::NotOpen));
    let before = shop.stock.now_ms().await?;
    let answer = buyer.ask(Method::GET, "/v1/time", &[], None).await?;
    let after = shop.stock.now_ms().await?;
    assert_eq!(answer.headers.get("cache-control").map(|v| v.as_bytes()), Some(&b"no-store"[..]));
    let time: TimeAnswer = answer.json()?;
    let error_ms = time.error_ms.expect("this edge has heard from the authority");
    assert!((before - error_ms - 1..=after + error_ms + 1).contains(&time.now_ms), "{before} {time:?} {after}");
    Ok(())
}
