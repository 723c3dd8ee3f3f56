//! One child process of ours: started, heard saying where it listens, watched, ended.
//!
//! A child must never outlive this process, however this process ends: each has a [`Watchdog`].
//! Children are in process groups of their own, so that Ctrl-C on the terminal reaches us alone and
//! we can end them in order.

use anyhow::{Context, Result, bail};
use flashgate_servers::Watchdog;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::Mutex,
    time::timeout,
};

/// How long a child may take to say where it listens, in seconds. A first start compiles Wasm.
const LISTEN_TIMEOUT_S: u64 = 90;
/// How long a child may take to end after SIGTERM, in seconds, before it is killed.
const END_TIMEOUT_S: u64 = 20;
/// How much of a log is shown when its process fails, in bytes.
const TAIL_BYTES: u64 = 4096;
/// What a child prints before its address.
const LISTENING: &str = "listening ";

/// How to start a child.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// What to call it, e.g. `origin-0`; names its log file too.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its environment, beside ours.
    pub env: Vec<(String, OsString)>,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A child that can be started again and again.
#[derive(Debug)]
pub struct Proc {
    recipe: Recipe,
    /// 0 while it does not run.
    pid: AtomicU32,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    watchdog: Watchdog,
}

impl Proc {
    /// A child that is not started yet.
    pub fn new(recipe: Recipe) -> Self {
        Self { recipe, pid: AtomicU32::new(0), running: Mutex::new(None) }
    }

