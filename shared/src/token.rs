//! Entry tokens (design §4): JWTs signed with Ed25519, chosen by `kid` from a JWK set.
//!
//! The policy has one home, here, for edge and origin alike: EdDSA and nothing else, zero leeway,
//! `iss`, `aud`, `exp`, `nbf` required. Time is an argument: `jsonwebtoken`'s own clock is not used.

use crate::{
    clock::UnixMs,
    ids::{BuyerId, SaleId},
    limits,
};
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, ThumbprintHash},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::HashMap;

/// The claims of an entry token. Times are Unix seconds, as RFC 7519 wants them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryClaims {
    /// Who signed: the origin's issuer name.
    pub iss: String,
    /// The sale.
    pub aud: SaleId,
    /// The buyer.
    pub sub: BuyerId,
    /// Unique id of the token.
    pub jti: String,
    /// Issued at, in seconds.
    pub iat: i64,
    /// Not valid before, in seconds.
    pub nbf: i64,
    /// Not valid from this second on.
    pub exp: i64,
    /// Place in line, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pos: Option<u64>,
    /// Device, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No token came with the request.
    #[error("no entry token was sent")]
    Missing,
    /// Not a JWT, too long, or a claim is missing or malformed.
    #[error("the token is malformed")]
    Malformed,
    /// The header names another algorithm than EdDSA.
    #[error("the token is not signed with EdDSA")]
    Algorithm,
    /// The `kid` is in no JWK that we know.
    #[error("the token's key is not known")]
    UnknownKey,
    /// The signature does not fit.
    #[error("the signature does not fit")]
    Signature,
    /// Another issuer.
    #[error("the token is from another issuer")]
    Issuer,
    /// For another sale.
    #[error("the token is for another sale")]
    Audience,
    /// Its `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// Its `nbf` has not come.
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// A JWK set that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Not a JWK set.
    #[error("not a JWK set: {0}")]
    Malformed(String),
    /// More keys than [`limits::JWK_SET_KEYS`].
    #[error("a JWK set has at most {} keys", limits::JWK_SET_KEYS)]
    TooMany,
    /// A key without `kid`, of another type than Ed25519, or one that holds a private part.
    #[error("key {0}: must be a public Ed25519 key (OKP) with a kid")]
    Unsuitable(String),
}

/// The public keys that may have signed an entry, by `kid`. Holds nothing that can sign.
#[derive(Clone, Default)]
pub struct KeySet {
    keys: HashMap<String, DecodingKey>,
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

impl KeySet {
    /// Reads a JWK set (RFC 7517) of public Ed25519 keys (RFC 8037). A private part (`d`) is
    /// refused: the edge must never hold a key that can sign.
    pub fn from_json(json: &serde_json::Value) -> Result<Self, KeySetError> {
        let list = json.get("keys").and_then(|k| k.as_array());
        for key in list.into_iter().flatten() {
            if key.get("d").is_some() {
                return Err(KeySetError::Unsuitable("with a private part".into()));
            }
        }
        let set = JwkSet::deserialize(json).map_err(|e| KeySetError::Malformed(e.to_string()))?;
        if set.keys.len() > limits::JWK_SET_KEYS {
            return Err(KeySetError::TooMany);
        }
        let mut keys = HashMap::new();
        for jwk in &set.keys {
            let Some(kid) = jwk.common.key_id.clone() else {
                return Err(KeySetError::Unsuitable("without a kid".into()));
            };
            let ed25519 = matches!(
                &jwk.algorithm,
                AlgorithmParameters::OctetKeyPair(p) if p.curve == EllipticCurve::Ed25519
            );
            let key = DecodingKey::from_jwk(jwk).ok().filter(|_| ed25519);
            match key {
                Some(key) => keys.insert(kid, key),
                None => return Err(KeySetError::Unsuitable(kid)),
            };
        }
        Ok(Self { keys })
    }

    /// The names of the keys, in order.
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.keys.keys().cloned().collect();
        ids.sort_unstable();
        ids
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key: then no token passes.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The JWK of a public Ed25519 key (RFC 8037), whose 32 bytes are `x` in base64url. Without a `kid` it is named
/// by its content (RFC 7638), so that another key has another name.
pub fn public_jwk(x: &str, kid: Option<&str>) -> Result<serde_json::Value, KeySetError> {
    let mut json = serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "x": x });
    let malformed = |e: &dyn std::fmt::Display| KeySetError::Malformed(e.to_string());
    let kid = match kid {
        Some(kid) => kid.to_owned(),
        None => {
            let jwk = Jwk::deserialize(&json).map_err(|e| malformed(&e))?;
            jwk.thumbprint(ThumbprintHash::SHA256).map_err(|e| malformed(&e))?
        }
    };
    if let Some(members) = json.as_object_mut() {
        members.insert("kid".to_owned(), kid.into());
    }
    Ok(json)
}

