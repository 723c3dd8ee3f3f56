//! What ends our children when we are gone, however we ended.
//!
//! A tiny shell whose standard input is a pipe that we alone hold: when we are gone it reads the end
//! of the pipe and acts. It is in a process group of its own, so that Ctrl-C on a terminal reaches us
//! alone and we can end our children in order.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use std::{ffi::OsStr, path::Path, process::Stdio};
use tokio::process::{Child, Command};

/// Ends the process $1 with signal $2; after five seconds its whole group, for good.
const END: &str = r#"trap '' INT TERM HUP
cat >/dev/null
kill -s "$2" "$1" 2>/dev/null || exit 0
n=0
while [ $n -lt 50 ] && kill -0 "$1" 2>/dev/null; do sleep 0.1; n=$((n + 1)); done
kill -s KILL -- "-$1" 2>/dev/null || kill -s KILL "$1" 2>/dev/null"#;

/// Removes the directory $1 once the processes $2 … are gone, or after ten seconds all the same.
const REMOVE: &str = r#"trap '' INT TERM HUP
cat >/dev/null
dir=$1; shift
n=0
for pid in "$@"; do
  while [ $n -lt 100 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; n=$((n + 1)); done
done
rm -rf "$dir""#;

/// Acts when this process is gone, or when it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    // Held for its standard input: when that closes, it bites.
    shell: Child,
}

impl Watchdog {
    /// Ends a child, the leader of a process group, with this signal, and then for good.
    pub fn over(child: u32, signal: Signal) -> Result<Self> {
        let name = signal.as_str().trim_start_matches("SIG");
        Self::start(END, &[child.to_string().as_ref(), name.as_ref()])
    }

    /// Removes a directory once these processes, which use it, are gone.
    pub fn over_directory(dir: &Path, users: &[u32]) -> Result<Self> {
        let users: Vec<String> = users.iter().map(u32::to_string).collect();
        let mut arguments: Vec<&OsStr> = vec![dir.as_ref()];
        arguments.extend(users.iter().map(OsStr::new));
        Self::start(REMOVE, &arguments)
    }

    fn start(script: &str, arguments: &[&OsStr]) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", script, "flashgate-watchdog"]).args(arguments);
        let quiet = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { shell: quiet.process_group(0).spawn().context("cannot start sh")? })
    }

    /// Calls it off: what it watched is gone, and must not be confused with whoever gets its id next.
    pub async fn dismiss(mut self) -> Result<()> {
        Ok(self.shell.kill().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_child_ends_when_the_pipe_closes() {
        let mut child = Command::new("sleep").arg("600").process_group(0).kill_on_drop(true).spawn().unwrap();
        let mut dog = Watchdog::over(child.id().unwrap(), Signal::SIGTERM).unwrap();
        drop(dog.shell.stdin.take());
        assert!(!timeout(SOON, child.wait()).await.unwrap().unwrap().success());
        timeout(SOON, dog.shell.wait()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_directory_goes_when_its_last_user_is_gone() {
        let dir = tempfile::tempdir().unwrap().keep();
        let mut child = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        let mut dog = Watchdog::over_directory(&dir, &[child.id().unwrap()]).unwrap();
        drop(dog.shell.stdin.take());
        assert!(dir.exists(), "it is in use");
        child.kill().await.unwrap();
        timeout(SOON, dog.shell.wait()).await.unwrap().unwrap();
        assert!(!dir.exists());
    }

    #[tokio::test]
    async fn a_dismissed_one_does_nothing() {
        let mut child = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        Watchdog::over(child.id().unwrap(), Signal::SIGTERM).unwrap().dismiss().await.unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().await.unwrap();
    }
}
