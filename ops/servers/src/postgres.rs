//! A private Postgres.

use crate::{Guarded, READY_WITHIN, SmallDisk, find, free_port, until};
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The role that owns everything.
const USER: &str = "flashgate";

/// A Postgres cluster with one superuser, trusted on 127.0.0.1.
#[derive(Debug)]
pub struct Postgres {
    process: Guarded,
    dir: PathBuf,
    port: u16,
    environment: Vec<(String, String)>,
}

impl Postgres {
    /// Starts one under `dir/postgres`.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, Vec::new()).await
    }

    /// Starts one whose data is on this disk.
    pub async fn start_on(disk: &SmallDisk) -> Result<Self> {
        let mut initdb = initdb(disk.dir())?;
        run(&mut disk.within(initdb.current_dir("/"))).await?;
        Self::again_on(disk, free_port()?).await
    }

    /// Starts one on the data of this disk, on a port that it had before.
    pub async fn again_on(disk: &SmallDisk, port: u16) -> Result<Self> {
        let dir = disk.dir().to_owned();
        let mut command = disk.within(&server(&dir, port, &[])?);
        // Only programs on the disk see its directory.
        command.current_dir("/");
        let process = answering(&dir.with_extension("log"), port, command).await?;
        Ok(Self { process, dir, port, environment: Vec::new() })
    }

    /// Starts one under `dir/postgres`, its server with this environment more.
    pub async fn start_with(dir: &Path, environment: Vec<(String, String)>) -> Result<Self> {
        let dir = dir.join("postgres");
        fs::create_dir_all(&dir)?;
        if nix::unistd::geteuid().is_root() {
            // Postgres refuses to run as root: its files belong to the package's user, who must be
            // able to reach them through directories that are ours.
            for ancestor in dir.ancestors().take_while(|path| path.parent().is_some()) {
                open_for_passage(ancestor)?;
            }
            run(Command::new("chown").arg("-R").arg("postgres:").arg(&dir)).await?;
        }
        let data = dir.join("data");
        if !data.join("PG_VERSION").exists() {
            run(initdb(&dir)?.current_dir(&dir)).await?;
        }
        Self::launch(dir, free_port()?, environment).await
    }

    async fn launch(dir: PathBuf, port: u16, environment: Vec<(String, String)>) -> Result<Self> {
        let mut command = server(&dir, port, &environment)?;
        command.current_dir(&dir);
        let process = answering(&dir.with_file_name("postgres-log"), port, command).await?;
        Ok(Self { process, dir, port, environment })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The guarded process.
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// Makes an empty database; its address.
    pub async fn create_database(&self, name: &str) -> Result<String> {
        let mut command = Command::new(program("createdb")?);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, name]);
        run(&mut command).await?;
        Ok(self.url(name))
    }

    /// Stops it and starts it again on the same port and data.
    pub async fn restart(self) -> Result<Self> {
        let (dir, port, environment) = (self.dir.clone(), self.port, self.environment.clone());
        self.stop().await?;
        Self::launch(dir, port, environment).await
    }

    /// Stops it.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await
    }
}

/// Makes the files of a cluster in `dir/data`.
fn initdb(dir: &Path) -> Result<Command> {
    let mut initdb = as_user(&program("initdb")?);
    initdb.args(["--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--pgdata"]);
    initdb.arg(dir.join("data"));
    Ok(initdb)
}

/// A server on `dir/data`, with this environment more: its own, and not that of a program that starts it.
fn server(dir: &Path, port: u16, environment: &[(String, String)]) -> Result<Command> {
    let mut command = as_user(Path::new("env"));
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).arg(program("postgres")?);
    command.arg("-D").arg(dir.join("data")).arg("-k").arg(dir).args(["-p", &port.to_string()]);
    for setting in [
        "listen_addresses=127.0.0.1",
        "max_connections=300",
        "shared_buffers=128MB",
        "fsync=on",
        "synchronous_commit=on",
        "log_min_messages=warning",
    ] {
        command.args(["-c", setting]);
    }
    Ok(command)
}

/// Starts it, and waits until it answers.
async fn answering(logs: &Path, port: u16, command: Command) -> Result<Guarded> {
    // SIGINT: disconnect everybody and end in order.
    let process = Guarded::start_with("postgres", logs, command, Signal::SIGINT)?;
    let ready = program("pg_isready")?;
    until("Postgres answers", READY_WITHIN, || {
        let running = process.check_running();
        let mut probe = tokio::process::Command::new(&ready);
        probe.args(["-q", "-h", "127.0.0.1", "-d", "postgres", "-U", USER, "-p", &port.to_string()]);
        async move {
            running?;
            Ok(probe.status().await?.success())
        }
    })
    .await?;
    Ok(process)
}

fn program(name: &str) -> Result<PathBuf> {
    find::program(name, "postgresql", &find::postgres_dirs())
}

/// As the package's user when we are root; as ourselves otherwise. `setpriv` keeps the process id,
/// so that signals reach the server itself.
fn as_user(program: &Path) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    command
}

fn open_for_passage(path: &Path) -> Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let metadata = fs::metadata(path)?;
    let mode = metadata.permissions().mode();
    if metadata.uid() == 0 && mode & 0o001 == 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o011))?;
    }
    Ok(())
}

async fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let mut command = tokio::process::Command::from(std::mem::replace(command, Command::new("true")));
    let output = tokio::time::timeout(Duration::from_secs(60), command.kill_on_drop(true).output());
    let output = output.await.with_context(|| format!("hangs: {shown}"))??;
    if !output.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
