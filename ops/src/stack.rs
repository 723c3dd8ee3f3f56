//! A whole private shop as child processes: origin, edge, payment provider simulator, with random
//! secrets, on free ports of loopback. `flashgate up`, the demo and the end-to-end tests use it.

mod place;

use crate::{
    admin::AdminClient,
    child::{Proc, Recipe},
    provider::{NOTICES_PATH, Provider, ProviderConfig},
    secrets::Secrets,
    steps::Steps,
    workerd::{Workerd, WorkerdConfig},
};
use anyhow::{Context, Result, bail, ensure};
use flashgate_servers::free_port;
use futures_util::future::try_join_all;
pub use place::bin_dir;
use place::{component, data_dir, executable, origin_env};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// The `kid` of the key that signs entry tokens.
const ENTRY_KID: &str = "entry-1";
/// The `iss` of entry tokens.
const ISSUER: &str = "flashgate";
/// How long a part may take to become ready once it listens, in seconds.
const READY_TIMEOUT_S: u64 = 60;
/// How long migrations may take, in seconds.
const MIGRATE_TIMEOUT_S: u64 = 120;
/// Roles that serve buyers.
const SERVING: [&str; 2] = ["all", "serve"];
/// Roles that migrate the database before they start.
const MIGRATING: [&str; 2] = ["all", "migrate"];

/// Where the origin finds its stores: private ones, each URL already naming its database or vhost.
#[derive(Debug, Clone)]
pub struct Backends {
    /// `redis://host:port`.
    pub redis_url: String,
    /// `amqp://user:password@host:port/vhost`.
    pub rabbit_url: String,
    /// `postgres://user:password@host:port/database`.
    pub postgres_url: String,
}

/// What a stack is made of.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Edge processes, at least 1.
    pub edges: usize,
    /// Cloudflare Workers, each in a workerd of its own, as `make worker` built them.
    pub workers: usize,
    /// Origin processes: the roles of each. The first with `serve` or `all` is the one the edges
    /// and the provider talk to. Default `[["all"]]`.
    pub origin_roles: Vec<Vec<&'static str>>,
    /// Prefix of Redis keys and of queue names.
    pub prefix: String,
    /// More environment for every origin process, e.g. `("FLASHGATE_TOKEN__TTL_S", "60")`; wins
    /// over what the stack sets.
    pub origin_env: Vec<(String, String)>,
    /// More arguments for every edge process, e.g. `["--instances", "1"]`.
    pub edge_args: Vec<String>,
    /// Where single edge processes, by their number, find the origin [default: where it is].
    pub edge_origins: Vec<(usize, String)>,
    /// More environment for single edge processes, by their number.
    pub edge_env: Vec<(usize, String, String)>,
    /// The edge's component; default `FLASHGATE_COMPONENT`, else the one built by `make wasm`.
    pub component: Option<PathBuf>,
    /// Where `flashgate-origin` and `flashgate-edge` are; default: beside this executable.
    pub bin_dir: Option<PathBuf>,
    /// Where secrets and logs go; default: a temporary directory that is removed in the end.
    pub data_dir: Option<PathBuf>,
    /// The port of the first edge (the next ones follow it); default: free ports.
    pub edge_port: Option<u16>,
    /// Whether each step is told on standard error, with its duration.
    pub verbose: bool,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            edges: 1,
            workers: 0,
            origin_roles: vec![vec!["all"]],
            prefix: "fg".into(),
            origin_env: Vec::new(),
            edge_args: Vec::new(),
            edge_origins: Vec::new(),
            edge_env: Vec::new(),
            component: None,
            bin_dir: None,
            data_dir: None,
            edge_port: None,
            verbose: false,
        }
    }
}

/// A running shop. Its processes end with [`Stack::stop`], when it is dropped, and when this
/// process dies.
#[derive(Debug)]
pub struct Stack {
    // Processes before the directory their logs are in: fields are dropped in this order.
    edges: Vec<Proc>,
    edge_urls: Vec<String>,
    workers: Vec<Workerd>,
    origins: Vec<Proc>,
    origin_urls: Vec<String>,
    serving: usize,
    provider: Provider,
    secrets: Secrets,
    data_dir: PathBuf,
    _temporary: Option<TempDir>,
    http: reqwest::Client,
}

