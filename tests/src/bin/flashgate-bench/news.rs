//! How long it takes until all edges tell what happened to a sale: paused, open again, sold out, units
//! back. Two hosts and two Workers, with demand at each; the aim is a lease's life and one request.

use crate::{report::Report, world::World};
use anyhow::{Context, Result, ensure};
use flashgate_ops::stack::{Backends, Stack, StackConfig};
use flashgate_shared::{SaleId, limits::LEASE_LIFE_MS, sale::SalePhase, wire::SaleView};
use flashgate_tests::{Buyer, Workerd, WorkerdConfig};
use reqwest::Method;
use std::time::{Duration, Instant};

/// How often each thing happens.
const TIMES: usize = 5;
/// Longest wait for a word.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two questions of the demand at an edge.
const DEMAND_EVERY: Duration = Duration::from_millis(5);

/// `news_ms`: the slowest edge, the slowest of the times.
pub async fn news(world: &World, report: &mut Report) -> Result<()> {
    let backends = Backends {
        redis_url: world.servers.redis.url(),
        rabbit_url: world.servers.rabbit.add_vhost("news").await?,
        postgres_url: world.servers.postgres.create_database("news").await?,
    };
    let config = StackConfig { prefix: "news".into(), edges: 2, ..StackConfig::default() };
    let stack = world.steps.run("a shop with two hosts", Stack::start(&backends, config)).await?;
    let config = WorkerdConfig::new(stack.origin_url(), stack.edge_key());
    let workers = [Workerd::start(&config).await?, Workerd::start(&config).await?];
    let mut urls = stack.edge_urls().to_vec();
    urls.extend(workers.iter().map(|worker| worker.url().to_owned()));
    let measured = world.steps.run("news at four edges", measure(&stack, &urls, report)).await;
    for worker in workers {
        worker.stop().await?;
    }
    stack.stop().await?;
    measured
}

async fn measure(stack: &Stack, urls: &[String], report: &mut Report) -> Result<()> {
    let admin = stack.admin();
    let sale = World::settings("news", 1)?;
    admin.create_sale(&sale).await?;
    let watchers: Vec<_> =
        urls.iter().enumerate().map(|(i, url)| Buyer::new(url, &sale.id, [127, 3, 0, i as u8 + 1].into())).collect();
    all_tell(&watchers, &sale.id, SalePhase::Open).await?;
    let (mut paused, mut resumed, mut sold_out, mut reopened) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for n in 0..TIMES {
        admin.pause(&sale.id).await?;
        paused.push(all_tell(&watchers, &sale.id, SalePhase::Paused).await?);
        admin.resume(&sale.id).await?;
        resumed.push(all_tell(&watchers, &sale.id, SalePhase::Open).await?);
        let mut buyer = Buyer::new(&urls[n % urls.len()], &sale.id, [127, 3, 1, n as u8 + 1].into());
        buyer.enter().await?;
        let accepted = buyer.claim("k", 1).await?.accepted()?;
        sold_out.push(all_tell(&watchers, &sale.id, SalePhase::SoldOut).await?);
        buyer.settled(&accepted.status_url).await?;
        let (path, query) = accepted.status_url.split_once('?').context("a MAC in the query")?;
        let gone = buyer.ask(Method::POST, &format!("{path}/release?{query}"), &[], None).await?;
        ensure!(gone.status.is_success(), "{}", String::from_utf8_lossy(&gone.body));
        reopened.push(all_tell(&watchers, &sale.id, SalePhase::Open).await?);
    }
    for (name, times) in [("pause", paused), ("resume", resumed), ("sold_out", sold_out), ("reopen", reopened)] {
        let worst = times.into_iter().reduce(f64::max).context("nothing was measured")?;
        report.note("news_ms", name, worst, Some(LEASE_LIFE_MS as f64));
    }
    Ok(())
}

/// Asks every edge, over and over, until each tells this phase; how long the last one took, less the
/// request that told it, in milliseconds.
async fn all_tell(watchers: &[Buyer], sale: &SaleId, phase: SalePhase) -> Result<f64> {
    let from = Instant::now();
    let each = watchers.iter().map(async |watcher| {
        loop {
            let asked = Instant::now();
            let view = watcher.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?;
            if view.json::<SaleView>()?.phase == phase {
                return anyhow::Ok(asked.saturating_duration_since(from).as_secs_f64() * 1000.0);
            }
            ensure!(from.elapsed() < PATIENCE, "{phase} is not told");
            tokio::time::sleep(DEMAND_EVERY).await;
        }
    });
    let times = futures_util::future::try_join_all(each).await?;
    times.into_iter().reduce(f64::max).context("no edges")
}
