//! `POST /v1/admin/sales/{sale}/reconcile`, `GET /v1/admin/sales/{sale}/repairs` and `…/report`.

use crate::{
    App,
    audit::audit,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row},
    },
    reconcile::{OLDER_THAN_MS, Wish, reconcile},
};
use axum::{
    Json,
    extract::{Path, Query, State},
};
use flashgate_shared::{
    order::Wisher,
    wire::{ClosingReport, Reconciliation, Repair},
};
use serde::Deserialize;
use std::sync::Arc;

/// What is wished.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    repair: bool,
    older_than_ms: u32,
}

impl Default for Asked {
    fn default() -> Self {
        Self { repair: false, older_than_ms: OLDER_THAN_MS as u32 }
    }
}

/// Compares the stores; with `repair=true` mends what can be mended, if need be by a rebuild.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<Json<Reconciliation>, Refusal> {
    let row = row(&app, &id).await?;
    let older_than_ms = i64::from(asked.older_than_ms);
    let wish = Wish { repair: asked.repair, rebuild: asked.repair, older_than_ms, by: Wisher::Operator };
    Ok(Json(reconcile(&app, &row, wish).await?))
}

/// What was mended so far.
pub async fn repairs(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Repair>>, Refusal> {
    let sale = row(&app, &id).await?.config.id;
    Ok(Json(app.ledger.repairs(&sale).await.map_err(AdminError::from)?))
}

/// What became of the sale.
pub async fn report(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<ClosingReport>, Refusal> {
    let row = row(&app, &id).await?;
    let sale = &row.config.id;
    let audit = audit(&app, &row).await?;
    let figures = app.ledger.figures(sale).await.map_err(AdminError::from)?;
    let heads = app.ledger.heads(sale).await.map_err(AdminError::from)?;
    Ok(Json(ClosingReport {
        sale: sale.clone(),
        state: row.state,
        at_ms: figures.at_ms,
        total: audit.total,
        paid_units: figures.paid_units,
        reserved_units: figures.reserved_units,
        on_offer: audit.on_offer,
        oversold: audit.oversold,
        stranded: if audit.quiet { audit.stranded } else { 0 },
        lapsed_orders: figures.lapsed_orders,
        lost: figures.lost,
        revenue: figures.revenue,
        refunds: figures.refunds,
        refunds_pending: audit.refunds_pending,
        buyers: figures.buyers,
        insistent_buyers: figures.insistent_buyers,
        rebuilds: figures.rebuilds,
        heads,
        quiet: audit.quiet,
    }))
}
