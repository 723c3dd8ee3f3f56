//! Following the chains of a sale: what an export is checked with.

use super::{Entry, EntryKind, Hash, Head};
use crate::ids::{ClaimId, SaleId};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What is wrong with a chain, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}, entry {seq}: {what}")]
pub struct Flaw {
    /// The shard.
    pub shard: i16,
    /// The entry's place.
    pub seq: i64,
    /// A sentence.
    pub what: String,
}

/// What a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Reserved { quantity: i64, shard: i16 },
    Paid,
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Shard {
    seq: i64,
    head: Hash,
    sold: i64,
    total: i64,
    /// Units sold before the chain began, whose claims are not in it.
    before: i64,
}

/// Follows the chains of one sale, entry by entry, in the order of each shard.
#[derive(Debug)]
pub struct Checker {
    sale: SaleId,
    shards: BTreeMap<i16, Shard>,
    claims: HashMap<ClaimId, Life>,
    /// Buyers with a live order, by the shard it is in.
    live: BTreeMap<i16, HashMap<String, ClaimId>>,
    /// Units that two shards gained together by moving: none, when both are told to their ends.
    moved: BTreeMap<(i16, i16), i64>,
    counts: BTreeMap<EntryKind, u64>,
}

/// What a chain adds up to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Units.
    pub total: i64,
    /// Units of live orders.
    pub sold: i64,
    /// Entries by kind.
    pub entries: BTreeMap<EntryKind, u64>,
    /// Where the shards end.
    pub heads: Vec<Head>,
}

