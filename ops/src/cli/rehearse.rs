//! `flashgate rehearse`: a crowd and a verdict, at a running shop or at one of its own.

use super::{FAIL, Where, say, stdout_colour, takes_stdout, up::ShopArgs, write_json};
use crate::{
    rehearse::{
        ADMIT_FACTOR, Plan, Target, rehearse,
        report::{Report, Verdict},
        show,
    },
    shop::Shop,
    steps::Steps,
    values::Share,
};
use anyhow::Result;
use clap::Args;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Arguments of `rehearse`.
#[derive(Debug, Args)]
pub(super) struct RehearseArgs {
    /// Buyers
    #[arg(long)]
    buyers: u32,
    /// Units
    #[arg(long)]
    stock: u32,
    /// Share of the winners that never pays, such as 10%
    #[arg(long, default_value = "0%")]
    lapse: Share,
    /// Share of the winners whose money comes too late, such as 5%
    #[arg(long, default_value = "0%")]
    late: Share,
    /// Claims admitted a second, as a multiple of the stock; a low one makes the sale last
    #[arg(long, value_name = "F", default_value_t = ADMIT_FACTOR)]
    admit_factor: f64,
    /// Rows of the ledger that the stock is split over
    #[arg(long, value_name = "ROWS", default_value_t = 1)]
    shards: u16,
    /// Address of an edge to send the crowd at; may be repeated [default: the running shop's, else a
    /// shop is started for the rehearsal]
    #[arg(long, value_name = "URL", conflicts_with = "edges")]
    url: Vec<String>,
    /// Start a shop with this many edges for the rehearsal, even if one runs
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=64))]
    edges: Option<u8>,
    /// How many of them are Cloudflare Workers in workerd, as `make worker` built them [default: half]
    #[arg(long, value_name = "K", requires = "edges", value_parser = clap::value_parser!(u8).range(0..=63))]
    workers: Option<u8>,
    /// Write the report as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: RehearseArgs) -> Result<ExitCode> {
    let steps = Steps::new(true);
    let plan = Plan {
        buyers: args.buyers,
        stock: args.stock,
        lapse: args.lapse,
        late: args.late,
        admit_factor: args.admit_factor,
        shards: args.shards,
    };
    let report = match target(&args)? {
        Some(target) => super::unless_told_to_end(rehearse(&plan, &target, steps)).await?,
        None => at_own_shop(&args, &plan, steps).await?,
    };
    match report {
        Some(report) => tell(&report, args.json.as_deref()),
        None => Ok(ExitCode::from(super::ERROR)),
    }
}

/// The shop that is named or running.
fn target(args: &RehearseArgs) -> Result<Option<Target>> {
    if args.edges.is_some() {
        return Ok(None);
    }
    let running = match args.place.origin {
        Some(_) => None,
        None => args.place.shop()?,
    };
    if let Some(shop) = running {
        let local = args.url.is_empty()
            || args.url.iter().all(|url| shop.edge_urls.contains(&url.trim_end_matches('/').to_owned()));
        return Ok(Some(Target {
            admin: shop.admin()?,
            edge_urls: if args.url.is_empty() { shop.edge_urls } else { args.url.clone() },
            provider_url: Some(shop.provider_url),
            edge_pids: if local { shop.edge_pids } else { Vec::new() },
            origin_pids: shop.origin_pids,
        }));
    }
    if args.url.is_empty() {
        return Ok(None);
    }
    Ok(Some(Target {
        edge_urls: args.url.clone(),
        admin: args.place.admin()?,
        provider_url: None,
        edge_pids: Vec::new(),
        origin_pids: Vec::new(),
    }))
}

async fn at_own_shop(args: &RehearseArgs, plan: &Plan, steps: Steps) -> Result<Option<Report>> {
    let edges = args.edges.unwrap_or(1);
    let shop = ShopArgs::with_edges(edges, args.workers.unwrap_or(edges / 2));
    let Some(shop) = super::unless_told_to_end(Shop::start(shop.config()?, steps)).await? else {
        return Ok(None);
    };
    let report = super::unless_told_to_end(at(&shop, plan, steps)).await;
    let stopped = shop.stop(steps).await;
    let report = report?;
    stopped?;
    Ok(report)
}

/// A rehearsal that ends when a part of the shop does.
pub(super) async fn at(shop: &Shop, plan: &Plan, steps: Steps) -> Result<Report> {
    let target = shop.target();
    tokio::select! {
        report = rehearse(plan, &target, steps) => report,
        failed = shop.watch() => {
            failed?;
            anyhow::bail!("the shop ended")
        }
    }
}

/// Shows the report, writes it, and gives the verdict's exit code.
pub(super) fn tell(report: &Report, json: Option<&Path>) -> Result<ExitCode> {
    if let Some(path) = json {
        write_json(path, report)?;
    }
    if !takes_stdout(json.map(Path::to_owned).as_ref()) {
        say(&show::table(report, stdout_colour()))?;
    }
    Ok(match report.verdict {
        Verdict::Pass => ExitCode::SUCCESS,
        Verdict::Fail => ExitCode::from(FAIL),
    })
}
