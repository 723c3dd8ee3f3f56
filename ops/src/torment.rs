//! A soak: rehearsals one after the other at a private shop, while its parts are killed, paused, cut off,
//! emptied and set back in time, as a seed says. After each crowd the faults rest, the sale comes to rest, and
//! the books are checked: nothing oversold, stranded or doubled, and no money kept for nothing.

mod injector;
mod schedule;

pub use schedule::{Fault, Kind, Part, schedule};

use crate::{
    rehearse::{Phase, Plan, Target, rehearse_watched, report::Report},
    stack::{Backends, Stack, StackConfig},
    steps::Steps,
};
use anyhow::{Context, Result};
use flashgate_servers::{Proxy, Servers};
use injector::Injector;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// The database and the vhost.
const NAME: &str = "torment";
/// Origin processes; all of them do everything.
const ORIGINS: usize = 2;
/// Edge processes.
const EDGES: usize = 2;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct TormentPlan {
    /// How long faults are injected.
    pub length: Duration,
    /// What the schedule is drawn from.
    pub seed: u64,
    /// Buyers of each crowd.
    pub buyers: u32,
    /// Units of each sale.
    pub stock: u32,
}

/// What came of one crowd.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Round {
    /// Its sale, as a rehearsal reports it. Its verdict is a peaceful rehearsal's and not the torment's.
    pub report: Report,
    /// What may not be, whatever goes wrong; empty when all held.
    pub broken: Vec<String>,
}

/// What faults of one kind did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Suffered {
    /// How many.
    pub faults: u32,
    /// From the fault's end until the sale took claims again, the longest, in milliseconds.
    pub longest_until_open_ms: u128,
}

/// The report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TormentReport {
    /// The seed.
    pub seed: u64,
    /// All faults.
    pub faults: u32,
    /// By kind.
    pub by_kind: BTreeMap<String, Suffered>,
    /// The crowds.
    pub rounds: Vec<Round>,
    /// Whether everything held.
    pub passed: bool,
}

/// Starts a shop, torments it, and tells.
pub async fn torment(plan: &TormentPlan, steps: Steps) -> Result<TormentReport> {
    let dir = tempfile::Builder::new().prefix("flashgate-torment-").tempdir()?;
    let servers = steps.run("private Redis, RabbitMQ and Postgres ready", Servers::start(dir.path())).await?;
    let proxies = Proxies {
        redis: Proxy::before(servers.redis.port()).await?,
        rabbit: Proxy::before(servers.rabbit.port()).await?,
        postgres: Proxy::before(servers.postgres.port()).await?,
    };
    let rabbit_url = servers.rabbit.add_vhost(NAME).await?;
    let postgres_url = servers.postgres.create_database(NAME).await?;
    let by_way_of = |proxy: &Proxy, url: &str, port: u16| proxy.through(url, port).context("no such address");
    let backends = Backends {
        redis_url: format!("redis://127.0.0.1:{}", proxies.redis.port()),
        rabbit_url: by_way_of(&proxies.rabbit, &rabbit_url, servers.rabbit.port())?,
        postgres_url: by_way_of(&proxies.postgres, &postgres_url, servers.postgres.port())?,
    };
    let config = StackConfig {
        edges: EDGES,
        origin_roles: vec![vec!["serve", "work", "relay", "sweep"]; ORIGINS],
        verbose: steps.is_verbose(),
        ..StackConfig::default()
    };
    let stack = Arc::new(Stack::start(&backends, config).await?);
    let outcome = rounds(plan, &stack, servers, proxies, steps).await;
    let stopped = match Arc::into_inner(stack) {
        Some(stack) => steps.run("edges and origins stopped", stack.stop()).await,
        None => Ok(()),
    };
    let (report, servers) = outcome?;
    servers.stop().await?;
    stopped?;
    Ok(report)
}

/// Ways to the stores that can be cut.
pub(crate) struct Proxies {
    redis: Proxy,
    rabbit: Proxy,
    postgres: Proxy,
}

async fn rounds(
    plan: &TormentPlan,
    stack: &Arc<Stack>,
    servers: Servers,
    proxies: Proxies,
    steps: Steps,
) -> Result<(TormentReport, Servers)> {
    let target = Target {
        edge_urls: stack.edge_urls().to_vec(),
        admin: stack.admin(),
        provider_url: Some(stack.provider_url().to_owned()),
        edge_pids: Vec::new(),
        origin_pids: Vec::new(),
    };
    let crowd = Plan {
        buyers: plan.buyers,
        stock: plan.stock,
        lapse: "20%".parse().map_err(anyhow::Error::msg)?,
        late: "10%".parse().map_err(anyhow::Error::msg)?,
        // Low, so that the selling lasts and faults fall into it.
        admit_factor: 0.1,
        // Faults meet split stock too.
        shards: 3,
    };
    let (raging, told) = watch::channel(None);
    let injector = Injector::new(stack.clone(), servers, proxies, told, steps);
    let mut injecting = tokio::spawn(injector.run(schedule(plan.seed, plan.length)));
    let mut rounds = Vec::new();
    let mut injected = None;
    let end = Instant::now() + plan.length;
    while Instant::now() < end && injected.is_none() {
        let round = rehearse_watched(&crowd, &target, steps, |phase| {
            raging.send_replace(match phase {
                Phase::Crowd(sale) => Some(sale),
                Phase::Over => None,
            });
        });
        let mut round = pin!(round);
        let report = loop {
            tokio::select! {
                report = &mut round => break report?,
                // The last fault is over: the crowd goes on without. A fault that could not be mended ends all.
                ended = &mut injecting, if injected.is_none() => {
                    injected = Some(ended.context("the injector died")??);
                }
            }
        };
        let broken = broken(&report);
        for sentence in &broken {
            steps.note(&format!("BROKEN: {sentence}"));
        }
        rounds.push(Round { report, broken });
    }
    drop(raging);
    let injected = match injected {
        Some(injected) => injected,
        None => injecting.await.context("the injector died")??,
    };
    let passed = !rounds.is_empty() && rounds.iter().all(|round| round.broken.is_empty());
    let faults = injected.by_kind.values().map(|suffered| suffered.faults).sum();
    let report = TormentReport { seed: plan.seed, faults, by_kind: injected.by_kind, rounds, passed };
    Ok((report, injected.servers))
}

/// What may not be, whatever happened.
fn broken(report: &Report) -> Vec<String> {
    let mut broken = report.audit.broken.clone();
    let mut must = |holds: bool, sentence: String| {
        if !holds {
            broken.push(sentence);
        }
    };
    must(report.oversold == 0, format!("{} units oversold", report.oversold));
    must(report.stranded == 0, format!("{} units stranded", report.stranded));
    must(report.double_orders == 0, format!("{} double orders", report.double_orders));
    must(report.unanswered == 0, format!("{} buyers without a final answer", report.unanswered));
    must(report.audit.quiet, "the sale did not come to rest".into());
    must(report.audit.dead_letters == 0, format!("{} dead letters", report.audit.dead_letters));
    must(report.audit.refunds_pending == 0, format!("{} refunds are still owed", report.audit.refunds_pending));
    let kept = report.charged_but_lost;
    must(kept == Some(0), format!("charged but lost: {kept:?}"));
    must(report.refunded == report.late, format!("{} of {} late payments given back", report.refunded, report.late));
    broken
}
