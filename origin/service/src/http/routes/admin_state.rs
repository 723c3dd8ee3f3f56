//! `POST /v1/admin/sales/{sale}/pause|resume|close`: the operator's switch. Each names the states it
//! may come from; repeating one is answered with the state that stands.

use crate::{
    App,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row, view},
    },
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::{sale::SaleState, wire::AdminSale};
use std::sync::Arc;

/// Stops the sale: buyers are asked to wait.
pub async fn pause(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AdminSale>, Refusal> {
    change(&app, &id, &[SaleState::Open], SaleState::Paused).await
}

/// Lets a paused sale go on.
pub async fn resume(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AdminSale>, Refusal> {
    change(&app, &id, &[SaleState::Paused], SaleState::Open).await
}

/// Ends the sale for good.
pub async fn close(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AdminSale>, Refusal> {
    change(&app, &id, &[SaleState::Open, SaleState::Paused], SaleState::Closed).await
}

async fn change(app: &App, id: &str, from: &[SaleState], to: SaleState) -> Result<Json<AdminSale>, Refusal> {
    let before = row(app, id).await?;
    let after = match app.ledger.set_state(&before.config.id, from, to).await {
        Ok(after) => after,
        Err(LedgerError::Conflict(why)) => {
            let now = row(app, id).await?;
            if now.state_after.unwrap_or(now.state) != to {
                return Err(AdminError::Ledger(LedgerError::Conflict(why)).into());
            }
            now
        }
        Err(error) => return Err(AdminError::from(error).into()),
    };
    tracing::info!(sale = %after.config.id, from = %before.state, to = %after.state, "a sale's state was changed");
    // This process knows at once; the others within their period.
    app.sales.refresh(&app.ledger).await.map_err(AdminError::from)?;
    Ok(Json(view(app, &after).await))
}
