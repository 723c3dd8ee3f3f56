//! A report as a table for a person.

use super::report::{Report, Verdict};
use crate::steps::paint;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

/// The table, and under it the verdict with its reasons.
pub fn table(report: &Report, colour: bool) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["", "found", "wanted"]);
    for (name, found, wanted) in rows(report) {
        table.add_row([name.to_owned(), found, wanted]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let (word, code) = match report.verdict {
        Verdict::Pass => ("pass", "1;32"),
        Verdict::Fail => ("fail", "1;31"),
    };
    let mut text = format!("{table}\n\nverdict: {}\n", paint(colour, code, word));
    for reason in &report.reasons {
        text.push_str("  - ");
        text.push_str(reason);
        text.push('\n');
    }
    text
}

fn rows(r: &Report) -> Vec<(&'static str, String, String)> {
    let none = String::new;
    let zero = || "0".to_owned();
    let ms = |v: f64| format!("{v:.1} ms");
    let mib = |v: Option<f64>| v.map_or_else(|| "elsewhere".to_owned(), |v| format!("{v:.1} MiB"));
    let mut rows = vec![
        ("buyers", count(r.buyers.into()), none()),
        ("stock", count(r.stock.into()), none()),
        ("reserved (live orders)", r.reserved.to_string(), wanted_reserved(r)),
        ("oversold", r.oversold.to_string(), zero()),
        ("stranded", r.stranded.to_string(), zero()),
        ("double orders", r.double_orders.to_string(), zero()),
        ("unanswered buyers", count(r.unanswered), zero()),
        ("claims at the origin, worst second", count(r.claims_at_origin), format!("≤ {:.0}", r.admission_bound)),
        (
            "claims at the origin, worst ten seconds",
            count(r.claims_at_origin_10s),
            format!("≤ {:.0}", r.admission_bound_10s),
        ),
        (
            "used of the permits that could be granted",
            r.admission_used.map_or_else(none, |share| format!("{:.0} %", share * 100.0)),
            none(),
        ),
        ("clicks refused before the origin's check", count(r.refused_at_edge), none()),
        ("answer to a click, p50", ms(r.answer_ms.p50), none()),
        ("answer to a click, p99", ms(r.answer_ms.p99), none()),
        ("answer to a click, longest", ms(r.answer_ms.max), none()),
        ("waited in the generator, p99", ms(r.generator_wait_ms.p99), none()),
        ("last 202 to last commit", format!("{} ms", r.settled_ms), none()),
        ("paid", count(r.paid), none()),
    ];
    if r.lapsed + r.late > 0 {
        rows.push(("lapsed", count(r.lapsed), none()));
        rows.push(("paid too late", count(r.late), none()));
        rows.push(("refunded", count(r.refunded), count(r.late)));
        rows.push(("on offer again", r.on_offer.to_string(), none()));
    }
    rows.extend([
        ("connections at once", r.connections.to_string(), format!("≤ {}", r.connections_limit)),
        ("requests", count(r.requests), none()),
        ("requests lost and repeated", count(r.requests_lost), none()),
        ("peak memory, edge", mib(r.peak_rss_mb.edge), none()),
        ("peak memory, origin", mib(r.peak_rss_mb.origin), none()),
        (
            "entering, selling, all answered, at rest",
            format!(
                "{:.1}, {:.1}, {:.1}, {:.1} s",
                r.seconds.entering, r.seconds.selling, r.seconds.finishing, r.seconds.settling
            ),
            none(),
        ),
    ]);
    rows
}

fn wanted_reserved(r: &Report) -> String {
    let possible = r.stock.min(r.buyers);
    match r.lapsed + r.late {
        0 => possible.to_string(),
        gone => format!("≥ {}", u64::from(possible).saturating_sub(gone)),
    }
}

/// A count with its thousands set apart.
fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_set_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (20_000, "20,000"), (1_234_567, "1,234,567")] {
            assert_eq!(super::count(n), text);
        }
    }
}
