//! The gate as a Cloudflare Worker, in the real runtime `workerd`, with what `make worker` built.
//!
//! What differs from Cloudflare: nobody in front overwrites `CF-Connecting-IP`, so that a client names
//! its own address; there is one data centre, `local`; and a Durable Object lives in the process of
//! its first isolate. Several isolates of the Worker can be had: they share its Durable Objects.

use crate::stack::bin_dir;
use anyhow::{Context, Result, ensure};
use flashgate_servers::{Guarded, READY_WITHIN, free_port, until};
use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// How it is deployed: what runs here is to be of the same day.
const WRANGLER: &str = include_str!("../../wrangler.toml");
/// The configuration's name in a directory of its own.
const CONFIG_FILE: &str = "workerd.capnp";

/// A KV namespace in the memory of workerd, which asks for it over HTTP: `GET` and `PUT /{key}`.
const KV_NAMESPACE: &str = r#"
const values = new Map();
export default {
  async fetch(request) {
    const key = decodeURIComponent(new URL(request.url).pathname.slice(1));
    if (request.method === "PUT") {
      values.set(key, await request.arrayBuffer());
      return new Response(null);
    }
    const value = values.get(key);
    return value === undefined ? new Response(null, { status: 404 }) : new Response(value);
  },
};
"#;

/// How the Worker is run.
#[derive(Debug, Clone)]
pub struct WorkerdConfig {
    /// Scheme and authority of the origin.
    pub origin_url: String,
    /// The edge's key towards the origin.
    pub edge_key: String,
    /// The JWK set of sale documents; empty: none are taken.
    pub document_keys: String,
    /// Isolates, each with a port of its own.
    pub isolates: usize,
    /// The source of an ES module that serves instead of the built one, which it finds as `./index.js`.
    pub wrapper: Option<&'static str>,
}

impl WorkerdConfig {
    /// One isolate of the Worker as it was built.
    pub fn new(origin_url: &str, edge_key: &str) -> Self {
        Self {
            origin_url: origin_url.to_owned(),
            edge_key: edge_key.to_owned(),
            document_keys: String::new(),
            isolates: 1,
            wrapper: None,
        }
    }
}

/// A running `workerd`. It ends with [`Workerd::stop`], when it is dropped, and when this process dies.
#[derive(Debug)]
pub struct Workerd {
    // The process before the directory that its files are in: fields are dropped in this order.
    process: Guarded,
    urls: Vec<String>,
    dir: TempDir,
}

impl Workerd {
    /// Starts it and waits until every isolate answers.
    pub async fn start(config: &WorkerdConfig) -> Result<Self> {
        ensure!(config.isolates > 0, "the Worker needs at least one isolate");
        let dir = tempfile::Builder::new().prefix("flashgate-workerd-").tempdir()?;
        let bin_dir = bin_dir()?;
        let built = bin_dir.parent().unwrap_or(&bin_dir).join("worker");
        // The configuration embeds files by names relative to itself.
        for file in ["index.js", "gate.wasm"] {
            let from = built.join(file);
            fs::copy(&from, dir.path().join(file)).with_context(|| format!("{}: run `make worker`", from.display()))?;
        }
        let ports = (0..config.isolates).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        fs::write(dir.path().join(CONFIG_FILE), capnp(config, &ports, dir.path())?)?;
        let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        Ok(Self { process: serve(dir.path(), &urls).await?, urls, dir })
    }

    /// Kills it (SIGKILL): its memory and its Durable Objects are gone. The returned half starts it again.
    pub async fn kill(self) -> Result<KilledWorkerd> {
        self.process.kill().await?;
        Ok(KilledWorkerd { urls: self.urls, dir: self.dir })
    }

    /// The first isolate's address.
    pub fn url(&self) -> &str {
        self.url_of(0)
    }

    /// The address of isolate `i`, counted round.
    pub fn url_of(&self, i: usize) -> &str {
        &self.urls[i % self.urls.len()]
    }

    /// Fails with the end of its log when it has ended.
    pub fn check_running(&self) -> Result<()> {
        self.process.check_running()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The end of what it has logged.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Stops it and waits until it is gone.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await
    }
}

/// What is left of a killed [`Workerd`]: its files and its addresses.
#[derive(Debug)]
pub struct KilledWorkerd {
    urls: Vec<String>,
    dir: TempDir,
}