    /// Its executable.
    pub fn program(&self) -> &Path {
        &self.recipe.program
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::SeqCst)).filter(|pid| *pid != 0)
    }

    /// Starts it and waits for the line that says where it listens: the URL.
    pub async fn start(&self) -> Result<String> {
        let mut slot = self.running.lock().await;
        if let Some(running) = slot.as_mut()
            && running.child.try_wait()?.is_none()
        {
            bail!("{} runs already", self.recipe.name);
        }
        let mut child = self.command()?.spawn().with_context(|| self.cannot_start())?;
        let pid = child.id().context("the process has no id")?;
        let watchdog = Watchdog::over(pid, Signal::SIGTERM)?;
        let stdout = child.stdout.take().context("the process has no standard output")?;
        self.pid.store(pid, Ordering::SeqCst);
        let running = slot.insert(Running { child, watchdog });
        let heard = tokio::select! {
            heard = timeout(Duration::from_secs(LISTEN_TIMEOUT_S), listening(stdout, &self.recipe.log)) => match heard {
                Ok(heard) => heard,
                Err(_) => Err(anyhow::anyhow!("said nothing for {LISTEN_TIMEOUT_S} s")),
            },
            status = running.child.wait() => Err(anyhow::anyhow!("ended with {}", status?)),
        };
        match heard {
            Ok(url) => Ok(url),
            Err(error) => {
                self.end(&mut slot, Signal::SIGKILL).await?;
                Err(self.with_tail(error))
            }
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub async fn kill(&self) -> Result<()> {
        self.end(&mut *self.running.lock().await, Signal::SIGKILL).await?;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits; an exit that is not clean is an error.
    pub async fn term(&self) -> Result<()> {
        match self.end(&mut *self.running.lock().await, Signal::SIGTERM).await? {
            Some(status) if !status.success() => Err(self.with_tail(anyhow::anyhow!("ended with {status}"))),
            _ => Ok(()),
        }
    }

    /// Fails when it has ended by itself.
    pub async fn check(&self) -> Result<()> {
        let mut slot = self.running.lock().await;
        if let Some(running) = slot.as_mut()
            && let Some(status) = running.child.try_wait()?
        {
            self.pid.store(0, Ordering::SeqCst);
            return Err(self.with_tail(anyhow::anyhow!("ended with {status}")));
        }
        Ok(())
    }

    /// Runs it to its end: for a child that does one thing, such as migrating.
    pub async fn run_to_end(&self, deadline: Duration) -> Result<()> {
        let mut child = self.command()?.stdout(self.log_file()?).spawn().with_context(|| self.cannot_start())?;
        match timeout(deadline, child.wait()).await {
            Ok(status) => match status? {
                status if status.success() => Ok(()),
                status => Err(self.with_tail(anyhow::anyhow!("ended with {status}"))),
            },
            Err(_) => Err(self.with_tail(anyhow::anyhow!("did not end within {} s", deadline.as_secs()))),
        }
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        tail(&self.recipe.log).unwrap_or_default()
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(&self.recipe.program);
        command
            .args(&self.recipe.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.log_file()?)
            .process_group(0)
            .kill_on_drop(true);
        // Our own settings (FLASHGATE_STATE …) are no settings of the child's, which refuses what
        // it does not know; its own have a section: FLASHGATE_<SECTION>__<KEY>.
        for (key, _) in std::env::vars_os() {
            let ours = key.to_str().is_some_and(|k| k.starts_with("FLASHGATE_") && !k.contains("__"));
            if ours {
                command.env_remove(key);
            }
        }
        command.envs(self.recipe.env.iter().map(|(k, v)| (k, v)));
        Ok(command)
    }

    async fn end(&self, slot: &mut Option<Running>, signal: Signal) -> Result<Option<std::process::ExitStatus>> {
        let Some(mut running) = slot.take() else {
            return Ok(None);
        };
        // The id is there until the child was waited for, so the signal cannot meet another process.
        if let Some(pid) = running.child.id() {
            let _ = kill(Pid::from_raw(i32::try_from(pid)?), signal);
        }
        let status = match timeout(Duration::from_secs(END_TIMEOUT_S), running.child.wait()).await {
            Ok(status) => status?,
            Err(_) => {
                running.child.kill().await?;
                running.child.wait().await?
            }
        };
        self.pid.store(0, Ordering::SeqCst);
        running.watchdog.dismiss().await?;
        Ok(Some(status))
    }

    fn log_file(&self) -> Result<File> {
        let path = &self.recipe.log;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path);
        file.with_context(|| format!("cannot write {}", path.display()))
    }

    fn cannot_start(&self) -> String {
        format!("cannot start {} ({})", self.recipe.name, self.recipe.program.display())
    }

    fn with_tail(&self, error: anyhow::Error) -> anyhow::Error {
        let name = &self.recipe.name;
        let tail = self.tail();
        let said = if tail.trim().is_empty() {
            "it wrote nothing".to_owned()
        } else {
            format!("the end of {}:\n{}", self.recipe.log.display(), tail.trim_end())
        };
        error.context(format!("{name} failed; {said}\n{name}"))
    }
}

/// Reads the child's output up to the line that says where it listens, and lets the rest flow into
/// its log, so that a talkative child never blocks on a full pipe.
async fn listening(stdout: ChildStdout, log: &Path) -> Result<String> {
    let mut lines = BufReader::new(stdout).lines();
    let mut log = tokio::fs::OpenOptions::new().create(true).append(true).open(log).await?;
    while let Some(line) = lines.next_line().await? {
        if let Some(url) = line.strip_prefix(LISTENING) {
            let url = url.trim().to_owned();
            tokio::spawn(async move {
                let mut rest = lines.into_inner();
                let _ = tokio::io::copy(&mut rest, &mut log).await;
            });
            return Ok(url);
        }
        log.write_all(line.as_bytes()).await?;
        log.write_all(b"\n").await?;
        log.flush().await?;
    }
    // The pipe closes a moment before the exit can be seen: let that be told instead.
    std::future::pending().await
}

fn tail(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Whole lines only, unless the file is one line.
    let cut = if length > TAIL_BYTES { text.find('\n').map_or(0, |at| at + 1) } else { 0 };
    Ok(text.get(cut..).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(dir: &Path, script: &str) -> Proc {
        Proc::new(Recipe {
            name: "child".into(),
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("GREETING".into(), "hello".into())],
            log: dir.join("child.log"),
        })
    }

    #[tokio::test]
    async fn a_child_is_heard_logged_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let child = shell(dir.path(), "echo $GREETING; echo listening http://there; exec sleep 600");
        assert_eq!(child.start().await.unwrap(), "http://there");
        let pid = child.pid().unwrap();
        assert!(child.start().await.unwrap_err().to_string().contains("runs already"));
        child.check().await.unwrap();
        child.kill().await.unwrap();
        assert_eq!(child.pid(), None);
        assert!(kill(Pid::from_raw(pid as i32), None).is_err(), "the process is gone");
        assert_eq!(child.tail(), "hello\n");
        assert_eq!(child.start().await.unwrap(), "http://there");
        let error = child.term().await.unwrap_err();
        assert!(format!("{error:#}").contains("signal: 15"), "{error:#}");
    }

    #[tokio::test]
    async fn a_child_that_fails_shows_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let child = shell(dir.path(), "echo 'the port is taken' >&2; exit 3");
        let error = format!("{:#}", child.start().await.unwrap_err());
        assert!(error.contains("the port is taken") && error.contains("exit status: 3"), "{error}");
        let once = shell(dir.path(), "exit 0");
        once.run_to_end(Duration::from_secs(20)).await.unwrap();
    }
}
