//! `flashgate audit`: whether a sale's books hold (design I1 to I4).

use super::{FAIL, Where, say, stdout_colour, takes_stdout, write_json};
use crate::{export, steps::paint};
use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use flashgate_shared::{SaleId, chain::Head, wire::AuditReport};
use std::{fs::File, io::BufReader, path::PathBuf, process::ExitCode, str::FromStr};

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// The sale
    #[arg(long, required_unless_present = "offline")]
    sale: Option<SaleId>,
    /// Check an exported ledger (`flashgate sale export`) instead, without the system
    #[arg(long, value_name = "EXPORT", conflicts_with = "sale")]
    offline: Option<PathBuf>,
    /// With --offline: an entry number and its hash, as published; the export must have it as its end.
    /// May be repeated, one for each shard
    #[arg(long, value_name = "SHARD:ENTRY:HASH", requires = "offline")]
    head: Vec<Published>,
    /// Write the audit as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
}

/// A head as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Published(Head);

impl FromStr for Published {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write SHARD:ENTRY:HASH, as the report of the sale shows it".to_owned();
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or_else(wrong);
        let (shard, seq, hash) = (part()?, part()?, part()?);
        Ok(Self(Head {
            shard: shard.parse().map_err(|_| wrong())?,
            seq: seq.parse().map_err(|_| wrong())?,
            hash: hash.parse().map_err(|_| wrong())?,
        }))
    }
}

/// A head, for a person and for `--head`.
pub(super) fn show_head(head: &Head) -> String {
    format!("{}:{}:{}", head.shard, head.seq, head.hash)
}

/// Checks an export; a flaw is a failed audit and not an error of this command.
fn offline(path: &PathBuf, published: &[Published], json: Option<&PathBuf>) -> Result<ExitCode> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let checked = export::check(BufReader::new(file)).and_then(|(sale, sum)| {
        match published.iter().find(|head| !sum.heads.contains(&head.0)) {
            Some(head) => bail!("the ledger does not end at the published {}", show_head(&head.0)),
            None => Ok((sale, sum)),
        }
    });
    let paint = |colour: &str, text: &str| paint(stdout_colour(), colour, text);
    match checked {
        Ok((sale, sum)) => {
            if let Some(path) = json {
                write_json(path, &sum)?;
            }
            if !takes_stdout(json) {
                say(&format!("{sale}: {}", paint("1;32", "the ledger is whole")))?;
                say(&format!("  {} of {} units sold", sum.sold, sum.total))?;
                for (kind, count) in &sum.entries {
                    say(&format!("  {count:>7} {kind}"))?;
                }
                for head in &sum.heads {
                    say(&format!("  head {}", show_head(head)))?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(flaw) => {
            // JSON has no place for it: the exit code and this line tell.
            eprintln!("{}: {}: {flaw:#}", path.display(), paint("1;31", "the ledger is broken"));
            Ok(ExitCode::from(FAIL))
        }
    }
}

pub(super) async fn run(args: AuditArgs) -> Result<ExitCode> {
    let sale = match (&args.offline, &args.sale) {
        (Some(path), _) => return offline(path, &args.head, args.json.as_ref()),
        (None, Some(sale)) => sale,
        (None, None) => bail!("--sale or --offline is needed"),
    };
    let audit = args.place.admin()?.audit(sale).await?;
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
