//! Claims through the origin's HTTP: sold out against an axum "hello", accepted against Redis alone.

use crate::{CONNECTIONS, ROUNDS, load, redis, report::Report, world::World, world::now_ms};
use anyhow::Result;
use flashgate_servers::until;
use flashgate_shared::Epoch;
use std::{io::Write, sync::Arc, time::Duration};

/// Requests of one round.
const SOLD_OUT_CLAIMS: u64 = 30_000;
/// Requests of one round: each takes a unit.
const ACCEPTED_CLAIMS: u64 = 5_000;
/// Requests before the first round.
const WARM_UP: u64 = 5_000;
/// Buyers who claim in a sold-out sale, over and over.
const LATE_BUYERS: u64 = 64;
/// How long a sale may take to be known as sold out.
const SOLD_OUT_WITHIN: Duration = Duration::from_secs(10);

/// Claims of these buyers, in turns; each has a permit of this very moment.
#[derive(Clone)]
pub struct Claims {
    path: String,
    edge_key: String,
    epoch: Epoch,
    tokens: Arc<Vec<String>>,
}

impl Claims {
    /// Of the buyers with these tokens.
    pub fn new(world: &World, sale: &str, epoch: Epoch, tokens: Vec<String>) -> Self {
        let path = format!("/v1/sales/{sale}/claim");
        Self { path, edge_key: world.stack.edge_key().to_owned(), epoch, tokens: Arc::new(tokens) }
    }

    /// Claim number `n`, as an edge sends it.
    pub fn to_origin(&self, n: u64, request: &mut Vec<u8>) {
        let (key, now_ms, epoch) = (&self.edge_key, now_ms(), self.epoch);
        self.write(n, request, &format!("flashgate-edge-key: {key}\r\nflashgate-permit: {now_ms}.{epoch}\r\n"));
    }

    /// Claim number `n`, as a buyer sends it.
    pub fn to_edge(&self, n: u64, request: &mut Vec<u8>) {
        self.write(n, request, "");
    }

    fn write(&self, n: u64, request: &mut Vec<u8>, more: &str) {
        let token = &self.tokens[(n % self.tokens.len() as u64) as usize];
        // Writing to memory does not fail.
        let _ = write!(
            request,
            "POST {} HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer {token}\r\n\
             idempotency-key: bench-{n}\r\ncontent-length: 0\r\n{more}\r\n",
            self.path
        );
    }
}

/// Sells the only unit of a new sale, and waits until the origin knows that there is none left.
pub async fn sell_out(world: &World, id: &str) -> Result<Claims> {
    let sale = world.sale(id, 1).await?;
    let (origin, mut tokens) = (world.origin()?, world.tokens(id, LATE_BUYERS + 1)?);
    let winner = tokens.pop().into_iter().collect();
    let winner = Claims::new(world, id, sale.epoch, winner);
    load::run(origin, 1, 1, move |n, r| winner.to_origin(n, r)).await?.all(202, "the winner")?;
    let claims = Claims::new(world, id, sale.epoch, tokens);
    until("the sale is sold out", SOLD_OUT_WITHIN, || async {
        let claims = claims.clone();
        load::run(origin, 1, 1, move |n, r| claims.to_origin(n, r)).await?.all(410, "a late claim")?;
        Ok(true)
    })
    .await?;
    Ok(claims)
}

/// `origin_sold_out_vs_hello`: the same requests to both.
pub async fn sold_out(world: &World, report: &mut Report) -> Result<()> {
    let claims = sell_out(world, "sold-out").await?;
    let ask = async |target, status, count, what: &str| {
        let claims = claims.clone();
        load::run(target, CONNECTIONS, count, move |n, r| claims.to_origin(n, r)).await?.all(status, what)
    };
    let (origin, hello) = (world.origin()?, world.hello);
    ask(origin, 410, WARM_UP, "sold out").await?;
    ask(hello, 200, WARM_UP, "hello").await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let both = async {
            ours.push(ask(origin, 410, SOLD_OUT_CLAIMS, "sold out").await?);
            theirs.push(ask(hello, 200, SOLD_OUT_CLAIMS, "hello").await?);
            anyhow::Ok(())
        };
        world.steps.run(&format!("sold out, and axum hello: round {round}"), both).await?;
    }
    let names = ["claims/s at the origin, sold out", "requests/s of an axum hello"];
    report.compare("origin_sold_out_vs_hello", Some(0.6), names, ours, theirs)
}

/// `origin_accept_vs_redis_benchmark`: the same script, with the same number of connections.
pub async fn accepted(world: &World, report: &mut Report) -> Result<()> {
    let origin = world.origin()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Round 0 warms up.
    for round in 0..=ROUNDS {
        let id = format!("accept-{round}");
        let sale = world.sale(&id, 2 * ACCEPTED_CLAIMS as u32).await?;
        let claims = Claims::new(world, &id, sale.epoch, world.tokens(&id, ACCEPTED_CLAIMS)?);
        let both = async {
            let load = load::run(origin, CONNECTIONS, ACCEPTED_CLAIMS, move |n, r| claims.to_origin(n, r));
            let rates = (load.await?.all(202, "accepted claims")?, redis::claims(world, round).await?);
            anyhow::Ok(rates)
        };
        let (our, their) = world.steps.run(&format!("accepted, and Redis alone: round {round}"), both).await?;
        if round > 0 {
            ours.push(our);
            theirs.push(their);
        }
    }
    let names = ["claims/s at the origin, accepted", "claims/s of redis-benchmark, same script"];
    report.compare("origin_accept_vs_redis_benchmark", None, names, ours, theirs)
}
