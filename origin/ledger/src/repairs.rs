//! What reconciling mended, for whoever asks later.

use crate::{Ledger, Result, rows::word, tx::outer};
use flashgate_shared::{
    ClaimId, SaleId,
    order::Wisher,
    wire::{Drift, Repair},
};
use uuid::Uuid;

/// Most repairs that are told.
const REPAIRS_TOLD: i64 = 1_000;

impl Ledger {
    /// Records drifts that were mended; those that were not are left out.
    pub async fn record_repairs(&self, sale: &SaleId, drifts: &[Drift], wished_by: Wisher) -> Result<()> {
        let mended: Vec<(&Drift, &String)> =
            drifts.iter().filter_map(|drift| Some((drift, drift.repair.as_ref()?))).collect();
        if mended.is_empty() {
            return Ok(());
        }
        let text = |f: &dyn Fn(&(&Drift, &String)) -> String| mended.iter().map(f).collect::<Vec<_>>();
        sqlx::query!(
            "INSERT INTO repairs (sale, kind, claim_id, units, cause, repair, wished_by, updated_by)
             SELECT $1, kind, claim_id, units, cause, repair, $2, 'record_repairs'
             FROM UNNEST($3::text[], $4::uuid[], $5::bigint[], $6::text[], $7::text[])
               AS d (kind, claim_id, units, cause, repair)",
            sale.as_str(),
            wished_by.as_str(),
            &text(&|(drift, _)| drift.kind.to_string()),
            &mended.iter().map(|(drift, _)| drift.claim_id.map(|id| id.0)).collect::<Vec<_>>() as &[Option<Uuid>],
            &mended.iter().map(|(drift, _)| drift.units).collect::<Vec<_>>(),
            &text(&|(drift, _)| drift.cause.clone()),
            &text(&|(_, repair)| (*repair).clone())
        )
        .execute(&self.settle)
        .await
        .map_err(outer)?;
        Ok(())
    }

    /// The sale's repairs, the newest first; at most 1,000.
    pub async fn repairs(&self, sale: &SaleId) -> Result<Vec<Repair>> {
        let rows = sqlx::query!(
            "SELECT id, kind, claim_id, units, cause, repair, wished_by, made_at_ms FROM repairs
             WHERE sale = $1 ORDER BY id DESC LIMIT $2",
            sale.as_str(),
            REPAIRS_TOLD
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter()
            .map(|row| {
                let drift = Drift {
                    kind: word("kind", &row.kind)?,
                    claim_id: row.claim_id.map(ClaimId),
                    units: row.units,
                    cause: row.cause,
                    repair: Some(row.repair),
                };
                let wished_by = word("wished_by", &row.wished_by)?;
                Ok(Repair { id: row.id, made_at_ms: row.made_at_ms, wished_by, drift })
            })
            .collect()
    }
}