impl Stack {
    /// Starts everything and waits until each part says that it is ready. When a part fails, the
    /// error carries the end of its log.
    pub async fn start(backends: &Backends, config: StackConfig) -> Result<Self> {
        ensure!(config.edges > 0, "a shop needs at least one edge");
        let steps = Steps::new(config.verbose);
        let is_serving = |roles: &Vec<&str>| roles.iter().any(|r| SERVING.contains(r));
        let serving = config.origin_roles.iter().position(is_serving);
        let serving = serving.context("one origin process needs the role serve or all")?;
        let mut stack = Self::prepare(backends, &config, serving).await?;
        if !config.origin_roles.iter().flatten().any(|r| MIGRATING.contains(r)) {
            steps.run("database migrated", stack.migrate(backends, &config)).await?;
        }
        let roles: Vec<_> = config.origin_roles.iter().map(|r| r.join(",")).collect();
        let what = format!("origin ready ({})", roles.join(" | "));
        steps.run(&what, async { try_join_all((0..stack.origins.len()).map(|i| stack.start_origin(i))).await }).await?;
        let what = format!("edge ready ({} × WebAssembly gate)", stack.edges.len());
        steps.run(&what, async { try_join_all((0..stack.edges.len()).map(|i| stack.start_edge(i))).await }).await?;
        if config.workers > 0 {
            let worker = stack.worker_config();
            let what = format!("Worker ready ({} × workerd)", config.workers);
            let workers = async { try_join_all((0..config.workers).map(|_| Workerd::start(&worker))).await };
            stack.workers = steps.run(&what, workers).await?;
        }
        Ok(stack)
    }

