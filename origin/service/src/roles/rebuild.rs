//! Finds gates that went back in time, and rebuilds them from the ledger (design §9).
//!
//! A gate is broken when a bucket has no epoch, or another one than the ledger's, or when its server was
//! restarted or replaced since it was loaded. The sale is *rebuilding* before anything else is done, so that
//! whoever comes after a process that died goes on. Each step may be repeated; a process that was paused for
//! so long that another took over finds that out at its next step.

use crate::{
    App, gate,
    roles::{Next, Pace, outbox, pause},
    sales::Sale,
};
use flashgate_ledger::{LedgerError, SaleRow};
use flashgate_shared::{
    Epoch, SaleId,
    ids::IdError,
    sale::{RebuildCause, SaleState},
};
use flashgate_stock::{Generation, LoadReply, StockError};
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// How often the gates are looked at (design §9: at most 250 ms).
const PERIOD: Duration = Duration::from_millis(200);
/// A closed sale is looked at in one tick of so many.
const CLOSED_EVERY_TICKS: u64 = 25;
/// How long a rebuild belongs to its process after each of its steps, in milliseconds.
const OWNED_MS: i64 = 20_000;
/// How long claims that were accepted before may take to reach the ledger (design §9: at most 5 s).
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How long at least: until every origin process has heard that the sale is being rebuilt.
const FLUSH_MIN: Duration = Duration::from_millis(300);
/// Between two looks at what is still on its way; nothing, twice, is nothing.
const FLUSH_LOOK: Duration = Duration::from_millis(60);

