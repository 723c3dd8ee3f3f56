//! `redis-benchmark` with the claim script.

use crate::{CONNECTIONS, world::World};
use anyhow::{Context, Result, ensure};
use fred::prelude::*;
use tokio::process::Command;

/// The script that the origin runs.
const SCRIPT: &str = include_str!("../../../../lua/claim.lua");
/// Claims of one round.
const CLAIMS: u64 = 20_000;
/// Buyers are drawn out of so many, so that hardly one comes twice.
const BUYERS: u64 = 100_000_000_000;
/// Least part of the claims that must have taken a unit.
const TAKEN_PART: f64 = 0.999;

/// Claims a second in a bucket of its own. Each is another buyer's; the outbox entries stay.
pub async fn claims(world: &World, round: usize) -> Result<f64> {
    let config = Config::from_url(&world.servers.redis.url())?;
    let client = Builder::from_config(config).build()?;
    client.init().await?;
    let sha: String = client.script_load(SCRIPT).await?;
    let key = |part: &str| format!("{{redis-benchmark:{round}}}:{part}");
    let stock = 2 * CLAIMS as i64;
    client.set::<(), _, _>(key("stock"), stock, None, None, false).await?;
    client.set::<(), _, _>(key("epoch"), 1, None, None, false).await?;
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &world.servers.redis.port().to_string(), "--csv"]);
    command.args(["-n", &CLAIMS.to_string(), "-c", &CONNECTIONS.to_string(), "-r", &BUYERS.to_string()]);
    command.args(["evalsha", &sha, "4", &key("stock"), &key("buyers"), &key("claims"), &key("epoch")]);
    // It writes twelve digits in place of __rand_int__, as many as the end of a UUID has.
    command.args(["1", "00000000-0000-4000-8000-__rand_int__", "buyer-__rand_int__", "1", "1", "0"]);
    command.args(["1700000000000", "0", "00000000000000000000000000000001"]);
    let output = command.kill_on_drop(true).output().await.context("redis-benchmark (Debian: redis-tools)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "redis-benchmark: {text}{}", String::from_utf8_lossy(&output.stderr));
    let left: i64 = client.get(key("stock")).await?;
    client.quit().await?;
    ensure!((stock - left) as f64 >= TAKEN_PART * CLAIMS as f64, "redis-benchmark took only {} units", stock - left);
    rate(&text).with_context(|| format!("no rate in {text:?}"))
}

/// The second column of the last line: requests a second.
fn rate(csv: &str) -> Option<f64> {
    let line = csv.lines().rfind(|line| line.starts_with('"'))?;
    line.split("\",\"").nth(1)?.trim_matches('"').parse().ok()
}
