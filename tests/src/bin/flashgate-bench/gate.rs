//! The gate's decision in Wasm against the same code natively: no sockets in between.

use crate::{ROUNDS, report::Report, world::World};
use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use flashgate_gatebench::{Case, ISSUER, Job, NOW_MS, SALE, run};
use flashgate_tests::{entry_claims, signed_by};
use serde_json::json;
use std::net::SocketAddr;

/// Refusals of one round.
const REFUSALS: u32 = 100_000;
/// Admitted claims of one round: each has a signature to be verified.
const ADMITTED: u32 = 2_000;
const KID: &str = "bench";

/// `gate_wasm_vs_native` for a refusal; and, as figures, for a claim that is let through.
pub async fn decisions(world: &World, report: &mut Report) -> Result<()> {
    let pair = Ed25519KeyPair::generate().map_err(|_| anyhow!("no key"))?;
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": KID, "x": x});
    let claims = entry_claims(ISSUER, SALE, "buyer", NOW_MS);
    let token = signed_by(&pair, &json!({"alg": "EdDSA", "kid": KID}), &claims);
    // The job computes without a pause for longer than a request of a buyer ever may.
    let (process, wasm) = world.host("flashgate_gatebench", &["--instances", "1", "--max-compute-ms", "10000"]).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    for (case, count, ratio, what) in [
        (Case::SoldOut, REFUSALS, "gate_wasm_vs_native", "gate refusals"),
        (Case::Admitted, ADMITTED, "gate_admit_wasm_vs_native", "gate admissions"),
    ] {
        let job = Job { case, count, jwk: jwk.clone(), token: token.clone() };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            let both = async { anyhow::Ok((in_wasm(&http, wasm, &job).await?, native(&job)?)) };
            let (our, their) = world.steps.run(&format!("{what} in Wasm and natively: round {round}"), both).await?;
            ours.push(our);
            theirs.push(their);
        }
        let names = [format!("{what}/s in Wasm, one core"), format!("{what}/s natively, one core")];
        report.compare(ratio, None, [&names[0], &names[1]], ours, theirs)?;
    }
    process.term().await
}

/// Decisions a second, from the nanoseconds of one.
fn native(job: &Job) -> Result<f64> {
    let ns = tokio::task::block_in_place(|| run(job)).map_err(|e| anyhow!("natively: {e}"))?;
    Ok(1e9 / ns)
}

async fn in_wasm(http: &reqwest::Client, target: SocketAddr, job: &Job) -> Result<f64> {
    let body = serde_json::to_vec(job)?;
    let answer = http.post(format!("http://{target}/")).body(body).send().await?;
    let (status, text) = (answer.status(), answer.text().await?);
    ensure!(status.is_success(), "in Wasm: {status}: {text}");
    Ok(1e9 / text.parse::<f64>().context("nanoseconds")?)
}
