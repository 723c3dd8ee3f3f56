//! Where the servers' programs are.

use anyhow::{Result, bail};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| is_program(path))
}

/// A program on `PATH`, else in one of `dirs`; the error names the Debian package that has it.
pub fn program(name: &str, package: &str, dirs: &[PathBuf]) -> Result<PathBuf> {
    let found = on_path(name).or_else(|| dirs.iter().map(|dir| dir.join(name)).find(|path| is_program(path)));
    match found {
        Some(path) => Ok(path),
        None => bail!("{name} is not installed: run `make setup`, or install it (Debian: apt-get install {package})"),
    }
}

/// The newest directory of Postgres' programs in Debian's place.
pub fn postgres_dirs() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, dir)| dir).collect()
}
