//! `flashgate sale publish` and `flashgate sale diff`: sale documents at the edges.

use super::{FAIL, Where, say, stdout_colour, takes_stdout, write_json};
use crate::{
    admin::{AdminClient, innermost},
    steps::paint,
};
use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::Args;
use flashgate_shared::{
    SaleId,
    document::DOCUMENT_MEDIA,
    limits::DOCUMENT_BYTES,
    problem::Problem,
    wire::{EdgeSale, PublishedAnswer},
};
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// How long one edge may take to answer.
const EDGE_TIMEOUT: Duration = Duration::from_secs(15);

/// Arguments of both.
#[derive(Debug, Args)]
pub(super) struct AtEdges {
    /// The sale
    #[arg(value_name = "SALE")]
    id: SaleId,
    /// Address of an edge; may be repeated [default: the running shop's]
    #[arg(long, value_name = "URL")]
    edge: Vec<String>,
}

/// What an edge said.
#[derive(Debug, Serialize)]
struct Outcome {
    edge: String,
    /// The version that is there now.
    version: Option<i64>,
    /// The version that was there before.
    before: Option<i64>,
    /// Why it was refused.
    refused: Option<String>,
}

/// Where an edge differs from the origin, field by field.
#[derive(Debug, Serialize)]
struct Difference {
    edge: String,
    version: Option<i64>,
    /// Field, what the edge has, what the origin has.
    fields: Vec<(String, Value, Value)>,
    /// Why it could not be seen.
    refused: Option<String>,
}

impl AtEdges {
    /// The sale.
    pub(super) fn sale(&self) -> &SaleId {
        &self.id
    }

    pub(super) fn edges(&self, place: &Where) -> Result<Vec<String>> {
        if !self.edge.is_empty() {
            return Ok(self.edge.iter().map(|url| url.trim_end_matches('/').to_owned()).collect());
        }
        let shop = place.shop()?;
        Ok(shop.context("no shop is running here: name the edges with --edge URL")?.edge_urls)
    }
}

/// Takes the sale's document to each edge.
pub(super) async fn publish(args: &AtEdges, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
    let (edges, admin, http) = prepare(args, place)?;
    let mut outcomes = Vec::new();
    for edge in edges {
        // For each edge: a ticket lives a minute, and one that hangs must not cost the next its own.
        let document = admin.document(&args.id).await?;
        let put = http
            .put(format!("{edge}/v1/edge/sales/{}", args.id))
            .bearer_auth(&document.publish_ticket)
            .header(header::CONTENT_TYPE, DOCUMENT_MEDIA)
            .body(document.document.clone());
        outcomes.push(match published(put).await {
            Ok(told) => Outcome { edge, version: Some(told.version), before: told.before, refused: None },
            Err(why) => Outcome { edge, version: None, before: None, refused: Some(format!("{why:#}")) },
        });
    }
    if let Some(path) = json {
        write_json(path, &outcomes)?;
    }
    if !takes_stdout(json) {
        for outcome in &outcomes {
            say(&line(outcome))?;
        }
    }
    Ok(code(outcomes.iter().all(|outcome| outcome.refused.is_none())))
}

async fn published(put: reqwest::RequestBuilder) -> Result<PublishedAnswer> {
    let told = answer(put).await?.context("it takes no documents: give it the origin's document keys")?;
    serde_json::from_slice(&told).map_err(|_| anyhow::anyhow!("its answer cannot be understood"))
}

fn line(outcome: &Outcome) -> String {
    let edge = &outcome.edge;
    match (&outcome.refused, outcome.before, outcome.version) {
        (Some(why), ..) => format!("  {}  {edge}: {why}", paint(stdout_colour(), "1;31", "refused")),
        (None, Some(before), Some(now)) if before == now => format!("  unchanged  {edge}: version {now}"),
        (None, Some(before), Some(now)) => format!("  published  {edge}: version {before} → {now}"),
        (None, _, now) => format!("  published  {edge}: version {}", now.unwrap_or_default()),
    }
}

