//! Settling: stock in four rows against stock in one, by four settlers at once.

use crate::{ROUNDS, report::Report, world::World};
use anyhow::{Context, Result, ensure};
use flashgate_ledger::{Ledger, LedgerConfig, Settled};
use flashgate_servers::Proxy;
use flashgate_shared::{
    BuyerId, ClaimId, HoldId, SaleId,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    sale::SaleConfig,
    trace::TraceId,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::time::{Duration, Instant};

/// Rows of the split stock.
const ROWS: u16 = 4;
/// Settlers at once, as many worker processes would be.
const SETTLERS: usize = 4;
/// Batches of a round, and messages of a batch.
const BATCHES: usize = 24;
const BATCH: usize = 100;

/// How much later everything arrives when Postgres is in another place, each way.
const AWAY: Duration = Duration::from_millis(1);

/// Claims a second that become orders: beside the settlers, where only work counts, and with a millisecond
/// between them, where a row is locked while its transaction waits.
pub async fn rows(world: &World, report: &mut Report) -> Result<()> {
    let beside = world.servers.postgres.create_database("benchrows").await?;
    let what = ["settled a second, stock in four rows", "settled a second, stock in one row"];
    measure(world, report, "settle_four_rows_vs_one", what, beside).await?;
    let port = world.servers.postgres.port();
    let proxy = Proxy::before(port).await?;
    proxy.be_late(AWAY);
    let away = world.servers.postgres.create_database("benchrowsaway").await?;
    let away = proxy.through(&away, port).context("another server")?;
    let what = ["the same, Postgres 1 ms away, in four rows", "the same, Postgres 1 ms away, in one row"];
    measure(world, report, "settle_four_rows_vs_one_1ms_away", what, away).await
}

async fn measure(world: &World, report: &mut Report, name: &'static str, what: [&str; 2], url: String) -> Result<()> {
    let ledger = Ledger::connect(&LedgerConfig { url, pool_settle: 16, ..LedgerConfig::default() }).await?;
    ledger.migrate().await?;
    let total = u32::try_from(ROUNDS * BATCHES * BATCH)? * 2;
    let mut sales = Vec::new();
    for (id, shards) in [("four-rows", ROWS), ("one-row", 1)] {
        let config = SaleConfig { shards, ..World::settings(id, total)? };
        ledger.create_sale(&config).await?;
        sales.push(config.id);
    }
    let (mut split, mut single) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (sale, rates) in sales.iter().zip([&mut split, &mut single]) {
            rates.push(world.steps.run(&format!("settling in {sale}"), settle(&ledger, sale, round)).await?);
        }
    }
    report.compare(name, None, what, split, single)
}

async fn settle(ledger: &Ledger, sale: &SaleId, round: usize) -> Result<f64> {
    let batches: Vec<Vec<ClaimEnvelope>> = (0..BATCHES)
        .map(|batch| (0..BATCH).map(|n| claim(sale, (round * BATCHES + batch) * BATCH + n)).collect())
        .collect::<Result<_>>()?;
    let began = Instant::now();
    let settled: Vec<Vec<Settled>> =
        stream::iter(&batches).map(|batch| ledger.settle(sale, batch)).buffer_unordered(SETTLERS).try_collect().await?;
    let took = began.elapsed();
    ensure!(settled.iter().flatten().all(|s| matches!(s, Settled::Reserved(_))), "a claim was not reserved");
    Ok((BATCHES * BATCH) as f64 / took.as_secs_f64())
}

fn claim(sale: &SaleId, number: usize) -> Result<ClaimEnvelope> {
    let buyer: BuyerId = format!("buyer-{number}").parse()?;
    Ok(ClaimEnvelope {
        v: ENVELOPE_VERSION,
        claim_id: ClaimId::derive(sale, &buyer, &"k".parse()?),
        sale: sale.clone(),
        buyer,
        quantity: 1,
        hold: HoldId::new(1, 0, &format!("1-{number}"))?,
        claimed_at_ms: 1,
        trace_id: TraceId::from_random(number as u128 + 1),
    })
}
