//! Identities (design §4): sale, buyer, claim, hold, epoch, bucket, idempotency key.
//!
//! Every type checks itself when it is made, so that a value in hand is a valid value.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// Why a string is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not `[a-z0-9-]{1,64}`.
    #[error("a sale id is 1 to 64 characters of a-z, 0-9 and '-'")]
    SaleId,
    /// Empty, longer than 128 bytes, or with control characters.
    #[error("a buyer id is 1 to 128 bytes without control characters")]
    BuyerId,
    /// Empty, longer than 128 bytes, or outside visible ASCII.
    #[error("an idempotency key is 1 to 128 visible ASCII characters")]
    IdempotencyKey,
    /// Not a UUID in hyphenated form.
    #[error("a claim id is a UUID")]
    ClaimId,
    /// Not `epoch.bucket.ms-seq`.
    #[error("a hold id is epoch.bucket.entry")]
    HoldId,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $err:expr, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether this text is one, without a copy of it.
            pub fn is_valid(text: &str) -> bool {
                let check: fn(&str) -> bool = $check;
                check(text)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                if Self::is_valid(&text) { Ok(Self(text)) } else { Err($err) }
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::try_from(text.to_owned())
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

text_id!(
    /// A sale: a slug, `[a-z0-9-]{1,64}`.
    SaleId,
    IdError::SaleId,
    |t| (1..=limits::SALE_ID_BYTES).contains(&t.len())
        && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
);
text_id!(
    /// A buyer: the token's `sub`, opaque to us, 1 to 128 bytes, no control characters.
    BuyerId,
    IdError::BuyerId,
    |t| (1..=limits::BUYER_ID_BYTES).contains(&t.len()) && !t.chars().any(char::is_control)
);
text_id!(
    /// The `Idempotency-Key` header of a claim: 1 to 128 visible ASCII characters.
    IdempotencyKey,
    IdError::IdempotencyKey,
    |t| (1..=limits::IDEMPOTENCY_KEY_BYTES).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic())
);

/// The generation of a sale's gate. A rebuild raises it; the first is 1.
pub type Epoch = i64;

/// Which bucket of a sale, from 0.
pub type BucketIndex = u16;

/// The namespace of claim ids (a fixed random UUID; changing it would orphan every claim).
const CLAIM_NAMESPACE: Uuid = Uuid::from_u128(0x6b0f_2d0e_9d3c_4a55_8f61_35c0_5a1e_7f10);

/// A claim: UUID v5 over the length-prefixed sale, buyer and idempotency key (design §4), so that a
/// replay finds its own claim with no look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimId(pub Uuid);

impl ClaimId {
    /// The id of the claim that this buyer makes in this sale with this key.
    pub fn derive(sale: &SaleId, buyer: &BuyerId, key: &IdempotencyKey) -> Self {
        let parts = [sale.as_str(), buyer.as_str(), key.as_str()];
        let mut name = Vec::with_capacity(parts.iter().map(|p| p.len() + 4).sum());
        for part in parts {
            // The length prefix keeps ("ab", "c") and ("a", "bc") apart. Lengths are ≤ 128.
            name.extend_from_slice(&(part.len() as u32).to_be_bytes());
            name.extend_from_slice(part.as_bytes());
        }
        Self(Uuid::new_v5(&CLAIM_NAMESPACE, &name))
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ClaimId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.len() != 36 {
            return Err(IdError::ClaimId);
        }
        Uuid::try_parse(text).map(Self).map_err(|_| IdError::ClaimId)
    }
}

/// One OK of `claim.lua` (rule R1): the unit that left the gate. Text form `epoch.bucket.ms-seq`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HoldId {
    /// The gate's epoch when the unit left.
    pub epoch: Epoch,
    /// The bucket it left from.
    pub bucket: BucketIndex,
    /// The outbox stream entry, `ms-seq`, as Redis names it.
    pub entry: String,
}

impl HoldId {
    /// A hold; `entry` must be a Redis stream entry id (`digits-digits`).
    pub fn new(epoch: Epoch, bucket: BucketIndex, entry: &str) -> Result<Self, IdError> {
        let (ms, seq) = entry.split_once('-').ok_or(IdError::HoldId)?;
        let digits = |t: &str| (1..=20).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit());
        if epoch < 0 || !digits(ms) || !digits(seq) {
            return Err(IdError::HoldId);
        }
        Ok(Self { epoch, bucket, entry: entry.to_owned() })
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.bucket, self.entry)
    }
}

impl FromStr for HoldId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut parts = text.splitn(3, '.');
        let mut next = || parts.next().ok_or(IdError::HoldId);
        let epoch = next()?.parse().map_err(|_| IdError::HoldId)?;
        let bucket = next()?.parse().map_err(|_| IdError::HoldId)?;
        Self::new(epoch, bucket, next()?)
    }
}

impl TryFrom<String> for HoldId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<HoldId> for String {
    fn from(hold: HoldId) -> String {
        hold.to_string()
    }
}

/// The bucket that a buyer's claims visit first: FNV-1a over the buyer id, modulo the buckets.
/// `buckets` of 0 is read as 1. The function is part of the protocol: a change strands receipts.
pub fn home_bucket(buyer: &BuyerId, buckets: u16) -> BucketIndex {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in buyer.as_str().bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
    }
    // FNV's low bits are its weakest; fold the high half in before taking the remainder.
    let folded = hash ^ (hash >> 32);
    (folded % u64::from(buckets.max(1))) as BucketIndex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sale_ids_are_slugs() {
        for good in ["a", "phones-2026", &"x".repeat(64)] {
            assert!(good.parse::<SaleId>().is_ok(), "{good}");
        }
        for bad in ["", "Phones", "a b", "é", "a/b", "{a}", &"x".repeat(65)] {
            assert_eq!(bad.parse::<SaleId>(), Err(IdError::SaleId), "{bad}");
        }
    }

    #[test]
    fn claim_ids_keep_neighbouring_parts_apart() {
        let id =
            |s: &str, b: &str, k: &str| ClaimId::derive(&s.parse().unwrap(), &b.parse().unwrap(), &k.parse().unwrap());
        assert_ne!(id("s", "ab", "c"), id("s", "a", "bc"));
        assert_eq!(id("s", "ab", "c"), id("s", "ab", "c"));
        // The derivation is part of the protocol: a deployed origin must find yesterday's claims.
        assert_eq!(id("s", "b", "k").to_string(), "2a79a811-4c13-5311-a5ad-1529bbabcf28");
    }

    #[test]
    fn hold_ids_round_trip() {
        let hold = HoldId::new(3, 7, "1700000000000-12").unwrap();
        assert_eq!(hold.to_string(), "3.7.1700000000000-12");
        assert_eq!(hold.to_string().parse::<HoldId>().unwrap(), hold);
        for bad in ["", "1.2", "1.2.x-1", "-1.2.3-4", "1.99999999.3-4", "1.2.3"] {
            assert!(bad.parse::<HoldId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn homes_spread_evenly() {
        let mut seen = [0u32; 10];
        for n in 0..10_000 {
            let home = home_bucket(&format!("buyer-{n}").parse().unwrap(), 10);
            seen[usize::from(home)] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }
}
