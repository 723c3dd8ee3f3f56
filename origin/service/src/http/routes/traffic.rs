//! `GET /v1/admin/sales/{sale}/traffic`: what this process counted of a sale.

use crate::{
    App,
    http::{
        extract::{self, Operator},
        problem::Refusal,
    },
    traffic::peak_rss_mib,
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_shared::wire::TrafficReport;
use std::sync::Arc;

/// Counts and peaks since the process started.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<TrafficReport>, Refusal> {
    let sale = extract::sale(&app, &id)?;
    Ok(Json(sale.live.traffic.report(sale.row.config.admit_factor, peak_rss_mib())))
}
