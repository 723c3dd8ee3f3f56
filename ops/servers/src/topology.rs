//! Redis in more than one piece: a primary and its replicas under sentinels, and a cluster.

use crate::{
    Fsync, Guarded, READY_WITHIN, find, free_port,
    redis::{ask, serve},
    until,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fmt::Write,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

/// The name that the sentinels know the primary by.
const SERVICE: &str = "gate";
/// Sentinels; two of them decide.
const SENTINELS: usize = 3;
/// How long a primary is silent before a sentinel calls it down, in milliseconds.
const DOWN_AFTER_MS: u32 = 1_000;
/// Primaries of a cluster: the fewest that it takes.
const PRIMARIES: usize = 3;

/// A server of either kind: its process and its port.
#[derive(Debug)]
struct Node {
    process: Guarded,
    port: u16,
}

impl Node {
    /// Starts one in `dir`, which is its own, with these options more.
    async fn start(dir: &Path, options: &[&str]) -> Result<Self> {
        Self::start_at(dir, free_port()?, options).await
    }

    async fn start_at(dir: &Path, port: u16, options: &[&str]) -> Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { process: serve(dir, port, Fsync::Always, options).await?, port })
    }
}

/// Replicas of the primary: two, so that one is left to write to when the other was promoted.
const REPLICAS: usize = 2;
/// What is prescribed where there are replicas: a write that no replica follows is refused, and not lost later.
const PRESCRIBED: [&str; 4] = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"];

/// A primary, its replicas and three sentinels.
#[derive(Debug)]
pub struct Sentinels {
    primary: Option<Node>,
    replicas: Vec<Node>,
    sentinels: Vec<Node>,
}

impl Sentinels {
    /// Starts them under `dir`, and waits until the replicas follow and the sentinels agree.
    pub async fn start(dir: &Path) -> Result<Self> {
        let primary = Node::start(&dir.join("primary"), &PRESCRIBED).await?;
        let of = primary.port.to_string();
        let mut replicas = Vec::new();
        for i in 0..REPLICAS {
            let options = [&PRESCRIBED[..], &["--replicaof", "127.0.0.1", &of]].concat();
            replicas.push(Node::start(&dir.join(format!("replica-{i}")), &options).await?);
        }
        let (mut sentinels, mut ports) = (Vec::new(), Vec::new());
        for i in 0..SENTINELS {
            let (dir, port) = (dir.join(format!("sentinel-{i}")), free_port()?);
            fs::create_dir_all(&dir)?;
            let config = dir.join("sentinel.conf");
            fs::write(
                &config,
                format!(
                    "bind 127.0.0.1\nport {port}\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {of} 2\n\
                     sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n\
                     sentinel failover-timeout {SERVICE} 5000\n",
                    dir.display()
                ),
            )?;
            let mut command = Command::new(find::program("redis-server", "redis-server", &[])?);
            command.arg(&config).arg("--sentinel");
            sentinels.push(Node { process: Guarded::start("sentinel", &dir, command)?, port });
            ports.push(port);
        }
        until("the replicas follow", READY_WITHIN, || async {
            for replica in &replicas {
                let info = ask(replica.port, "INFO replication\r\n").await?;
                ensure!(info.contains("master_link_status:up"), "{info}");
            }
            Ok(true)
        })
        .await?;
        until("the sentinels agree", READY_WITHIN, || async {
            for &port in &ports {
                let quorum = ask(port, &format!("SENTINEL ckquorum {SERVICE}\r\n")).await?;
                let known = ask(port, &format!("SENTINEL replicas {SERVICE}\r\n")).await?;
                let others = ask(port, &format!("SENTINEL sentinels {SERVICE}\r\n")).await?;
                let wanted = format!("*{}\r\n", SENTINELS - 1);
                ensure!(quorum.starts_with("+OK 3"), "{quorum}");
                let all = format!("*{REPLICAS}\r\n");
                ensure!(known.starts_with(&all) && others.starts_with(&wanted), "they do not know all yet");
            }
            Ok(true)
        })
        .await?;
        Ok(Self { primary: Some(primary), replicas, sentinels })
    }

    /// Where clients ask for the primary.
    pub fn url(&self) -> String {
        let mut ports = self.sentinels.iter().map(|node| node.port);
        let first = ports.next().unwrap_or_default();
        let mut url = format!("redis-sentinel://127.0.0.1:{first}?sentinelServiceName={SERVICE}");
        for port in ports {
            // Writing to memory does not fail.
            let _ = write!(url, "&node=127.0.0.1:{port}");
        }
        url
    }

    /// Kills the primary, for good.
    pub async fn kill_primary(&mut self) -> Result<()> {
        self.primary.take().context("it was killed before")?.process.kill().await
    }

