//! What only the origin may know. Read once, never printed: no type here shows its content.

use crate::config::{SecretsConfig, TokenConfig};
use anyhow::{Context, bail};
use aws_lc_rs::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair},
};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use flashgate_shared::token::{EntryClaims, KeySet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use std::path::Path;
use subtle::ConstantTimeEq;

/// Shortest shared secret that is taken, in bytes.
const SECRET_MIN_BYTES: usize = 16;

/// The origin's secrets, and the public keys that go with them.
pub struct Secrets {
    edge_key: Vec<u8>,
    admin_token: Vec<u8>,
    /// Signs status links.
    pub status_mac: hmac::Key,
    signing: EncodingKey,
    header: Header,
    /// The public half, as edges get it.
    pub jwks: serde_json::Value,
    /// The same, ready to verify.
    pub keys: KeySet,
    /// The shop's public keys; empty without entry by assertion.
    pub shop_keys: KeySet,
    /// Verifies the payment provider's notices.
    pub webhook: standardwebhooks::Webhook,
}

impl Secrets {
    /// Reads all files.
    pub fn load(config: &SecretsConfig, token: &TokenConfig) -> anyhow::Result<Self> {
        let pem_path = &config.entry_signing_key_file;
        let pem = std::fs::read_to_string(pem_path).with_context(|| format!("cannot read {}", pem_path.display()))?;
        let signing = EncodingKey::from_ed_pem(pem.as_bytes())
            .with_context(|| format!("{}: not an Ed25519 key in PKCS#8 PEM", pem_path.display()))?;
        let public = public_key(&pem).with_context(|| pem_path.display().to_string())?;
        let jwks = serde_json::json!({"keys": [{
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
            "kid": config.entry_kid, "x": BASE64_URL_SAFE_NO_PAD.encode(public),
        }]});
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(config.entry_kid.clone());
        let webhook =
            String::from_utf8(secret(&config.webhook_secret_file)?).context("the webhook secret is no text")?;
        Ok(Self {
            edge_key: secret(&config.edge_key_file)?,
            admin_token: secret(&config.admin_token_file)?,
            status_mac: hmac::Key::new(hmac::HMAC_SHA256, &secret(&config.status_mac_key_file)?),
            signing,
            header,
            keys: KeySet::from_json(&jwks)?,
            jwks,
            shop_keys: shop_keys(&token.shop_jwks_file)?,
            webhook: standardwebhooks::Webhook::new(&webhook)
                .map_err(|_| anyhow::anyhow!("the webhook secret is not of the form whsec_<base64>"))?,
        })
    }

    /// Whether this is the edges' credential. Takes the same time for every wrong key of its length.
    pub fn is_edge_key(&self, given: &[u8]) -> bool {
        self.edge_key.ct_eq(given).into()
    }

    /// Whether this is the operator's credential.
    pub fn is_admin_token(&self, given: &[u8]) -> bool {
        self.admin_token.ct_eq(given).into()
    }

    /// Signs an entry token.
    pub fn sign(&self, claims: &EntryClaims) -> Result<String, jsonwebtoken::errors::Error> {
        jsonwebtoken::encode(&self.header, claims, &self.signing)
    }
}

fn secret(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let trimmed = bytes.trim_ascii().to_vec();
    if trimmed.len() < SECRET_MIN_BYTES {
        bail!("{}: a secret has at least {SECRET_MIN_BYTES} bytes", path.display());
    }
    Ok(trimmed)
}

fn shop_keys(path: &Path) -> anyhow::Result<KeySet> {
    if path.as_os_str().is_empty() {
        return Ok(KeySet::default());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json = serde_json::from_str(&text).with_context(|| format!("{}: not JSON", path.display()))?;
    KeySet::from_json(&json).with_context(|| path.display().to_string())
}

fn public_key(pem: &str) -> anyhow::Result<Vec<u8>> {
    let body: String = pem.lines().map(str::trim).filter(|l| !l.starts_with("-----")).collect();
    let der = BASE64_STANDARD.decode(body).context("not PEM")?;
    // Version 1 documents, as OpenSSL writes them, carry no public key to check against.
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(|_| anyhow::anyhow!("not an Ed25519 key"))?;
    Ok(pair.public_key().as_ref().to_vec())
}