/// How strictly a token's `exp` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// For new claims: `nbf ≤ now < exp`.
    Strict,
    /// For status, my-claim and pay: `exp` does not bind, but `now` must be before the given moment
    /// (at most a day after the sale closed; design §4). `nbf` still binds.
    Until(UnixMs),
}

/// Verifies an entry token for `sale` at `now_ms`.
///
/// Cheap refusals come first: length, shape, algorithm, key id; the signature last.
pub fn verify(
    token: &str,
    keys: &KeySet,
    issuer: &str,
    sale: &SaleId,
    now_ms: UnixMs,
    lifetime: Lifetime,
) -> Result<EntryClaims, TokenError> {
    if token.is_empty() {
        return Err(TokenError::Missing);
    }
    if token.len() > limits::TOKEN_BYTES {
        return Err(TokenError::Malformed);
    }
    let key = key_of(token, keys, None)?;
    let mut policy = policy();
    policy.set_required_spec_claims(&["exp", "nbf", "aud", "iss"]);
    policy.validate_aud = true;
    policy.set_audience(&[sale.as_str()]);
    policy.set_issuer(&[issuer]);
    let claims = decode::<EntryClaims>(token, key, &policy).map_err(|e| refusal(&e))?.claims;
    if now_ms < claims.nbf.saturating_mul(1000) {
        return Err(TokenError::NotYetValid);
    }
    let ends_ms = match lifetime {
        Lifetime::Strict => claims.exp.saturating_mul(1000),
        Lifetime::Until(end_ms) => end_ms,
    };
    if now_ms >= ends_ms {
        return Err(TokenError::Expired);
    }
    Ok(claims)
}

/// The key that a token names, when it is of the right type and algorithm.
fn key_of<'k>(token: &str, keys: &'k KeySet, typ: Option<&str>) -> Result<&'k DecodingKey, TokenError> {
    // An `alg` that jsonwebtoken does not know ("none") fails to parse: also not EdDSA.
    let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
    if header.alg != Algorithm::EdDSA {
        return Err(TokenError::Algorithm);
    }
    // One kind of token is never taken for another (RFC 8725 §3.11).
    if typ.is_some_and(|typ| header.typ.as_deref() != Some(typ)) {
        return Err(TokenError::Malformed);
    }
    // Without a `kid` no set of keys will ever name it.
    let kid = header.kid.as_deref().ok_or(TokenError::Malformed)?;
    keys.keys.get(kid).ok_or(TokenError::UnknownKey)
}

/// EdDSA alone. Times are judged by the caller, by the time that was passed in.
fn policy() -> Validation {
    let mut policy = Validation::new(Algorithm::EdDSA);
    policy.leeway = 0;
    policy.required_spec_claims.clear();
    policy.validate_exp = false;
    policy.validate_nbf = false;
    policy.validate_aud = false;
    policy
}

fn refusal(error: &jsonwebtoken::errors::Error) -> TokenError {
    use jsonwebtoken::errors::ErrorKind::*;
    match error.kind() {
        InvalidSignature => TokenError::Signature,
        InvalidIssuer => TokenError::Issuer,
        InvalidAudience => TokenError::Audience,
        InvalidAlgorithm => TokenError::Algorithm,
        _ => TokenError::Malformed,
    }
}

/// The content of a JWT of this `typ`, when one of the keys signed it. Nothing in it is judged.
pub(crate) fn verify_signature<T: DeserializeOwned + Clone>(
    token: &str,
    keys: &KeySet,
    typ: &str,
) -> Result<T, TokenError> {
    if token.is_empty() {
        return Err(TokenError::Missing);
    }
    if token.len() > limits::DOCUMENT_BYTES {
        return Err(TokenError::Malformed);
    }
    let key = key_of(token, keys, Some(typ))?;
    Ok(decode::<T>(token, key, &policy()).map_err(|e| refusal(&e))?.claims)
}

/// The token of an `Authorization: Bearer` header value; the scheme is case-insensitive (RFC 9110).
pub fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// The name of the cookie that carries a sale's entry token.
pub fn cookie_name(sale: &SaleId) -> String {
    format!("fg-entry-{sale}")
}

/// The value of the named cookie in a `Cookie` header (RFC 6265 §5.4).
pub fn cookie<'h>(header: &'h str, name: &str) -> Option<&'h str> {
    header.split(';').find_map(|pair| {
        let (n, v) = pair.trim().split_once('=')?;
        (n == name).then_some(v)
    })
}
