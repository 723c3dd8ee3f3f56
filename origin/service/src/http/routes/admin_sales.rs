//! `GET /v1/admin/sales[/{sale}]`: what the operator sees.

use crate::{
    App,
    http::{extract::Operator, problem::Refusal, routes::orders::ledger_refusal},
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_ledger::{LedgerError, SaleRow};
use flashgate_shared::{Clock, SaleId, problem::ProblemKind, wire::AdminSale};
use futures_util::future::join_all;
use std::sync::Arc;

/// Why there is nothing to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminError {
    /// No such sale.
    NotFound,
    /// The ledger says no.
    Ledger(LedgerError),
}

impl From<LedgerError> for AdminError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NotFound => Self::NotFound,
            error => Self::Ledger(error),
        }
    }
}

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::NotFound => Refusal::new(ProblemKind::NotFound).detail("no such sale"),
            AdminError::Ledger(error) => ledger_refusal(&error),
        }
    }
}

/// One row with what the gate says of it now.
pub async fn view(app: &App, row: &SaleRow) -> AdminSale {
    let config = &row.config;
    // A gate that does not answer leaves its figure out; the rest stands.
    let map = app.stock.stock_map(&config.id, config.buckets).await.ok();
    let now_ms = app.clock.now_ms();
    let sold_out = map.as_ref().is_some_and(|m| m.sold_out(row.epoch));
    AdminSale {
        sale: config.clone(),
        state: row.state,
        state_after: row.state_after,
        phase: config.phase(row.state, now_ms, sold_out),
        epoch: row.epoch,
        sold: u32::try_from(row.sold).unwrap_or(u32::MAX),
        on_offer: map.and_then(|m| u32::try_from(m.on_offer()).ok()),
        now_ms,
    }
}

/// The row of a sale whose id may be anything.
pub async fn row(app: &App, id: &str) -> Result<SaleRow, AdminError> {
    let id: SaleId = id.parse().map_err(|_| AdminError::NotFound)?;
    app.ledger.sale(&id).await?.ok_or(AdminError::NotFound)
}

/// All sales, the newest first.
pub async fn list(_: Operator, State(app): State<Arc<App>>) -> Result<Json<Vec<AdminSale>>, Refusal> {
    let rows = app.ledger.sales().await.map_err(AdminError::Ledger)?;
    Ok(Json(join_all(rows.iter().map(|row| view(&app, row))).await))
}

/// One sale.
pub async fn show(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AdminSale>, Refusal> {
    let row = row(&app, &id).await?;
    Ok(Json(view(&app, &row).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        assert_eq!(Refusal::from(AdminError::from(LedgerError::NotFound)).0.status, 404);
        assert_eq!(Refusal::from(AdminError::from(LedgerError::Unavailable("x".into()))).0.status, 503);
    }
}
