//! Token buckets by client address (design §5, step 3), in a table whose memory never grows.
//!
//! Each bucket is one number: GCRA's theoretical arrival time (ITU-T I.371), in microseconds. The
//! table is set-associative: an address hashes to one set; when the set is full, the slot that is
//! closest to refilled is given away. So hostile addresses can at worst forgive each other.
//! The hash is seeded at random, so that nobody can aim at another's set.

use crate::limits::{ADDRESS_SLOTS, ADDRESS_WAYS};
use flashgate_shared::{UnixMs, sale::BucketLimit};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// What a request is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Claim,
    Enter,
    Status,
    Read,
    /// Claims of one buyer, from whatever address.
    Account,
    /// Claims of one device, whatever accounts it uses: where the shop's entry tokens name devices.
    Device,
    /// Questions of the whole instance about sales it does not know.
    Unknown,
}

/// The part of a client's address that is limited: IPv4 whole, IPv6 by /64, because a subscriber
/// gets (at least) a /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AddressKey {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6((v6.to_bits() >> 64) as u64),
        }
    }
}

/// What a shield in front of the gate counts a client by: the same part of its address, in words.
pub fn shield_key(client: IpAddr) -> String {
    match AddressKey::from(client) {
        AddressKey::V4(bits) => Ipv4Addr::from_bits(bits).to_string(),
        AddressKey::V6(network) => format!("{}/64", Ipv6Addr::from_bits(u128::from(network) << 64)),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The whole hash of the key; 0 in a slot never used.
    tag: u64,
    /// Theoretical arrival time, in microseconds of the edge's clock; refilled when it has passed.
    tat_us: u64,
}

/// All buckets of an instance.
pub(crate) struct AddressTable {
    seed: (u64, u64),
    slots: Box<[Slot]>,
}

impl AddressTable {
    /// An empty table with the full number of slots.
    pub(crate) fn new(seed: (u64, u64)) -> Self {
        Self::with_slots(seed, ADDRESS_SLOTS)
    }

    fn with_slots(seed: (u64, u64), slots: usize) -> Self {
        Self { seed, slots: vec![Slot::default(); slots].into_boxed_slice() }
    }

    /// Takes one token of the bucket `key`; refused, it says in how many milliseconds one is there.
    pub(crate) fn take(&mut self, key: impl Hash, limit: BucketLimit, now_ms: UnixMs) -> Result<(), u64> {
        let tag = self.tag(key);
        let now_us = now_ms.max(0).unsigned_abs().saturating_mul(1000);
        let Some(slot) = self.slot(tag, now_us) else {
            return Ok(()); // no slots: the table cannot be built so
        };
        spend(&mut slot.tat_us, limit, now_us)
    }

    fn tag(&self, key: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        key.hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// The key's slot; a new key takes the slot that is closest to refilled.
    fn slot(&mut self, tag: u64, now_us: u64) -> Option<&mut Slot> {
        let sets = (self.slots.len() / ADDRESS_WAYS).max(1);
        let first = (tag as usize % sets) * ADDRESS_WAYS;
        let set = self.slots.get_mut(first..first + ADDRESS_WAYS)?;
        let found = set
            .iter()
            .position(|s| s.tag == tag)
            .or_else(|| (0..set.len()).min_by_key(|&i| set.get(i).map_or(u64::MAX, |s| s.tat_us)))?;
        let slot = set.get_mut(found)?;
        if slot.tag != tag {
            *slot = Slot { tag, tat_us: now_us };
        }
        Some(slot)
    }
}

/// GCRA: one token at `now_us`, or how many milliseconds to wait for it.
fn spend(tat_us: &mut u64, limit: BucketLimit, now_us: u64) -> Result<(), u64> {
    let interval_us = ((1e6 / limit.rate_per_s) as u64).max(1);
    let depth_us = ((interval_us as f64) * limit.burst) as u64;
    // A clock that was set back must not lock anybody out for longer than an empty bucket refills.
    let start_us = (*tat_us).clamp(now_us, now_us.saturating_add(depth_us));
    let next_us = start_us.saturating_add(interval_us);
    let over_us = next_us.saturating_sub(now_us.saturating_add(depth_us));
    if over_us > 0 {
        *tat_us = start_us;
        return Err(over_us.div_ceil(1000));
    }
    *tat_us = next_us;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shield_counts_subscribers() {
        let key = |address: &str| shield_key(address.parse().unwrap());
        assert_eq!(key("192.0.2.7"), "192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(key("2001:db8:1:2:3::4"), "2001:db8:1:2::/64");
    }
    use proptest::prelude::*;

    const LIMIT: BucketLimit = BucketLimit { rate_per_s: 10.0, burst: 3.0 };

    #[test]
    fn ipv6_counts_by_subscriber_and_mapped_addresses_as_ipv4() {
        let key = |a: &str| AddressKey::from(a.parse::<IpAddr>().unwrap());
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
        assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
    }

    #[test]
    fn classes_have_separate_buckets() {
        let mut table = AddressTable::with_slots((1, 2), 64);
        let key = AddressKey::V4(1);
        for _ in 0..3 {
            assert_eq!(table.take((Class::Claim, key), LIMIT, 1000), Ok(()));
        }
        assert_eq!(table.take((Class::Claim, key), LIMIT, 1000), Err(100));
        assert_eq!(table.take((Class::Status, key), LIMIT, 1000), Ok(()));
        assert_eq!(table.take((Class::Claim, key), LIMIT, 1099), Err(1));
        assert_eq!(table.take((Class::Claim, key), LIMIT, 1100), Ok(()));
    }

    #[test]
    fn a_clock_set_back_locks_nobody_out() {
        let mut table = AddressTable::with_slots((1, 2), 64);
        for _ in 0..3 {
            assert_eq!(table.take(1, LIMIT, 1_000_000), Ok(()));
        }
        assert!(table.take(1, LIMIT, 5).unwrap_err() <= 300);
        assert_eq!(table.take(1, LIMIT, 305), Ok(()));
    }

    #[test]
    fn hostile_addresses_neither_grow_the_table_nor_refill_their_own_bucket() {
        let mut table = AddressTable::new((3, 4));
        for _ in 0..3 {
            assert_eq!(table.take("victim", LIMIT, 1000), Ok(()));
        }
        assert!(table.take("victim", LIMIT, 1000).is_err());
        for n in 0..(2 * ADDRESS_SLOTS as u32) {
            let _ = table.take(n, LIMIT, 1000);
        }
        assert_eq!(table.slots.len(), ADDRESS_SLOTS);
        // Its bucket is the emptiest of its set, so it is the last to be given away.
        assert!(table.take("victim", LIMIT, 1000).is_err());
    }

    /// The textbook token bucket.
    struct Model {
        tokens: f64,
        at_ms: i64,
    }

    proptest! {
        #[test]
        fn buckets_follow_the_textbook(
            rate in 1u32..200, burst in 1u32..60, steps in prop::collection::vec(0i64..400, 1..200)
        ) {
            let limit = BucketLimit { rate_per_s: f64::from(rate), burst: f64::from(burst) };
            let mut model = Model { tokens: limit.burst, at_ms: 1_000 };
            let mut tat_us = 1_000_000;
            let mut now_ms = 1_000;
            for step in steps {
                now_ms += step;
                model.tokens = (model.tokens + (now_ms - model.at_ms) as f64 / 1000.0 * limit.rate_per_s).min(limit.burst);
                model.at_ms = now_ms;
                let got = spend(&mut tat_us, limit, now_ms as u64 * 1000);
                // A whole-microsecond interval rounds the rate up by at most a few parts in ten thousand.
                if model.tokens >= 1.0 + 1e-9 {
                    prop_assert!(got.is_ok());
                } else if model.tokens < 0.9 {
                    prop_assert!(got.is_err());
                }
                if got.is_ok() {
                    model.tokens -= 1.0;
                }
            }
        }

        #[test]
        fn the_wait_that_is_told_suffices_and_is_needed(rate in 1u32..200, burst in 1u32..20) {
            let limit = BucketLimit { rate_per_s: f64::from(rate), burst: f64::from(burst) };
            let mut tat_us = 0;
            let now_us = 5_000_000;
            let wait_ms = loop {
                if let Err(ms) = spend(&mut tat_us, limit, now_us) { break ms }
            };
            prop_assert!(wait_ms >= 1);
            prop_assert!(spend(&mut tat_us, limit, now_us + (wait_ms - 1) * 1000).is_err());
            prop_assert!(spend(&mut tat_us, limit, now_us + wait_ms * 1000).is_ok());
        }
    }
}
