//! The ledger's own numbers, from one snapshot: what the auditor compares with the gate and the queue.

use crate::{
    Ledger, LedgerAudit, LedgerError, LiveOrder, Result,
    rows::{number, word},
    tx::outer,
};
use flashgate_shared::{ClaimId, SaleId};

/// Settling goes on meanwhile: only a snapshot makes the numbers fit each other.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

impl Ledger {
    /// A sale's numbers at one moment. `NotFound` for an unknown sale.
    pub async fn audit(&self, sale: &SaleId) -> Result<LedgerAudit> {
        let mut tx = self.reads.begin_with(SNAPSHOT).await.map_err(outer)?;
        let stock = sqlx::query!(
            r#"SELECT sum(total)::bigint AS total, sum(sold)::bigint AS sold, max(epoch) AS epoch
               FROM stock WHERE sale = $1"#,
            sale.as_str()
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(outer)?;
        let (Some(total), Some(sold), Some(epoch)) = (stock.total, stock.sold, stock.epoch) else {
            return Err(LedgerError::NotFound);
        };
        let orders = sqlx::query!(
            r#"SELECT COALESCE(sum(quantity) FILTER (WHERE status IN ('RESERVED', 'PAID')), 0)::bigint AS "live_units!",
                      count(*) FILTER (WHERE status IN ('RESERVED', 'PAID')) AS "live_orders!",
                      count(DISTINCT buyer) FILTER (WHERE status IN ('RESERVED', 'PAID')) AS "live_buyers!",
                      count(*) FILTER (WHERE status = 'PAID') AS "paid!",
                      count(*) FILTER (WHERE status = 'EXPIRED') AS "expired!",
                      count(*) FILTER (WHERE status = 'LOST') AS "lost!"
               FROM orders WHERE sale = $1"#,
            sale.as_str()
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(outer)?;
        let pending = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM gate_releases WHERE sale = $1 AND outcome IS NULL) AS "releases!",
                      (SELECT COALESCE(sum(units), 0) FROM gate_releases WHERE sale = $1 AND outcome IS NULL)::bigint AS "units!",
                      (SELECT count(*) FROM refunds WHERE sale = $1 AND provider_refund_id IS NULL) AS "refunds!""#,
            sale.as_str()
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(outer)?;
        tx.commit().await.map_err(outer)?;
        Ok(LedgerAudit {
            total,
            sold,
            live_units: orders.live_units,
            live_orders: orders.live_orders,
            paid_orders: orders.paid,
            expired_orders: orders.expired,
            lost_claims: orders.lost,
            double_orders: orders.live_orders - orders.live_buyers,
            releases_pending: pending.releases,
            releases_pending_units: pending.units,
            refunds_pending: pending.refunds,
            epoch,
        })
    }

    /// The sale's live orders, by buyer. At most the sale's total.
    pub async fn live_orders(&self, sale: &SaleId) -> Result<Vec<LiveOrder>> {
        let rows = sqlx::query!(
            r#"SELECT buyer, claim_id, hold, quantity FROM orders
               WHERE sale = $1 AND status IN ('RESERVED', 'PAID') ORDER BY buyer COLLATE "C""#,
            sale.as_str()
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|r| {
                Ok((
                    word("buyer", &r.buyer)?,
                    ClaimId(r.claim_id),
                    r.hold.map(|h| word("hold", &h)).transpose()?,
                    number("quantity", r.quantity)?,
                ))
            })
            .collect()
    }
}
