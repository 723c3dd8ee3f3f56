//! A private Redis.

use crate::{Guarded, READY_WITHIN, SmallDisk, find, free_port, until};
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Where Redis 7 keeps the parts of its append-only file.
const AOF_DIR: &str = "appendonlydir";

/// When the append-only file reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer: what production is advised to use.
    Always,
    /// Once a second.
    EverySecond,
}

/// A Redis with an append-only file and without eviction.
#[derive(Debug)]
pub struct Redis {
    process: Guarded,
    port: u16,
    dir: PathBuf,
    fsync: Fsync,
}

impl Redis {
    /// Starts one under `dir/redis`, with `appendfsync always`.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, Fsync::Always).await
    }

    /// Starts one under `dir/redis`.
    pub async fn start_with(dir: &Path, fsync: Fsync) -> Result<Self> {
        let dir = dir.join("redis");
        fs::create_dir_all(&dir)?;
        Self::launch(dir, free_port()?, fsync).await
    }

    /// Starts one whose data is on this disk.
    pub async fn start_on(disk: &SmallDisk) -> Result<Self> {
        Self::again_on(disk, free_port()?).await
    }

    /// Starts one whose data is on this disk, on a port that it had before.
    pub async fn again_on(disk: &SmallDisk, port: u16) -> Result<Self> {
        let (dir, fsync) = (disk.dir().to_owned(), Fsync::Always);
        let command = disk.within(&command(&dir, port, fsync, &[])?);
        let process = answering(&dir.with_extension("log"), port, command).await?;
        Ok(Self { process, port, dir, fsync })
    }

    async fn launch(dir: PathBuf, port: u16, fsync: Fsync) -> Result<Self> {
        let process = serve(&dir, port, fsync, &[]).await?;
        Ok(Self { process, port, dir, fsync })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The guarded process, to send it signals.
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// Stops it and starts it again on the same port and data.
    pub async fn restart(self) -> Result<Self> {
        let (dir, port, fsync) = (self.dir.clone(), self.port, self.fsync);
        self.stop().await?;
        Self::launch(dir, port, fsync).await
    }

    /// Kills it and starts it again on the same port and data.
    pub async fn restart_killed(self) -> Result<Self> {
        self.restart_with(|_| Ok(())).await
    }

    /// Stops it and starts it again on the same port, with nothing.
    pub async fn restart_empty(self) -> Result<Self> {
        self.restart_with(|dir| Ok(fs::remove_dir_all(dir.join(AOF_DIR))?)).await
    }

    /// Copies its append-only file as it is now, for [`Redis::restart_from`].
    pub fn copy_data(&self) -> Result<TempDir> {
        let copy = tempfile::tempdir()?;
        copy_files(&self.dir.join(AOF_DIR), copy.path())?;
        Ok(copy)
    }

    /// Stops it and starts it again on the same port, with data of the past.
    pub async fn restart_from(self, copy: &TempDir) -> Result<Self> {
        self.restart_with(|dir| {
            fs::remove_dir_all(dir.join(AOF_DIR))?;
            fs::create_dir(dir.join(AOF_DIR))?;
            copy_files(copy.path(), &dir.join(AOF_DIR))
        })
        .await
    }

    async fn restart_with(self, change: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let (dir, port, fsync) = (self.dir.clone(), self.port, self.fsync);
        self.process.kill().await?;
        change(&dir)?;
        Self::launch(dir, port, fsync).await
    }

    /// Stops it.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await
    }
}

/// A server on this port, with its data in this directory and these options more; it answers.
pub(crate) async fn serve(dir: &Path, port: u16, fsync: Fsync, more: &[&str]) -> Result<Guarded> {
    answering(dir, port, command(dir, port, fsync, more)?).await
}

fn command(dir: &Path, port: u16, fsync: Fsync, more: &[&str]) -> Result<Command> {
    let mut command = Command::new(find::program("redis-server", "redis-server", &[])?);
    let appendfsync = match fsync {
        Fsync::Always => "always",
        Fsync::EverySecond => "everysec",
    };
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", appendfsync]);
    command.args(["--maxmemory-policy", "noeviction", "--daemonize", "no"]).arg("--dir").arg(dir).args(more);
    Ok(command)
}

async fn answering(logs: &Path, port: u16, command: Command) -> Result<Guarded> {
    let process = Guarded::start("redis", logs, command)?;
    until("Redis answers", READY_WITHIN, || {
        let running = process.check_running();
        async move {
            running?;
            Ok(ask(port, "PING\r\n").await? == "+PONG\r\n")
        }
    })
    .await?;
    Ok(process)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Sends one inline command and reads one short answer.
pub(crate) async fn ask(port: u16, command: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(command.as_bytes()).await?;
        let mut answer = [0; 4096];
        let n = stream.read(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer[..n]).into_owned())
    };
    tokio::time::timeout(Duration::from_secs(1), exchange).await.context("no answer")?.context("cannot connect")
}
