//! What edges and admission meet: a Worker's instance that dies, leases that are lost, backlogs, and the end of "sold out".

use anyhow::{Context, Result, bail, ensure};
use flashgate_servers::until;
use flashgate_shared::{order::OrderStatus, problem::ProblemKind};
use flashgate_tests::{Claimed, PATIENCE, Shop, Workerd, WorkerdConfig, faults, shop};
use reqwest::{Method, StatusCode};
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn sold_out_is_told_at_the_edge_and_ends_when_units_come_back() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("funnel-sold-out", 1)).await?;
    let (mut winner, mut loser) = (shop.buyer(&sale), shop.buyer(&sale));
    winner.enter().await?;
    loser.enter().await?;
    let won = winner.claim("k", 1).await?.accepted()?;
    let status = winner.settled(&won.status_url).await?;
    assert_eq!(loser.claim("k", 1).await?.refused()?, ProblemKind::SoldOut);
    // The winner lets it go; the next who asks finds a sale that sells again.
    let (path, query) = status.status_url.split_once('?').unwrap();
    let gone = winner.ask(Method::POST, &format!("{path}/release?{query}"), &[], None).await?;
    assert_eq!(gone.status, 200, "{}", String::from_utf8_lossy(&gone.body));
    shop.quiet(&sale).await?;
    until("the sale sells again", PATIENCE, || async {
        Ok(matches!(loser.claim("k", 1).await?, Claimed::Accepted(_)))
    })
    .await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Reserved), books.count(OrderStatus::Expired)), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_backlog_refuses_before_the_claim() -> Result<()> {
    // Nobody relays or settles here: the backlog stays what it is.
    let shop = Shop::start(|config| config.origin_roles = vec![vec!["migrate", "serve"]]).await?;
    for (id, in_the_queue) in [("edges-backlog-outbox", false), ("edges-backlog-queue", true)] {
        let mut config = shop.sale(id, 10);
        config.backlog_limit = 1;
        let sale = shop.create(&config).await?;
        for name in ["waiting", "waiting-too"] {
            let claim = faults::claim_and_die(&shop, &sale, name, "k", 0).await?;
            if in_the_queue {
                faults::publish(&shop, &claim).await?;
                shop.stock.outbox_delete(&sale, std::slice::from_ref(&claim.hold)).await?;
            }
        }
        let direct = shop.direct(&sale);
        // The backlog is read ten times a second: from the first refusal on, nobody is let through.
        until("the backlog is seen", PATIENCE, || async {
            Ok(matches!(direct.claim("first", "k", 1).await?, Claimed::Refused(p) if p.kind() == Some(ProblemKind::BacklogFull)))
        })
        .await?;
        let on_offer = shop.stack.admin().show(&sale).await?.on_offer;
        for n in 0..5 {
            let Claimed::Refused(problem) = direct.claim(&format!("buyer-{n}"), "k", 1).await? else {
                bail!("{id}: taken over the backlog")
            };
            assert_eq!(problem.kind(), Some(ProblemKind::BacklogFull));
            assert!(problem.retry_after_ms.is_some(), "told no and not when to come back: {problem:?}");
        }
        assert_eq!(shop.stack.admin().show(&sale).await?.on_offer, on_offer, "nothing was taken");
    }
    shop.stack.stop().await
}

/// Lets the gate meet a request that the runtime would never make: one whose headers are no text. The
/// library's reader of headers panics over it: a real panic in the Worker as it was built.
const POISON: &str = r#"
import gate, { LeaseDesk } from "./index.js";
export { LeaseDesk };
const poison = { method: "GET", url: "http://x/", body: null, headers: { entries: () => [[1, 2]].values() } };
export default {
  fetch: (request, env, ctx) => gate.fetch(request.url.endsWith("/poison") ? poison : request, env, ctx),
};
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_answered_503_to_all_who_were_in_the_instance_and_the_next_are_served() -> Result<()> {
    // An origin that accepts and never answers: whoever asks it is under way.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let origin = format!("http://{}", silent.local_addr()?);
    let config = WorkerdConfig { wrapper: Some(POISON), ..WorkerdConfig::new(&origin, "key") };
    let worker = Workerd::start(&config).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let get = |path: &str| http.get(format!("{}{path}", worker.url())).send();
    for round in 0..3 {
        let waiting = tokio::spawn(get(&format!("/v1/sales/waiting-{round}")));
        let _asked = silent.accept().await.context("the origin is asked")?;
        for answer in [get("/poison").await?, waiting.await??] {
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(answer.headers().contains_key("retry-after"));
            assert_eq!(answer.headers()["content-type"].to_str()?, "application/problem+json");
            let problem: serde_json::Value = answer.json().await?;
            assert_eq!(problem["title"], "Interrupted", "{problem}");
        }
        assert_eq!(get("/v1/time").await?.status(), StatusCode::OK);
    }
    worker.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_forgets_its_leases_in_mid_sale() -> Result<()> {
    let shop = Shop::start(|config| config.edges = 2).await?;
    let mut config = shop.sale("edges-lease-lost", 12);
    config.admit_factor = 0.5;
    let sale = shop.create(&config).await?;
    let lease_key = format!("{{{}:{sale}}}:lease:claim", shop.prefix());
    let mut sold = 0;
    for round in 0..3 {
        for edge in [0, 1] {
            let mut buyer = shop.buyer_at(shop.stack.edge_url(edge), &sale);
            buyer.enter().await?;
            let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
            buyer.settled(&accepted.status_url).await?;
            sold += 1;
        }
        if round < 2 {
            faults::forget_key(&shop, &lease_key).await?;
        }
    }
    // A bucket that is lost starts empty: nobody is admitted twice for what the lost one had granted.
    let traffic = shop.stack.admin().traffic(&sale).await?;
    ensure!(traffic.claims_peak_1s as f64 <= traffic.bound_1s, "{traffic:?}");
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (sold, 12 - sold));
    shop.stack.stop().await
}
