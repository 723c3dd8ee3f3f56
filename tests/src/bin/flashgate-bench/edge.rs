//! The edge on its host: refusals against an empty component, forwarded claims against the origin alone.

use crate::{
    CONNECTIONS, ROUNDS,
    claims::{Claims, sell_out},
    load,
    report::Report,
    world::{World, address},
};
use anyhow::Result;
use flashgate_servers::until;
use std::time::Duration;

/// Requests of one round.
const REQUESTS: u64 = 60_000;
/// Requests before the first round.
const WARM_UP: u64 = 5_000;

/// Forwarded claims of one round: each takes a unit.
const FORWARDS: u64 = 4_000;
/// Buyers before them.
const FIRST_BUYERS: u64 = 256;
/// How long the instances may take to have permits.
const ADMITTED_WITHIN: Duration = Duration::from_secs(10);

/// `edge_forward_vs_origin`: claims whose token the gate verifies and which it forwards, against the same
/// claims at the origin itself.
pub async fn forwards(world: &World, report: &mut Report) -> Result<()> {
    let (gate, origin) = (address(world.stack.edge_url(0))?, world.origin()?);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Round 0 warms up.
    for round in 0..=ROUNDS {
        let mut rates = Vec::new();
        for (place, target) in [("edge", gate), ("origin", origin)] {
            let id = format!("forward-{place}-{round}");
            let sale = world.sale(&id, 2 * FORWARDS as u32).await?;
            let mut tokens = world.tokens(&id, FORWARDS + FIRST_BUYERS)?;
            // What an instance does not know yet it asks, and the authority begins with nothing: a few buyers
            // come first, with the same claims again until all are taken.
            let first = Claims::new(world, &id, sale.epoch, tokens.split_off(FORWARDS as usize));
            until("all instances admit claims", ADMITTED_WITHIN, || async {
                let first = first.clone();
                let asked = load::run(gate, CONNECTIONS, FIRST_BUYERS, move |n, r| first.to_edge(n, r)).await?;
                asked.all(202, "the first buyers").map(|_| true)
            })
            .await?;
            let claims = Claims::new(world, &id, sale.epoch, tokens);
            let at_edge = place == "edge";
            let load = load::run(target, CONNECTIONS, FORWARDS, move |n, r| {
                if at_edge { claims.to_edge(n, r) } else { claims.to_origin(n, r) }
            });
            let what = format!("claims by way of the {place}: round {round}");
            rates.push(world.steps.run(&what, load).await?.all(202, &what)?);
        }
        if let (true, [edge, origin]) = (round > 0, rates.as_slice()) {
            ours.push(*edge);
            theirs.push(*origin);
        }
    }
    let names = ["claims/s verified and forwarded by the edge", "claims/s at the origin itself"];
    report.compare("edge_forward_vs_origin", None, names, ours, theirs)
}

/// `edge_refusal_vs_empty`: the same requests to both.
pub async fn refusals(world: &World, report: &mut Report) -> Result<()> {
    let claims = sell_out(world, "edge-sold-out").await?;
    let (process, empty) = world.steps.run("empty component", world.host("flashgate_empty", &[])).await?;
    let gate = address(world.stack.edge_url(0))?;
    let ask = async |target, connections, count| {
        let claims = claims.clone();
        load::run(target, connections, count, move |n, r| claims.to_edge(n, r)).await
    };
    // What an instance does not know yet it asks: first one buyer, then the crowd.
    ask(gate, 1, 200).await?;
    ask(gate, CONNECTIONS, WARM_UP).await?;
    ask(empty, CONNECTIONS, WARM_UP).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let both = async {
            ours.push(ask(gate, CONNECTIONS, REQUESTS).await?.all(410, "refusals at the edge")?);
            theirs.push(ask(empty, CONNECTIONS, REQUESTS).await?.all(200, "the empty component")?);
            anyhow::Ok(())
        };
        world.steps.run(&format!("edge refusals, and the empty component: round {round}"), both).await?;
    }
    process.term().await?;
    let names = ["refusals/s at the edge, sold out", "requests/s of an empty component"];
    report.compare("edge_refusal_vs_empty", Some(0.8), names, ours, theirs)
}
