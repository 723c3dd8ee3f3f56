//! The state file: how the other commands find the shop that `flashgate up` runs.

use crate::{admin::AdminClient, secrets::write_private};
use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use std::{
    fs::DirBuilder,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The version of the file that this code writes and reads.
const STATE_VERSION: u32 = 1;

/// A running shop, as its state file tells it. It names the file of the admin token, not the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShopState {
    /// Always [`STATE_VERSION`].
    pub version: u32,
    /// The process that holds the shop up.
    pub pid: u32,
    /// Addresses of the edges.
    pub edge_urls: Vec<String>,
    /// Address of the origin.
    pub origin_url: String,
    /// Address of the payment provider simulator.
    pub provider_url: String,
    /// The file that holds the admin token.
    pub admin_token_file: PathBuf,
    /// Secrets and logs.
    pub data_dir: PathBuf,
    /// Process ids of the edges.
    pub edge_pids: Vec<u32>,
    /// Process ids of the origins.
    pub origin_pids: Vec<u32>,
}

impl ShopState {
    /// The version that is written and read.
    pub const VERSION: u32 = STATE_VERSION;

    /// Whether the process that holds the shop up still lives.
    pub fn is_alive(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().filter(|pid| *pid > 0);
        // EPERM: it lives, under another user.
        pid.is_some_and(|pid| !matches!(nix::sys::signal::kill(Pid::from_raw(pid), None), Err(nix::Error::ESRCH)))
    }

    /// A client of its admin API.
    pub fn admin(&self) -> Result<AdminClient> {
        Ok(AdminClient::new(&self.origin_url, read_token(&self.admin_token_file)?))
    }
}

/// Reads a token from a file.
pub fn read_token(path: &Path) -> Result<String> {
    let token = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(token.trim().to_owned())
}

/// Where the state file is when nothing else is said: below `$XDG_RUNTIME_DIR`, else below `/tmp` in
/// a directory of the user's own.
pub fn default_path() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let directory = match runtime {
        Some(dir) => PathBuf::from(dir).join("flashgate"),
        None => PathBuf::from(format!("/tmp/flashgate-{}", geteuid())),
    };
    directory.join("state.json")
}

/// Reads a state file; `None` when there is none or its shop is gone.
pub fn read(path: &Path) -> Result<Option<ShopState>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    check_directory(path)?;
    let state: ShopState =
        serde_json::from_str(&text).with_context(|| format!("{} is no state file of Flashgate", path.display()))?;
    ensure!(state.version == STATE_VERSION, "{} is of another version of Flashgate", path.display());
    Ok(Some(state).filter(ShopState::is_alive))
}

/// Reads a state file that must be there.
pub fn read_required(path: &Path) -> Result<ShopState> {
    read(path)?.with_context(|| {
        format!(
            "no shop runs here ({} is not there or old): start one with `flashgate up`, or name it with --state, \
             or with --origin and --admin-token-file",
            path.display()
        )
    })
}

/// Writes the state file, readable by its owner alone. Another living shop's is not overwritten.
pub fn write(path: &Path, state: &ShopState) -> Result<()> {
    if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    if let Some(other) = read(path)?.filter(|other| other.pid != state.pid) {
        bail!(
            "another shop runs already (process {}, edge {}): end it, or name another state file with --state",
            other.pid,
            other.edge_urls.first().map_or("unknown", String::as_str)
        );
    }
    check_directory(path)?;
    write_private(path, serde_json::to_string_pretty(state)?.as_bytes())
}

/// Removes the state file of this shop.
pub fn remove(path: &Path, pid: u32) {
    if let Ok(Some(state)) = read(path)
        && state.pid == pid
    {
        // Left behind, it would only be found to be old.
        let _ = std::fs::remove_file(path);
    }
}

/// A directory that others may write to could hold a state file that sends our token to them.
fn check_directory(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let meta = std::fs::metadata(directory).with_context(|| format!("cannot look at {}", directory.display()))?;
    let others_write = meta.mode() & 0o022 != 0;
    let sticky = meta.mode() & 0o1000 != 0;
    let own_file = match std::fs::symlink_metadata(path) {
        Ok(file) => file.uid() == geteuid().as_raw() && file.is_file(),
        Err(_) => true,
    };
    ensure!(
        own_file && (!others_write || sticky),
        "{} is not safe from other users: name another state file with --state",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(pid: u32) -> ShopState {
        ShopState {
            version: STATE_VERSION,
            pid,
            edge_urls: vec!["http://127.0.0.1:1".into()],
            origin_url: "http://127.0.0.1:2".into(),
            provider_url: "http://127.0.0.1:3".into(),
            admin_token_file: "/nowhere".into(),
            data_dir: "/nowhere".into(),
            edge_pids: vec![],
            origin_pids: vec![],
        }
    }

    #[test]
    fn a_state_file_is_private_and_ends_with_its_shop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("state.json");
        assert_eq!(read(&path).unwrap(), None);
        let own = state(std::process::id());
        write(&path, &own).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), Some(own.clone()));
        // Process 1 lives as long as the machine: its shop must not be overwritten by ours.
        std::fs::write(&path, serde_json::to_string(&state(1)).unwrap()).unwrap();
        assert!(write(&path, &own).unwrap_err().to_string().contains("another shop runs already"));
        remove(&path, own.pid);
        assert!(path.exists(), "not ours to remove");
        // No process has the largest id: the shop is gone, and the file is free.
        std::fs::write(&path, serde_json::to_string(&state(i32::MAX as u32)).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        write(&path, &own).unwrap();
        remove(&path, own.pid);
        assert!(!path.exists());
        let missing = read_required(&path).unwrap_err().to_string();
        assert!(missing.contains("flashgate up"), "{missing}");
    }

    #[test]
    fn a_state_file_where_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = write(&path, &state(std::process::id())).unwrap_err().to_string();
        assert!(error.contains("not safe"), "{error}");
    }
}
