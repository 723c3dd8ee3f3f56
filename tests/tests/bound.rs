//! The admission bound (design I6) is exact and global: four edges of two kinds, a crowd, and whatever
//! happens to clocks, edges and the authority's memory meanwhile. Counted at the origin, past its permit
//! check, by the rehearsal whose verdict also covers everything else.

use anyhow::{Context, Result, ensure};
use flashgate_ops::{
    rehearse::{
        ADMIT_FACTOR, Plan, Target, rehearse,
        report::{Report, Verdict},
    },
    steps::Steps,
};
use flashgate_servers::until;
use flashgate_shared::{
    SaleId,
    order::OrderStatus,
    wire::{ClaimState, TrafficReport},
};
use flashgate_tests::{PATIENCE, Shop, Workerd, faults};

/// By how much the clock of the second host is ahead, in seconds.
const CLOCK_OFF_S: i64 = 60;
const BUYERS: u32 = 20_000;

/// A shop with four edges: two hosts, one of them with a wrong clock, and two of workerd.
struct FourEdges {
    shop: Shop,
    workers: [Workerd; 2],
}

impl FourEdges {
    async fn start() -> Result<Self> {
        let wrong = faults::clock_off_by(CLOCK_OFF_S)?;
        let shop = Shop::start(|config| {
            config.edges = 2;
            config.edge_env = wrong.into_iter().map(|(name, value)| (1, name, value)).collect();
        })
        .await?;
        let config = shop.stack.worker_config();
        let workers = [Workerd::start(&config).await?, Workerd::start(&config).await?];
        Ok(Self { shop, workers })
    }

    fn urls(&self) -> Vec<String> {
        let workers = self.workers.iter().map(|worker| worker.url().to_owned());
        self.shop.stack.edge_urls().iter().cloned().chain(workers).collect()
    }

    async fn stop(self) -> Result<()> {
        for worker in self.workers {
            worker.stop().await?;
        }
        self.shop.stack.stop().await
    }
}

/// A rehearsal at these edges, in which all pay.
async fn rehearsed(shop: &Shop, edge_urls: Vec<String>, stock: u32, admit_factor: f64) -> Result<Report> {
    let (lapse, late) = Default::default();
    let plan = Plan { buyers: BUYERS, stock, lapse, late, admit_factor, shards: 1 };
    let target = Target {
        edge_urls,
        admin: shop.stack.admin(),
        provider_url: Some(shop.stack.provider_url().to_owned()),
        edge_pids: Vec::new(),
        origin_pids: Vec::new(),
    };
    rehearse(&plan, &target, Steps::new(false)).await
}

/// The shop's only sale, once so many of its claims have arrived at the origin.
async fn after_claims(shop: &Shop, claims: u64) -> Result<SaleId> {
    let admin = shop.stack.admin();
    until(&format!("{claims} claims have arrived"), PATIENCE * 2, || async {
        let sale = admin.list().await?.into_iter().next().context("no sale yet")?.sale.id;
        let arrived = admin.traffic(&sale).await?.claims;
        ensure!(arrived >= claims, "{arrived}");
        Ok(true)
    })
    .await?;
    Ok(admin.list().await?.into_iter().next().context("the sale is gone")?.sale.id)
}

fn judge(report: &Report, stock: u32) {
    let TrafficReport { claims, claims_peak_1s, claims_peak_10s, permits_granted, permits_grantable, .. } =
        report.traffic;
    println!(
        "stock {stock}: {claims_peak_1s} claims in the worst second (≤ {:.0}), {claims_peak_10s} in the worst ten \
         (≤ {:.0}), {claims} in all of {permits_granted} permits granted and {permits_grantable:.0} grantable",
        report.admission_bound, report.admission_bound_10s,
    );
    assert_eq!((report.verdict, &report.reasons), (Verdict::Pass, &Vec::new()), "{report:#?}");
    assert_eq!(report.reserved, i64::from(stock));
    assert!(report.claims_at_origin as f64 <= report.admission_bound, "{:?}", report.traffic);
    assert!(report.claims_at_origin_10s as f64 <= report.admission_bound_10s, "{:?}", report.traffic);
}

async fn undisturbed(stock: u32) -> Result<()> {
    let edges = FourEdges::start().await?;
    judge(&rehearsed(&edges.shop, edges.urls(), stock, ADMIT_FACTOR).await?, stock);
    edges.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_at_four_edges_for_a_hundred() -> Result<()> {
    undisturbed(100).await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_at_four_edges_for_a_thousand() -> Result<()> {
    undisturbed(1_000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_restarts_and_the_authority_forgets_in_mid_sale() -> Result<()> {
    const STOCK: u32 = 400;
    let edges = FourEdges::start().await?;
    let urls = edges.urls();
    let FourEdges { shop, workers: [steady, shaken] } = edges;
    let disturb = async {
        let sale = after_claims(&shop, 50).await?;
        let lease_key = format!("{{{}:{sale}}}:lease:claim", shop.prefix());
        let killed = shaken.kill().await?;
        after_claims(&shop, 100).await?;
        faults::forget_key(&shop, &lease_key).await?;
        let shaken = killed.start().await?;
        after_claims(&shop, 150).await?;
        faults::forget_key(&shop, &lease_key).await?;
        anyhow::Ok(shaken)
    };
    // So few permits a second that the sale lasts.
    let (report, shaken) = tokio::join!(rehearsed(&shop, urls, STOCK, 0.15), disturb);
    let workers = [steady, shaken?];
    judge(&report?, STOCK);
    FourEdges { shop, workers }.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn single_buyers_through_cold_instances_are_admitted() -> Result<()> {
    let edges = FourEdges::start().await?;
    let mut config = edges.shop.sale("trickle", 8);
    config.admit_factor = ADMIT_FACTOR;
    let sale = edges.shop.create(&config).await?;
    for round in 0..2 {
        for (i, url) in edges.urls().iter().enumerate() {
            let mut buyer = edges.shop.buyer_at(url, &sale);
            buyer.enter().await?;
            let accepted = buyer.claim("k", 1).await?.accepted().with_context(|| format!("edge {i}, round {round}"))?;
            let status = buyer.settled(&accepted.status_url).await?;
            ensure!(status.status == ClaimState::Ledger(OrderStatus::Reserved), "{status:?}");
        }
    }
    let books = edges.shop.audit(&sale).await?;
    assert_eq!(books.count(OrderStatus::Reserved), 8);
    edges.stop().await
}
