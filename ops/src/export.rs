//! An exported ledger: JSON lines, the first of which says what it is and where its chains end, the others are
//! the entries, shard by shard. Whoever has it can check it without the system.

use crate::admin::AdminClient;
use anyhow::{Context, Result, bail, ensure};
use flashgate_shared::{
    SaleId, UnixMs,
    chain::{Checker, Entry, Head, Sum},
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// Says what the file is.
const FORMAT: &str = "flashgate-ledger";
const VERSION: u32 = 1;
/// Longest line that is read, in bytes; one entry has about 400.
const LINE_BYTES: u64 = 64 * 1024;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Title {
    format: String,
    version: u32,
    sale: SaleId,
    exported_at_ms: UnixMs,
    /// How far the entries go.
    heads: Vec<Head>,
}

/// Writes the sale's ledger; how many entries.
pub async fn write(admin: &AdminClient, sale: &SaleId, to: &mut impl Write) -> Result<u64> {
    let heads = admin.ledger(sale, 0, 0).await?.heads;
    let exported_at_ms = jiff::Timestamp::now().as_millisecond();
    let title =
        Title { format: FORMAT.to_owned(), version: VERSION, sale: sale.clone(), exported_at_ms, heads: heads.clone() };
    line(to, &title)?;
    let mut entries = 0;
    for head in heads {
        let mut after = 0;
        while after < head.seq {
            let page = admin.ledger(sale, head.shard, after).await?.entries;
            ensure!(!page.is_empty(), "the ledger of {sale} ends at {after}, before its head {}", head.seq);
            for entry in page.iter().take_while(|entry| entry.seq <= head.seq) {
                line(to, entry)?;
                entries += 1;
            }
            after = page.last().map_or(head.seq, |entry| entry.seq);
        }
    }
    to.flush()?;
    Ok(entries)
}

fn line(to: &mut impl Write, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    Ok(to.write_all(b"\n")?)
}

/// Follows an export from its first line to its last: what it adds up to. An error says what is wrong, and
/// where.
pub fn check(from: impl BufRead) -> Result<(SaleId, Sum)> {
    let mut lines = Lines { from, number: 0 };
    let title: Title = lines.next()?.context("the file is empty")?;
    ensure!(title.format == FORMAT, "line 1: no ledger export, but {:?}", title.format);
    ensure!(title.version == VERSION, "line 1: version {} is not known here", title.version);
    let mut checker = Checker::new(title.sale.clone());
    while let Some(entry) = lines.next::<Entry>()? {
        checker.check(&entry).with_context(|| format!("line {}", lines.number))?;
    }
    let sum = checker.finish().context("at the end")?;
    if sum.heads != title.heads {
        bail!("after line {}: the entries end elsewhere than the first line says: some are missing", lines.number);
    }
    Ok((title.sale, sum))
}

struct Lines<R> {
    from: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>> {
        let mut text = String::new();
        let place = self.number + 1;
        let read = std::io::Read::take(&mut self.from, LINE_BYTES).read_line(&mut text);
        if read.with_context(|| format!("line {place}"))? == 0 {
            return Ok(None);
        }
        ensure!(text.ends_with('\n'), "line {place} is cut off, or longer than {LINE_BYTES} bytes");
        self.number = place;
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("line {place}"))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::chain::{EntryKind, Hash};

    fn export(entries: i64) -> Vec<String> {
        let sale: SaleId = "phones".parse().unwrap();
        let (mut head, mut lines) = (Hash::ZERO, Vec::new());
        for seq in 1..=entries {
            let kind = if seq == 1 { EntryKind::Created } else { EntryKind::Rebuilt };
            let (claim_id, buyer, detail) = (None, None, None);
            let mut entry = Entry {
                shard: 0,
                seq,
                at_ms: 5,
                kind,
                claim_id,
                buyer,
                quantity: 0,
                units: 0,
                sold: 0,
                total: 3,
                detail,
                hash: Hash::ZERO,
            };
            entry.hash = entry.hash_after(&head, &sale);
            head = entry.hash;
            lines.push(serde_json::to_string(&entry).unwrap() + "\n");
        }
        let heads = vec![Head { shard: 0, seq: entries, hash: head }];
        let title = Title { format: FORMAT.into(), version: 1, sale, exported_at_ms: 1, heads };
        lines.insert(0, serde_json::to_string(&title).unwrap() + "\n");
        lines
    }

    fn wrong(lines: &[String]) -> String {
        format!("{:#}", check(lines.concat().as_bytes()).unwrap_err())
    }

    #[test]
    fn a_whole_export_is_good_and_whatever_is_done_to_it_is_found() {
        let good = export(4);
        let (sale, sum) = check(good.concat().as_bytes()).unwrap();
        assert_eq!((sale.as_str(), sum.total, sum.heads[0].seq), ("phones", 3, 4));
        assert!(wrong(&good[..4]).contains("some are missing"), "truncated");
        assert!(wrong(&[&good[..2], &good[3..]].concat()).starts_with("line 3"), "one left out");
        let mut moved = good.clone();
        moved.swap(2, 3);
        assert!(wrong(&moved).starts_with("line 3"), "moved");
        let mut changed = good.clone();
        changed[2] = changed[2].replace("\"at_ms\":5", "\"at_ms\":6");
        assert!(wrong(&changed).starts_with("line 3"), "changed");
        let mut cut = good.clone();
        cut[4].truncate(40);
        assert!(wrong(&cut).contains("line 5 is cut off"));
        assert!(wrong(&[]).contains("empty"));
        assert!(wrong(&["{\"format\":\"x\"}\n".to_owned()]).starts_with("line 1"));
        assert!(wrong(&[good[0].clone(), "x".repeat(70_000)]).contains("longer than"));
    }
}