    /// Stops them all.
    pub async fn stop(self) -> Result<()> {
        for node in self.sentinels.into_iter().chain(self.primary).chain(self.replicas) {
            node.process.stop().await?;
        }
        Ok(())
    }
}

/// Three primaries that share the keys, and perhaps replicas of them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    ports: Vec<u16>,
    dir: PathBuf,
}

/// A node's own bus has a port so much higher.
const BUS_OFFSET: u16 = 10_000;
/// Highest port of a node: its bus stays below those that the system gives to outgoing connections.
const NODE_PORT_MAX: u16 = 22_000;
/// Ports that are looked at for a node: more than there are, because the search starts anywhere.
const PORT_TRIES: usize = 1 << 16;

fn node_port() -> Result<u16> {
    for _ in 0..PORT_TRIES {
        let port = free_port()?;
        if port < NODE_PORT_MAX && TcpListener::bind(("127.0.0.1", port + BUS_OFFSET)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port for a node of a cluster")
}

impl Cluster {
    /// Starts it under `dir`, and waits until all keys have a home.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::of(dir, 0).await
    }

    /// The same, with a replica of each primary.
    pub async fn start_with_replicas(dir: &Path) -> Result<Self> {
        let cluster = Self::of(dir, 1).await?;
        until("every replica follows its primary", READY_WITHIN, || async {
            let mut following = 0;
            for &port in &cluster.ports {
                let role = ask(port, "INFO replication\r\n").await?;
                following += usize::from(role.contains("role:slave") && role.contains("master_link_status:up"));
            }
            Ok(following == PRIMARIES)
        })
        .await?;
        Ok(cluster)
    }

    async fn of(dir: &Path, replicas: usize) -> Result<Self> {
        let (mut nodes, mut ports) = (Vec::new(), Vec::new());
        for i in 0..PRIMARIES * (1 + replicas) {
            let port = node_port()?;
            nodes.push(Some(Self::node(dir, i, port).await?));
            ports.push(port);
        }
        let mut command = tokio::process::Command::new(find::program("redis-cli", "redis-tools", &[])?);
        command.args(["--cluster", "create"]).args(ports.iter().map(|port| format!("127.0.0.1:{port}")));
        let made = command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]).output().await?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { nodes, ports, dir: dir.to_owned() };
        cluster.until_whole().await?;
        Ok(cluster)
    }

    async fn node(dir: &Path, i: usize, port: u16) -> Result<Node> {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        Node::start_at(&dir.join(format!("node-{i}")), port, &options).await
    }

    async fn until_whole(&self) -> Result<()> {
        until("the cluster is whole", READY_WITHIN, || async {
            for port in self.nodes.iter().flatten().map(|node| node.port) {
                let info = ask(port, "CLUSTER INFO\r\n").await?;
                ensure!(info.contains("cluster_state:ok"), "{info}");
            }
            Ok(true)
        })
        .await
    }

    /// Its address.
    pub fn url(&self) -> String {
        let mut ports = self.ports.iter();
        let first = ports.next().copied().unwrap_or_default();
        ports.fold(format!("redis-cluster://127.0.0.1:{first}"), |mut url, port| {
            let sign = if url.contains('?') { '&' } else { '?' };
            // Writing to memory does not fail.
            let _ = write!(url, "{sign}node=127.0.0.1:{port}");
            url
        })
    }

    /// Kills a primary for good, and waits until its replica has taken over all its keys.
    pub async fn kill_primary(&mut self) -> Result<()> {
        let mut found = None;
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            if ask(node.port, "INFO replication\r\n").await?.contains("role:master") {
                found = Some(i);
                break;
            }
        }
        let node = found.and_then(|i| self.nodes.get_mut(i)).and_then(Option::take).context("no primary is left")?;
        node.process.kill().await?;
        // Until the others have seen it, they still say that all is well.
        until("the primary is missed", READY_WITHIN, || async {
            for port in self.nodes.iter().flatten().map(|node| node.port) {
                let info = ask(port, "CLUSTER NODES\r\n").await?;
                let dead = info.lines().any(|line| line.contains(&format!(":{}@", node.port)) && line.contains("fail"));
                ensure!(dead, "{info}");
            }
            Ok(true)
        })
        .await?;
        self.until_whole().await
    }

    /// Kills a node, and starts it again on its data.
    pub async fn restart(&mut self, i: usize) -> Result<()> {
        let node = self.nodes.get_mut(i).and_then(Option::take).context("no such node")?;
        let port = node.port;
        node.process.kill().await?;
        let again = Self::node(&self.dir, i, port).await?;
        if let Some(place) = self.nodes.get_mut(i) {
            *place = Some(again);
        }
        self.until_whole().await
    }

    /// Stops it.
    pub async fn stop(self) -> Result<()> {
        for node in self.nodes.into_iter().flatten() {
            node.process.stop().await?;
        }
        Ok(())
    }
}
