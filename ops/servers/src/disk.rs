//! A disk that can be full.

use crate::{Guarded, READY_WITHIN, until};
use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// Written at once when a disk is filled, in bytes.
const FILLER_PIECE_BYTES: usize = 64 * 1024;
/// Marks that the disk is there.
const READY: &str = ".ready";

/// A small tmpfs that is seen only by programs that are started on it: it is mounted in a namespace that a sleeping
/// helper keeps, so that it is gone with its user whatever happens. It needs no rights but those of an unprivileged
/// user namespace.
#[derive(Debug)]
pub struct SmallDisk {
    keeper: Guarded,
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts so many megabytes over this directory.
    pub async fn mount(dir: &Path, megabytes: u32) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        let script = r#"mount -t tmpfs -o "size=$1m,mode=0777" tmpfs "$2" && : > "$2/$3" && exec sleep infinity"#;
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "disk"]);
        command.arg(megabytes.to_string()).arg(dir).arg(READY);
        let logs = dir.with_extension("log");
        let keeper = Guarded::start("disk", &logs, command)?;
        let disk = Self { keeper, dir: dir.to_owned() };
        until("the small disk is mounted", READY_WITHIN, || {
            let running = disk.keeper.check_running();
            let seen = disk.seen_from_outside().join(READY).exists();
            async move {
                running?;
                Ok(seen)
            }
        })
        .await?;
        Ok(disk)
    }

    /// The directory, as programs on the disk see it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn seen_from_outside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.pid()));
        root.join(self.dir.strip_prefix("/").unwrap_or(&self.dir))
    }

    /// The same command, started where the disk is seen. Its process keeps its id.
    pub fn within(&self, command: &Command) -> Command {
        let mut entered = Command::new("nsenter");
        if !nix::unistd::geteuid().is_root() {
            entered.args(["--user", "--preserve-credentials"]);
        }
        entered.args(["--mount", "--target", &self.keeper.pid().to_string(), "--"]);
        entered.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entered.env(name, value),
                None => entered.env_remove(name),
            };
        }
        entered
    }

    fn filler(&self) -> PathBuf {
        self.seen_from_outside().join("filler")
    }

    /// Fills it to the last byte.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler()).context("the small disk cannot be reached")?;
        let piece = vec![0; FILLER_PIECE_BYTES];
        let mut size = FILLER_PIECE_BYTES;
        let mut written = 0;
        while size > 0 {
            match file.write(&piece[..size]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => size /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(written > 0, "the small disk was full before");
        Ok(())
    }

    /// Takes away what [`SmallDisk::fill`] wrote.
    pub fn clear(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}
