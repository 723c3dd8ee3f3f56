//! What the cases are tried on: one shop, its edges on each runtime, a sale for each set of troubles.

use crate::{
    cases::Case,
    wire::{Ask, Reply, exchange},
};
use anyhow::{Context, Result, ensure};
use aws_lc_rs::{hmac, signature::Ed25519KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use flashgate_servers::{Guarded, READY_WITHIN, free_port, program, until};
use flashgate_shared::{
    SaleId,
    sale::{BucketLimit, SalePhase},
    wire::SaleView,
};
use flashgate_tests::{Claimed, PATIENCE, Shop, Workerd, entry_claims, sign, signed_by};
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashMap},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;
use tokio::sync::Mutex;

/// The trace of every case that brings none of its own.
const TRACEPARENT: &str = "00-11112222333344445555666677778888-00f067aa0ba902b7-01";
const HOUR_MS: i64 = 3_600_000;
/// How long a sale lasts whose end is waited for.
const SHORT_MS: i64 = 2_000;
/// Never enough for a permit within a test run.
const SCARCE_FACTOR: f64 = 1e-6;

/// What can be the matter with a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Opens in an hour.
    Scheduled,
    /// The operator paused it.
    Paused,
    /// The operator closed it.
    Closed,
    /// Its time is over.
    Ended,
    /// Its only unit is taken.
    SoldOut,
    /// One request per address.
    Limited,
    /// The authority has no permit.
    Scarce,
}

/// What a case brings as its entry token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Good,
    /// A good one, as a cookie.
    Cookie,
    Expired,
    NotYetValid,
    OtherSale,
    OtherIssuer,
    OtherKey,
    UnknownKid,
    AlgNone,
    AlgConfusion,
    Truncated,
    Long,
    NoJwt,
    Empty,
    Basic,
}

/// Where the edge runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// `flashgate-edge`, on wasmtime: the Spin component.
    Host,
    /// The Cloudflare Worker, in workerd.
    Workerd,
    /// The Spin component, in Spin.
    Spin,
}

impl Runtime {
    /// Those that can be tried here: Spin only where its command is.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Host, Self::Workerd];
        if spin_program().is_some() {
            all.push(Self::Spin);
        }
        all
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Workerd => "workerd",
            Self::Spin => "spin",
        }
    }
}

/// The shop and its edges.
pub struct World {
    shop: Shop,
    worker: Workerd,
    spin: Option<Spin>,
    /// One for each of [`Runtime::all`].
    edges: Vec<SocketAddr>,
    sales: Mutex<HashMap<BTreeSet<Feature>, SaleId>>,
    page: PageFacts,
    foreign: Ed25519KeyPair,
    asked: AtomicU32,
    /// What each runtime answered to each case: it is asked once.
    answers: Mutex<HashMap<(Runtime, String), Reply>>,
}

/// `spin up`, with a state directory of its own.
struct Spin {
    process: Guarded,
    url: String,
    _dir: TempDir,
}

/// The `spin` command, if it is on `PATH`.
pub fn spin_program() -> Option<PathBuf> {
    program("spin", "spin", &[]).ok()
}

impl Spin {
    async fn start(program: &Path, shop: &Shop) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("flashgate-spin-").tempdir()?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut command = Command::new(program);
        command.arg("up").arg("--from").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../spin.toml"));
        command.args(["--listen", &address, "--state-dir"]).arg(dir.path());
        command.env("SPIN_VARIABLE_ORIGIN_URL", shop.stack.origin_url());
        command.env("SPIN_VARIABLE_EDGE_KEY", shop.stack.edge_key());
        command.env("SPIN_VARIABLE_DOCUMENT_KEYS", shop.stack.document_keys());
        let process = Guarded::start("spin", dir.path(), command)?;
        let url = format!("http://{address}");
        until("spin answers", READY_WITHIN, || async {
            process.check_running()?;
            Ok(shop.http.get(format!("{url}/healthz")).send().await?.status().is_success())
        })
        .await?;
        Ok(Self { process, url, _dir: dir })
    }
}

/// What cases need to know of the page.
struct PageFacts {
    etag: String,
    script: String,
    style: String,
}

