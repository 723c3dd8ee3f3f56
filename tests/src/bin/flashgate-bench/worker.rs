//! The gate as a Cloudflare Worker in workerd: refusals against an empty Worker, its start, its memory
//! under many addresses; and the sizes of what is deployed.

use crate::{CONNECTIONS, ROUNDS, claims::sell_out, load, report::Report, world::World, world::address};
use anyhow::{Context, Result, ensure};
use flashgate_ops::stack::bin_dir;
use flashgate_tests::{Workerd, WorkerdConfig};
use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

/// Requests of one round.
const REQUESTS: u64 = 20_000;
/// Requests before the first round.
const WARM_UP: u64 = 3_000;
/// Distinct client addresses that one Worker hears from.
const ADDRESSES: u64 = 1_000_000;
/// Addresses that come again and again before: so few that all of them are remembered.
const REGULARS: u64 = 20_000;
/// Requests of theirs: until the runtime's own memory has its size.
const REGULAR_REQUESTS: u64 = 500_000;
/// Starts that are timed.
const STARTS: usize = 3;

/// The least that a Worker can be, under the names that the configuration wants.
const EMPTY: &str = r#"
export class LeaseDesk {}
export default { fetch: () => new Response(null) };
"#;

/// The least that can give an answer like a refusal, in the fastest of the ways that JavaScript has: the fields
/// read, five fields and 240 bytes written.
const PLAIN: &str = r#"
export class LeaseDesk {}
const FIELDS = {
  "content-type": "application/problem+json",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
  "flashgate-trace-id": "0123456789abcdef0123456789abcdef",
  "retry-after": "10",
};
const BODY = "x".repeat(240);
export default {
  fetch(request) {
    let seen = request.method + request.url;
    request.headers.forEach((value, name) => { seen += name + value; });
    const status = seen.includes("/healthz") ? 200 : 410;
    return new Response(BODY, { status, headers: { ...FIELDS } });
  },
};
"#;

/// `workerd_refusal_vs_empty`, and `workerd_refusal_vs_plain`: the same requests to an empty Worker, and to
/// one of plain JavaScript that always gives an answer like a refusal, which tells how much of the
/// difference is the answer's and not the gate's.
pub async fn refusals(world: &World, report: &mut Report) -> Result<()> {
    let claims = sell_out(world, "worker-sold-out").await?;
    let config = WorkerdConfig::new(world.stack.origin_url(), world.stack.edge_key());
    let gate = world.steps.run("the Worker", Workerd::start(&config)).await?;
    let empty = WorkerdConfig { wrapper: Some(EMPTY), ..config.clone() };
    let empty = world.steps.run("an empty Worker", Workerd::start(&empty)).await?;
    let plain = WorkerdConfig { wrapper: Some(PLAIN), ..config };
    let plain = world.steps.run("a plain Worker", Workerd::start(&plain)).await?;
    let (at_gate, at_empty, at_plain) = (address(gate.url())?, address(empty.url())?, address(plain.url())?);
    let ask = async |target, connections, count| {
        let claims = claims.clone();
        load::run(target, connections, count, move |n, r| claims.to_edge(n, r)).await
    };
    ask(at_gate, 1, 200).await?;
    ask(at_gate, CONNECTIONS, WARM_UP).await?;
    ask(at_empty, CONNECTIONS, WARM_UP).await?;
    ask(at_plain, CONNECTIONS, WARM_UP).await?;
    let (mut ours, mut empties, mut plains) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let all = async {
            ours.push(ask(at_gate, CONNECTIONS, REQUESTS).await?.all(410, "refusals in workerd")?);
            empties.push(ask(at_empty, CONNECTIONS, REQUESTS).await?.all(200, "the empty Worker")?);
            plains.push(ask(at_plain, CONNECTIONS, REQUESTS).await?.all(410, "the plain Worker")?);
            anyhow::Ok(())
        };
        world.steps.run(&format!("refusals in workerd, an empty and a plain Worker: round {round}"), all).await?;
    }
    for worker in [gate, empty, plain] {
        worker.stop().await?;
    }
    let names = ["refusals/s in workerd, sold out", "requests/s of an empty Worker"];
    report.compare("workerd_refusal_vs_empty", Some(0.8), names, ours.clone(), empties)?;
    let names = ["the same refusals", "requests/s of a plain Worker with such an answer"];
    report.compare("workerd_refusal_vs_plain", None, names, ours, plains)
}

