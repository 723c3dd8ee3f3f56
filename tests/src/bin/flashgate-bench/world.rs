//! What is measured, and what beside it: private servers, one origin and one edge as processes, and
//! the yardsticks as processes of their own.

use crate::HELLO;
use anyhow::{Context, Result};
use axum::{Router, routing::any, serve::ListenerExt};
use flashgate_ops::{
    child::{Proc, Recipe},
    stack::{Backends, Stack, StackConfig, bin_dir},
    steps::Steps,
};
use flashgate_servers::Servers;
use flashgate_shared::{
    Money,
    sale::{AddressLimits, BucketLimit, SaleConfig},
    wire::AdminSale,
};
use flashgate_tests::{entry_claims, sign};
use serde_json::json;
use std::{
    ffi::OsString,
    net::SocketAddr,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Prefix of Redis keys and of queue names, and name of vhost and database.
const PREFIX: &str = "bench";

/// All that runs during the benchmark.
pub struct World {
    // Processes before the directory that their data and logs are in.
    /// The shop: an origin that only serves (settling is another machine's work) and an edge.
    pub stack: Stack,
    /// Its stores.
    pub servers: Servers,
    /// The axum "hello".
    pub hello: SocketAddr,
    /// Tells steps.
    pub steps: Steps,
    hello_process: Proc,
    dir: TempDir,
}

impl World {
    /// Starts it.
    pub async fn start() -> Result<Self> {
        let steps = Steps::new(true);
        let dir = tempfile::Builder::new().prefix("flashgate-bench-").tempdir()?;
        let servers = steps.run("Redis, RabbitMQ, Postgres", Servers::start(dir.path())).await?;
        let backends = Backends {
            redis_url: servers.redis.url(),
            rabbit_url: servers.rabbit.add_vhost(PREFIX).await?,
            postgres_url: servers.postgres.create_database(PREFIX).await?,
        };
        let config = StackConfig {
            prefix: PREFIX.into(),
            origin_roles: vec![vec!["serve"]],
            verbose: true,
            ..StackConfig::default()
        };
        let stack = Stack::start(&backends, config).await?;
        let hello_process = Proc::new(Recipe {
            name: "hello".into(),
            program: std::env::current_exe()?,
            args: vec![HELLO.into()],
            env: Vec::new(),
            log: dir.path().join("hello.log"),
        });
        let hello = address(&steps.run("axum hello", hello_process.start()).await?)?;
        Ok(Self { stack, servers, hello, steps, hello_process, dir })
    }

    /// Ends it.
    pub async fn stop(self) -> Result<()> {
        self.hello_process.term().await?;
        self.stack.stop().await?;
        self.servers.stop().await
    }

    /// The origin's address.
    pub fn origin(&self) -> Result<SocketAddr> {
        address(self.stack.origin_url())
    }

    /// Another process of the edge's host, serving this component in the same way.
    pub async fn host(&self, component: &str, more: &[&str]) -> Result<(Proc, SocketAddr)> {
        let bin_dir = bin_dir()?;
        let path = component_path(&bin_dir, component)?;
        let mut args: Vec<OsString> = vec!["--component".into(), path.into()];
        args.extend(["--listen", "127.0.0.1:0", "--origin", self.stack.origin_url()].map(OsString::from));
        args.extend(more.iter().map(OsString::from));
        let process = Proc::new(Recipe {
            name: component.to_owned(),
            program: bin_dir.join("flashgate-edge"),
            args,
            env: Vec::new(),
            log: self.dir.path().join(format!("{component}.log")),
        });
        let url = process.start().await?;
        Ok((process, address(&url)?))
    }

    /// Creates a sale that is open now and limits nobody by address.
    pub async fn sale(&self, id: &str, total: u32) -> Result<AdminSale> {
        Ok(self.stack.admin().create_sale(&Self::settings(id, total)?).await?)
    }

    /// The settings of such a sale.
    pub fn settings(id: &str, total: u32) -> Result<SaleConfig> {
        let free = BucketLimit { rate_per_s: 1e6, burst: 1e6 };
        Ok(SaleConfig {
            id: id.parse()?,
            version: 1,
            title: "Benchmark".into(),
            description: String::new(),
            price: Money { amount_minor: 19_900, currency: "EUR".to_owned().try_into().map_err(anyhow::Error::msg)? },
            total,
            per_buyer_limit: 1,
            opens_at_ms: now_ms() - 60_000,
            closes_at_ms: now_ms() + 3_600_000,
            buckets: 1,
            shards: 1,
            admit_factor: 1e5,
            enter_rate_per_s: 1_000.0,
            pay_window_ms: 3_600_000,
            grace_ms: 1_000,
            second_try: false,
            anonymous_entry: true,
            backlog_limit: u32::MAX,
            address_limits: AddressLimits { claim: free, enter: free, status: free, read: free },
        })
    }

    /// Entry tokens of so many buyers.
    pub fn tokens(&self, sale: &str, count: u64) -> Result<Vec<String>> {
        let header = json!({"alg": "EdDSA", "kid": self.stack.entry_kid()});
        (0..count)
            .map(|n| {
                let claims = entry_claims(self.stack.issuer(), sale, &format!("buyer-{n}"), now_ms());
                sign(self.stack.entry_signing_pem(), &header, &claims)
            })
            .collect()
    }
}

/// Serves "hello" to whatever is asked, and says where.
pub async fn hello() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http://{}", listener.local_addr()?);
    // Without it an answer may wait for an acknowledgement; the origin has it too.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let app = Router::new().fallback(any(async || "hello"));
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = axum::serve(listener, app) => Ok(served?),
        _ = end.recv() => Ok(()),
    }
}

/// The clock of this machine, which all processes of the benchmark share.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The socket address of `http://ip:port`.
pub fn address(url: &str) -> Result<SocketAddr> {
    url.trim_start_matches("http://").parse().with_context(|| format!("no address in {url}"))
}

fn component_path(bin_dir: &std::path::Path, name: &str) -> Result<PathBuf> {
    let path = bin_dir.parent().unwrap_or(bin_dir).join(format!("wasm/wasm32-wasip2/release/{name}.wasm"));
    anyhow::ensure!(path.is_file(), "{} is missing: `make wasm` builds it", path.display());
    Ok(path)
}
