//! The one policy for entry tokens, against tokens made by an independent signer (aws-lc-rs by
//! hand, not `jsonwebtoken`), so that an agreement of two wrongs cannot pass.

use aws_lc_rs::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use flashgate_shared::{
    SaleId,
    token::{KeySet, KeySetError, Lifetime, TokenError, bearer, cookie, verify},
};
use serde_json::{Value, json};

const ISSUER: &str = "https://shop.example";
const NOW_MS: i64 = 1_700_000_000_000;
const NOW_S: i64 = NOW_MS / 1000;

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::generate().unwrap()
}

fn jwk(kid: &str, pair: &Ed25519KeyPair) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": B64.encode(pair.public_key())})
}

fn keys(kid: &str, pair: &Ed25519KeyPair) -> KeySet {
    KeySet::from_json(&json!({"keys": [jwk(kid, pair)]})).unwrap()
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "phones", "sub": "buyer-1", "jti": "t1", "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 60})
}

fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()))
}

fn sign(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
    let text = unsigned(header, claims);
    let signature = B64.encode(pair.sign(text.as_bytes()));
    format!("{text}.{signature}")
}

fn header() -> Value {
    json!({"typ": "JWT", "alg": "EdDSA", "kid": "k1"})
}

fn sale() -> SaleId {
    "phones".parse().unwrap()
}

fn judge(token: &str, keys: &KeySet) -> Result<String, TokenError> {
    verify(token, keys, ISSUER, &sale(), NOW_MS, Lifetime::Strict).map(|claims| claims.sub.to_string())
}

#[test]
fn a_good_token_names_its_buyer() {
    let pair = pair();
    assert_eq!(judge(&sign(&pair, &header(), &claims()), &keys("k1", &pair)), Ok("buyer-1".into()));
}

#[test]
fn each_claim_is_judged() {
    let pair = pair();
    let keys = keys("k1", &pair);
    let with = |field: &str, value: Value| {
        let mut claims = claims();
        claims[field] = value;
        judge(&sign(&pair, &header(), &claims), &keys)
    };
    assert_eq!(with("iss", json!("https://else.example")), Err(TokenError::Issuer));
    assert_eq!(with("aud", json!("noodles")), Err(TokenError::Audience));
    assert_eq!(with("exp", json!(NOW_S)), Err(TokenError::Expired), "zero leeway: exp is the first second too late");
    assert_eq!(with("nbf", json!(NOW_S + 1)), Err(TokenError::NotYetValid));
    assert_eq!(with("sub", json!("")), Err(TokenError::Malformed));
    assert_eq!(with("sub", json!("x".repeat(129))), Err(TokenError::Malformed));
    for required in ["iss", "aud", "sub", "exp", "nbf"] {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(required);
        let answer = judge(&sign(&pair, &header(), &claims), &keys);
        assert_eq!(answer, Err(TokenError::Malformed), "without {required}");
    }
}

#[test]
fn only_eddsa_by_a_known_key_passes() {
    let (pair, other) = (pair(), pair());
    let keys = keys("k1", &pair);
    assert_eq!(judge(&sign(&other, &header(), &claims()), &keys), Err(TokenError::Signature));
    let unknown = json!({"alg": "EdDSA", "kid": "k2"});
    assert_eq!(judge(&sign(&pair, &unknown, &claims()), &keys), Err(TokenError::UnknownKey));
    let none = json!({"alg": "none", "kid": "k1"});
    assert!(judge(&format!("{}.", unsigned(&none, &claims())), &keys).is_err());
    // The public key taken for an HMAC secret: the classic confusion.
    let confused = json!({"alg": "HS256", "kid": "k1"});
    let text = unsigned(&confused, &claims());
    let secret = hmac::Key::new(hmac::HMAC_SHA256, pair.public_key().as_ref());
    let tag = hmac::sign(&secret, text.as_bytes());
    let token = format!("{text}.{}", B64.encode(tag.as_ref()));
    assert_eq!(judge(&token, &keys), Err(TokenError::Algorithm));
}

