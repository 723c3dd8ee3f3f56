//! The ledger's chain: every change of an order and of `sold` is an entry, append-only, and each entry's
//! hash covers the one before it, for each sale and shard of its stock (design §2, I1 to I3).
//!
//! Whoever holds an export and one hash that was published can tell, without the system, that nothing was
//! changed, left out, put in or moved: [`Checker`] follows the chain, adds up the stock at each step, and sees
//! that each claim had one life and each buyer at most one live order. A buyer stands in it as a tag, the
//! hash of a salt and his id: erasing salt and id leaves the chain whole and nobody to be found in it.
//!
//! The hash of an entry is SHA-256 over the 32 bytes of the hash before (zeros before the first) and these
//! fields, each ended by a line feed: `flashgate-ledger-1`, sale, shard, seq, at_ms, kind, claim id, buyer's
//! tag, quantity, units, sold, total, detail; an absent one is `-`.

pub use crate::order::UnknownWord;
use crate::{
    clock::UnixMs,
    ids::{BuyerId, ClaimId, SaleId},
    order::words,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fmt::Write,
    str::FromStr,
};

/// Names the format in every hash.
const DOMAIN: &str = "flashgate-ledger-1";
/// Bytes of a buyer's tag.
const TAG_BYTES: usize = 16;

words! {
    /// What an entry records.
    EntryKind {
        /// The sale began, with its whole stock.
        Created = "created",
        /// The chain began with a sale that had sold before: what its claims were before is not in it.
        Adopted = "adopted",
        /// Units became a buyer's.
        Reserved = "reserved",
        /// A claim was refused; the detail says why.
        Lost = "lost",
        /// A reservation was paid.
        Paid = "paid",
        /// A reservation ended unpaid.
        Expired = "expired",
        /// The gate was rebuilt; the detail is its new epoch.
        Rebuilt = "rebuilt",
    }
}

/// A SHA-256 hash; its text is 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What comes before the first entry.
    pub const ZERO: Self = Self([0; 32]);
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hex(bytes: &[u8], f: &mut impl Write) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// No 64 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 lower-case hex digits")]
pub struct HashError;

impl FromStr for Hash {
    type Err = HashError;
    fn from_str(text: &str) -> Result<Self, HashError> {
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(HashError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| HashError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| HashError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a buyer is called in the chain: the first 16 bytes of SHA-256 over the sale's salt and his id, in hex.
pub fn buyer_tag(salt: &[u8], buyer: &BuyerId) -> String {
    let mut hash = Sha256::new();
    hash.update(salt);
    hash.update(buyer.as_str().as_bytes());
    let mut text = String::with_capacity(2 * TAG_BYTES);
    // Writing to memory does not fail.
    let _ = hex(hash.finalize().get(..TAG_BYTES).unwrap_or_default(), &mut text);
    text
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The part of the stock, from 0.
    pub shard: i16,
    /// Its place in the shard's chain, from 1.
    pub seq: i64,
    /// When, by the database's clock.
    pub at_ms: UnixMs,
    /// What.
    pub kind: EntryKind,
    /// The claim that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<ClaimId>,
    /// The tag of its buyer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer: Option<String>,
    /// Units of the claim; 0 without one.
    pub quantity: i64,
    /// By how much `sold` changed.
    pub units: i64,
    /// Units of live orders in this shard afterwards.
    pub sold: i64,
    /// Units that the shard has.
    pub total: i64,
    /// Why, or what more; of the kind's own sort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Covers all of this, and the hash before.
    pub hash: Hash,
}

impl Entry {
    /// The hash that it must have after `before` in this sale.
    pub fn hash_after(&self, before: &Hash, sale: &SaleId) -> Hash {
        let claim_id = self.claim_id.map(|id| id.to_string());
        let or_dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let fields = [
            DOMAIN.to_owned(),
            sale.to_string(),
            self.shard.to_string(),
            self.seq.to_string(),
            self.at_ms.to_string(),
            self.kind.to_string(),
            or_dash(claim_id.as_deref()),
            or_dash(self.buyer.as_deref()),
            self.quantity.to_string(),
            self.units.to_string(),
            self.sold.to_string(),
            self.total.to_string(),
            or_dash(self.detail.as_deref()),
        ];
        let mut hash = Sha256::new();
        hash.update(before.0);
        for field in fields {
            hash.update(field.as_bytes());
            hash.update(b"\n");
        }
        Hash(hash.finalize().into())
    }
}

/// Where a shard's chain ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The shard.
    pub shard: i16,
    /// Its last entry.
    pub seq: i64,
    /// That entry's hash: whoever knows it can check all entries before it.
    pub hash: Hash,
}

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
    /// Buyers with a live order.
    live: HashMap<String, ClaimId>,
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
        Self { sale, shards: BTreeMap::new(), claims: HashMap::new(), live: HashMap::new(), counts: BTreeMap::new() }
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
        if entry.total != before.total {
            return Err(flaw(format!("the stock changes from {} to {} units", before.total, entry.total)));
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

    /// Whether the entry's claim may do what it does; the units that are left of those of before the chain.
    fn live_on(&mut self, entry: &Entry, before_chain: i64) -> Result<i64, String> {
        let units_must_be = |units: i64| match entry.units == units {
            true => Ok(()),
            false => Err(format!("{} changes sold by {} and not by {units}", entry.kind, entry.units)),
        };
        if matches!(entry.kind, EntryKind::Created | EntryKind::Rebuilt) {
            units_must_be(0)?;
        }
        if matches!(entry.kind, EntryKind::Created | EntryKind::Adopted | EntryKind::Rebuilt) {
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
                if let Some(other) = self.live.insert(buyer.to_owned(), claim_id) {
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
                self.live.remove(buyer);
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

    /// What all entries so far add up to.
    pub fn sum(&self) -> Sum {
        let heads = self.shards.iter().map(|(&shard, at)| Head { shard, seq: at.seq, hash: at.head }).collect();
        Sum {
            total: self.shards.values().map(|shard| shard.total).sum(),
            sold: self.shards.values().map(|shard| shard.sold).sum(),
            entries: self.counts.clone(),
            heads,
        }
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
    use uuid::Uuid;

    /// Writes entries as the ledger does.
    struct Pen {
        head: Hash,
        seq: i64,
        sold: i64,
        entries: Vec<Entry>,
    }

    fn sale() -> SaleId {
        "phones".parse().unwrap()
    }

    impl Pen {
        fn new() -> Self {
            let mut pen = Self { head: Hash::ZERO, seq: 0, sold: 0, entries: Vec::new() };
            pen.write(EntryKind::Created, 0, 0);
            pen
        }

        /// `claim` 0 is none; each claim is of the buyer of its number.
        fn write(&mut self, kind: EntryKind, claim: u32, units: i64) {
            self.seq += 1;
            self.sold += units;
            let mut entry = Entry {
                shard: 0,
                seq: self.seq,
                at_ms: 1_000 + self.seq,
                kind,
                claim_id: (claim > 0).then(|| ClaimId(Uuid::from_u128(u128::from(claim)))),
                buyer: (claim > 0).then(|| buyer_tag(b"salt", &format!("buyer-{claim}").parse().unwrap())),
                quantity: i64::from(claim > 0),
                units,
                sold: self.sold,
                total: 2,
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
        }
    }

    fn check(entries: &[Entry]) -> Result<Sum, Flaw> {
        let mut checker = Checker::new(sale());
        entries.iter().try_for_each(|entry| checker.check(entry))?;
        Ok(checker.sum())
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
