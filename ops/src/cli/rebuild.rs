//! `flashgate sale rebuild`: orders the gate to be rebuilt, and waits for the end.

use super::{Where, sale::unknown_sale, say, takes_stdout, write_json};
use crate::steps::Steps;
use anyhow::{Context, Result, bail};
use flashgate_shared::{SaleId, wire::Rebuild};
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::time::{Instant, sleep};

/// How long the end is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn run(sale: &SaleId, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
    let admin = place.admin()?;
    admin.rebuild(sale).await.map_err(|e| unknown_sale(e, sale))?;
    let ended = async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let newest = admin.rebuilds(sale).await?.into_iter().next().context("the origin knows of no rebuild")?;
            if newest.ended_at_ms.is_some() {
                return Ok(newest);
            }
            if Instant::now() > deadline {
                bail!(
                    "not rebuilt after {} s: is a process with the role relay running? its log tells",
                    PATIENCE.as_secs()
                );
            }
            sleep(LOOK).await;
        }
    };
    let rebuild = Steps::new(!takes_stdout(json)).run(&format!("the gate of {sale} rebuilt"), ended).await?;
    if let Some(path) = json {
        write_json(path, &rebuild)?;
    }
    if !takes_stdout(json) {
        say(&told(&rebuild))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A rebuild, for a person.
fn told(rebuild: &Rebuild) -> String {
    let number = |n: Option<i64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let took_ms = rebuild.ended_at_ms.map_or(0, |end| end - rebuild.began_at_ms);
    format!(
        "  epoch {}, {} units on offer, sold again after {took_ms} ms",
        number(rebuild.epoch),
        number(rebuild.on_offer)
    )
}
