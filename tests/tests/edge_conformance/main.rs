//! One gate, many runtimes: every case is tried on each, and all must answer alike.
//!
//! A runtime's answer must be the one that the case names, and the same as the host's: status, the
//! headers that matter, body. What differs from request to request (times, ids, waits) is compared by
//! its presence only. `cargo test --test edge_conformance -- --list` shows the cases.

mod cases;
mod wire;
mod world;

use anyhow::{Context, Result, ensure};
use cases::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::{collections::BTreeMap, process::ExitCode, sync::Arc};
use tokio::{runtime, sync::OnceCell};
use wire::Reply;
use world::{Runtime, World};

/// Headers that must be the same on all runtimes.
const COMPARED: [&str; 16] = [
    "allow",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-security-policy",
    "content-type",
    "etag",
    "flashgate-trace-id",
    "location",
    "referrer-policy",
    "retry-after",
    "set-cookie",
    "vary",
    "x-content-type-options",
    "x-frame-options",
    "www-authenticate",
];
/// Of these only the presence is compared.
const VOLATILE_HEADERS: [&str; 2] = ["retry-after", "set-cookie"];
/// Members of answers whose values differ from request to request.
const VOLATILE_MEMBERS: [&str; 10] = [
    "now_ms",
    "error_ms",
    "retry_after_ms",
    "poll_after_ms",
    "claim_id",
    "status_url",
    "token",
    "position",
    "expires_at_ms",
    "buyer",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The cases share edges that are meant to know of each other's sales; one at a time is fast enough.
    arguments.test_threads.get_or_insert(1);
    let tokio = match runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(tokio) => Arc::new(tokio),
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let world = Arc::new(OnceCell::new());
    let mut trials = Vec::new();
    let runtimes = Runtime::all();
    if !runtimes.contains(&Runtime::Spin) {
        eprintln!("spin is not on PATH: the cases are not tried in it");
    }
    for runtime in runtimes {
        for case in cases::all() {
            let (tokio, world) = (Arc::clone(&tokio), Arc::clone(&world));
            let name = format!("{}::{}", runtime.name(), case.name);
            trials.push(Trial::test(name, move || {
                tokio.block_on(check(&world, runtime, &case)).map_err(|error| Failed::from(format!("{error:#}")))
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The trials are gone, and with them every other handle on the world.
    if let Some(world) = Arc::into_inner(world).and_then(OnceCell::into_inner)
        && let Err(error) = tokio.block_on(world.stop())
    {
        eprintln!("the world does not end cleanly: {error:#}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

async fn check(world: &OnceCell<World>, runtime: Runtime, case: &Case) -> Result<()> {
    let world = world.get_or_try_init(World::start).await.context("no world to try it in")?;
    let reply = world.answer(runtime, case).await?;
    expected(case, &reply).with_context(|| shown(&reply))?;
    if runtime != Runtime::Host {
        let host = world.answer(Runtime::Host, case).await?;
        let (ours, theirs) = (comparable(case, &reply)?, comparable(case, &host)?);
        ensure!(ours == theirs, "{} answers\n{ours:#?}\nthe host\n{theirs:#?}", runtime.name());
    }
    Ok(())
}

/// The answer that the case names.
fn expected(case: &Case, reply: &Reply) -> Result<()> {
    ensure!(reply.status == case.status, "status {} instead of {}", reply.status, case.status);
    if let Some(kind) = case.kind {
        let problem: Value = serde_json::from_slice(&reply.body).context("no problem document")?;
        ensure!(problem["type"] == format!("/problems/{kind}"), "not {kind}");
        ensure!(problem["status"] == case.status, "the document says another status");
        let media = reply.headers.get("content-type").map(String::as_str);
        ensure!(media == Some("application/problem+json"), "a problem document of type {media:?}");
    }
    for (name, part) in &case.shows {
        let value = reply.headers.get(*name).with_context(|| format!("no header {name}"))?;
        ensure!(value.contains(part), "{name} is {value:?}, without {part:?}");
    }
    ensure!(reply.headers.contains_key("flashgate-trace-id"), "no trace id");
    Ok(())
}

/// What is the same whenever and wherever it is asked.
#[derive(Debug, PartialEq)]
struct Comparable {
    status: u16,
    headers: BTreeMap<&'static str, String>,
    body: String,
}

fn comparable(case: &Case, reply: &Reply) -> Result<Comparable> {
    let mut headers = BTreeMap::new();
    for name in COMPARED {
        if let Some(value) = reply.headers.get(name) {
            let volatile = VOLATILE_HEADERS.contains(&name) || (name == "flashgate-trace-id" && replaces_trace(case));
            headers.insert(name, if volatile { "present".to_owned() } else { value.clone() });
        }
    }
    let body = match serde_json::from_slice::<Value>(&reply.body) {
        Ok(mut value) => {
            steady(&mut value);
            serde_json::to_string_pretty(&value)?
        }
        Err(_) => match std::str::from_utf8(&reply.body) {
            // Words for people: the numbers in them are waits and times.
            Ok(words) => words.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().join("#"),
            // Compressed.
            Err(_) => reply.body.escape_ascii().to_string(),
        },
    };
    Ok(Comparable { status: reply.status, headers, body })
}

fn replaces_trace(case: &Case) -> bool {
    case.name.ends_with("_replaced")
}

/// Puts a word in the place of every volatile member.
fn steady(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if VOLATILE_MEMBERS.contains(&name.as_str()) {
                    *member = Value::from(if member.is_null() { "null" } else { "present" });
                } else {
                    steady(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(steady),
        _ => {}
    }
}

fn shown(reply: &Reply) -> String {
    format!("{} {:#?}\n{}", reply.status, reply.headers, String::from_utf8_lossy(&reply.body))
}
