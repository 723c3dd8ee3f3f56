//! The link to a claim's status: it carries the claim's time and quantity under a MAC, so that
//! "absent after 30 s" (design §7) can be judged without a record of the claim.

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use flashgate_shared::{BuyerId, ClaimId, SaleId, UnixMs};
use serde::Deserialize;

/// What the MAC vouches for.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The claim.
    pub claim_id: ClaimId,
    /// The sale.
    pub sale: &'a SaleId,
    /// Whose claim.
    pub buyer: &'a BuyerId,
    /// Units asked for.
    pub quantity: u32,
    /// When the gate said OK.
    pub claimed_at_ms: UnixMs,
}

/// The keys of the MAC.
#[derive(Clone)]
pub struct MacKeys {
    current: hmac::Key,
    /// Whose links still count.
    previous: Vec<hmac::Key>,
}

impl MacKeys {
    /// From secrets, the current one first; `None` without any.
    pub fn new(secrets: &[Vec<u8>]) -> Option<Self> {
        let mut keys = secrets.iter().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret));
        Some(Self { current: keys.next()?, previous: keys.collect() })
    }
}

impl Facts<'_> {
    /// The path and query of the status resource.
    pub fn url(&self, keys: &MacKeys) -> String {
        let tag = hmac::sign(&keys.current, &self.message());
        let mac = BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref());
        let Self { claim_id, sale, quantity, claimed_at_ms, .. } = self;
        format!("/v1/claims/{claim_id}?sale={sale}&q={quantity}&t={claimed_at_ms}&m={mac}")
    }

    /// Whether `mac` is ours for these facts; in constant time.
    pub fn verify(&self, keys: &MacKeys, mac: &str) -> bool {
        let Ok(mac) = BASE64_URL_SAFE_NO_PAD.decode(mac) else { return false };
        let message = self.message();
        [&keys.current].into_iter().chain(&keys.previous).any(|key| hmac::verify(key, &message, &mac).is_ok())
    }

    /// Unambiguous: only the buyer may hold a separator, and it comes last.
    fn message(&self) -> Vec<u8> {
        let Self { claim_id, sale, buyer, quantity, claimed_at_ms } = self;
        format!("status-v1|{claim_id}|{sale}|{quantity}|{claimed_at_ms}|{buyer}").into_bytes()
    }
}

/// The query of a status link. Without the MAC it still finds what ledger and gate know.
#[derive(Debug, Clone, Deserialize)]
pub struct StatusQuery {
    /// The sale: chooses the token's audience and cookie.
    pub sale: SaleId,
    /// Units asked for.
    pub q: Option<u32>,
    /// When the gate said OK, Unix ms.
    pub t: Option<UnixMs>,
    /// The MAC over them.
    pub m: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_for_its_own_facts_only() {
        let secrets = ["0123456789abcdef", "fedcba9876543210", "another-old-key!"].map(|s| s.as_bytes().to_vec());
        let keys = |secrets: &[Vec<u8>]| MacKeys::new(secrets).unwrap();
        let key = keys(&secrets[..1]);
        let sale = "s".parse().unwrap();
        let (buyer, other): (BuyerId, BuyerId) = ("b".parse().unwrap(), "c".parse().unwrap());
        let claim_id = ClaimId::derive(&sale, &buyer, &"k".parse().unwrap());
        let facts = Facts { claim_id, sale: &sale, buyer: &buyer, quantity: 1, claimed_at_ms: 5 };
        let url = facts.url(&key);
        let mac = url.rsplit_once("m=").unwrap().1;
        assert!(facts.verify(&key, mac));
        assert!(!Facts { quantity: 2, ..facts }.verify(&key, mac));
        assert!(!Facts { claimed_at_ms: 4, ..facts }.verify(&key, mac));
        assert!(!Facts { buyer: &other, ..facts }.verify(&key, mac));
        assert!(!facts.verify(&key, "!"));
        // A new key before it: still good. Without it: gone.
        assert!(facts.verify(&keys(&[secrets[1].clone(), secrets[2].clone(), secrets[0].clone()]), mac));
        assert!(!facts.verify(&keys(&secrets[1..]), mac));
        assert!(MacKeys::new(&[]).is_none());
    }
}
