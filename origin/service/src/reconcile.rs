//! Reconciling a sale (design §9): gate, outbox, queue, ledger and payment provider compared, each drift named
//! with its cause.
//!
//! What is on its way looks like drift. So a claim counts as lost only when it is old, nothing of it is in the
//! outbox, and the queue is empty; and counters are compared only at rest. Repairs act on one hold, and may be
//! repeated; counters change by a rebuild alone.

mod gate;
mod money;

use crate::{
    App,
    audit::{AuditError, audit},
    queues,
    roles::rebuild,
};
use flashgate_ledger::SaleRow;
use flashgate_shared::{
    ClaimId,
    order::{DriftKind, Wisher},
    wire::{Drift, Reconciliation},
};
use money::CompareError;
use std::collections::HashSet;

/// How old a claim is at least before it counts as lost, unless an operator says otherwise, in milliseconds.
pub const OLDER_THAN_MS: i64 = 60_000;

/// What is compared, and what is done about it.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Mend what can be mended.
    pub repair: bool,
    /// Rebuild the gate where only that mends. The scheduled reconciliation leaves that to people.
    pub rebuild: bool,
    /// Younger claims, releases and refunds may be on their way.
    pub older_than_ms: i64,
    /// Who wishes it.
    pub by: Wisher,
}

/// Compares, and repairs if that is wished.
pub async fn reconcile(app: &App, row: &SaleRow, wish: Wish) -> Result<Reconciliation, AuditError> {
    queues::restore(app, &row.config).await.map_err(AuditError::Queue)?;
    let view = gate::view(app, row).await?;
    let mut drifts = gate::lost_messages(app, row, &view, wish).await?;
    let mut broken = gate::missing_receipts(app, row, &view).await?;
    drop(view);
    let lost: HashSet<ClaimId> = drifts.iter().filter_map(|drift| drift.claim_id).collect();
    drifts.extend(money::in_the_ledger(app, row, wish).await?);
    let mut unseen = Vec::new();
    match money::at_the_provider(app, row, wish, &lost).await {
        Ok(found) => drifts.extend(found),
        Err(CompareError::Ledger(error)) => return Err(error.into()),
        Err(CompareError::Provider(why)) => unseen.push(format!("the payment provider's books: {why}")),
    }
    let report = audit(app, row).await?;
    if report.sold != report.live_units {
        let (sold, live) = (report.sold, report.live_units);
        let cause = format!("the stock row says {sold} units are sold, the live orders hold {live}");
        drifts.push(drift(DriftKind::SoldMismatch, sold - live, cause));
    }
    // Lost messages are stranded units as well: they are named already. Those that were just published are on their
    // way again, and counters are compared only at rest.
    let is_lost = |d: &&Drift| d.kind == DriftKind::LostMessage;
    let named: i64 = drifts.iter().filter(is_lost).map(|d| d.units).sum();
    let quiet = report.quiet && !drifts.iter().filter(is_lost).any(|d| d.repair.is_some());
    if quiet && report.drift != named {
        let (total, offer, live) = (report.total, report.on_offer, report.live_units);
        let cause = format!("{offer} units on offer and {live} sold do not make {total}");
        broken.push(drift(DriftKind::Counter, report.drift - named, cause));
    }
    if wish.repair && wish.rebuild && !broken.is_empty() {
        rebuild::order(app, &row.config.id).await?;
        for drift in &mut broken {
            drift.repair = Some("the gate is rebuilt".to_owned());
        }
    }
    drifts.extend(broken);
    for drift in &drifts {
        metrics::counter!("flashgate_drifts_total", "kind" => drift.kind.as_str()).increment(1);
        tracing::warn!(
            sale = %row.config.id, kind = %drift.kind, units = drift.units, cause = drift.cause,
            repair = drift.repair, "drift"
        );
    }
    // What was mended stays mended, also when that cannot be recorded now: the log has it.
    if let Err(error) = app.ledger.record_repairs(&row.config.id, &drifts, wish.by).await {
        tracing::error!(%error, sale = %row.config.id, "repairs were made and could not be recorded");
    }
    Ok(Reconciliation { sale: row.config.id.clone(), drifts, quiet, unseen })
}

fn drift(kind: DriftKind, units: i64, cause: String) -> Drift {
    Drift { kind, claim_id: None, units, cause, repair: None }
}
