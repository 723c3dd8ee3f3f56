//! The gate as a Cloudflare Worker: the same decisions in another runtime, leases through its Durable
//! Object, and what happens when the instance dies.

use anyhow::{Context, Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    order::OrderStatus,
    problem::ProblemKind,
    wire::{ClaimState, TimeAnswer},
};
use flashgate_tests::{Claimed, PATIENCE, Shop, Workerd, WorkerdConfig, shop};
use futures_util::{StreamExt, future::try_join_all};
use reqwest::{Method, StatusCode};
use tokio::net::TcpListener;

/// The Worker in front of the shop.
async fn worker(shop: &Shop, isolates: usize) -> Result<Workerd> {
    let config = shop.stack.worker_config();
    Workerd::start(&WorkerdConfig { isolates, ..config }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_the_time_are_served_with_their_length() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("workerd-page", 1)).await?;
    let worker = worker(shop, 1).await?;
    let mut buyer = shop.buyer_at(worker.url(), &sale);
    let page = buyer.ask(Method::GET, &format!("/s/{sale}"), &[("accept", "text/html")], None).await?;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.headers["content-length"].to_str()?, page.body.len().to_string());
    assert!(page.headers["content-type"].to_str()?.starts_with("text/html"));
    assert!(page.headers.contains_key("content-security-policy"));
    let head = buyer.ask(Method::HEAD, &format!("/s/{sale}"), &[], None).await?;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    // The isolate learns the authority's clock from its first lease, through the Durable Object.
    buyer.enter().await?;
    let before = shop.stock.now_ms().await?;
    let time: TimeAnswer = buyer.ask(Method::GET, "/v1/time", &[], None).await?.json()?;
    let after = shop.stock.now_ms().await?;
    let error_ms = time.error_ms.context("this edge has heard from the authority")?;
    assert!((before - error_ms - 1..=after + error_ms + 1).contains(&time.now_ms), "{before} {time:?} {after}");
    // Bytes that are no text in a header, and a body over the limit: refused, not failed.
    let odd = buyer.ask(Method::GET, "/v1/time", &[("x-odd", "\u{e9}\u{1f600}")], None).await?;
    assert_eq!(odd.status, StatusCode::OK);
    let headers = [("idempotency-key", "k"), ("content-type", "application/json")];
    let claim = format!("/v1/sales/{sale}/claim");
    let large = buyer.ask(Method::POST, &claim, &headers, Some(vec![b'x'; 100_000])).await?;
    assert_eq!(large.problem()?.kind(), Some(ProblemKind::BodyTooLarge));
    worker.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_three_isolates_gets_exactly_the_stock() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("workerd-crowd", 12);
    config.buckets = 2;
    let sale = shop.create(&config).await?;
    let worker = worker(shop, 3).await?;
    let crowd = (0..120).map(|n| {
        let (mut buyer, sale) = (shop.buyer_at(worker.url_of(n), &sale), &sale);
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
            Ok(true)
        }
    });
    let winners = try_join_all(crowd).await?.into_iter().filter(|won| *won).count();
    let books = shop.audit(&sale).await?;
    assert_eq!((winners, books.count(OrderStatus::Reserved), books.on_offer), (12, 12, 0));
    let traffic = shop.stack.admin().traffic(&sale).await?;
    assert!(traffic.claims_peak_1s as f64 <= traffic.bound_1s, "{traffic:?}");
    worker.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_a_sell_out_are_learnt_and_so_is_their_end() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("workerd-pause", 1)).await?;
    let worker = worker(shop, 2).await?;
    let (mut winner, mut loser) = (shop.buyer_at(worker.url_of(0), &sale), shop.buyer_at(worker.url_of(1), &sale));
    winner.enter().await?;
    loser.enter().await?;
    shop.stack.admin().pause(&sale).await?;
    for buyer in [&winner, &loser] {
        until("the isolate knows of the pause", PATIENCE, || async {
            let answer = buyer.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?;
            Ok(answer.json::<flashgate_shared::wire::SaleView>()?.phase == flashgate_shared::sale::SalePhase::Paused)
        })
        .await?;
        let Claimed::Refused(problem) = buyer.claim("k", 1).await? else { panic!("sold while paused") };
        assert_eq!((problem.kind(), problem.status), (Some(ProblemKind::Paused), 503));
    }
    shop.stack.admin().resume(&sale).await?;
    let accepted = winner.claim_at_last("k", 1).await?.accepted()?;
    let status = winner.settled(&accepted.status_url).await?;
    // The other isolate hears it from the Durable Object or from the origin.
    until("the other isolate knows that it is sold out", PATIENCE, || async {
        Ok(loser.claim("k", 1).await?.refused()? == ProblemKind::SoldOut)
    })
    .await?;
    let (path, query) = status.status_url.split_once('?').context("a MAC in the query")?;
    let gone = winner.ask(Method::POST, &format!("{path}/release?{query}"), &[], None).await?;
    assert_eq!(gone.status, StatusCode::OK, "{}", String::from_utf8_lossy(&gone.body));
    until("the sale sells again", PATIENCE, || async {
        Ok(matches!(loser.claim("k", 1).await?, Claimed::Accepted(_)))
    })
    .await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Reserved), books.count(OrderStatus::Expired)), (1, 1));
    worker.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_handed_through_as_they_come() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("workerd-events", 1)).await?;
    let worker = worker(shop, 1).await?;
    let mut buyer = shop.buyer_at(worker.url(), &sale);
    buyer.enter().await?;
    let accepted = buyer.claim("k", 1).await?.accepted()?;
    let (path, query) = accepted.status_url.split_once('?').context("a MAC in the query")?;
    let token = buyer.token.clone().context("entered")?;
    let answer = shop.http.get(format!("{}{path}/events?{query}", worker.url())).bearer_auth(token).send().await?;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"].to_str()?, "text/event-stream");
    // The stream goes on while the reservation lives: its first word comes before its end.
    let mut stream = answer.bytes_stream();
    let mut text = String::new();
    while !text.contains("RESERVED") {
        let part = tokio::time::timeout(PATIENCE, stream.next()).await.context("no event")?;
        text.push_str(&String::from_utf8_lossy(&part.context("the stream ended")??));
    }
    drop(stream);
    shop.audit(&sale).await?;
    worker.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_origin_nobody_is_admitted_and_the_time_is_served() -> Result<()> {
    // A port that nobody listens on: it was just given back.
    let free = TcpListener::bind("127.0.0.1:0").await?;
    let origin = format!("http://{}", free.local_addr()?);
    drop(free);
    let worker = Workerd::start(&WorkerdConfig::new(&origin, "key")).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let answer = http.get(format!("{}/v1/sales/phones", worker.url())).send().await?;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(http.get(format!("{}/v1/time", worker.url())).send().await?.status(), StatusCode::OK);
    worker.stop().await
}

