//! Where a stack's programs and files are, and what its processes are told.

use super::{Backends, ENTRY_KID, ISSUER, StackConfig};
use crate::secrets::Secrets;
use anyhow::{Context, Result, ensure};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// What an origin process is told, whatever its roles.
pub(super) fn origin_env(
    backends: &Backends,
    config: &StackConfig,
    secrets: &Secrets,
    provider_url: &str,
) -> Vec<(String, OsString)> {
    let mut env: Vec<(String, OsString)> = [
        ("REDIS__URL", backends.redis_url.as_str()),
        ("REDIS__PREFIX", &config.prefix),
        ("RABBITMQ__URL", &backends.rabbit_url),
        ("RABBITMQ__PREFIX", &config.prefix),
        ("POSTGRES__URL", &backends.postgres_url),
        ("PAYMENT__PROVIDER_URL", provider_url),
        ("TOKEN__ISSUER", ISSUER),
        ("SECRETS__ENTRY_KID", ENTRY_KID),
    ]
    .into_iter()
    .map(|(key, value)| (format!("FLASHGATE_{key}"), value.into()))
    .collect();
    // A proxy of this machine's has no business between the parts.
    env.extend(["NO_PROXY", "no_proxy"].map(|key| (key.into(), "127.0.0.1,localhost".into())));
    for (key, file) in [
        ("EDGE_KEY_FILE", "edge-key"),
        ("ADMIN_TOKEN_FILE", "admin-token"),
        ("STATUS_MAC_KEY_FILE", "status-mac-key"),
        ("ENTRY_SIGNING_KEY_FILE", "entry-signing-key.pem"),
        ("WEBHOOK_SECRET_FILE", "webhook-secret"),
        ("DOCUMENT_KEY_FILE", "document-key.pem"),
    ] {
        env.push((format!("FLASHGATE_SECRETS__{key}"), secrets.file(file).into()));
    }
    env.extend(config.origin_env.iter().map(|(k, v)| (k.clone(), v.into())));
    env
}

/// The directory for secrets and logs: the one asked for, or a temporary one.
pub(super) fn data_dir(asked: Option<&Path>) -> Result<(PathBuf, Option<TempDir>)> {
    match asked {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            Ok((dir.canonicalize()?, None))
        }
        None => {
            let dir = tempfile::Builder::new().prefix("flashgate-").tempdir()?;
            Ok((dir.path().to_owned(), Some(dir)))
        }
    }
}

/// The directory of this executable; for a test binary (`target/debug/deps/…`) its parent.
pub fn bin_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("this executable has no path")?;
    let dir = exe.parent().context("this executable is in no directory")?;
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    Ok(dir.to_owned())
}

/// A program of ours.
pub(super) fn executable(bin_dir: &Path, name: &str) -> Result<PathBuf> {
    let path = bin_dir.join(name);
    ensure!(path.is_file(), "{} is missing: `make build` builds it", path.display());
    Ok(path)
}

/// The edge's component: `FLASHGATE_COMPONENT`, else what `make wasm` builds.
pub(super) fn component(bin_dir: &Path) -> Result<PathBuf> {
    let path = match std::env::var_os("FLASHGATE_COMPONENT") {
        Some(path) => PathBuf::from(path),
        None => bin_dir.parent().unwrap_or(bin_dir).join("wasm/wasm32-wasip2/release/flashgate_spin.wasm"),
    };
    ensure!(path.is_file(), "{} is missing: `make wasm` builds it", path.display());
    Ok(path)
}