#[test]
fn broken_tokens_are_malformed() {
    let pair = pair();
    let keys = keys("k1", &pair);
    let good = sign(&pair, &header(), &claims());
    assert_eq!(judge("", &keys), Err(TokenError::Missing));
    for broken in ["a", "a.b", "a.b.c", "....", "é.é.é", &"x".repeat(10_000)] {
        assert_eq!(judge(broken, &keys), Err(TokenError::Malformed), "{broken:.20}");
    }
    for cut in [1, 10, good.len() / 2] {
        assert!(judge(&good[..good.len() - cut], &keys).is_err());
    }
    // One bit of the payload changed under the old signature.
    let tampered = good.replacen(
        &B64.encode(claims().to_string()),
        &B64.encode(claims().to_string().replace("buyer-1", "buyer-2")),
        1,
    );
    assert_eq!(judge(&tampered, &keys), Err(TokenError::Signature));
}

#[test]
fn an_expired_token_still_reads_until_the_given_moment() {
    let pair = pair();
    let keys = keys("k1", &pair);
    let mut old = claims();
    old["nbf"] = json!(NOW_S - 100);
    old["exp"] = json!(NOW_S - 50);
    let token = sign(&pair, &header(), &old);
    let at = |lifetime| verify(&token, &keys, ISSUER, &sale(), NOW_MS, lifetime).map(|_| ());
    assert_eq!(at(Lifetime::Strict), Err(TokenError::Expired));
    assert_eq!(at(Lifetime::Until(NOW_MS + 1)), Ok(()));
    assert_eq!(at(Lifetime::Until(NOW_MS)), Err(TokenError::Expired));
}

#[test]
fn key_sets_hold_public_ed25519_keys_only() {
    let pair = pair();
    let mut private = jwk("k1", &pair);
    private["d"] = json!(B64.encode([7u8; 32]));
    let rsa = json!({"kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB"});
    let mut nameless = jwk("k1", &pair);
    nameless.as_object_mut().unwrap().remove("kid");
    for (what, key) in [("private", private), ("rsa", rsa), ("nameless", nameless)] {
        let set = KeySet::from_json(&json!({ "keys": [key] }));
        assert!(matches!(set, Err(KeySetError::Unsuitable(_))), "{what}: {set:?}");
    }
    let many: Vec<Value> = (0..9).map(|n| jwk(&format!("k{n}"), &pair)).collect();
    assert!(matches!(KeySet::from_json(&json!({ "keys": many })), Err(KeySetError::TooMany)));
    assert!(matches!(KeySet::from_json(&json!({})), Err(KeySetError::Malformed(_))));
}

#[test]
fn two_keys_at_once_let_one_be_retired() {
    let (old, new) = (pair(), pair());
    let both = KeySet::from_json(&json!({"keys": [jwk("old", &old), jwk("new", &new)]})).unwrap();
    let by = |kid: &str, pair| sign(pair, &json!({"alg": "EdDSA", "kid": kid}), &claims());
    assert!(judge(&by("old", &old), &both).is_ok());
    assert!(judge(&by("new", &new), &both).is_ok());
    assert_eq!(judge(&by("old", &old), &keys("new", &new)), Err(TokenError::UnknownKey));
}

#[test]
fn headers_are_read_as_their_standards_say() {
    assert_eq!(bearer("Bearer abc"), Some("abc"));
    assert_eq!(bearer("bearer abc"), Some("abc"));
    assert_eq!(bearer("Basic abc"), None);
    assert_eq!(bearer("Bearerabc"), None);
    assert_eq!(cookie("a=1; fg-entry-s=tok; b=2", "fg-entry-s"), Some("tok"));
    assert_eq!(cookie("xfg-entry-s=tok", "fg-entry-s"), None);
}

#[test]
fn a_key_without_a_name_is_named_by_its_content() {
    // RFC 8037, appendix A.3.
    let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let jwk = flashgate_shared::token::public_jwk(x, None).unwrap();
    assert_eq!(jwk["kid"], "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    assert_eq!(flashgate_shared::token::public_jwk(x, Some("mine")).unwrap()["kid"], "mine");
    assert_eq!(KeySet::from_json(&json!({ "keys": [jwk] })).unwrap().len(), 1);
}