impl Checker {
    /// At the beginning of a sale's chains.
    pub fn new(sale: SaleId) -> Self {
        Self {
            sale,
            shards: BTreeMap::new(),
            claims: HashMap::new(),
            live: BTreeMap::new(),
            moved: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// The next entry of its shard. After a flaw nothing more can be said.
    pub fn check(&mut self, entry: &Entry) -> Result<(), Flaw> {
        let flaw = |what: String| Flaw { shard: entry.shard, seq: entry.seq, what };
        let known = self.shards.get(&entry.shard).copied();
        let before = known.unwrap_or(Shard { seq: 0, head: Hash::ZERO, sold: 0, total: entry.total, before: 0 });
        if before.seq.checked_add(1) != Some(entry.seq) {
            return Err(flaw(format!("follows entry {}: entries are missing, or in another order", before.seq)));
        }
        if entry.hash_after(&before.head, &self.sale) != entry.hash {
            return Err(flaw("its hash does not fit: the entry was changed, or it follows another one".into()));
        }
        let begins = matches!(entry.kind, EntryKind::Created | EntryKind::Adopted);
        if begins != known.is_none() {
            return Err(flaw("a chain begins with created or adopted, and does so once".into()));
        }
        match entry.kind {
            EntryKind::Moved => self.note_move(entry, before.total).map_err(flaw)?,
            _ if entry.total != before.total => {
                return Err(flaw(format!("the stock changes from {} to {} units", before.total, entry.total)));
            }
            _ => {}
        }
        if before.sold.checked_add(entry.units) != Some(entry.sold) || !(0..=entry.total).contains(&entry.sold) {
            let (sold, units, now) = (before.sold, entry.units, entry.sold);
            return Err(flaw(format!("{sold} sold and a change of {units} are not {now} of {}", entry.total)));
        }
        let before_chain = match entry.kind {
            EntryKind::Adopted => entry.units,
            _ => before.before,
        };
        let left_from_before = self.live_on(entry, before_chain).map_err(flaw)?;
        let (seq, head, sold, total) = (entry.seq, entry.hash, entry.sold, entry.total);
        self.shards.insert(entry.shard, Shard { seq, head, sold, total, before: left_from_before });
        *self.counts.entry(entry.kind).or_default() += 1;
        Ok(())
    }

    /// Remembers what the shard gained or lost, until the other one has told its side.
    fn note_move(&mut self, entry: &Entry, total: i64) -> Result<(), String> {
        let other = entry.detail.as_deref().and_then(|text| text.parse::<i16>().ok());
        let Some(other) = other.filter(|other| *other != entry.shard) else {
            return Err("a move names the other shard".to_owned());
        };
        let gained = entry.total.checked_sub(total).filter(|gained| *gained != 0);
        let gained = gained.ok_or_else(|| "a move of nothing".to_owned())?;
        let pair = (entry.shard.min(other), entry.shard.max(other));
        let both = self.moved.entry(pair).or_default();
        *both = both.checked_add(gained).ok_or_else(|| "a move of too many units".to_owned())?;
        Ok(())
    }

    /// Whether the entry's claim may do what it does; the units that are left of those of before the chain.
    fn live_on(&mut self, entry: &Entry, before_chain: i64) -> Result<i64, String> {
        let units_must_be = |units: i64| match entry.units == units {
            true => Ok(()),
            false => Err(format!("{} changes sold by {} and not by {units}", entry.kind, entry.units)),
        };
        if matches!(entry.kind, EntryKind::Created | EntryKind::Rebuilt | EntryKind::Moved) {
            units_must_be(0)?;
        }
        if matches!(entry.kind, EntryKind::Created | EntryKind::Adopted | EntryKind::Rebuilt | EntryKind::Moved) {
            return match (&entry.claim_id, &entry.buyer) {
                (None, None) => Ok(before_chain),
                _ => Err(format!("{} is about no claim", entry.kind)),
            };
        }
        let (Some(claim_id), Some(buyer)) = (entry.claim_id, entry.buyer.as_deref()) else {
            return Err(format!("{} names no claim or no buyer", entry.kind));
        };
        if entry.quantity < 1 {
            return Err(format!("a claim of {} units", entry.quantity));
        }
        let life = self.claims.get(&claim_id).copied();
        match (entry.kind, life) {
            (EntryKind::Reserved, None) => {
                units_must_be(entry.quantity)?;
                if let Some(other) = self.live.entry(entry.shard).or_default().insert(buyer.to_owned(), claim_id) {
                    return Err(format!("the buyer of {claim_id} has the live order {other}"));
                }
                self.claims.insert(claim_id, Life::Reserved { quantity: entry.quantity, shard: entry.shard });
            }
            (EntryKind::Lost, None) => {
                units_must_be(0)?;
                self.claims.insert(claim_id, Life::Over);
            }
            (EntryKind::Paid, Some(Life::Reserved { quantity, shard }))
                if (quantity, shard) == (entry.quantity, entry.shard) =>
            {
                units_must_be(0)?;
                self.claims.insert(claim_id, Life::Paid);
            }
            (EntryKind::Expired, Some(Life::Reserved { quantity, shard }))
                if (quantity, shard) == (entry.quantity, entry.shard) =>
            {
                units_must_be(-quantity)?;
                self.live.entry(entry.shard).or_default().remove(buyer);
                self.claims.insert(claim_id, Life::Over);
            }
            // Claims of before the chain: as many units of them as there were.
            (EntryKind::Paid, None) if before_chain >= entry.quantity => {
                units_must_be(0)?;
                self.claims.insert(claim_id, Life::Paid);
                return Ok(before_chain - entry.quantity);
            }
            (EntryKind::Expired, None) if before_chain >= entry.quantity => {
                units_must_be(entry.quantity.saturating_neg())?;
                self.claims.insert(claim_id, Life::Over);
                return Ok(before_chain - entry.quantity);
            }
            (kind, life) => return Err(format!("{claim_id} is {kind} after {}", told(life))),
        }
        Ok(before_chain)
    }

    /// What all entries add up to, once every shard was followed to its head: what shards moved to each
    /// other must meet, and no buyer may have live orders in two of them.
    pub fn finish(&self) -> Result<Sum, Flaw> {
        let flaw =
            |shard: i16, what: String| Err(Flaw { shard, seq: self.shards.get(&shard).map_or(0, |at| at.seq), what });
        if let Some((&(one, other), units)) = self.moved.iter().find(|(_, units)| **units != 0) {
            return flaw(one, format!("{units} units moved between it and shard {other} have no other side"));
        }
        let mut seen: HashMap<&str, ClaimId> = HashMap::new();
        for (&shard, live) in &self.live {
            for (buyer, claim_id) in live {
                if let Some(other) = seen.insert(buyer, *claim_id) {
                    return flaw(shard, format!("the buyer of {claim_id} has the live order {other} in another shard"));
                }
            }
        }
        let heads = self.shards.iter().map(|(&shard, at)| Head { shard, seq: at.seq, hash: at.head }).collect();
        Ok(Sum {
            total: self.shards.values().map(|shard| shard.total).sum(),
            sold: self.shards.values().map(|shard| shard.sold).sum(),
            entries: self.counts.clone(),
            heads,
        })
    }
}

fn told(life: Option<Life>) -> &'static str {
    match life {
        None => "nothing",
        Some(Life::Reserved { .. }) => "reserved, with other units or in another shard",
        Some(Life::Paid) => "paid",
        Some(Life::Over) => "its end",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::buyer_tag;
    use sha2::{Digest, Sha256};
    use uuid::Uuid;

    /// Writes entries of a shard as the ledger does.
    struct Pen {
        shard: i16,
        head: Hash,
        seq: i64,
        sold: i64,
        total: i64,
        entries: Vec<Entry>,
    }

    fn sale() -> SaleId {
        "phones".parse().unwrap()
    }

    impl Pen {
        fn new() -> Self {
            Self::of(0)
        }

        fn of(shard: i16) -> Self {
            let mut pen = Self { shard, head: Hash::ZERO, seq: 0, sold: 0, total: 2, entries: Vec::new() };
            pen.write(EntryKind::Created, 0, 0);
            pen
        }

        /// So many units come from another shard.
        fn gain(&mut self, units: i64, from: i16) {
            self.total += units;
            self.write(EntryKind::Moved, 0, 0);
            let entry = self.entries.last_mut().unwrap();
            entry.detail = Some(from.to_string());
            self.seal();
        }

        /// `claim` 0 is none; each claim is of the buyer of its number.
        fn write(&mut self, kind: EntryKind, claim: u32, units: i64) {
            self.seq += 1;
            self.sold += units;
            let mut entry = Entry {
                shard: self.shard,
                seq: self.seq,
                at_ms: 1_000 + self.seq,
                kind,
                claim_id: (claim > 0).then(|| ClaimId(Uuid::from_u128(u128::from(claim)))),
                buyer: (claim > 0).then(|| buyer_tag(b"salt", &format!("buyer-{claim}").parse().unwrap())),
                quantity: i64::from(claim > 0),
                units,
                sold: self.sold,
                total: self.total,
                detail: (kind == EntryKind::Lost).then(|| "duplicate".to_owned()),
                hash: Hash::ZERO,
            };
            entry.hash = entry.hash_after(&self.head, &sale());
            self.head = entry.hash;
            self.entries.push(entry);
        }

        /// Gives every entry the hash that it must have: what an insider would do after changing one.
        fn seal(&mut self) {
            let mut head = Hash::ZERO;
            for entry in &mut self.entries {
                entry.hash = entry.hash_after(&head, &sale());
                head = entry.hash;
            }
            self.head = head;
        }
    }

    fn check(entries: &[Entry]) -> Result<Sum, Flaw> {
        let mut checker = Checker::new(sale());
        entries.iter().try_for_each(|entry| checker.check(entry))?;
        checker.finish()
    }

    /// A sale of two units with every kind of life.
    fn story() -> Pen {
        let mut pen = Pen::new();
        pen.write(EntryKind::Reserved, 1, 1);
        pen.write(EntryKind::Reserved, 2, 1);
        pen.write(EntryKind::Lost, 3, 0);
        pen.write(EntryKind::Paid, 1, 0);
        pen.write(EntryKind::Expired, 2, -1);
        pen.write(EntryKind::Rebuilt, 0, 0);
        pen.write(EntryKind::Reserved, 4, 1);
        pen
    }

    #[test]
    fn a_good_chain_adds_up() {
        let pen = story();
        let sum = check(&pen.entries).unwrap();
        assert_eq!((sum.total, sum.sold, sum.entries[&EntryKind::Reserved]), (2, 2, 3));
        assert_eq!(sum.heads, [Head { shard: 0, seq: 8, hash: pen.head }]);
    }

    #[test]
    fn the_hash_is_the_documented_one() {
        // printf '%064d' 0 | xxd -r -p; printf '<the fields>'; both into sha256sum.
        let entry = Pen::new().entries.remove(0);
        let text = "flashgate-ledger-1\nphones\n0\n1\n1001\ncreated\n-\n-\n0\n0\n0\n2\n-\n";
        let mut hash = Sha256::new();
        hash.update([0; 32]);
        hash.update(text.as_bytes());
        assert_eq!(entry.hash, Hash(hash.finalize().into()));
        assert_eq!(entry.hash.to_string().parse(), Ok(entry.hash));
    }

    #[test]
    fn an_entry_that_was_changed_left_out_put_in_or_moved_is_found() {
        let good = story().entries;
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at].at_ms += 1;
            let flaw = check(&changed).unwrap_err();
            assert_eq!((flaw.seq, flaw.what.contains("hash")), (good[at].seq, true), "{flaw}");
            if at + 1 < good.len() {
                let mut without = good.clone();
                without.remove(at);
                assert!(check(&without).unwrap_err().what.contains("missing"));
                let mut moved = good.clone();
                moved.swap(at, at + 1);
                check(&moved).unwrap_err();
            }
            let mut twice = good.clone();
            twice.insert(at, good[at].clone());
            check(&twice).unwrap_err();
        }
        // Cut off at the end: only the published head tells.
        let sum = check(&good[..good.len() - 1]).unwrap();
        assert_ne!(sum.heads, check(&good).unwrap().heads);
    }