    async fn prepare(backends: &Backends, config: &StackConfig, serving: usize) -> Result<Self> {
        let bin_dir = match &config.bin_dir {
            Some(dir) => dir.clone(),
            None => bin_dir()?,
        };
        let component = match &config.component {
            Some(path) => path.clone(),
            None => component(&bin_dir)?,
        };
        let (data_dir, temporary) = data_dir(config.data_dir.as_deref())?;
        let secrets = Secrets::create(&data_dir)?;
        let provider = Provider::start(ProviderConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            secret: secrets.webhook_secret.clone(),
            notify_url: None,
        })
        .await?;
        let env = origin_env(backends, config, &secrets, provider.url());
        let (mut origins, mut origin_urls) = (Vec::new(), Vec::new());
        for (i, roles) in config.origin_roles.iter().enumerate() {
            // A port of its own, kept over restarts: the edges know the origin by it.
            let listen = format!("127.0.0.1:{}", free_port()?);
            let mut env = env.clone();
            let serves = roles.iter().any(|role| SERVING.contains(role));
            let key = if serves { "FLASHGATE_SERVER__LISTEN" } else { "FLASHGATE_SERVER__HEALTH_LISTEN" };
            env.insert(0, (key.into(), listen.clone().into()));
            origin_urls.push(format!("http://{listen}"));
            origins.push(Proc::new(Recipe {
                name: format!("origin-{i}"),
                program: executable(&bin_dir, "flashgate-origin")?,
                args: vec![roles.join(",").into()],
                env,
                log: data_dir.join(format!("origin-{i}.log")),
            }));
        }
        provider.set_notify_url(format!("{}{NOTICES_PATH}", origin_urls[serving]));
        let (mut edges, mut edge_urls) = (Vec::new(), Vec::new());
        for i in 0..config.edges {
            let port = match config.edge_port {
                Some(first) => first.checked_add(u16::try_from(i)?).context("no such port")?,
                None => free_port()?,
            };
            edge_urls.push(format!("http://127.0.0.1:{port}"));
            let mut args: Vec<OsString> = vec!["--component".into(), component.clone().into()];
            args.extend(["--listen".into(), format!("127.0.0.1:{port}").into()]);
            let origin = config.edge_origins.iter().find(|(edge, _)| *edge == i).map(|(_, url)| url);
            args.extend(["--origin".into(), origin.unwrap_or(&origin_urls[serving]).into()]);
            args.extend(["--edge-key-file".into(), secrets.file("edge-key").into()]);
            args.extend(["--document-keys-file".into(), secrets.file("document-keys.json").into()]);
            args.extend(["--key-value".into(), data_dir.join(format!("edge-{i}.redb")).into()]);
            args.extend(config.edge_args.iter().map(OsString::from));
            edges.push(Proc::new(Recipe {
                name: format!("edge-{i}"),
                program: executable(&bin_dir, "flashgate-edge")?,
                args,
                env: config
                    .edge_env
                    .iter()
                    .filter(|(edge, ..)| *edge == i)
                    .map(|(_, name, value)| (name.clone(), value.into()))
                    .collect(),
                log: data_dir.join(format!("edge-{i}.log")),
            }));
        }
        Ok(Self {
            edges,
            edge_urls,
            workers: Vec::new(),
            origins,
            origin_urls,
            serving,
            provider,
            secrets,
            data_dir,
            _temporary: temporary,
            http: reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?,
        })
    }

    async fn migrate(&self, backends: &Backends, config: &StackConfig) -> Result<()> {
        let bin_dir = match &config.bin_dir {
            Some(dir) => dir.clone(),
            None => bin_dir()?,
        };
        let proc = Proc::new(Recipe {
            name: "migrate".into(),
            program: executable(&bin_dir, "flashgate-origin")?,
            args: vec!["migrate".into()],
            env: origin_env(backends, config, &self.secrets, self.provider.url()),
            log: self.data_dir.join("migrate.log"),
        });
        proc.run_to_end(Duration::from_secs(MIGRATE_TIMEOUT_S)).await
    }

    /// Address of edge `i`, counted round.
    pub fn edge_url(&self, i: usize) -> &str {
        &self.edge_urls[i % self.edge_urls.len()]
    }

    /// The Workers.
    pub fn workers(&self) -> &[Workerd] {
        &self.workers
    }

    /// Addresses of all edges that are hosts.
    pub fn edge_urls(&self) -> &[String] {
        &self.edge_urls
    }

    /// Address of the origin that serves.
    pub fn origin_url(&self) -> &str {
        &self.origin_urls[self.serving]
    }

    /// Address of origin process `i`.
    pub fn origin_url_of(&self, i: usize) -> &str {
        &self.origin_urls[i]
    }

    /// The origin's executable.
    pub fn origin_program(&self) -> &Path {
        self.origins[self.serving].program()
    }

    /// Number of origin processes.
    pub fn origins(&self) -> usize {
        self.origins.len()
    }

    /// Address of the payment provider simulator.
    pub fn provider_url(&self) -> &str {
        self.provider.url()
    }

    /// The payment provider simulator.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// A client of the admin API.
    pub fn admin(&self) -> AdminClient {
        AdminClient::new(self.origin_url(), self.admin_token())
    }

    /// What an operator shows to the origin.
    pub fn admin_token(&self) -> &str {
        &self.secrets.admin_token
    }

    /// The file that holds it.
    pub fn admin_token_file(&self) -> PathBuf {
        self.secrets.file("admin-token")
    }

    /// What an edge shows to the origin.
    pub fn edge_key(&self) -> &str {
        &self.secrets.edge_key
    }

    /// The JWK set of sale documents.
    pub fn document_keys(&self) -> &str {
        &self.secrets.document_keys
    }

    /// A Worker in front of this shop.
    pub fn worker_config(&self) -> WorkerdConfig {
        WorkerdConfig {
            document_keys: self.document_keys().to_owned(),
            ..WorkerdConfig::new(self.origin_url(), self.edge_key())
        }
    }

    /// What the provider signs notices with, `whsec_…`.
    pub fn webhook_secret(&self) -> &str {
        &self.secrets.webhook_secret
    }

    /// The private Ed25519 key of entry tokens, PKCS #8 PEM.
    pub fn entry_signing_pem(&self) -> &str {
        &self.secrets.entry_signing_pem
    }

    /// The `kid` of that key.
    pub fn entry_kid(&self) -> &str {
        ENTRY_KID
    }

    /// The `iss` of entry tokens.
    pub fn issuer(&self) -> &str {
        ISSUER
    }

    /// Secrets and logs (`origin-0.log`, `edge-0.log`).
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Process id of origin `i`, while it runs.
    pub fn origin_pid(&self, i: usize) -> Option<u32> {
        self.origins[i].pid()
    }

    /// Process id of edge `i`, while it runs.
    pub fn edge_pid(&self, i: usize) -> Option<u32> {
        self.edges[i].pid()
    }

    /// Kills origin `i` (SIGKILL) and waits until it is gone.
    pub async fn kill_origin(&self, i: usize) -> Result<()> {
        self.origins[i].kill().await
    }

    /// Ends origin `i` gracefully (SIGTERM) and waits; an exit that is not clean is an error.
    pub async fn term_origin(&self, i: usize) -> Result<()> {
        self.origins[i].term().await
    }

    /// Starts origin `i` (again, on its old port) and waits until it is ready.
    pub async fn start_origin(&self, i: usize) -> Result<()> {
        self.origins[i].start().await?;
        self.ready(&self.origins[i], &format!("{}/readyz", self.origin_urls[i])).await
    }

    /// Kills edge `i` (SIGKILL) and waits until it is gone.
    pub async fn kill_edge(&self, i: usize) -> Result<()> {
        self.edges[i].kill().await
    }

    /// Ends edge `i` gracefully (SIGTERM) and waits; an exit that is not clean is an error.
    pub async fn term_edge(&self, i: usize) -> Result<()> {
        self.edges[i].term().await
    }

    /// Starts edge `i` (again, on its old port) and waits until its component answers.
    pub async fn start_edge(&self, i: usize) -> Result<()> {
        self.edges[i].start().await?;
        self.ready(&self.edges[i], &format!("{}/healthz", self.edge_urls[i])).await
    }

    /// Whether origin `i` says that it and its stores are ready.
    pub async fn is_ready(&self, i: usize) -> bool {
        let answer = self.http.get(format!("{}/readyz", self.origin_urls[i])).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// The end of the log of origin `i`.
    pub fn origin_log(&self, i: usize) -> String {
        self.origins[i].tail()
    }

    /// The end of the log of edge `i`.
    pub fn edge_log(&self, i: usize) -> String {
        self.edges[i].tail()
    }

    /// Fails when a part has ended by itself.
    pub async fn check(&self) -> Result<()> {
        for part in self.edges.iter().chain(&self.origins) {
            part.check().await?;
        }
        self.workers.iter().try_for_each(Workerd::check_running)
    }

    /// Stops everything, gracefully: first no more buyers, then the work. A part that does not end
    /// cleanly is an error, after all have ended.
    pub async fn stop(self) -> Result<()> {
        let ended = futures_util::future::join_all(self.workers.into_iter().map(Workerd::stop)).await;
        let mut outcome = ended.into_iter().fold(Ok(()), Result::and);
        for parts in [&self.edges, &self.origins] {
            let ended = futures_util::future::join_all(parts.iter().map(Proc::term)).await;
            outcome = ended.into_iter().fold(outcome, Result::and);
        }
        self.provider.stop().await;
        outcome
    }

    /// Polls `url` until it says 200, as long as the process lives.
    async fn ready(&self, part: &Proc, url: &str) -> Result<()> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(READY_TIMEOUT_S);
        loop {
            let last = match self.http.get(url).send().await {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => format!("status {}", answer.status()),
                Err(error) => crate::admin::innermost(&error),
            };
            part.check().await?;
            if tokio::time::Instant::now() > deadline {
                bail!("{url} is not ready after {READY_TIMEOUT_S} s ({last}); its log ends:\n{}", part.tail());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
