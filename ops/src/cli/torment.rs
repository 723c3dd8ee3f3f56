//! `flashgate torment`: a soak with faults, and its verdict.

use super::{FAIL, say, stdout_colour, takes_stdout, write_json};
use crate::{
    steps::{Steps, paint},
    torment::{TormentPlan, TormentReport, schedule, torment},
};
use anyhow::Result;
use clap::Args;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Longest torment, in minutes: a day.
const MINUTES_MAX: u64 = 24 * 60;

/// Arguments of `torment`.
#[derive(Debug, Args)]
pub(super) struct TormentArgs {
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=MINUTES_MAX))]
    minutes: u64,
    /// What the faults are drawn from: the same seed draws the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Buyers of each crowd
    #[arg(long, default_value_t = 600)]
    buyers: u32,
    /// Units of each sale
    #[arg(long, default_value_t = 60)]
    stock: u32,
    /// Only show the schedule
    #[arg(long)]
    dry_run: bool,
    /// Write the report as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) async fn run(args: TormentArgs) -> Result<ExitCode> {
    let length = Duration::from_secs(60 * args.minutes);
    if args.dry_run {
        for (number, fault) in (0..).zip(schedule(args.seed, length)) {
            say(&format!("{number:>4}  {:>5} ms later  {fault}", fault.after.as_millis()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let plan = TormentPlan { length, seed: args.seed, buyers: args.buyers, stock: args.stock };
    let Some(report) = super::unless_told_to_end(torment(&plan, Steps::new(true))).await? else {
        return Ok(ExitCode::from(super::ERROR));
    };
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    if !takes_stdout(args.json.as_ref()) {
        say(&told(&report))?;
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::from(FAIL) })
}

fn told(report: &TormentReport) -> String {
    let mut faults = Table::new();
    faults.load_preset(UTF8_FULL_CONDENSED);
    faults.set_header(["fault", "times", "until the sale took claims again, longest"]);
    for (kind, suffered) in &report.by_kind {
        let longest = format!("{} ms", suffered.longest_until_open_ms);
        faults.add_row([kind.clone(), suffered.faults.to_string(), longest]);
    }
    let mut rounds = Table::new();
    rounds.load_preset(UTF8_FULL_CONDENSED);
    rounds.set_header(["sale", "sold", "paid", "oversold", "stranded", "double", "charged but lost", "unanswered"]);
    for round in &report.rounds {
        let r = &round.report;
        let lost = r.charged_but_lost.map_or_else(|| "?".to_owned(), |n| n.to_string());
        rounds.add_row([
            r.sale.to_string(),
            format!("{} of {}", r.reserved, r.stock),
            r.paid.to_string(),
            r.oversold.to_string(),
            r.stranded.to_string(),
            r.double_orders.to_string(),
            lost,
            r.unanswered.to_string(),
        ]);
    }
    let verdict = if report.passed { ("1;32", "pass") } else { ("1;31", "fail") };
    let mut text = format!("{faults}\n{rounds}\n{} faults, seed {}\n", report.faults, report.seed);
    for sentence in report.rounds.iter().flat_map(|round| &round.broken) {
        text += &format!("  - {sentence}\n");
    }
    text + &format!("\nverdict: {}", paint(stdout_colour(), verdict.0, verdict.1))
}