    #[test]
    fn a_story_that_cannot_be_is_found_though_every_hash_fits() {
        let told = |write: &dyn Fn(&mut Pen)| {
            let mut pen = story();
            write(&mut pen);
            pen.seal();
            check(&pen.entries).unwrap_err().what
        };
        for (what, write) in [
            ("not 3 of 2", &(|pen: &mut Pen| pen.write(EntryKind::Reserved, 5, 1)) as &dyn Fn(&mut Pen)),
            ("after paid", &|pen: &mut Pen| pen.write(EntryKind::Expired, 1, -1)),
            ("after its end", &|pen: &mut Pen| pen.write(EntryKind::Paid, 2, 0)),
            ("after nothing", &|pen: &mut Pen| pen.write(EntryKind::Paid, 9, 0)),
            ("after its end", &|pen: &mut Pen| pen.write(EntryKind::Lost, 3, 0)),
            ("and not by -1", &|pen: &mut Pen| pen.write(EntryKind::Expired, 4, 0)),
            ("and not by 0", &|pen: &mut Pen| pen.write(EntryKind::Lost, 6, -1)),
            ("begins with", &|pen: &mut Pen| pen.write(EntryKind::Created, 0, 0)),
            ("the stock changes", &|pen: &mut Pen| pen.entries[3].total = 3),
            ("has the live order", &|pen: &mut Pen| {
                pen.write(EntryKind::Expired, 4, -1);
                pen.write(EntryKind::Reserved, 7, 1);
                pen.entries[9].buyer = pen.entries[1].buyer.clone();
            }),
        ] {
            let found = told(write);
            assert!(found.contains(what), "{found:?} does not say {what:?}");
        }
    }

