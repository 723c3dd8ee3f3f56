//! `flashgate-bench` (`make bench`): how much of what the machine can do the hot path keeps.
//!
//! Everything runs on one machine at once, load included, so absolute figures say little; the ratios
//! do. Each is measured in rounds that alternate between ours and the yardstick, so that whatever
//! else the machine does meets both. An answer other than the expected one fails the run.

mod claims;
mod edge;
mod figures;
mod gate;
mod load;
mod news;
mod redis;
mod report;
mod settling;
mod worker;
mod world;

use anyhow::{Result, bail};
use report::Report;
use std::time::Instant;
use world::World;

/// Measurements of each thing.
pub const ROUNDS: usize = 5;
/// Kept-alive connections of every load.
pub const CONNECTIONS: usize = 32;
/// The hidden subcommand: serve the axum "hello".
const HELLO: &str = "hello";

fn main() -> Result<()> {
    // The runtime that the origin has, for both uses of this binary.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if std::env::args().nth(1).as_deref() == Some(HELLO) {
        return runtime.block_on(world::hello());
    }
    let only = std::env::args().skip(1).collect::<Vec<_>>();
    if let Some(unknown) = only.iter().find(|name| !PARTS.contains(&name.as_str())) {
        bail!("no part is called {unknown:?}; there are: {}", PARTS.join(", "));
    }
    runtime.block_on(bench(&only))
}

/// The parts, in the order of the run.
const PARTS: [&str; 11] =
    ["sold-out", "accepted", "settling", "gate", "edge", "forwards", "worker", "memory", "starts", "sizes", "news"];

/// Measures these parts, or all of them: only then is the report written.
async fn bench(only: &[String]) -> Result<()> {
    let started = Instant::now();
    let world = World::start().await?;
    let mut report = Report::new();
    for part in PARTS {
        if !only.is_empty() && !only.iter().any(|name| name == part) {
            continue;
        }
        match part {
            "sold-out" => claims::sold_out(&world, &mut report).await?,
            "accepted" => claims::accepted(&world, &mut report).await?,
            "settling" => settling::rows(&world, &mut report).await?,
            "gate" => gate::decisions(&world, &mut report).await?,
            "edge" => edge::refusals(&world, &mut report).await?,
            "forwards" => edge::forwards(&world, &mut report).await?,
            "worker" => worker::refusals(&world, &mut report).await?,
            "memory" => worker::memory(&world, &mut report).await?,
            "starts" => worker::starts(&world, &mut report).await?,
            "sizes" => worker::sizes(&mut report)?,
            _ => news::news(&world, &mut report).await?,
        }
    }
    world.stop().await?;
    report.print(started.elapsed());
    if only.is_empty() { report.write() } else { Ok(()) }
}
