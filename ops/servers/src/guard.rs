//! A child process that does not outlive its user.

use crate::Watchdog;
use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::process::{Child, Command};

/// How long a server may take to end after it was asked to.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A guarded child process.
#[derive(Debug)]
pub struct Guarded {
    name: &'static str,
    child: Mutex<Child>,
    watchdog: Watchdog,
    pid: u32,
    stop: Signal,
    log: PathBuf,
}

impl Guarded {
    /// Starts `command` under a watchdog; its output goes to `<dir>/<name>.log`. It ends with SIGTERM.
    pub fn start(name: &'static str, dir: &Path, command: std::process::Command) -> Result<Self> {
        Self::start_with(name, dir, command, Signal::SIGTERM)
    }

    /// The same for a program that ends with another signal.
    pub fn start_with(name: &'static str, dir: &Path, command: std::process::Command, stop: Signal) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let log = dir.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::from(command);
        // A process group of its own: Ctrl-C on a terminal reaches the user alone, who then stops us.
        command.process_group(0).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let pid = child.id().context("the process has no id")?;
        Ok(Self { name, child: Mutex::new(child), watchdog: Watchdog::over(pid, stop)?, pid, stop, log })
    }

    /// The process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Fails with the end of its log when the program has ended.
    pub fn check_running(&self) -> Result<()> {
        match self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send(self.name, self.pid, signal)
    }

    /// Asks the program to end and waits until it is gone.
    pub async fn stop(self) -> Result<()> {
        let signal = self.stop;
        self.end(signal).await
    }

    /// Kills the program (SIGKILL) and waits until it is gone.
    pub async fn kill(self) -> Result<()> {
        self.end(Signal::SIGKILL).await
    }

    async fn end(self, signal: Signal) -> Result<()> {
        let Self { name, child, watchdog, pid, .. } = self;
        let mut child = child.into_inner().unwrap_or_else(PoisonError::into_inner);
        // The id is the program's until it was waited for.
        if child.id().is_some() {
            send(name, pid, signal)?;
        }
        let ended = tokio::time::timeout(STOP_WITHIN, child.wait()).await;
        ended.with_context(|| format!("{name} does not end"))??;
        watchdog.dismiss().await
    }
}

fn send(name: &str, pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?);
    kill(pid, signal).with_context(|| format!("cannot send {signal} to {name}"))
}
