//! `POST /v1/admin/sales`: sets a sale up, step by step: ledger row, queue, gate, open. Each step may
//! be repeated: after a crash the same request again finishes it.

use crate::{
    App, gate,
    http::{
        extract::{self, Operator},
        problem::Refusal,
        routes::{admin_sales::view, orders::ledger_refusal},
    },
    queues,
};
use axum::{Json, body::Body, extract::State};
use flashgate_ledger::{LedgerError, SaleRow};
use flashgate_queue::QueueError;
use flashgate_shared::{
    Epoch, limits,
    problem::ProblemKind,
    sale::{SaleConfig, SaleConfigError, SaleState},
    wire::AdminSale,
};
use flashgate_stock::{LoadReply, StockError};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;

/// Why a sale is not set up.
#[derive(Debug)]
pub enum CreateError {
    /// The settings are no good.
    Config(SaleConfigError),
    /// A sale of this id with other settings exists.
    Exists,
    /// The ledger says no.
    Ledger(LedgerError),
    /// The broker does not answer.
    Queue(QueueError),
    /// Redis does not answer.
    Stock(StockError),
    /// The gate holds a newer generation of this sale than the ledger: a foreign or restored Redis.
    NewerGate(Epoch),
}

impl From<CreateError> for Refusal {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Config(error) => Refusal::from(ProblemKind::Unprocessable).detail(error.to_string()),
            CreateError::Exists => {
                Refusal::from(ProblemKind::WrongState).detail("a sale of this id with other settings exists")
            }
            CreateError::Ledger(error) => ledger_refusal(&error),
            CreateError::Queue(error) => Refusal::from(ProblemKind::Unavailable).detail(format!("queue: {error}")),
            CreateError::Stock(error) => Refusal::from(ProblemKind::Unavailable).detail(format!("gate: {error}")),
            CreateError::NewerGate(epoch) => {
                Refusal::from(ProblemKind::WrongState).detail(format!("the gate is at epoch {epoch} already"))
            }
        }
    }
}

/// Creates a sale, or finishes one whose creation was cut off. The version is given by the origin.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<AdminSale>), Refusal> {
    let config = settings(&headers, body).await?;
    config.validate().map_err(CreateError::Config)?;
    let row = set_up(&app, &config).await?;
    app.sales.refresh(&app.ledger).await.map_err(CreateError::Ledger)?;
    app.settlers.notify_one();
    tracing::info!(sale = %row.config.id, total = row.config.total, "a sale is set up");
    Ok((StatusCode::CREATED, Json(view(&app, &row).await)))
}

/// The settings in a body, as an operator wrote them; the version is given by the origin.
pub async fn settings(headers: &HeaderMap, body: Body) -> Result<SaleConfig, Refusal> {
    let written: serde_json::Value = extract::json_required(headers, body, limits::ADMIN_BODY_BYTES).await?;
    SaleConfig::strictly(&written).map_err(|why| Refusal::new(ProblemKind::Unprocessable).detail(why))
}

async fn set_up(app: &App, config: &SaleConfig) -> Result<SaleRow, CreateError> {
    let row = match app.ledger.create_sale(config).await {
        Ok(row) => row,
        Err(LedgerError::Conflict(_)) => {
            let row = app.ledger.sale(&config.id).await.map_err(CreateError::Ledger)?;
            row.filter(|row| same(&row.config, config)).ok_or(CreateError::Exists)?
        }
        Err(error) => return Err(CreateError::Ledger(error)),
    };
    if row.state != SaleState::Loading {
        return Ok(row);
    }
    queues::declare(app, config).await.map_err(CreateError::Queue)?;
    for load in gate::spread(config.total, config.buckets) {
        let bucket = std::slice::from_ref(&load);
        match app.stock.load(&config.id, row.epoch, bucket).await.map_err(CreateError::Stock)? {
            LoadReply::Loaded => {}
            // An attempt before this one got here; nobody has claimed yet, for the sale is not open.
            LoadReply::Refused { epoch, .. } if epoch == row.epoch => {}
            LoadReply::Refused { epoch, .. } => return Err(CreateError::NewerGate(epoch)),
        }
    }
    match app.ledger.set_state(&config.id, &[SaleState::Loading], SaleState::Open).await {
        Ok(row) => Ok(row),
        // Another attempt was quicker.
        Err(LedgerError::Conflict(_)) => {
            Ok(app.ledger.sale(&config.id).await.map_err(CreateError::Ledger)?.unwrap_or(row))
        }
        Err(error) => Err(CreateError::Ledger(error)),
    }
}

fn same(known: &SaleConfig, asked: &SaleConfig) -> bool {
    SaleConfig { version: known.version, ..asked.clone() } == *known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        assert_eq!(Refusal::from(CreateError::Exists).0.status, 409);
        let config = SaleConfigError { field: "total", problem: "x".into() };
        assert_eq!(Refusal::from(CreateError::Config(config)).0.status, 422);
    }
}
