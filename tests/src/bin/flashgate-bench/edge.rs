//! Refusals at the edge, against an empty component on the same host.

use crate::{CONNECTIONS, ROUNDS, claims::sell_out, load, report::Report, world::World, world::address};
use anyhow::Result;

/// Requests of one round.
const REQUESTS: u64 = 60_000;
/// Requests before the first round.
const WARM_UP: u64 = 5_000;

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
