//! `POST /v1/admin/sales/{sale}/rebuild` and `GET /v1/admin/sales/{sale}/rebuilds`: the gate from the ledger.

use crate::{
    App,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row, view},
    },
    roles::rebuild,
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_shared::wire::{AdminSale, Rebuild};
use http::StatusCode;
use std::sync::Arc;

/// Orders a rebuild. The sale is *rebuilding* when this is answered; a process with the role `relay` does the rest.
pub async fn order(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<AdminSale>), Refusal> {
    let sale = row(&app, &id).await?.config.id;
    rebuild::order(&app, &sale).await.map_err(AdminError::from)?;
    Ok((StatusCode::ACCEPTED, Json(view(&app, &row(&app, &id).await?).await)))
}

/// The sale's rebuilds, the newest first; at most 100.
pub async fn list(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Rebuild>>, Refusal> {
    let sale = row(&app, &id).await?.config.id;
    Ok(Json(app.ledger.rebuilds(&sale).await.map_err(AdminError::from)?))
}
