//! A private RabbitMQ, with an Erlang port mapper of its own.

use crate::{Guarded, READY_WITHIN, find, free_port, until};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The user that the broker makes by itself; it may log in from this machine only.
const USER: &str = "guest";

/// A RabbitMQ node.
#[derive(Debug)]
pub struct Rabbit {
    process: Guarded,
    /// Erlang's port mapper. Started by us and not, as a daemon, by the node: so that it ends with us.
    mapper: Guarded,
    dir: PathBuf,
    ports: Ports,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    dist: u16,
    epmd: u16,
}

impl Rabbit {
    /// Starts one under `dir/rabbit`.
    pub async fn start(dir: &Path) -> Result<Self> {
        let dir = dir.join("rabbit");
        fs::create_dir_all(&dir)?;
        let ports = Ports { amqp: free_port()?, dist: free_port()?, epmd: free_port()? };
        Self::launch(dir, ports).await
    }

    async fn launch(dir: PathBuf, ports: Ports) -> Result<Self> {
        let mut command = Command::new(find::program("epmd", "erlang-base", &[])?);
        command.args(["-address", "127.0.0.1", "-port", &ports.epmd.to_string()]);
        let mapper = Guarded::start("epmd", &dir, command)?;
        until("Erlang's port mapper answers", READY_WITHIN, || {
            let running = mapper.check_running();
            async move {
                running?;
                Ok(TcpStream::connect(("127.0.0.1", ports.epmd)).await.is_ok())
            }
        })
        .await?;
        // Debian's wrapper in /usr/sbin switches the user and drops the environment; the script
        // itself, in the broker's own place, comes first.
        let direct = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
        let program = if direct.exists() { direct } else { find::program("rabbitmq-server", "rabbitmq-server", &[])? };
        let mut command = Command::new(program);
        environment(&mut command, &dir, ports)?;
        let process = Guarded::start("rabbit", &dir, command)?;
        until("RabbitMQ answers", READY_WITHIN, || {
            let running = process.check_running();
            async move {
                running?;
                greeting(ports.amqp).await
            }
        })
        .await?;
        Ok(Self { process, mapper, dir, ports })
    }

    /// The AMQP port.
    pub fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// The port of its port mapper.
    pub fn mapper_port(&self) -> u16 {
        self.ports.epmd
    }

    /// The address of the default virtual host.
    pub fn url(&self) -> String {
        self.vhost_url("%2f")
    }

    fn vhost_url(&self, vhost: &str) -> String {
        format!("amqp://{USER}:{USER}@127.0.0.1:{}/{vhost}", self.ports.amqp)
    }

    /// The process id of the start script, whose process group is the node's.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Makes a virtual host with all rights for the user; its address.
    pub async fn add_vhost(&self, name: &str) -> Result<String> {
        self.ctl(&["add_vhost", name]).await?;
        self.ctl(&["set_permissions", "-p", name, USER, ".*", ".*", ".*"]).await?;
        Ok(self.vhost_url(name))
    }

    /// Runs `rabbitmqctl` against this node; its output.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let direct = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmqctl");
        let program = if direct.exists() { direct } else { find::program("rabbitmqctl", "rabbitmq-server", &[])? };
        let mut command = Command::new(program);
        environment(&mut command, &self.dir, self.ports)?;
        let cookie = fs::read_to_string(self.dir.join(".erlang.cookie")).unwrap_or_default();
        command.args(["--erlang-cookie", cookie.trim(), "--node", &node_name(self.ports)]).args(arguments);
        let output = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(Duration::from_secs(60), output).await.context("rabbitmqctl hangs")??;
        if !output.status.success() {
            bail!("rabbitmqctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Stops the node and starts it again on the same ports and data.
    pub async fn restart(self) -> Result<Self> {
        let (dir, ports) = (self.dir.clone(), self.ports);
        self.stop().await?;
        Self::launch(dir, ports).await
    }

    /// Stops it, its port mapper too.
    pub async fn stop(self) -> Result<()> {
        let stopped = self.process.stop().await;
        stopped.and(self.mapper.stop().await)
    }
}

fn node_name(ports: Ports) -> String {
    format!("flashgate{}@localhost", ports.amqp)
}

fn environment(command: &mut Command, dir: &Path, ports: Ports) -> Result<()> {
    let plugins = dir.join("enabled_plugins");
    if !plugins.exists() {
        fs::write(&plugins, "[].\n")?;
    }
    let cookie = dir.join(".erlang.cookie");
    if !cookie.exists() {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut random = [0_u8; 16];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
        let text: String = random.iter().map(|byte| char::from(b'A' + byte % 26)).collect();
        fs::OpenOptions::new().create_new(true).write(true).mode(0o400).open(&cookie)?.write_all(text.as_bytes())?;
    }
    let config = dir.join("rabbitmq.conf");
    // Small disks of test machines must not block publishers.
    fs::write(&config, "disk_free_limit.absolute = 50MB\nloopback_users.guest = true\nlog.file.level = warning\n")?;
    command
        .env("HOME", dir)
        .env("RABBITMQ_NODENAME", node_name(ports))
        .env("RABBITMQ_NODE_PORT", ports.amqp.to_string())
        .env("RABBITMQ_DIST_PORT", ports.dist.to_string())
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", dir.join("log"))
        .env("RABBITMQ_PID_FILE", dir.join("node.pid"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
        .env("RABBITMQ_CONFIG_FILE", config)
        .env("ERL_EPMD_PORT", ports.epmd.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 +sbwt none");
    Ok(())
}

/// Whether a broker answers a protocol header with the start of a connection.
async fn greeting(port: u16) -> Result<bool> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).await?;
        // Frame type 1: a method, connection.start.
        Ok::<_, std::io::Error>(answer[0] == 1)
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await.context("no answer")?.context("cannot connect")
}
