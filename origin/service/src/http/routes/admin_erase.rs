//! `POST /v1/admin/sales/{sale}/erasures`: what leads to a buyer goes, from ledger and gate.

use crate::{
    App,
    audit::audit,
    http::{
        extract::{self, Operator},
        problem::Refusal,
        routes::admin_sales::{AdminError, row},
    },
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::{
    limits,
    wire::{Erasure, ErasureRequest},
};
use http::HeaderMap;
use std::sync::Arc;

/// Erases, and orders the gate to be rebuilt: it forgets the buyers with that, about a second later.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Erasure>, Refusal> {
    let request: ErasureRequest = extract::json_required(&headers, body, limits::ADMIN_BODY_BYTES).await?;
    let row = row(&app, &id).await?;
    // A message on its way would bring the buyer back.
    let report = audit(&app, &row).await?;
    if !report.quiet {
        let (outbox, queued, dead) = (report.outbox, report.queued, report.dead_letters);
        let why =
            format!("{outbox} claims are in the outbox, {queued} in the queue, {dead} dead: try again in a moment");
        return Err(AdminError::from(LedgerError::Conflict(why)).into());
    }
    let buyer = match &request {
        ErasureRequest::Buyer(buyer) => Some(buyer),
        ErasureRequest::Everybody {} => None,
    };
    let erasure = app.ledger.erase(&row.config.id, buyer).await.map_err(AdminError::from)?;
    tracing::warn!(sale = %row.config.id, erasure = erasure.id, buyers = erasure.buyers, "personal data was erased");
    app.rebuilds.notify_one();
    Ok(Json(erasure))
}