impl KilledWorkerd {
    /// Starts it again, at its old addresses, and waits until every isolate answers.
    pub async fn start(self) -> Result<Workerd> {
        Ok(Workerd { process: serve(self.dir.path(), &self.urls).await?, urls: self.urls, dir: self.dir })
    }
}

/// Starts the program on the configuration in this directory.
async fn serve(dir: &Path, urls: &[String]) -> Result<Guarded> {
    let mut command = Command::new(program()?);
    command.arg("serve").arg(dir.join(CONFIG_FILE));
    let process = Guarded::start("workerd", dir, command)?;
    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?;
    until("workerd answers", READY_WITHIN, || {
        let running = process.check_running();
        let http = &http;
        async move {
            running?;
            for url in urls {
                http.get(format!("{url}/healthz")).send().await?.error_for_status()?;
            }
            Ok(true)
        }
    })
    .await?;
    Ok(process)
}

/// The configuration, in workerd's own language (Cap'n Proto).
fn capnp(config: &WorkerdConfig, ports: &[u16], dir: &Path) -> Result<String> {
    let mut modules = String::from(
        r#"(name = "index.js", esModule = embed "index.js"), (name = "gate.wasm", wasm = embed "gate.wasm")"#,
    );
    if let Some(source) = config.wrapper {
        fs::write(dir.join("wrapper.mjs"), source)?;
        modules.insert_str(0, r#"(name = "wrapper.mjs", esModule = embed "wrapper.mjs"), "#);
    }
    fs::write(dir.join("sales.mjs"), KV_NAMESPACE)?;
    let (mut services, mut sockets, mut workers) = (String::new(), String::new(), String::new());
    for (i, port) in ports.iter().enumerate() {
        writeln!(services, r#"    (name = "gate{i}", worker = .gate{i}),"#)?;
        writeln!(sockets, r#"    (name = "http{i}", address = "127.0.0.1:{port}", http = (), service = "gate{i}"),"#)?;
        // The first one has the Durable Objects; the others reach them there.
        let (desks, owner) = match i {
            0 => (
                "durableObjectNamespaces = [(className = \"LeaseDesk\", uniqueKey = \"flashgate\")],\n  durableObjectStorage = (inMemory = void),",
                r#""LeaseDesk""#,
            ),
            _ => ("", r#"(className = "LeaseDesk", serviceName = "gate0")"#),
        };
        writeln!(
            workers,
            r#"const gate{i} :Workerd.Worker = (
  modules = [{modules}],
  compatibilityDate = {date:?},
  globalOutbound = "net",
  bindings = [
    (name = "ORIGIN_URL", text = {origin:?}),
    (name = "EDGE_KEY", text = {key:?}),
    (name = "DOCUMENT_KEYS", text = {documents:?}),
    (name = "SALES", kvNamespace = "sales"),
    (name = "LEASES", durableObjectNamespace = {owner}),
  ],
  {desks}
);"#,
            date = compatibility_date()?,
            origin = config.origin_url,
            key = config.edge_key,
            documents = config.document_keys,
        )?;
    }
    Ok(format!(
        r#"using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
{services}    (name = "sales", worker = .sales),
    (name = "net", network = (allow = ["private", "public", "local"])),
  ],
  sockets = [
{sockets}  ],
);
{workers}const sales :Workerd.Worker = (
  modules = [(name = "sales.mjs", esModule = embed "sales.mjs")],
  compatibilityDate = {date:?},
);
"#,
        date = compatibility_date()?,
    ))
}

/// That of `wrangler.toml`.
fn compatibility_date() -> Result<&'static str> {
    let line = WRANGLER.lines().find_map(|line| line.strip_prefix("compatibility_date = "));
    Ok(line.context("wrangler.toml names no compatibility_date")?.trim().trim_matches('"'))
}

/// The program, where `setup.sh worker` put it: `@cloudflare/workerd-<platform>/bin/workerd`.
fn program() -> Result<PathBuf> {
    let cache = env::var_os("FLASHGATE_CACHE").map(PathBuf::from).or_else(|| {
        let home = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
        Some(home.join("flashgate"))
    });
    let packages = cache.context("no home directory")?.join("worker/node_modules/@cloudflare");
    let found = fs::read_dir(&packages)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin/workerd"))
        .find(|path| path.is_file());
    found.with_context(|| format!("no workerd under {}: run `make worker`", packages.display()))
}
