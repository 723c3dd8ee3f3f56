//! What only the origin may know. Read once, never printed: no type here shows its content.

use crate::{
    config::{SecretsConfig, TokenConfig},
    status_url::MacKeys,
    webhooks::Webhooks,
};
use anyhow::{Context, bail};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use flashgate_shared::{
    UnixMs,
    token::{EntryClaims, KeySet, public_jwk},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;
use std::path::Path;
use subtle::{Choice, ConstantTimeEq};

/// Shortest shared secret that is taken, in bytes.
const SECRET_MIN_BYTES: usize = 16;
/// Most secrets in one file: the current one, and those that still count during a rotation.
const SECRETS_PER_FILE: usize = 4;

/// The origin's secrets, and the public keys that go with them.
pub struct Secrets {
    edge_keys: Vec<Vec<u8>>,
    admin_tokens: Vec<Vec<u8>>,
    /// Sign status links.
    pub status_macs: MacKeys,
    signing: EncodingKey,
    header: Header,
    /// The public half, as edges get it.
    pub jwks: serde_json::Value,
    /// The same, ready to verify.
    pub keys: KeySet,
    /// The shop's public keys; empty without entry by assertion.
    pub shop_keys: KeySet,
    webhooks: Webhooks,
    document: Option<(EncodingKey, String)>,
}

impl Secrets {
    /// Reads all files.
    pub fn load(config: &SecretsConfig, token: &TokenConfig) -> anyhow::Result<Self> {
        let pem_path = &config.entry_signing_key_file;
        let pem = std::fs::read_to_string(pem_path).with_context(|| format!("cannot read {}", pem_path.display()))?;
        let signing = EncodingKey::from_ed_pem(pem.as_bytes())
            .with_context(|| format!("{}: not an Ed25519 key in PKCS#8 PEM", pem_path.display()))?;
        let jwks = public_keys(config).with_context(|| pem_path.display().to_string())?;
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = jwks.pointer("/keys/0/kid").and_then(|kid| kid.as_str()).map(str::to_owned);
        Ok(Self {
            edge_keys: secrets(&config.edge_key_file)?,
            admin_tokens: secrets(&config.admin_token_file)?,
            status_macs: MacKeys::new(&secrets(&config.status_mac_key_file)?)
                .with_context(|| config.status_mac_key_file.display().to_string())?,
            signing,
            header,
            document: document_key(config)?,
            keys: KeySet::from_json(&jwks)?,
            jwks,
            shop_keys: shop_keys(&token.shop_jwks_file)?,
            webhooks: Webhooks::new(&secrets(&config.webhook_secret_file)?)?,
        })
    }

    /// Whether this is a credential of the edges. Takes the same time for every wrong key of its length.
    pub fn is_edge_key(&self, given: &[u8]) -> bool {
        is_one_of(&self.edge_keys, given)
    }

    /// Whether this is a credential of the operators.
    pub fn is_admin_token(&self, given: &[u8]) -> bool {
        is_one_of(&self.admin_tokens, given)
    }

    /// Whether the payment provider signed this notice, by the authority's time.
    pub fn is_notice(&self, body: &[u8], headers: &http::HeaderMap, now_ms: UnixMs) -> bool {
        self.webhooks.signed(body, headers, now_ms)
    }

    /// Whether sale documents can be signed.
    pub const fn has_document_key(&self) -> bool {
        self.document.is_some()
    }

    /// Signs a sale document or a ticket, as `typ` says; `None` without a document key.
    pub fn sign_document<T: Serialize>(&self, typ: &str, content: &T) -> Option<String> {
        let (key, kid) = self.document.as_ref()?;
        let mut header = Header::new(Algorithm::EdDSA);
        (header.typ, header.kid) = (Some(typ.to_owned()), Some(kid.clone()));
        // The content is plain data of ours: it always serialises, and an Ed25519 key always signs.
        jsonwebtoken::encode(&header, content, key).ok()
    }

    /// Signs an entry token.
    pub fn sign(&self, claims: &EntryClaims) -> Result<String, jsonwebtoken::errors::Error> {
        jsonwebtoken::encode(&self.header, claims, &self.signing)
    }
}

/// Compares with all of them, whichever fits.
pub(crate) fn is_one_of(secrets: &[Vec<u8>], given: &[u8]) -> bool {
    secrets.iter().fold(Choice::from(0), |found, secret| found | secret.ct_eq(given)).into()
}

/// The secrets in a file, a line each: the current one first, then those that are still taken.
fn secrets(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let secrets: Vec<_> = lines.map(<[u8]>::to_vec).collect();
    if secrets.is_empty() || secrets.iter().any(|secret| secret.len() < SECRET_MIN_BYTES) {
        bail!("{}: a secret has at least {SECRET_MIN_BYTES} bytes", path.display());
    }
    if secrets.len() > SECRETS_PER_FILE {
        bail!("{}: at most {SECRETS_PER_FILE} secrets, a line each", path.display());
    }
    Ok(secrets)
}

/// The key of sale documents and its name.
fn document_key(config: &SecretsConfig) -> anyhow::Result<Option<(EncodingKey, String)>> {
    let path = &config.document_key_file;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let (pem, x) = key_file(path)?;
    let key = EncodingKey::from_ed_pem(pem.as_bytes())
        .with_context(|| format!("{}: not an Ed25519 key in PKCS#8 PEM", path.display()))?;
    Ok(Some((key, kid(&public_jwk(&x, None)?)?)))
}

/// The JWK set of sale documents, for edges.
pub fn document_keys(config: &SecretsConfig) -> anyhow::Result<serde_json::Value> {
    let path = &config.document_key_file;
    if path.as_os_str().is_empty() {
        bail!("secrets.document_key_file is not set");
    }
    let (_, x) = key_file(path)?;
    Ok(serde_json::json!({ "keys": [public_jwk(&x, None)?] }))
}

/// A private key, PEM, and its public half in base64url.
fn key_file(path: &Path) -> anyhow::Result<(String, String)> {
    let pem = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let public = public_key(&pem).with_context(|| path.display().to_string())?;
    Ok((pem, BASE64_URL_SAFE_NO_PAD.encode(public)))
}

/// The `kid` of a JWK.
fn kid(jwk: &serde_json::Value) -> anyhow::Result<String> {
    Ok(jwk.get("kid").and_then(|kid| kid.as_str()).context("a JWK without a kid")?.to_owned())
}

/// The JWK set of entry tokens (RFC 7517): the key that signs, first, and those that signed before.
pub fn public_keys(config: &SecretsConfig) -> anyhow::Result<serde_json::Value> {
    let (_, x) = key_file(&config.entry_signing_key_file)?;
    let named = Some(config.entry_kid.as_str()).filter(|kid| !kid.is_empty());
    let mut keys = vec![public_jwk(&x, named)?];
    for previous in previous_keys(&config.entry_previous_jwks_file)? {
        if previous.get("x").is_some_and(|own| *own == x.as_str()) {
            continue; // the key that signs may stand there already
        }
        if let Some(kid) = previous.get("kid").filter(|kid| keys.iter().any(|key| key.get("kid") == Some(kid))) {
            bail!("two entry keys have the kid {kid}: give each a name of its own");
        }
        keys.push(previous);
    }
    Ok(serde_json::json!({ "keys": keys }))
}

fn previous_keys(path: &Path) -> anyhow::Result<Vec<serde_json::Value>> {
    if path.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let set: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{}: not JSON", path.display()))?;
    KeySet::from_json(&set).with_context(|| path.display().to_string())?;
    Ok(set.get("keys").and_then(|keys| keys.as_array()).cloned().unwrap_or_default())
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
