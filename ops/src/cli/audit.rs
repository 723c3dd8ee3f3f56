//! `flashgate audit`: whether a sale's books hold (design I1 to I4).

use super::{FAIL, Where, say, stdout_colour, takes_stdout, write_json};
use crate::steps::paint;
use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use flashgate_shared::{SaleId, wire::AuditReport};
use std::{path::PathBuf, process::ExitCode};

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// The sale
    #[arg(long)]
    sale: SaleId,
    /// Write the audit as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: AuditArgs) -> Result<ExitCode> {
    let audit = args.place.admin()?.audit(&args.sale).await?;
    if let Some(path) = &args.json {
        write_json(path, &audit)?;
    }
    if !takes_stdout(args.json.as_ref()) {
        say(&table(&audit))?;
    }
    let holds = broken(&audit).is_empty();
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(FAIL) })
}

/// What does not hold. The counts are judged here as well, so that an audit cannot forget to say so.
fn broken(audit: &AuditReport) -> Vec<String> {
    let mut broken = audit.broken.clone();
    for (holds, sentence) in [
        (audit.oversold == 0, "I1: more units are sold than there are"),
        (audit.live_units == audit.sold, "I1: the stock row and the orders disagree"),
        (audit.double_orders == 0, "I2: a buyer has more than one live order"),
        (!audit.quiet || audit.stranded == 0, "I4: units are neither sold nor claimable"),
        (!audit.quiet || audit.drift == 0, "I4: at rest, gate and orders do not add up to the total"),
    ] {
        if !holds && broken.is_empty() {
            broken.push(sentence.to_owned());
        }
    }
    broken
}

fn table(audit: &AuditReport) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["", "units or rows"]);
    for (name, value) in [
        ("total", audit.total),
        ("sold", audit.sold),
        ("on offer in the gate", audit.on_offer),
        ("live orders", audit.live_orders),
        ("  of these paid", audit.paid_orders),
        ("expired orders", audit.expired_orders),
        ("refused claims", audit.lost_claims),
        ("in flight: outbox", audit.outbox),
        ("in flight: queue", audit.queued),
        ("in flight: releases", audit.releases_pending),
        ("in flight: refunds", audit.refunds_pending),
        ("dead letters", audit.dead_letters),
        ("held without an order", audit.held_without_order),
        ("oversold (I1)", audit.oversold),
        ("double orders (I2)", audit.double_orders),
        ("stranded (I4)", audit.stranded),
        ("drift (I4)", audit.drift),
    ] {
        table.add_row([name.to_owned(), value.to_string()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let broken = broken(audit);
    let mut text = format!("{table}\n\n{}: ", audit.sale);
    let motion = if audit.quiet { "at rest" } else { "in motion: drift and stranded are not judged" };
    if broken.is_empty() {
        text += &format!("{} ({motion})", paint(stdout_colour(), "1;32", "the books hold"));
    } else {
        text += &format!("{} ({motion})", paint(stdout_colour(), "1;31", "the books are broken"));
    }
    for sentence in broken {
        text += &format!("\n  - {sentence}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_invariant_is_found_even_when_the_audit_names_none() {
        let sound: AuditReport = serde_json::from_value(serde_json::json!({
            "sale": "s", "total": 10, "sold": 4, "live_units": 4, "live_orders": 4, "paid_orders": 4,
            "expired_orders": 0, "lost_claims": 0, "on_offer": 6, "held_without_order": 0, "outbox": 0,
            "queued": 0, "dead_letters": 0, "releases_pending": 0, "refunds_pending": 0, "oversold": 0,
            "double_orders": 0, "drift": 0, "stranded": 0, "quiet": true, "broken": []
        }))
        .unwrap();
        assert!(broken(&sound).is_empty());
        let with = |change: fn(&mut AuditReport)| {
            let mut audit = sound.clone();
            change(&mut audit);
            broken(&audit).concat()
        };
        assert!(with(|a| a.oversold = 1).starts_with("I1"));
        assert!(with(|a| a.live_units = 5).starts_with("I1"));
        assert!(with(|a| a.double_orders = 1).starts_with("I2"));
        assert!(with(|a| a.stranded = 1).starts_with("I4"));
        assert!(with(|a| a.drift = -1).starts_with("I4"));
        assert!(with(|a| (a.drift, a.quiet) = (-1, false)).is_empty(), "in motion drift proves nothing");
        assert_eq!(with(|a| (a.oversold, a.broken) = (1, vec!["I1: said".into()])), "I1: said");
        assert!(table(&sound).contains("the books hold"));
    }
}