/// Why a rebuild came to no end this time; it is tried again.
#[derive(Debug, thiserror::Error)]
enum RebuildError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Stock(#[from] StockError),
    #[error("a buyer's receipt cannot be made: {0}")]
    Receipt(#[from] IdError),
    /// Another process loads the gate with a newer cut.
    #[error("bucket is at epoch {0} by now")]
    Overtaken(Epoch),
}

/// Ticks until shutdown, and when nudged.
pub async fn run(app: &App) {
    let me = Uuid::new_v4();
    let mut pace = Pace::new("rebuild", Some(&app.rebuilds), &app.shutdown);
    let mut tick: u64 = 0;
    while pace.goes_on() {
        for sale in app.sales.all() {
            let seldom = sale.row.state == SaleState::Closed && !tick.is_multiple_of(CLOSED_EVERY_TICKS);
            if seldom || sale.row.state == SaleState::Loading {
                continue;
            }
            // One sale's trouble does not keep the others waiting; and a Redis that is away now is looked
            // at again soon, because it may have forgotten when it is back.
            if let Err(error) = tend(app, &sale, me).await {
                tracing::debug!(%error, sale = %sale.id(), "a gate cannot be looked at or rebuilt now");
            }
        }
        tick = tick.wrapping_add(1);
        pace.rest(Ok::<_, Infallible>(Next::After(PERIOD))).await;
    }
}

async fn tend(app: &App, sale: &Arc<Sale>, me: Uuid) -> Result<(), RebuildError> {
    if sale.row.state != SaleState::Rebuilding {
        let Some((cause, seen)) = broken(app, sale).await? else {
            return Ok(());
        };
        if app.ledger.order_rebuild(sale.id(), cause, Some(seen)).await? {
            metrics::counter!("flashgate_gate_broken_total", "cause" => cause.as_str()).increment(1);
            tracing::error!(sale = %sale.id(), %cause, "ALARM: the gate went back in time; it is rebuilt from the ledger");
        }
    }
    rebuild(app, sale, me).await
}

/// What is wrong with a sale's gate, and at which epoch of the ledger.
async fn broken(app: &App, sale: &Sale) -> Result<Option<(RebuildCause, Epoch)>, RebuildError> {
    let look = async || app.stock.generations(sale.id(), sale.row.config.buckets).await;
    if cause(&look().await?, sale.row.epoch).is_none() {
        return Ok(None);
    }
    // The row was of a moment ago, and a rebuild by another process looks like this too: look between two
    // readings that agree.
    let row =
        async || -> Result<SaleRow, LedgerError> { app.ledger.sale(sale.id()).await?.ok_or(LedgerError::NotFound) };
    let before = row().await?;
    let found = cause(&look().await?, before.epoch);
    let after = row().await?;
    let settled = (before.epoch, before.state) == (after.epoch, after.state)
        && !matches!(after.state, SaleState::Rebuilding | SaleState::Loading);
    Ok(found.filter(|_| settled).map(|cause| (cause, after.epoch)))
}

/// The first thing that is wrong with these buckets.
fn cause(generations: &[Generation], epoch: Epoch) -> Option<RebuildCause> {
    let wrong = generations.iter().find(|generation| !generation.is(epoch))?;
    Some(match wrong.epoch {
        None => RebuildCause::NotLoaded,
        Some(other) if other != epoch => RebuildCause::OtherEpoch,
        Some(_) => RebuildCause::ServerChanged,
    })
}

/// Does the sale's rebuild, if nobody else does.
async fn rebuild(app: &App, sale: &Arc<Sale>, me: Uuid) -> Result<(), RebuildError> {
    let began = Instant::now();
    let Some(rebuild) = app.ledger.own_rebuild(sale.id(), me, OWNED_MS).await? else {
        return Ok(());
    };
    app.sales.refresh(&app.ledger).await?;
    flush(app, sale).await?;
    let buckets = sale.row.config.buckets;
    // Higher than whatever is there: also in a Redis that was another shop's.
    let there = app.stock.generations(sale.id(), buckets).await?;
    let highest = there.iter().flat_map(|generation| [generation.epoch, generation.loading]).flatten().max();
    // The steps that follow are short: they end well within this.
    if app.ledger.own_rebuild(sale.id(), me, OWNED_MS).await? != Some(rebuild) {
        return Ok(());
    }
    let cut = app.ledger.cut(sale.id(), rebuild, me, highest.unwrap_or(0)).await?;
    let loads = gate::rebuilt(&cut, buckets)?;
    if let LoadReply::Refused { epoch, .. } = app.stock.load(sale.id(), cut.epoch, &loads).await? {
        return Err(RebuildError::Overtaken(epoch));
    }
    if !app.ledger.end_rebuild(sale.id(), rebuild, cut.epoch).await? {
        return Ok(());
    }
    metrics::counter!("flashgate_rebuilds_total").increment(1);
    metrics::histogram!("flashgate_rebuild_seconds").record(began.elapsed().as_secs_f64());
    tracing::warn!(
        sale = %sale.id(), epoch = cut.epoch, on_offer = cut.on_offer, receipts = cut.standings.len(),
        superseded = cut.superseded, ms = began.elapsed().as_millis() as u64, "the gate is rebuilt"
    );
    app.sales.refresh(&app.ledger).await?;
    app.releases.notify_one();
    Ok(())
}

/// Lets what was accepted before reach the ledger, as far as it does in time: what comes after the cut is
/// lost, and its buyer is told so.
async fn flush(app: &App, sale: &Sale) -> Result<(), RebuildError> {
    let began = Instant::now();
    let mut empty = 0;
    while began.elapsed() < FLUSH_MAX && !(empty >= 2 && began.elapsed() >= FLUSH_MIN) && !app.shutdown.is_cancelled() {
        let map = app.stock.stock_map(sale.id(), sale.row.config.buckets).await?;
        outbox::relay_buckets(app, sale, &map, 0).await?;
        // A broker that is away has nothing to wait for.
        let queued = app.queue.depth(sale.id()).await.map_or(0, |depth| depth.ready);
        empty = if map.outbox() == 0 && queued == 0 { empty + 1 } else { 0 };
        pause(FLUSH_LOOK, &app.shutdown).await;
    }
    Ok(())
}

/// The sale, by an operator's order.
pub async fn order(app: &App, sale: &SaleId) -> Result<(), LedgerError> {
    if app.ledger.order_rebuild(sale, RebuildCause::Operator, None).await? {
        tracing::warn!(%sale, "an operator ordered the gate to be rebuilt");
    }
    app.sales.refresh(&app.ledger).await?;
    app.rebuilds.notify_one();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_apart() {
        let good = Generation { epoch: Some(3), unbroken: true, loading: None };
        assert_eq!(cause(&[good, good], 3), None);
        for (bad, expected) in [
            (Generation { epoch: None, unbroken: false, loading: None }, RebuildCause::NotLoaded),
            (Generation { epoch: Some(2), ..good }, RebuildCause::OtherEpoch),
            (Generation { epoch: Some(4), ..good }, RebuildCause::OtherEpoch),
            (Generation { unbroken: false, ..good }, RebuildCause::ServerChanged),
        ] {
            assert_eq!(cause(&[good, bad], 3), Some(expected));
        }
    }
}
