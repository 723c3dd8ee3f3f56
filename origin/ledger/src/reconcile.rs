//! What reconciling and the closing report ask of the ledger. Nothing is written here.

use crate::{
    Ledger, LedgerPayment, Result, SaleFigures, UnansweredHold, UnmatchedPayment,
    rows::{money, word},
    tx::outer,
};
use flashgate_shared::{ClaimId, HoldId, SaleId};
use std::collections::HashSet;
use uuid::Uuid;

/// Most rows of each sort that are told.
const TOLD_MAX: i64 = 1_000;

impl Ledger {
    /// Those of these holds that neither an order nor a release answers to, by their place.
    pub async fn unanswered_holds(&self, holds: &[(ClaimId, HoldId)]) -> Result<Vec<usize>> {
        let claims: Vec<Uuid> = holds.iter().map(|(claim, _)| claim.0).collect();
        let texts: Vec<String> = holds.iter().map(|(_, hold)| hold.to_string()).collect();
        let places = sqlx::query_scalar!(
            r#"SELECT place AS "place!" FROM UNNEST($1::uuid[], $2::text[]) WITH ORDINALITY AS d (claim_id, hold, place)
               WHERE NOT EXISTS (SELECT FROM orders o WHERE o.claim_id = d.claim_id AND o.hold = d.hold)
                 AND NOT EXISTS (SELECT FROM gate_releases r WHERE r.claim_id = d.claim_id AND r.hold = d.hold)
               ORDER BY place"#,
            &claims,
            &texts
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        Ok(places.into_iter().filter_map(|place| usize::try_from(place - 1).ok()).collect())
    }

    /// Succeeded payments of the sale that neither paid an order nor go back. At most 1,000.
    pub async fn unmatched_payments(&self, sale: &SaleId) -> Result<Vec<UnmatchedPayment>> {
        let rows = sqlx::query!(
            "SELECT provider_payment_id, claim_id FROM payments p
             WHERE sale = $1 AND amount_minor > 0
               AND NOT EXISTS (SELECT FROM orders o WHERE o.payment_id = p.provider_payment_id)
               AND NOT EXISTS (SELECT FROM refunds r WHERE r.payment_id = p.provider_payment_id)
             ORDER BY created_at_ms LIMIT $2",
            sale.as_str(),
            TOLD_MAX
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        Ok(rows
            .into_iter()
            .map(|row| UnmatchedPayment { payment_id: row.provider_payment_id, claim_id: ClaimId(row.claim_id) })
            .collect())
    }

    /// All succeeded payments of the sale, to be compared with the provider's.
    pub async fn payments(&self, sale: &SaleId) -> Result<Vec<LedgerPayment>> {
        let rows = sqlx::query!(
            r#"SELECT provider_payment_id, p.claim_id, p.amount_minor, p.currency, p.created_at_ms,
                      r.id IS NOT NULL AS "ordered!", r.provider_refund_id IS NOT NULL AS "refunded!"
               FROM payments p LEFT JOIN refunds r ON r.payment_id = p.provider_payment_id
               WHERE p.sale = $1"#,
            sale.as_str()
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| {
                Ok(LedgerPayment {
                    payment_id: row.provider_payment_id,
                    claim_id: ClaimId(row.claim_id),
                    amount: money(row.amount_minor, row.currency)?,
                    noted_at_ms: row.created_at_ms,
                    refund_ordered: row.ordered,
                    refunded: row.refunded,
                })
            })
            .collect()
    }

    /// Those of these payments that the ledger does not know.
    pub async fn unknown_payments(&self, ids: &[String]) -> Result<HashSet<String>> {
        let unknown = sqlx::query_scalar!(
            r#"SELECT id AS "id!" FROM UNNEST($1::text[]) AS d (id)
               WHERE NOT EXISTS (SELECT FROM payments p WHERE p.provider_payment_id = d.id)"#,
            ids
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        Ok(unknown.into_iter().collect())
    }

    /// Releases of the sale that the gate has not answered for so long. At most 1,000.
    pub async fn stuck_releases(&self, sale: &SaleId, older_than_ms: i64) -> Result<Vec<UnansweredHold>> {
        let rows = sqlx::query!(
            "SELECT claim_id, hold, units, attempts FROM gate_releases
             WHERE sale = $1 AND outcome IS NULL AND created_at_ms < unix_now_ms() - $2 ORDER BY id LIMIT $3",
            sale.as_str(),
            older_than_ms,
            TOLD_MAX
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| {
                Ok(UnansweredHold {
                    claim_id: ClaimId(row.claim_id),
                    hold: word("hold", &row.hold)?,
                    units: row.units,
                    attempts: row.attempts,
                })
            })
            .collect()
    }

    /// Claims of the sale whose refunds the provider has not confirmed for so long. At most 1,000.
    pub async fn stuck_refunds(&self, sale: &SaleId, older_than_ms: i64) -> Result<Vec<ClaimId>> {
        let claims = sqlx::query_scalar!(
            "SELECT claim_id FROM refunds
             WHERE sale = $1 AND provider_refund_id IS NULL AND created_at_ms < unix_now_ms() - $2
             ORDER BY created_at_ms LIMIT $3",
            sale.as_str(),
            older_than_ms,
            TOLD_MAX
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        Ok(claims.into_iter().map(ClaimId).collect())
    }

    /// What became of the sale's claims, for its closing report.
    pub async fn figures(&self, sale: &SaleId) -> Result<SaleFigures> {
        let sums = sqlx::query!(
            r#"SELECT unix_now_ms() AS "at_ms!",
                      COALESCE(sum(quantity) FILTER (WHERE status = 'PAID'), 0)::bigint AS "paid_units!",
                      COALESCE(sum(quantity) FILTER (WHERE status = 'RESERVED'), 0)::bigint AS "reserved_units!",
                      count(*) FILTER (WHERE status = 'EXPIRED') AS "lapsed!",
                      count(DISTINCT buyer) AS "buyers!",
                      (SELECT count(*) FROM (SELECT FROM orders WHERE sale = $1 GROUP BY buyer HAVING count(*) > 2) b)
                          AS "insistent!",
                      (SELECT count(*) FROM refunds WHERE sale = $1) AS "refunds!",
                      (SELECT count(*) FROM gate_rebuilds WHERE sale = $1) AS "rebuilds!"
               FROM orders WHERE sale = $1"#,
            sale.as_str()
        )
        .fetch_one(&self.reads)
        .await
        .map_err(outer)?;
        let lost = sqlx::query!(
            r#"SELECT reason AS "reason!", count(*) AS "count!" FROM orders
               WHERE sale = $1 AND status = 'LOST' GROUP BY reason"#,
            sale.as_str()
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        let revenue = sqlx::query!(
            r#"SELECT currency, sum(amount_minor)::bigint AS "amount_minor!" FROM orders
               WHERE sale = $1 AND status = 'PAID' GROUP BY currency"#,
            sale.as_str()
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        Ok(SaleFigures {
            at_ms: sums.at_ms,
            paid_units: sums.paid_units,
            reserved_units: sums.reserved_units,
            lapsed_orders: sums.lapsed,
            buyers: sums.buyers,
            insistent_buyers: sums.insistent,
            refunds: sums.refunds,
            rebuilds: sums.rebuilds,
            lost: lost.into_iter().map(|row| Ok((word("reason", &row.reason)?, row.count))).collect::<Result<_>>()?,
            revenue: revenue.into_iter().map(|row| (row.currency, row.amount_minor)).collect(),
        })
    }
}
