//! Entry tokens made by hand, not by the library that the product uses.

use anyhow::{Context, Result};
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

/// Good claims for a buyer in a sale, valid for ten minutes around `now_ms`.
pub fn entry_claims(issuer: &str, sale: &str, buyer: &str, now_ms: i64) -> Value {
    let now_s = now_ms / 1000;
    json!({
        "iss": issuer, "aud": sale, "sub": buyer, "jti": format!("test-{buyer}"),
        "iat": now_s - 60, "nbf": now_s - 60, "exp": now_s + 600,
    })
}

/// A JWT with this header and these claims, signed with the key of a PKCS #8 PEM.
pub fn sign(pem: &str, header: &Value, claims: &Value) -> Result<String> {
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(body)?;
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok().context("no Ed25519 key")?;
    Ok(signed_by(&pair, header, claims))
}

/// As [`sign`], with a key pair.
pub fn signed_by(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(text.as_bytes()));
    format!("{text}.{signature}")
}

/// The `kid` of a JWT.
pub fn key_id(token: &str) -> Result<String> {
    let header = token.split('.').next().context("no JWT")?;
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header)?)?;
    Ok(header["kid"].as_str().context("no kid")?.to_owned())
}
