//! Whatever comes from outside is read without a panic, and nothing but the real thing is taken for it.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as B64};
use flashgate_shared::{
    ClaimId, HoldId, SaleId,
    admission::Permit,
    chain::{Checker, Entry, Hash},
    document,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    sale::SaleConfig,
    token::{self, KeySet, Lifetime},
    trace::TraceId,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::OnceLock;

const NOW_MS: i64 = 1_800_000_000_000;

/// A key set, and a good token of one of its keys.
fn signed() -> &'static (KeySet, String) {
    static SIGNED: OnceLock<(KeySet, String)> = OnceLock::new();
    SIGNED.get_or_init(|| {
        let pair = Ed25519KeyPair::generate().unwrap();
        let jwk = token::public_jwk(&B64.encode(pair.public_key()), Some("k")).unwrap();
        let now_s = NOW_MS / 1000;
        let header = json!({"alg": "EdDSA", "kid": "k", "typ": "JWT"});
        let claims = json!({"iss": "shop", "aud": "phones", "sub": "ann", "jti": "1",
                            "iat": now_s, "nbf": now_s, "exp": now_s + 60});
        let text = format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()));
        let token = format!("{text}.{}", B64.encode(pair.sign(text.as_bytes())));
        (KeySet::from_json(&json!({ "keys": [jwk] })).unwrap(), token)
    })
}

fn verify(token: &str) -> bool {
    let sale: SaleId = "phones".parse().unwrap();
    token::verify(token, &signed().0, "shop", &sale, NOW_MS, Lifetime::Strict).is_ok()
}

/// JSON of any shape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{1,12}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A sale's settings with some members exchanged for anything.
fn bent_settings() -> impl Strategy<Value = Value> {
    let good = json!({
        "id": "phones", "version": 1, "title": "Phones", "description": "", "total": 100,
        "price": {"amount_minor": 19_900, "currency": "EUR"}, "per_buyer_limit": 1, "opens_at_ms": 1, "closes_at_ms": 2,
        "buckets": 10, "admit_factor": 5.0, "enter_rate_per_s": 4000.0, "pay_window_ms": 600_000, "grace_ms": 30_000,
        "second_try": false, "anonymous_entry": true, "backlog_limit": 1000
    });
    let members: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
    prop::collection::vec((prop::sample::select(members), any_json()), 0..4).prop_map(move |changes| {
        let mut bent = good.clone();
        for (member, value) in changes {
            bent[member] = value;
        }
        bent
    })
}

#[test]
fn the_good_token_is_good() {
    assert!(verify(&signed().1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_is_a_token(text in ".{0,300}") {
        prop_assert!(!verify(&text));
    }

    #[test]
    fn no_changed_token_is_one(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let good = &signed().1;
        let at = at.index(good.len());
        let mut bytes = good.clone().into_bytes();
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
        // The last letter of each part has spare bits; a strict decoder refuses those that are set.
        prop_assert_eq!(verify(&changed), changed == *good, "{}", changed);
    }

    #[test]
    fn no_bytes_upset_the_reader_of_envelopes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = ClaimEnvelope::decode(&bytes);
    }

    #[test]
    fn an_envelope_of_any_json_is_read_whole_or_refused(value in any_json(), quantity in any::<i64>()) {
        let _ = ClaimEnvelope::decode(value.to_string().as_bytes());
        let claim_id = ClaimId::derive(&"phones".parse().unwrap(), &"ann".parse().unwrap(), &"k".parse().unwrap());
        let good = json!({"v": ENVELOPE_VERSION, "sale": "phones", "claim_id": claim_id, "buyer": "ann",
                          "quantity": quantity, "hold": "1.0.5-6", "claimed_at_ms": 5,
                          "trace_id": "0123456789abcdef0123456789abcdef", "more": value});
        match ClaimEnvelope::decode(good.to_string().as_bytes()) {
            Ok(envelope) => {
                prop_assert!(i64::from(envelope.quantity) == quantity && quantity > 0);
                prop_assert_eq!(ClaimEnvelope::decode(&envelope.encode()).unwrap(), envelope);
            }
            Err(_) => prop_assert!(!(1..=i64::from(u32::MAX)).contains(&quantity)),
        }
    }

    #[test]
    fn settings_are_read_or_refused_and_never_half(value in prop_oneof![any_json(), bent_settings()]) {
        if let Ok(read) = SaleConfig::strictly(&value) {
            // Read is not good: every bound is checked after it, without a panic.
            let _ = read.validate();
            prop_assert_eq!(SaleConfig::strictly(&serde_json::to_value(&read).unwrap()), Ok(read));
        }
    }

    #[test]
    fn key_sets_hold_no_private_part(value in any_json(), d in any::<bool>()) {
        let _ = KeySet::from_json(&value);
        let mut jwk = token::public_jwk(&B64.encode([7u8; 32]), Some("k")).unwrap();
        if d { jwk["d"] = value }
        prop_assert_eq!(KeySet::from_json(&json!({ "keys": [jwk] })).is_ok(), !d);
    }

    #[test]
    fn short_words_are_read_or_refused(text in ".{0,60}") {
        // What is read is written the same way.
        if let Ok(hold) = text.parse::<HoldId>() {
            prop_assert_eq!(hold.to_string().parse::<HoldId>(), Ok(hold));
        }
        if let Ok(permit) = text.parse::<Permit>() {
            prop_assert_eq!(permit.to_string().parse::<Permit>(), Ok(permit));
        }
        if let Ok(sale) = text.parse::<SaleId>() {
            prop_assert_eq!(sale.as_str(), text.as_str());
        }
        let _ = (TraceId::from_traceparent(&text), text.parse::<Hash>(), document::verify(&text, &signed().0).is_ok());
    }

    #[test]
    fn no_entry_of_any_numbers_upsets_the_checker(
        seq in any::<i64>(), units in any::<i64>(), sold in any::<i64>(), total in any::<i64>(), quantity in any::<i64>(),
        kind in prop::sample::select(flashgate_shared::chain::EntryKind::ALL),
    ) {
        let (claim_id, buyer) = (Some(ClaimId(uuid::Uuid::nil())), Some("tag".to_owned()));
        let mut entry = Entry {
            shard: 0, seq, at_ms: 0, kind, claim_id, buyer, quantity, units, sold, total, detail: None,
            hash: Hash::ZERO,
        };
        let sale: SaleId = "phones".parse().unwrap();
        for first in [seq, 1] {
            entry.seq = first;
            entry.hash = entry.hash_after(&Hash::ZERO, &sale);
            let mut checker = Checker::new(sale.clone());
            let _ = checker.check(&entry);
        }
    }
}