/// Shows in which fields each edge's document differs from what the origin would publish.
pub(super) async fn diff(args: &AtEdges, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
    let (edges, admin, http) = prepare(args, place)?;
    let mut differences = Vec::new();
    for edge in edges {
        let document = admin.document(&args.id).await?;
        let origin = settings(document.document.as_bytes())?;
        let get = http.get(format!("{edge}/v1/edge/sales/{}", args.id)).bearer_auth(&document.read_ticket);
        differences.push(match there(get).await {
            Ok(there) => {
                let version = there.as_ref().map(|there| there.sale.version);
                Difference { edge, version, fields: compare(there.as_ref(), &origin)?, refused: None }
            }
            Err(why) => Difference { edge, version: None, fields: Vec::new(), refused: Some(format!("{why:#}")) },
        });
    }
    if let Some(path) = json {
        write_json(path, &differences)?;
    }
    if !takes_stdout(json) {
        for difference in &differences {
            say(&shown(difference))?;
        }
    }
    Ok(code(differences.iter().all(|d| d.refused.is_none() && d.fields.is_empty())))
}

/// What was published at an edge, if anything was.
async fn there(get: reqwest::RequestBuilder) -> Result<Option<EdgeSale>> {
    answer(get).await?.map(|bytes| settings(&bytes)).transpose()
}

fn shown(difference: &Difference) -> String {
    let Difference { edge, version, fields, refused } = difference;
    let head = match (refused, version) {
        (Some(why), _) => return format!("{edge}: {why}"),
        (None, None) => return format!("{edge}: nothing was published there"),
        (None, Some(version)) if fields.is_empty() => return format!("{edge}: version {version}, as at the origin"),
        (None, Some(version)) => format!("{edge}: version {version}"),
    };
    let lines = fields.iter().map(|(field, there, here)| format!("\n  {field}: {there} there, {here} at the origin"));
    head + &lines.collect::<String>()
}

fn prepare(args: &AtEdges, place: &Where) -> Result<(Vec<String>, AdminClient, reqwest::Client)> {
    let edges = args.edges(place)?;
    ensure!(!edges.is_empty(), "there is no edge to ask");
    Ok((edges, place.admin()?, reqwest::Client::builder().timeout(EDGE_TIMEOUT).build()?))
}

/// The body of a success; `None` for 404.
async fn answer(request: reqwest::RequestBuilder) -> Result<Option<Vec<u8>>> {
    let mut answer = request.send().await.map_err(|e| anyhow::anyhow!("it does not answer: {}", innermost(&e)))?;
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        ensure!(body.len() + chunk.len() <= DOCUMENT_BYTES, "its answer has more than {DOCUMENT_BYTES} bytes");
        body.extend_from_slice(&chunk);
    }
    if status == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    if status.is_success() {
        return Ok(Some(body));
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => bail!("{}", problem.detail.unwrap_or(problem.title)),
        Err(_) => bail!("it answers {status}"),
    }
}

/// The content of a document. Whether it is genuine is for edges to judge: this is for looking at it.
fn settings(document: &[u8]) -> Result<EdgeSale> {
    let text = std::str::from_utf8(document)?;
    let payload = text.trim().split('.').nth(1).context("it is no document")?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?).context("the document cannot be read")
}

fn compare(there: Option<&EdgeSale>, here: &EdgeSale) -> Result<Vec<(String, Value, Value)>> {
    let (there, here) = (there.map_or(Ok(BTreeMap::new()), flat)?, flat(here)?);
    let names: BTreeSet<_> = there.keys().chain(here.keys()).collect();
    let field = |map: &BTreeMap<String, Value>, name: &String| map.get(name).cloned().unwrap_or(Value::Null);
    let differ = names.into_iter().map(|name| (name.clone(), field(&there, name), field(&here, name)));
    Ok(differ.filter(|(_, there, here)| there != here).collect())
}

/// Fields by their paths; when it was signed is none of them.
fn flat(sale: &EdgeSale) -> Result<BTreeMap<String, Value>> {
    fn walk(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    walk(&path, member, into);
                }
            }
            value => drop(into.insert(path.to_owned(), value.clone())),
        }
    }
    let mut fields = BTreeMap::new();
    walk("", &serde_json::to_value(sale)?, &mut fields);
    fields.remove("now_ms");
    Ok(fields)
}

fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::from(FAIL) }
}
