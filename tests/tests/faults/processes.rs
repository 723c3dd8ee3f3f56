//! Processes that stop for a while, and go on as if nothing had been.

use anyhow::{Context, Result, ensure};
use flashgate_shared::{order::OrderStatus, wire::ClaimState};
use flashgate_tests::{Shop, faults};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A process that is stopped; it goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Option<u32>) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid.context("it does not run")?)?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_stops_with_messages_in_its_hands_and_another_goes_on() -> Result<()> {
    let shop = Shop::start(|config| {
        config.origin_roles =
            vec![vec!["serve", "relay", "sweep"], vec!["serve", "work", "relay"], vec!["serve", "work"]];
    })
    .await?;
    let sale = shop.create(&shop.sale("processes-stopped", 40)).await?;
    for n in 0..10 {
        let claim = faults::claim_and_die(&shop, &sale, &format!("before-{n}"), "k", 0).await?;
        faults::publish(&shop, &claim).await?;
    }
    let stopped = Stopped::new(shop.stack.origin_pid(1))?;
    let mut buyers = Vec::new();
    for _ in 0..10 {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        buyers.push((buyer.claim_at_last("k", 1).await?.accepted()?, buyer));
    }
    drop(stopped);
    for (accepted, buyer) in &buyers {
        let status = buyer.settled(&accepted.status_url).await?;
        ensure!(status.status == ClaimState::Ledger(OrderStatus::Reserved), "{status:?}");
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (20, 20));
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_origin_stops_under_claims_and_what_it_had_begun_is_found() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("processes-serving", 10)).await?;
    let mut buyers = Vec::new();
    for _ in 0..5 {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        buyers.push(buyer);
    }
    let stopped = Stopped::new(shop.stack.origin_pid(0))?;
    let claims = buyers.iter().map(|buyer| buyer.claim_once("k", 1));
    let unanswered = futures_util::future::join_all(claims).await;
    for answer in unanswered {
        // No answer in time at the edge: unknown, or please wait.
        let refused = answer?.refused()?;
        ensure!(refused.status() == 503, "{refused:?}");
    }
    drop(stopped);
    for buyer in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        buyer.settled(&accepted.status_url).await?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (5, 5), "one unit each, however often they asked");
    shop.stack.stop().await
}
