//! `flashgate demo`: everything at once, for someone who has never seen it.

use super::{rehearse, say, up, write_json};
use crate::{
    rehearse::{ADMIT_FACTOR, Plan},
    shop::Shop,
    state,
    steps::Steps,
    times,
    values::{Share, price},
};
use anyhow::{Context, Result};
use clap::Args;
use flashgate_shared::sale::{AddressLimits, SaleConfig};
use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

/// From the end of the rehearsal to the opening of the sale for the person, in seconds.
const OPENS_IN_S: i64 = 30;
/// How long that sale lasts, in milliseconds.
const LASTS_MS: i64 = 4 * 3_600_000;
/// Units of that sale.
const UNITS: u32 = 5;

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Buyers
    #[arg(long, default_value_t = 20_000)]
    buyers: u32,
    /// Units
    #[arg(long, default_value_t = 100)]
    stock: u32,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "target/demo/report.json")]
    json: PathBuf,
    /// Exit after the verdict, even on a terminal
    #[arg(long)]
    no_stay: bool,
    #[command(flatten)]
    shop: up::ShopArgs,
}

pub(super) async fn run(args: DemoArgs) -> Result<ExitCode> {
    let steps = Steps::new(true);
    let Some(mut shop) = super::unless_told_to_end(Shop::start(args.shop.config()?, steps)).await? else {
        return Ok(ExitCode::from(super::ERROR));
    };
    let code = show(&mut shop, &args, steps).await;
    let stopped = shop.stop(steps).await;
    let code = code?;
    stopped?;
    Ok(code)
}

async fn show(shop: &mut Shop, args: &DemoArgs, steps: Steps) -> Result<ExitCode> {
    say(&up::addresses(&shop.stack))?;
    let plan = Plan {
        buyers: args.buyers,
        stock: args.stock,
        lapse: Share::default(),
        late: Share::default(),
        admit_factor: ADMIT_FACTOR,
        shards: 1,
    };
    let Some(report) = super::unless_told_to_end(rehearse::at(shop, &plan, steps)).await? else {
        return Ok(ExitCode::from(super::ERROR));
    };
    let code = rehearse::tell(&report, None)?;
    write_json(&args.json, &report)?;
    say(&format!("report: {}", args.json.display()))?;
    let person = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !args.no_stay;
    if person {
        stay(shop, steps).await?;
    }
    Ok(code)
}

/// A fresh sale for the person who watched.
async fn stay(shop: &mut Shop, steps: Steps) -> Result<()> {
    let path = state::default_path();
    if let Err(error) = shop.announce(&path) {
        steps.note(&format!("other commands will not find this shop by themselves: {error:#}"));
    }
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let sale = fresh_sale(now_ms)?;
    shop.stack.admin().create_sale(&sale).await.context("no sale for you could be created")?;
    say(&format!(
        "\nNow you. {UNITS} phones, on sale at {}:\n\n  {}/s/{}\n\nCtrl-C stops everything.",
        times::show_here(sale.opens_at_ms),
        shop.stack.edge_url(0),
        sale.id
    ))?;
    super::unless_told_to_end(shop.watch()).await.map(|_| ())
}

fn fresh_sale(now_ms: i64) -> Result<SaleConfig> {
    let opens_at_ms = now_ms + OPENS_IN_S * 1000;
    let sale = SaleConfig {
        id: format!("phones-{now_ms}").parse()?,
        version: 1,
        title: "A phone at half price".into(),
        description: format!("{UNITS} are left for those who watched."),
        price: price("199.00 EUR").map_err(anyhow::Error::msg)?,
        total: UNITS,
        per_buyer_limit: 1,
        opens_at_ms,
        closes_at_ms: opens_at_ms + LASTS_MS,
        buckets: 1,
        shards: 1,
        admit_factor: 5.0,
        enter_rate_per_s: 100.0,
        pay_window_ms: 300_000,
        grace_ms: 30_000,
        second_try: true,
        anonymous_entry: true,
        backlog_limit: 1_000,
        address_limits: AddressLimits::default(),
    };
    sale.validate()?;
    Ok(sale)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sale_for_the_person_is_sound() {
        let sale = super::fresh_sale(1_000).unwrap();
        assert_eq!(sale.opens_at_ms, 31_000);
    }
}