impl World {
    pub async fn start() -> Result<Self> {
        let shop = Shop::start(|_| {}).await?;
        let worker = Workerd::start(&shop.stack.worker_config()).await?;
        let spin = match spin_program() {
            Some(program) => Some(Spin::start(&program, &shop).await?),
            None => None,
        };
        let mut urls = vec![shop.stack.edge_url(0), worker.url()];
        urls.extend(spin.as_ref().map(|spin| spin.url.as_str()));
        let edges = urls.iter().map(|url| url.trim_start_matches("http://").parse()).collect::<Result<Vec<_>, _>>()?;
        let page = Ask { method: "GET", target: "/s/any".into(), headers: Vec::new(), body: Vec::new() };
        let page = exchange(edges[0], Ipv4Addr::new(127, 1, 0, 1), &page).await?;
        let html = String::from_utf8(page.body)?;
        let linked = |extension: &str| {
            let end = html.find(&format!(".{extension}\"")).context("the page links no such file")?;
            let start = html[..end].rfind('"').context("no link")?;
            anyhow::Ok(format!("{}.{extension}", &html[start + 1..end]))
        };
        let etag = page.headers.get("etag").context("the page has no ETag")?.clone();
        let page = PageFacts { etag, script: linked("js")?, style: linked("css")? };
        let (sales, foreign, asked) = (Mutex::default(), Ed25519KeyPair::generate()?, AtomicU32::new(0));
        let answers = Mutex::default();
        Ok(Self { shop, worker, spin, edges, sales, page, foreign, asked, answers })
    }

    /// Stops all of it.
    pub async fn stop(self) -> Result<()> {
        self.worker.stop().await?;
        if let Some(spin) = self.spin {
            spin.process.stop().await?;
        }
        self.shop.stack.stop().await
    }

    /// The runtime's answer to the case.
    pub async fn answer(&self, runtime: Runtime, case: &Case) -> Result<Reply> {
        let mut answers = self.answers.lock().await;
        let key = (runtime, case.name.clone());
        if let Some(reply) = answers.get(&key) {
            return Ok(reply.clone());
        }
        let reply = self.ask(runtime, case).await?;
        answers.insert(key, reply.clone());
        Ok(reply)
    }

    /// Asks an edge what the case asks, as a client and a buyer of its own.
    async fn ask(&self, runtime: Runtime, case: &Case) -> Result<Reply> {
        let sale = self.sale(&case.sale).await?;
        let n = self.asked.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = n.to_be_bytes();
        let fill = |text: &str| {
            text.replace("{sale}", sale.as_str())
                .replace("{page etag}", &self.page.etag)
                .replace("{script}", &self.page.script)
                .replace("{style}", &self.page.style)
        };
        let mut headers: Vec<(String, String)> =
            case.headers.iter().map(|(name, value)| ((*name).to_owned(), fill(value))).collect();
        if !case.headers.iter().any(|(name, _)| *name == "traceparent") {
            headers.push(("traceparent".into(), TRACEPARENT.into()));
        }
        if let Some(token) = case.token {
            headers.push(self.credential(token, &sale, &format!("buyer-{n}")).await?);
        }
        let body = match std::str::from_utf8(&case.body) {
            Ok(text) => fill(text).into_bytes(),
            Err(_) => case.body.clone(),
        };
        let ask = Ask { method: case.method, target: fill(&case.target), headers, body };
        let client = Ipv4Addr::new(127, 2, high, low);
        let edge = self.edges[runtime as usize];
        for _ in 0..case.before {
            exchange(edge, client, &ask).await?;
        }
        exchange(edge, client, &ask).await
    }

