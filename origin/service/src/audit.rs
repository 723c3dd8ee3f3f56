//! Design I1 to I4, as the origin finds them: ledger, gate and queue read and held against each other.

use crate::App;
use flashgate_ledger::{LedgerAudit, LedgerError, LiveOrder, SaleRow};
use flashgate_queue::{Depth, QueueError};
use flashgate_shared::{SaleId, sale::SaleState, wire::AuditReport};
use flashgate_stock::{HeldReceipt, StockError, StockMap};
use std::{collections::HashSet, time::Duration};

/// A unit in the hands of a worker shows nowhere but in its receipt: before such a unit is called
/// stranded, it is looked at this many times.
const LOOKS_MAX: u32 = 6;
/// How long between the looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No such sale, or the ledger does not answer.
    #[error("ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The gate does not answer.
    #[error("gate: {0}")]
    Stock(StockError),
    /// The broker does not answer.
    #[error("queue: {0}")]
    Queue(QueueError),
}

/// Everything that is read for a report.
struct Findings {
    ledger: LedgerAudit,
    live: Vec<LiveOrder>,
    map: StockMap,
    held: Vec<HeldReceipt>,
    depth: Depth,
    /// The gate is being loaded.
    loading: bool,
}

/// A sale's audit.
pub async fn audit(app: &App, row: &SaleRow) -> Result<AuditReport, AuditError> {
    let mut report = judge(row.config.id.clone(), &find(app, row).await?);
    for _ in 1..LOOKS_MAX {
        // Nothing queued, yet units unaccounted for: perhaps a worker has them. Look again.
        if report.broken.is_empty() && (report.held_without_order == 0 || !report.quiet) {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        report = judge(row.config.id.clone(), &find(app, row).await?);
    }
    Ok(report)
}

async fn find(app: &App, row: &SaleRow) -> Result<Findings, AuditError> {
    let (sale, buckets) = (&row.config.id, row.config.buckets);
    Ok(Findings {
        map: app.stock.stock_map(sale, buckets).await.map_err(AuditError::Stock)?,
        held: app.stock.held(sale, buckets).await.map_err(AuditError::Stock)?,
        depth: app.queue.depth(sale).await.map_err(AuditError::Queue)?,
        // Last: what moved on meanwhile is found where it arrived, not missed where it left.
        live: app.ledger.live_orders(sale).await?,
        ledger: app.ledger.audit(sale).await?,
        loading: app
            .ledger
            .sale(sale)
            .await?
            .is_none_or(|now| matches!(now.state, SaleState::Rebuilding | SaleState::Loading)),
    })
}

fn judge(sale: SaleId, found: &Findings) -> AuditReport {
    let Findings { ledger, live, map, held, depth, loading } = found;
    let known: HashSet<_> = live.iter().map(|(_, claim_id, hold, _)| (*claim_id, hold.as_ref())).collect();
    let held_without_order: i64 = held
        .iter()
        .map(|h| &h.receipt)
        .filter(|r| r.hold.epoch == ledger.epoch && !known.contains(&(r.claim_id, Some(&r.hold))))
        .map(|r| i64::from(r.quantity))
        .sum();
    // What lies in a bucket of another epoch is out of reach: it counts as not on offer.
    let on_offer: i64 = map.buckets.iter().filter(|b| b.epoch == Some(ledger.epoch)).map(|b| b.stock).sum();
    let outbox = as_i64(map.outbox());
    let (queued, dead_letters) = (as_i64(depth.ready), as_i64(depth.dead));
    let quiet = !loading && outbox == 0 && queued == 0 && dead_letters == 0 && ledger.releases_pending == 0;
    // At rest nothing will ever bring a held unit without an order back: then it is stranded.
    let in_flight = if quiet { 0 } else { held_without_order };
    let drift = ledger.total - on_offer - ledger.live_units - in_flight;
    let mut report = AuditReport {
        sale,
        total: ledger.total,
        sold: ledger.sold,
        live_units: ledger.live_units,
        live_orders: ledger.live_orders,
        paid_orders: ledger.paid_orders,
        expired_orders: ledger.expired_orders,
        lost_claims: ledger.lost_claims,
        on_offer,
        held_without_order,
        outbox,
        queued,
        dead_letters,
        releases_pending: ledger.releases_pending,
        refunds_pending: ledger.refunds_pending,
        oversold: (ledger.live_units - ledger.total).max(0),
        double_orders: ledger.double_orders,
        drift,
        stranded: drift.max(0),
        quiet,
        broken: Vec::new(),
    };
    report.broken = broken(&report);
    report
}

fn broken(r: &AuditReport) -> Vec<String> {
    let mut broken = Vec::new();
    if r.oversold > 0 {
        broken.push(format!("I1: {} units are sold beyond the total of {}", r.oversold, r.total));
    }
    if r.sold != r.live_units {
        broken.push(format!("I1: the stock row says {} sold, the live orders hold {}", r.sold, r.live_units));
    }
    if r.double_orders > 0 {
        broken.push(format!("I2: {} live orders beyond one a buyer", r.double_orders));
    }
    if r.quiet && r.drift > 0 {
        broken.push(format!("I4: {} units are stranded: neither sold nor on offer", r.drift));
    }
    if r.quiet && r.drift < 0 {
        broken.push(format!("I4: the gate offers {} units that do not exist", -r.drift));
    }
    broken
}

fn as_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::order::ReceiptState;
    use flashgate_stock::{BucketStock, Receipt};

    fn findings(on_offer: i64, live_units: i64) -> Findings {
        Findings {
            ledger: LedgerAudit {
                total: 10,
                sold: live_units,
                live_units,
                live_orders: live_units,
                paid_orders: 0,
                expired_orders: 0,
                lost_claims: 0,
                double_orders: 0,
                releases_pending: 0,
                releases_pending_units: 0,
                refunds_pending: 0,
                epoch: 1,
            },
            live: Vec::new(),
            map: StockMap { buckets: vec![BucketStock { epoch: Some(1), stock: on_offer, outbox: 0 }] },
            held: Vec::new(),
            depth: Depth { ready: 0, dead: 0 },
            loading: false,
        }
    }

    fn report(found: &Findings) -> AuditReport {
        judge("s".parse().unwrap(), found)
    }

    #[test]
    fn at_rest_every_unit_is_sold_or_on_offer() {
        let good = report(&findings(6, 4));
        assert!(good.quiet && good.broken.is_empty() && good.stranded == 0);
        assert_eq!(report(&findings(5, 4)).stranded, 1);
        assert_eq!(report(&findings(7, 4)).broken.len(), 1);
        assert_eq!(report(&findings(0, 11)).oversold, 1);
    }

    #[test]
    fn a_bucket_of_another_epoch_is_out_of_reach() {
        let mut found = findings(6, 4);
        found.map.buckets[0].epoch = Some(2);
        assert_eq!(report(&found).stranded, 6);
    }

    #[test]
    fn a_held_unit_is_in_flight_while_something_moves_and_stranded_at_rest() {
        let mut found = findings(5, 4);
        found.held.push(HeldReceipt {
            bucket: 0,
            buyer: "b".parse().unwrap(),
            receipt: Receipt {
                state: ReceiptState::Held,
                claim_id: flashgate_shared::ClaimId(uuid::Uuid::nil()),
                hold: "1.0.5-1".parse().unwrap(),
                quantity: 1,
                claimed_at_ms: 5,
            },
        });
        let at_rest = report(&found);
        assert_eq!((at_rest.stranded, at_rest.held_without_order), (1, 1));
        found.map.buckets[0].outbox = 1;
        let moving = report(&found);
        assert!(!moving.quiet && moving.drift == 0 && moving.broken.is_empty());
    }
}
