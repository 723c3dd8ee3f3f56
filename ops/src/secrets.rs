//! The random secrets of a private shop, each in a file that only its owner can read.

use anyhow::{Context, Result};
use aws_lc_rs::{
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use flashgate_shared::token::public_jwk;
use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Bytes of randomness in each secret.
const SECRET_BYTES: usize = 32;
/// Line length of PEM (RFC 7468).
const PEM_LINE: usize = 64;

/// The secrets, and the files that hold them.
#[derive(Clone)]
pub struct Secrets {
    /// What an edge shows to the origin.
    pub edge_key: String,
    /// What an operator shows to the origin.
    pub admin_token: String,
    /// What the provider signs notices with.
    pub webhook_secret: String,
    /// The private key of entry tokens, PKCS #8 PEM.
    pub entry_signing_pem: String,
    /// The JWK set of sale documents: the public half of their key.
    pub document_keys: String,
    directory: PathBuf,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Secrets {
    /// Draws new secrets and writes them to files in `directory`.
    pub fn create(directory: &Path) -> Result<Self> {
        let document_pem = ed25519_pem()?;
        let secrets = Self {
            document_keys: document_keys(&document_pem)?,
            edge_key: random(&URL_SAFE_NO_PAD)?,
            admin_token: random(&URL_SAFE_NO_PAD)?,
            webhook_secret: format!("whsec_{}", random(&STANDARD)?),
            entry_signing_pem: ed25519_pem()?,
            directory: directory.to_owned(),
        };
        for (name, value) in [
            ("edge-key", &secrets.edge_key),
            ("admin-token", &secrets.admin_token),
            ("webhook-secret", &secrets.webhook_secret),
            ("entry-signing-key.pem", &secrets.entry_signing_pem),
            ("document-key.pem", &document_pem),
            ("document-keys.json", &secrets.document_keys),
            ("status-mac-key", &random(&URL_SAFE_NO_PAD)?),
        ] {
            write_private(&secrets.file(name), value.as_bytes())?;
        }
        Ok(secrets)
    }

    /// The file of a secret: `edge-key`, `admin-token`, `webhook-secret`, `entry-signing-key.pem`,
    /// `document-key.pem` or `status-mac-key`; `document-keys.json` holds what is none.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// The JWK set of a key, named by its content (RFC 7638), as the origin names it.
fn document_keys(pem: &str) -> Result<String> {
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&STANDARD.decode(body)?).context("no Ed25519 key")?;
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    Ok(serde_json::json!({ "keys": [public_jwk(&x, None)?] }).to_string())
}

fn random(encoding: &impl Engine) -> Result<String> {
    let mut bytes = [0u8; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).context("the system gives no randomness")?;
    Ok(encoding.encode(bytes))
}

/// A new Ed25519 key as PKCS #8 version 1, which OpenSSL reads as well.
fn ed25519_pem() -> Result<String> {
    let document = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).context("no Ed25519 key can be made")?;
    let base64 = STANDARD.encode(document.as_ref());
    let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
    for line in base64.as_bytes().chunks(PEM_LINE) {
        pem.push_str(std::str::from_utf8(line)?);
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    Ok(pem)
}

/// Writes a file that only its owner can read, replacing it in one step.
pub fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let say = || format!("cannot write {}", path.display());
    let mut name = path.file_name().with_context(say)?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    // A left-over of a process that died with the same id.
    let _ = std::fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).with_context(say)?;
    file.write_all(content).with_context(say)?;
    std::fs::rename(&fresh, path).with_context(say)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_differ_sign_and_are_readable_by_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::create(dir.path()).unwrap();
        assert_ne!(secrets.edge_key, secrets.admin_token);
        for name in ["edge-key", "admin-token", "webhook-secret", "entry-signing-key.pem", "status-mac-key"] {
            let mode = std::fs::metadata(secrets.file(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let body: String = secrets.entry_signing_pem.lines().filter(|l| !l.starts_with('-')).collect();
        Ed25519KeyPair::from_pkcs8(&STANDARD.decode(body).unwrap()).unwrap();
        standardwebhooks::Webhook::new(&secrets.webhook_secret).unwrap();
        assert!(!format!("{secrets:?}").contains(&secrets.admin_token));
    }
}
