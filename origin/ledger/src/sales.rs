//! Sales: what marketing set, and the operator's state.

use crate::{
    Ledger, LedgerError, Result, SaleRow,
    chain::{NewEntry, append},
    rows::{number, word},
    tx::{Rows, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    SaleId,
    chain::EntryKind,
    sale::{SaleConfig, SaleState},
};
use sqlx::{PgConnection, types::Json};
use std::sync::{PoisonError, atomic::Ordering};

struct Row {
    version: i64,
    state: String,
    state_after: Option<String>,
    config: Json<SaleConfig>,
    epoch: i64,
    sold: i64,
}

impl TryFrom<Row> for SaleRow {
    type Error = LedgerError;
    fn try_from(row: Row) -> Result<Self> {
        let mut config = row.config.0;
        config.version = row.version;
        let state_after = row.state_after.map(|state| word("state_after", &state)).transpose()?;
        Ok(Self { config, state: word("state", &row.state)?, state_after, epoch: row.epoch, sold: row.sold })
    }
}

impl Ledger {
    /// Creates a sale in state `loading`, version 1, epoch 1, nothing sold. `Conflict` if it exists.
    pub async fn create_sale(&self, sale: &SaleConfig) -> Result<SaleRow> {
        sale.validate().map_err(|e| LedgerError::Invalid(e.to_string()))?;
        transaction!(self.reads, "create_sale", |tx| create(tx, "create_sale", sale))
    }

    /// How many stock rows the sale has: set for good when it is created. 1 for an unknown sale.
    pub(crate) async fn shards(&self, sale: &SaleId) -> Result<u16> {
        if let Some(known) = self.shards.read().unwrap_or_else(PoisonError::into_inner).get(sale) {
            return Ok(*known);
        }
        let rows = sqlx::query_scalar!(r#"SELECT count(*) AS "rows!" FROM stock WHERE sale = $1"#, sale.as_str())
            .fetch_one(&self.settle)
            .await
            .map_err(outer)?;
        let rows: u16 = number("rows", rows)?;
        if rows > 0 {
            self.shards.write().unwrap_or_else(PoisonError::into_inner).insert(sale.clone(), rows);
        }
        Ok(rows.max(1))
    }

    /// The stock row for a new transaction: one after the other, so that those at the same time meet little.
    pub(crate) async fn next_shard(&self, sale: &SaleId) -> Result<i16> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % u32::from(self.shards(sale).await?);
        number("shard", turn)
    }

    /// One sale.
    pub async fn sale(&self, sale: &SaleId) -> Result<Option<SaleRow>> {
        self.sales_where(Some(sale)).await.map(|mut rows| rows.pop())
    }

    /// All sales, newest first.
    pub async fn sales(&self) -> Result<Vec<SaleRow>> {
        self.sales_where(None).await
    }

    async fn sales_where(&self, only: Option<&SaleId>) -> Result<Vec<SaleRow>> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT s.version, s.state, s.state_after, s.config AS "config: Json<SaleConfig>",
                      max(t.epoch) AS "epoch!", sum(t.sold)::bigint AS "sold!"
               FROM sales s JOIN stock t ON t.sale = s.id
               WHERE $1::text IS NULL OR s.id = $1
               GROUP BY s.id ORDER BY s.created_at_ms DESC, s.id"#,
            only.map(SaleId::as_str)
        )
        .fetch_all(&self.reads)
        .await
        .map_err(outer)?;
        rows.into_iter().map(SaleRow::try_from).collect()
    }

    /// Changes the settings, when the version in them is still the sale's and it has not ended; raises it.
    pub async fn change_sale(&self, sale: &SaleConfig) -> Result<SaleRow> {
        sale.validate().map_err(|e| LedgerError::Invalid(e.to_string()))?;
        let rows = sqlx::query!(
            "UPDATE sales SET config = $3, version = version + 1, updated_at_ms = unix_now_ms(), updated_by = 'change_sale'
             WHERE id = $1 AND version = $2 AND state <> 'closed'",
            sale.id.as_str(),
            sale.version,
            Json(sale) as _
        )
        .execute(&self.reads)
        .await
        .map_err(outer)?
        .rows_affected();
        let row = self.sale(&sale.id).await?.ok_or(LedgerError::NotFound)?;
        match rows {
            1 => Ok(row),
            _ if row.state == SaleState::Closed => Err(LedgerError::Conflict("the sale is closed".into())),
            _ => Err(LedgerError::Conflict(format!(
                "the sale has version {} by now, not {}",
                row.config.version, sale.version
            ))),
        }
    }

    /// The settings of a version, if the sale had it.
    pub async fn sale_version(&self, sale: &SaleId, version: i64) -> Result<Option<SaleConfig>> {
        let row = sqlx::query!(
            r#"SELECT config AS "config: Json<SaleConfig>" FROM sale_versions WHERE sale = $1 AND version = $2"#,
            sale.as_str(),
            version
        )
        .fetch_optional(&self.reads)
        .await
        .map_err(outer)?;
        Ok(row.map(|row| SaleConfig { version, ..row.config.0 }))
    }

    /// Changes the operator's state; the state before must be one of `from`, else `Conflict`. Raises the
    /// version. While the gate is rebuilt it is the state afterwards that changes.
    pub async fn set_state(&self, sale: &SaleId, from: &[SaleState], to: SaleState) -> Result<SaleRow> {
        let from: Vec<String> = from.iter().map(|s| s.to_string()).collect();
        let rows = sqlx::query!(
            "UPDATE sales SET state = CASE state WHEN 'rebuilding' THEN state ELSE $3 END,
                 state_after = CASE state WHEN 'rebuilding' THEN $3 END,
                 version = version + 1, updated_at_ms = unix_now_ms(), updated_by = 'set_state'
             WHERE id = $1 AND COALESCE(state_after, state) = ANY($2)",
            sale.as_str(),
            &from,
            to.as_str()
        )
        .execute(&self.reads)
        .await
        .map_err(outer)?
        .rows_affected();
        let row = self.sale(sale).await?.ok_or(LedgerError::NotFound)?;
        if rows == 1 {
            Ok(row)
        } else {
            let wanted = from.join(" or ");
            Err(LedgerError::Conflict(format!("the sale is {}, not {wanted}", row.state_after.unwrap_or(row.state))))
        }
    }
}