    async fn credential(&self, token: Token, sale: &SaleId, buyer: &str) -> Result<(String, String)> {
        let stack = &self.shop.stack;
        let (pem, kid) = (stack.entry_signing_pem(), stack.entry_kid());
        let now_ms = self.shop.stock.now_ms().await?;
        let header = json!({"alg": "EdDSA", "kid": kid});
        let good = entry_claims(stack.issuer(), sale.as_str(), buyer, now_ms);
        let with = |field: &str, value: Value| {
            let mut claims = good.clone();
            claims[field] = value;
            sign(pem, &header, &claims)
        };
        let unsigned = |header: &Value| {
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(good.to_string()))
        };
        let token = match token {
            Token::Good => sign(pem, &header, &good)?,
            Token::Cookie => {
                return Ok(("cookie".into(), format!("a=b; fg-entry-{sale}={}", sign(pem, &header, &good)?)));
            }
            Token::Expired => with("exp", json!(now_ms / 1000 - 10))?,
            Token::NotYetValid => with("nbf", json!(now_ms / 1000 + 300))?,
            Token::OtherSale => with("aud", json!("another-sale"))?,
            Token::OtherIssuer => with("iss", json!("somebody-else"))?,
            Token::OtherKey => signed_by(&self.foreign, &header, &good),
            Token::UnknownKid => sign(pem, &json!({"alg": "EdDSA", "kid": "nobody"}), &good)?,
            Token::AlgNone => format!("{}.", unsigned(&json!({"alg": "none", "kid": kid}))),
            Token::AlgConfusion => {
                let text = unsigned(&json!({"alg": "HS256", "kid": kid}));
                let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, pem.as_bytes()), text.as_bytes());
                format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
            }
            Token::Truncated => {
                let mut token = sign(pem, &header, &good)?;
                // To a whole number of bytes, or their meaning would be a matter of luck.
                token.truncate(token.len() - 22);
                token
            }
            Token::Long => "x".repeat(10_000),
            Token::NoJwt => "hello".into(),
            Token::Empty => return Ok(("authorization".into(), String::new())),
            Token::Basic => return Ok(("authorization".into(), "Basic YTpi".into())),
        };
        Ok(("authorization".into(), format!("Bearer {token}")))
    }

    /// The sale with these troubles; every edge knows of them.
    async fn sale(&self, features: &BTreeSet<Feature>) -> Result<SaleId> {
        let mut sales = self.sales.lock().await;
        if let Some(sale) = sales.get(features) {
            return Ok(sale.clone());
        }
        let has = |feature| features.contains(&feature);
        let name = features.iter().fold("sale".to_owned(), |name, f| format!("{name}-{f:?}")).to_lowercase();
        let mut config = self.shop.sale(&name, if has(Feature::SoldOut) { 1 } else { 1_000 });
        if has(Feature::Scheduled) {
            config.opens_at_ms += 2 * HOUR_MS;
            config.closes_at_ms += 2 * HOUR_MS;
        }
        if has(Feature::Ended) {
            config.closes_at_ms = self.shop.stock.now_ms().await? + SHORT_MS;
        }
        if has(Feature::Scarce) {
            config.admit_factor = SCARCE_FACTOR;
        }
        if has(Feature::Limited) {
            let one = BucketLimit { rate_per_s: 0.001, burst: 1.0 };
            let limits = &mut config.address_limits;
            (limits.claim, limits.enter, limits.read) = (one, one, one);
        }
        let sale = self.shop.create(&config).await?;
        if has(Feature::SoldOut) {
            let taken = self.shop.direct(&sale).claim("first", "k", 1).await?;
            ensure!(matches!(taken, Claimed::Accepted(_)), "the unit was not taken: {taken:?}");
        }
        let admin = self.shop.stack.admin();
        if has(Feature::Paused) {
            admin.pause(&sale).await?;
        }
        if has(Feature::Closed) {
            admin.close(&sale).await?;
        }
        self.known_everywhere(&sale, features).await?;
        sales.insert(features.clone(), sale.clone());
        Ok(sale)
    }

    /// Waits until each edge tells the phase that the troubles make.
    async fn known_everywhere(&self, sale: &SaleId, features: &BTreeSet<Feature>) -> Result<()> {
        let has = |feature| features.contains(&feature);
        let phase = match () {
            () if has(Feature::Closed) || has(Feature::Ended) => SalePhase::Closed,
            () if has(Feature::Paused) => SalePhase::Paused,
            () if has(Feature::Scheduled) => SalePhase::Scheduled,
            () if has(Feature::SoldOut) => SalePhase::SoldOut,
            () => SalePhase::Open,
        };
        let look = Ask { method: "GET", target: format!("/v1/sales/{sale}"), headers: Vec::new(), body: Vec::new() };
        for edge in &self.edges {
            until(&format!("{edge} knows that {sale} is {phase}"), PATIENCE, || async {
                // A client of its own each time: the sale may allow one question each.
                let [_, _, high, low] = self.asked.fetch_add(1, Ordering::Relaxed).to_be_bytes();
                let reply = exchange(*edge, Ipv4Addr::new(127, 2, high, low), &look).await?;
                let view: SaleView = serde_json::from_slice(&reply.body)?;
                ensure!(view.phase == phase, "it says {}", view.phase);
                Ok(true)
            })
            .await?;
        }
        Ok(())
    }
}
