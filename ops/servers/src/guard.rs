//! A child process that does not outlive its user.

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::process::{Child, ChildStdin, Command};

use crate::until;

/// How long a server may take to end after it was asked to.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// The watchdog: runs the program in a process group of its own and, when the pipe on its standard
/// input closes (the user ended, in whatever way), asks it to end, and after five seconds kills the
/// whole group.
const WATCHDOG: &str = r#"
set -m
pidfile=$1; shift
"$@" </dev/null &
child=$!
set +m
echo $child >"$pidfile.new" && mv "$pidfile.new" "$pidfile"
( trap '' TERM INT
  while read -r _; do :; done
  kill -s "${STOP_SIGNAL:-TERM}" $child 2>/dev/null
  n=0
  while [ $n -lt 50 ] && kill -0 $child 2>/dev/null; do sleep 0.1; n=$((n+1)); done
  kill -s KILL -- -$child 2>/dev/null
) <&0 &
wait $child
code=$?
kill -s KILL $! 2>/dev/null
exit $code
"#;

/// A guarded child process.
#[derive(Debug)]
pub struct Guarded {
    name: &'static str,
    watchdog: Child,
    pipe: Option<ChildStdin>,
    pid: u32,
    log: PathBuf,
}

impl Guarded {
    /// Starts `command` under the watchdog; its output goes to `<dir>/<name>.log`.
    pub async fn start(name: &'static str, dir: &Path, command: &std::process::Command) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let log = dir.join(format!("{name}.log"));
        let pidfile = dir.join(format!("{name}.pid"));
        let _ = fs::remove_file(&pidfile);
        let out = File::options().create(true).append(true).open(&log)?;
        let mut shell = Command::new("/bin/bash");
        shell.arg("-c").arg(WATCHDOG).arg("flashgate-watchdog").arg(&pidfile);
        shell.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        // A process group of its own: Ctrl-C on a terminal reaches the user alone, who then stops us.
        let mut watchdog = shell
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pipe = watchdog.stdin.take();
        let mut pid = 0;
        until(&format!("{name} started"), Duration::from_secs(10), || {
            let read = fs::read_to_string(&pidfile).ok().and_then(|text| text.trim().parse().ok());
            pid = read.unwrap_or(0);
            async move { Ok(pid != 0) }
        })
        .await?;
        Ok(Self { name, watchdog, pipe, pid, log })
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
    pub fn check_running(&mut self) -> Result<()> {
        match self.watchdog.try_wait()? {
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
        let pid = Pid::from_raw(i32::try_from(self.pid)?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Asks the program to end and waits until it is gone.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.pipe.take());
        let ended = tokio::time::timeout(STOP_WITHIN, self.watchdog.wait()).await;
        ended.with_context(|| format!("{} does not end", self.name))??;
        Ok(())
    }
}
