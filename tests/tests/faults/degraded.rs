//! When what is behind an edge fails: the page and the time are still served, nobody is admitted beyond
//! the bound, and people hear an honest "please wait" with the time to come back. On each runtime.

use anyhow::{Context, Result, ensure};
use flashgate_servers::{Proxy, shared};
use flashgate_shared::{
    SaleId,
    order::OrderStatus,
    problem::ProblemKind,
    sale::SalePhase,
    wire::{SaleView, TimeAnswer},
};
use flashgate_tests::{Buyer, Claimed, Shop, Workerd, WorkerdConfig, faults};
use reqwest::{Method, StatusCode};

/// An origin's answer that helps nobody.
const ERROR_500: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops";

/// A shop whose origin is reached by way of a proxy, by a host and by a Worker.
struct Behind {
    shop: Shop,
    worker: Workerd,
    proxy: Proxy,
}

/// What happens to the way to the origin.
type Fault = fn(&Proxy);

impl Behind {
    async fn start() -> Result<Self> {
        let proxy = Proxy::before(0).await?;
        let origin = format!("http://127.0.0.1:{}", proxy.port());
        let shop = Shop::start(|config| config.edge_origins = vec![(0, origin.clone())]).await?;
        let port = shop.stack.origin_url().rsplit_once(':').context("no port")?.1.parse()?;
        proxy.lead_to(port);
        let worker = Workerd::start(&WorkerdConfig::new(&origin, shop.stack.edge_key())).await?;
        Ok(Self { shop, worker, proxy })
    }

