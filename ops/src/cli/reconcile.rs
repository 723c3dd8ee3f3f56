//! `flashgate reconcile` and `flashgate sale report`.

use super::{FAIL, Where, audit::show_head, sale::unknown_sale, say, stdout_colour, takes_stdout, write_json};
use crate::{steps::paint, times};
use anyhow::{Context, Result};
use clap::Args;
use flashgate_shared::{
    SaleId,
    wire::{ClosingReport, Drift, Reconciliation, Repair},
};
use std::{path::PathBuf, process::ExitCode};

/// Arguments of `reconcile`.
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// The sale
    #[arg(long)]
    sale: SaleId,
    /// Mend what can be mended: lost messages are published again, wrong counters by a rebuild of the gate
    #[arg(long)]
    repair: bool,
    /// Only tell what was mended so far, when, and by whose wish
    #[arg(long, conflicts_with = "repair")]
    history: bool,
    /// Younger claims may still be on their way
    #[arg(long, value_name = "LENGTH", default_value = "1m")]
    older_than: String,
    /// Write the findings as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

/// Exit code 1 when something drifted and was not mended.
pub(super) async fn run(args: ReconcileArgs) -> Result<ExitCode> {
    let older_than_ms = u32::try_from(times::length_ms(&args.older_than).context("--older-than")?)
        .context("--older-than: at most 49 days")?;
    if args.history {
        return history(&args).await;
    }
    let found = args.place.admin()?.reconcile(&args.sale, args.repair, older_than_ms).await;
    let found = found.map_err(|e| unknown_sale(e, &args.sale))?;
    if let Some(path) = &args.json {
        write_json(path, &found)?;
    }
    if !takes_stdout(args.json.as_ref()) {
        say(&findings(&found))?;
    }
    let mended = found.drifts.iter().all(|drift| drift.repair.is_some());
    Ok(if mended { ExitCode::SUCCESS } else { ExitCode::from(FAIL) })
}

async fn history(args: &ReconcileArgs) -> Result<ExitCode> {
    let repairs = args.place.admin()?.repairs(&args.sale).await.map_err(|e| unknown_sale(e, &args.sale))?;
    if let Some(path) = &args.json {
        write_json(path, &repairs)?;
    }
    if takes_stdout(args.json.as_ref()) {
        return Ok(ExitCode::SUCCESS);
    }
    if repairs.is_empty() {
        say(&format!("{}: nothing had to be mended", args.sale))?;
    }
    for Repair { id, made_at_ms, wished_by, drift } in &repairs {
        say(&format!("  {id}  {}  {wished_by}: {}", times::show(*made_at_ms), told_drift(drift)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn told_drift(drift: &Drift) -> String {
    let claim = drift.claim_id.map(|id| format!(" {id}")).unwrap_or_default();
    let repair = drift.repair.as_deref().unwrap_or("not mended");
    format!("{}{claim}, {} units: {} ({repair})", drift.kind, drift.units, drift.cause)
}

fn findings(found: &Reconciliation) -> String {
    let motion = if found.quiet { "at rest" } else { "in motion: counters are not compared" };
    let verdict = if found.drifts.is_empty() { ("1;32", "all stores say the same") } else { ("1;31", "drift") };
    let mut text = format!("{}: {} ({motion})", found.sale, paint(stdout_colour(), verdict.0, verdict.1));
    for unseen in &found.unseen {
        text += &format!("\n  {}  not compared: {unseen}", paint(stdout_colour(), "33", "warn"));
    }
    for drift in &found.drifts {
        text += &format!("\n  {}", told_drift(drift));
    }
    text
}

/// `flashgate sale report`: exit code 1 when units are oversold or stranded.
pub(super) async fn report(sale: &SaleId, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
    let report = place.admin()?.report(sale).await.map_err(|e| unknown_sale(e, sale))?;
    if let Some(path) = json {
        write_json(path, &report)?;
    }
    if !takes_stdout(json) {
        say(&told(&report))?;
        if report.stranded != 0 {
            // Which units, and why.
            say(&findings(&place.admin()?.reconcile(sale, false, 0).await?))?;
        }
    }
    let sound = report.oversold == 0 && report.stranded == 0;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(FAIL) })
}

fn told(r: &ClosingReport) -> String {
    let share = |units: i64| format!("{units} ({:.1} %)", 100.0 * units as f64 / (r.total.max(1)) as f64);
    let mut text = format!("{}, {} ({})", r.sale, r.state, times::show(r.at_ms));
    if !r.quiet {
        text += "\n  something is still on its way: the figures are not final";
    }
    let mut rows: Vec<(&str, String)> = vec![
        ("total", r.total.to_string()),
        ("paid", share(r.paid_units)),
        ("reserved", share(r.reserved_units)),
        ("on offer", share(r.on_offer)),
        ("oversold", r.oversold.to_string()),
        ("stranded", r.stranded.to_string()),
        ("lapsed", format!("{} reservations", r.lapsed_orders)),
    ];
    for (reason, count) in &r.lost {
        rows.push(("refused", format!("{count} {reason}")));
    }
    for (currency, amount_minor) in &r.revenue {
        rows.push(("revenue", format!("{amount_minor} {currency}, minor units")));
    }
    rows.push(("refunds", format!("{}, {} not confirmed yet", r.refunds, r.refunds_pending)));
    rows.push(("buyers", format!("{}, {} with more than two keys", r.buyers, r.insistent_buyers)));
    rows.push(("rebuilds", r.rebuilds.to_string()));
    for head in &r.heads {
        rows.push(("head", show_head(head)));
    }
    for (name, value) in rows {
        text += &format!("\n  {name:<9} {value}");
    }
    text
}
