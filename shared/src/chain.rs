//! The ledger's chain: every change of an order and of `sold` is an entry, append-only, and each entry's
//! hash covers the one before it, for each sale and shard of its stock (design §2, I1 to I3).
//!
//! Whoever holds an export and one hash that was published can tell, without the system, that nothing was
//! changed, left out, put in or moved: [`Checker`] follows the chains, adds up the stock at each step, and sees
//! that each claim had one life and each buyer at most one live order. A buyer stands in it as a tag, the
//! hash of a salt and his id: erasing salt and id leaves the chain whole and nobody to be found in it.
//!
//! The hash of an entry is SHA-256 over the 32 bytes of the hash before (zeros before the first) and these
//! fields, each ended by a line feed: `flashgate-ledger-1`, sale, shard, seq, at_ms, kind, claim id, buyer's
//! tag, quantity, units, sold, total, detail; an absent one is `-`.

mod checker;

pub use crate::order::UnknownWord;
use crate::{
    clock::UnixMs,
    ids::{BuyerId, ClaimId, SaleId},
    order::words,
};
pub use checker::{Checker, Flaw, Sum};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fmt, fmt::Write, str::FromStr};

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
        /// Free stock came from another shard, or went to it; the detail is that shard.
        Moved = "moved",
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