    fn edges(&self) -> [(&'static str, &str); 2] {
        [("host", self.shop.stack.edge_url(0)), ("workerd", self.worker.url())]
    }

    async fn stop(self) -> Result<()> {
        self.worker.stop().await?;
        self.shop.stack.stop().await
    }
}

/// The page and the time are served, whatever happens behind.
async fn still_serves(buyer: &Buyer, sale: &SaleId) -> Result<()> {
    for path in ["/v1/time".to_owned(), format!("/s/{sale}"), "/healthz".to_owned()] {
        let answer = buyer.ask(Method::GET, &path, &[], None).await?;
        ensure!(answer.status == StatusCode::OK, "{path}: {}", answer.status);
    }
    Ok(())
}

/// A claim hears "please wait" and when to come back, or that its outcome is unknown; never yes.
async fn please_wait(buyer: &Buyer) -> Result<()> {
    let answer = buyer
        .ask(
            Method::POST,
            &format!("/v1/sales/{}/claim", buyer.sale()),
            &[("idempotency-key", "k"), ("content-type", "application/json")],
            Some(b"{\"quantity\":1}".to_vec()),
        )
        .await?;
    ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{}", answer.status);
    ensure!(answer.headers.contains_key("retry-after"), "no Retry-After");
    let problem = answer.problem()?;
    let honest = [ProblemKind::Unavailable, ProblemKind::Unknown, ProblemKind::TryAgain];
    ensure!(problem.kind().is_some_and(|kind| honest.contains(&kind)), "{problem:?}");
    ensure!(problem.retry_after_ms.is_some_and(|ms| ms > 0), "{problem:?}");
    Ok(())
}

/// A sale that both edges know; the way to the origin fails; it is mended and each edge sells.
async fn fails_and_recovers(name: &str, fault: Fault) -> Result<()> {
    let behind = Behind::start().await?;
    let shop = &behind.shop;
    let sale = shop.create(&shop.sale(name, 4)).await?;
    let mut buyers = Vec::new();
    for (runtime, url) in behind.edges() {
        for _ in 0..2 {
            let mut buyer = shop.buyer_at(url, &sale);
            buyer.enter().await.with_context(|| runtime)?;
            buyers.push((runtime, buyer));
        }
    }
    fault(&behind.proxy);
    for (runtime, buyer) in &buyers {
        // Permits that an edge still holds die within a lease's life; a claim may meet one and then not know
        // what became of it.
        please_wait(buyer).await.with_context(|| format!("{runtime}: claim"))?;
        still_serves(buyer, &sale).await.with_context(|| *runtime)?;
        let view = buyer.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?;
        ensure!(view.json::<SaleView>()?.phase == SalePhase::Open, "{runtime} has forgotten the sale");
    }
    behind.proxy.speak();
    for (runtime, buyer) in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted().with_context(|| *runtime)?;
        buyer.settled(&accepted.status_url).await?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!(books.count(OrderStatus::Reserved), 4);
    let traffic = shop.stack.admin().traffic(&sale).await?;
    assert!(traffic.claims_peak_1s as f64 <= traffic.bound_1s, "{traffic:?}");
    behind.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_is_unreachable() -> Result<()> {
    fails_and_recovers("degraded-unreachable", Proxy::close).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_is_silent() -> Result<()> {
    fails_and_recovers("degraded-silent", Proxy::fall_silent).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_answers_500() -> Result<()> {
    fails_and_recovers("degraded-500", |proxy| proxy.say(ERROR_500)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_is_unreachable_while_the_origin_lives() -> Result<()> {
    let direct = format!("{}/", shared().await?.redis().url().trim_end_matches('/'));
    let port = direct.trim_end_matches('/').rsplit_once(':').context("no port")?.1.parse()?;
    let proxy = Proxy::before(port).await?;
    let url = proxy.through(&direct, port).context("Redis's address")?;
    let shop = Shop::start(|config| config.origin_env.push(("FLASHGATE_REDIS__URL".into(), url))).await?;
    let worker = Workerd::start(&shop.stack.worker_config()).await?;
    let sale = shop.create(&shop.sale("degraded-authority", 2)).await?;
    let mut buyers = Vec::new();
    for url in [shop.stack.edge_url(0), worker.url()] {
        let mut buyer = shop.buyer_at(url, &sale);
        buyer.enter().await?;
        buyers.push(buyer);
    }
    proxy.fall_silent();
    for buyer in &buyers {
        please_wait(buyer).await?;
        still_serves(buyer, &sale).await?;
    }
    proxy.speak();
    for buyer in &buyers {
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        buyer.settled(&accepted.status_url).await?;
    }
    assert_eq!(shop.audit(&sale).await?.count(OrderStatus::Reserved), 2);
    worker.stop().await?;
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_edges_are_cut_off_and_the_others_sell_it_all() -> Result<()> {
    let behind = Behind::start().await?;
    let shop = &behind.shop;
    // The other half: a Worker with a way of its own.
    let other = Workerd::start(&shop.stack.worker_config()).await?;
    let sale = shop.create(&shop.sale("degraded-half", 6)).await?;
    let mut enter = Vec::new();
    for url in [behind.edges()[0].1, behind.edges()[1].1, other.url()] {
        for _ in 0..8 {
            let mut buyer = shop.buyer_at(url, &sale);
            buyer.enter().await?;
            enter.push(buyer);
        }
    }
    let (cut_off, connected) = enter.split_at(16);
    behind.proxy.close();
    let mut winners = 0;
    for (unlucky, buyer) in cut_off.iter().zip(connected) {
        please_wait(unlucky).await?;
        match buyer.claim("k", 1).await? {
            Claimed::Accepted(_) => winners += 1,
            Claimed::Refused(problem) => assert_eq!(problem.kind(), Some(ProblemKind::SoldOut), "{problem:?}"),
        }
    }
    assert_eq!(winners, 6);
    behind.proxy.speak();
    for buyer in cut_off {
        assert_eq!(buyer.claim_at_last("k", 1).await?.refused()?, ProblemKind::SoldOut);
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Reserved), books.on_offer), (6, 0));
    other.stop().await?;
    behind.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_whose_clock_is_minutes_off_judges_by_the_authoritys() -> Result<()> {
    const OFF_S: [i64; 2] = [300, -300];
    const TWO_MINUTES_MS: i64 = 120_000;
    let wrong = OFF_S.map(faults::clock_off_by);
    let mut edge_env = Vec::new();
    for (edge, env) in wrong.into_iter().enumerate() {
        edge_env.extend(env?.into_iter().map(|(name, value)| (edge, name, value)));
    }
    let shop = Shop::start(|config| (config.edges, config.edge_env) = (2, edge_env)).await?;
    // Open for a minute already; and not open for another two. Both edges' clocks say otherwise of one.
    let open = shop.create(&shop.sale("degraded-clock-open", 2)).await?;
    let mut early = shop.sale("degraded-clock-early", 2);
    early.opens_at_ms += 60_000 + TWO_MINUTES_MS;
    let early = shop.create(&early).await?;
    for edge in 0..2 {
        let url = shop.stack.edge_url(edge);
        let mut buyer = shop.buyer_at(url, &open);
        buyer.enter().await?;
        let accepted = buyer.claim("k", 1).await?.accepted().with_context(|| format!("edge {edge}"))?;
        buyer.settled(&accepted.status_url).await?;
        let mut eager = shop.buyer_at(url, &early);
        eager.enter().await?;
        assert_eq!(eager.claim("k", 1).await?.refused()?, ProblemKind::NotOpen, "edge {edge}");
        let before = shop.stock.now_ms().await?;
        let time: TimeAnswer = eager.ask(Method::GET, "/v1/time", &[], None).await?.json()?;
        let after = shop.stock.now_ms().await?;
        let error_ms = time.error_ms.context("the edge has heard from the authority")?;
        assert!((before - error_ms - 1..=after + error_ms + 1).contains(&time.now_ms), "{before} {time:?} {after}");
    }
    assert_eq!(shop.audit(&open).await?.count(OrderStatus::Reserved), 2);
    shop.audit(&early).await?;
    shop.stack.stop().await
}