/// `edge_mb_per_million_ips`: how much a Worker grows by a million clients with an address each. Here the
/// client names its address, because nobody in front of workerd does.
pub async fn memory(world: &World, report: &mut Report) -> Result<()> {
    let config = WorkerdConfig::new(world.stack.origin_url(), world.stack.edge_key());
    let worker = Workerd::start(&config).await?;
    let target = address(worker.url())?;
    let ask = async |addresses: u64, from: u8, count: u64| {
        let asked = load::run(target, CONNECTIONS, count, move |n, r| {
            let [.., a, b, c] = (n % addresses).to_be_bytes();
            // Writing to memory does not fail.
            let _ = write!(r, "GET /v1/time HTTP/1.1\r\nhost: shop\r\ncf-connecting-ip: {from}.{a}.{b}.{c}\r\n\r\n");
        });
        asked.await?.all(200, "the time")
    };
    // First whatever any traffic costs.
    world.steps.run("the regulars at a Worker", ask(REGULARS, 10, REGULAR_REQUESTS)).await?;
    let before = resident_mib(worker.pid())?;
    world.steps.run("a million addresses at a Worker", ask(ADDRESSES, 11, ADDRESSES)).await?;
    let after = resident_mib(worker.pid())?;
    worker.stop().await?;
    report.note("memory", "edge_mb_per_million_ips", after - before, None);
    Ok(())
}

/// `start_ms`: from the start of the process to the first answer of the gate in it.
pub async fn starts(world: &World, report: &mut Report) -> Result<()> {
    let config = WorkerdConfig::new(world.stack.origin_url(), world.stack.edge_key());
    let (mut workers, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let from = Instant::now();
        let worker = Workerd::start(&config).await?;
        workers.push(from.elapsed().as_secs_f64() * 1000.0);
        worker.stop().await?;
        let from = Instant::now();
        let key = world.stack.data_dir().join("edge-key").display().to_string();
        let (host, address) = world.host("flashgate_spin", &["--edge-key-file", &key]).await?;
        load::run(address, 1, 1, |_, r| r.extend_from_slice(b"GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n")).await?;
        hosts.push(from.elapsed().as_secs_f64() * 1000.0);
        host.term().await?;
    }
    for (name, times) in [("workerd", workers), ("host", hosts)] {
        let least = times.into_iter().reduce(f64::min).context("nothing was measured")?;
        report.note("start_ms", name, least, None);
    }
    Ok(())
}

/// `sizes`: what is deployed, compressed, in KiB.
pub fn sizes(report: &mut Report) -> Result<()> {
    let target = bin_dir()?.parent().context("not under target/")?.to_owned();
    let component = gzipped(&[&target.join("wasm/wasm32-wasip2/release/flashgate_spin.wasm")])?;
    let worker = gzipped(&[&target.join("worker/index.js"), &target.join("worker/gate.wasm")])?;
    report.note("sizes", "component_gzip_kb", component, Some(1_000.0));
    report.note("sizes", "worker_gzip_kb", worker, Some(1_000.0));
    Ok(())
}

/// The size of these files together after `gzip -9`, in KiB.
fn gzipped(files: &[&Path]) -> Result<f64> {
    let mut gzip = Command::new("gzip").arg("-9c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut into = gzip.stdin.take().context("no input")?;
    let whole = files.iter().map(|f| std::fs::read(f).with_context(|| format!("{} is missing", f.display())));
    let whole = whole.collect::<Result<Vec<_>>>()?.concat();
    let writer = std::thread::spawn(move || into.write_all(&whole));
    let output = gzip.wait_with_output()?;
    writer.join().ok().context("the writer died")??;
    ensure!(output.status.success(), "gzip failed");
    Ok(output.stdout.len() as f64 / 1024.0)
}

/// The resident memory of a process, in MiB (Linux: `VmRSS`).
fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