async fn create(tx: &mut PgConnection, name: &'static str, sale: &SaleConfig) -> Result<SaleRow, TxError> {
    let mut config = sale.clone();
    config.version = 1;
    let inserted = sqlx::query!(
        "INSERT INTO sales (id, version, state, config, updated_by) VALUES ($1, $2, 'loading', $3, $4)
         ON CONFLICT DO NOTHING",
        config.id.as_str(),
        config.version,
        Json(&config) as _,
        name
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if inserted != 1 {
        return Err(LedgerError::Conflict(format!("the sale {} exists", config.id)).into());
    }
    sqlx::query!(
        "INSERT INTO stock (sale, shard, total, updated_by)
         SELECT $1, shard - 1, total, $2 FROM UNNEST($3::bigint[]) WITH ORDINALITY AS d (total, shard)",
        config.id.as_str(),
        name,
        &spread(config.total, config.shards)
    )
    .execute(&mut *tx)
    .await?;
    let mut locked = lock_stock(tx, &config.id, &Rows::All).await?.ok_or(LedgerError::NotFound)?;
    let created = locked.shards.iter().map(|at| NewEntry::of_shard(at.shard, EntryKind::Created, None)).collect();
    append(tx, name, &config.id, &mut locked, created).await?;
    Ok(SaleRow { config, state: SaleState::Loading, state_after: None, epoch: 1, sold: 0 })
}

/// The stock rows of a sale that has so many.
pub(crate) fn all_shards(shards: u16) -> impl Iterator<Item = i16> {
    (0..shards).filter_map(|shard| i16::try_from(shard).ok())
}

/// Units over the stock rows, as evenly as can be.
fn spread(total: u32, shards: u16) -> Vec<i64> {
    let count = u32::from(shards.max(1));
    (0..count).map(|at| i64::from(total / count) + i64::from(at < total % count)).collect()
}

/// The settings and the state, inside a transaction.
pub(crate) async fn settings(tx: &mut PgConnection, sale: &SaleId) -> Result<(SaleConfig, SaleState), TxError> {
    let row =
        sqlx::query!(r#"SELECT state, config AS "config: Json<SaleConfig>" FROM sales WHERE id = $1"#, sale.as_str())
            .fetch_one(tx)
            .await?;
    Ok((row.config.0, word("state", &row.state)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stock_rows_get_all_units_evenly() {
        assert_eq!(spread(5, 1), [5]);
        assert_eq!(spread(10, 4), [3, 3, 2, 2]);
        assert_eq!(spread(4, 4), [1, 1, 1, 1]);
    }
}
