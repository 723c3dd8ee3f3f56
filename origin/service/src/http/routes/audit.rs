//! `GET /v1/admin/sales/{sale}/audit`: what [`crate::audit`] finds.

use crate::{
    App,
    audit::{AuditError, audit},
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row},
    },
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_shared::{problem::ProblemKind, wire::AuditReport};
use std::sync::Arc;

impl From<AuditError> for Refusal {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Ledger(error) => AdminError::from(error).into(),
            AuditError::Stock(_) | AuditError::Queue(_) => {
                Refusal::from(ProblemKind::Unavailable).detail(error.to_string())
            }
        }
    }
}

/// Reads ledger, gate and queue, and judges.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AuditReport>, Refusal> {
    let row = row(&app, &id).await?;
    Ok(Json(audit(&app, &row).await?))
}