/// Cloudflare's rate limiting exists only there: what stands for it here has its shape, and lets three
/// requests of an address through.
const SHIELD: &str = r#"
import gate, { LeaseDesk } from "./index.js";
export { LeaseDesk };
const counts = new Map();
class Ratelimit {
  async limit({ key }) {
    counts.set(key, (counts.get(key) ?? 0) + 1);
    return { success: counts.get(key) <= 3 };
  }
}
export default {
  fetch: (request, env, ctx) => gate.fetch(request, { ...env, SHIELD: new Ratelimit() }, ctx),
};
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_shield_counts_addresses_and_its_no_is_a_429() -> Result<()> {
    let config = WorkerdConfig { wrapper: Some(SHIELD), ..WorkerdConfig::new("http://127.0.0.1:1", "key") };
    let worker = Workerd::start(&config).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let get = |address: &'static str| {
        http.get(format!("{}/v1/time", worker.url())).header("cf-connecting-ip", address).send()
    };
    for _ in 0..3 {
        assert_eq!(get("2001:db8::1").await?.status(), StatusCode::OK);
    }
    let refused = get("2001:db8::2").await?;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "one subscriber");
    assert!(refused.headers().contains_key("retry-after"));
    let problem: flashgate_shared::problem::Problem = refused.json().await?;
    assert_eq!(problem.kind(), Some(ProblemKind::SlowDown));
    assert_eq!(get("2001:db8:0:1::1").await?.status(), StatusCode::OK, "another one");
    worker.stop().await
}