    #[test]
    fn shards_move_free_stock_and_each_move_has_two_sides() {
        let (mut here, mut there) = (Pen::of(0), Pen::of(1));
        here.gain(1, 1);
        here.write(EntryKind::Reserved, 1, 1);
        assert!(check(&[&here.entries[..], &there.entries].concat()).unwrap_err().what.contains("no other side"));
        there.gain(-1, 0);
        let sum = check(&[&here.entries[..], &there.entries].concat()).unwrap();
        assert_eq!((sum.total, sum.sold, sum.heads.len()), (4, 1, 2));
        here.gain(1, 0);
        assert!(check(&here.entries).unwrap_err().what.contains("names the other shard"));
        let mut still = Pen::of(0);
        still.gain(0, 1);
        assert!(check(&still.entries).unwrap_err().what.contains("of nothing"));
    }

    #[test]
    fn a_buyer_has_no_live_orders_in_two_shards() {
        let (mut here, mut there) = (Pen::of(0), Pen::of(1));
        here.write(EntryKind::Reserved, 1, 1);
        there.write(EntryKind::Reserved, 5, 1);
        there.entries[1].buyer = here.entries[1].buyer.clone();
        there.seal();
        let flaw = check(&[&here.entries[..], &there.entries].concat()).unwrap_err();
        assert_eq!((flaw.shard, flaw.what.contains("in another shard")), (1, true), "{flaw}");
        // One after the other is two tries.
        here.write(EntryKind::Expired, 1, -1);
        check(&[&here.entries[..], &there.entries].concat()).unwrap();
    }

    #[test]
    fn an_adopted_chain_ends_what_was_sold_before_it_and_no_more() {
        let mut pen = Pen::new();
        pen.entries.clear();
        (pen.seq, pen.sold, pen.head) = (0, 0, Hash::ZERO);
        pen.write(EntryKind::Adopted, 0, 1);
        pen.write(EntryKind::Expired, 8, -1);
        check(&pen.entries).unwrap();
        pen.write(EntryKind::Paid, 9, 0);
        assert!(check(&pen.entries).unwrap_err().what.contains("after nothing"));
    }
}
