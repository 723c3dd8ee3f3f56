//! `PUT /v1/admin/sales/{sale}`: other settings for a sale, and `GET …/versions/{version}`: those it had.

use crate::{
    App,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::{
            admin_create::settings,
            admin_sales::{AdminError, row, view},
            orders::ledger_refusal,
        },
    },
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::{
    SaleId,
    problem::ProblemKind,
    sale::{SaleConfig, SaleConfigError},
    wire::AdminSale,
};
use http::HeaderMap;
use std::sync::Arc;

/// Why the settings stay as they are.
#[derive(Debug)]
pub enum ChangeError {
    /// A bound is broken, or something that cannot change was changed.
    Config(SaleConfigError),
    /// The body is about another sale.
    OtherSale,
    /// Somebody else changed the sale meanwhile, or it has ended.
    Conflict(String),
    /// The ledger says no.
    Ledger(LedgerError),
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Config(why) => Refusal::new(ProblemKind::Unprocessable).detail(why.to_string()),
            ChangeError::OtherSale => {
                Refusal::new(ProblemKind::Unprocessable).detail("id: must be that of the address")
            }
            ChangeError::Conflict(why) => Refusal::new(ProblemKind::Outdated).detail(why),
            ChangeError::Ledger(error) => ledger_refusal(&error),
        }
    }
}

/// Takes the settings, when `version` in them is still the sale's; they become the next version.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AdminSale>, Refusal> {
    let config = settings(&headers, body).await?;
    let before = row(&app, &id).await?;
    if config.id != before.config.id {
        return Err(ChangeError::OtherSale.into());
    }
    config.validate().map_err(ChangeError::Config)?;
    unchangeable(&before.config, &config).map_err(ChangeError::Config)?;
    let after = app.ledger.change_sale(&config).await.map_err(|error| match error {
        LedgerError::Conflict(why) => ChangeError::Conflict(why),
        error => ChangeError::Ledger(error),
    })?;
    app.sales.refresh(&app.ledger).await.map_err(ChangeError::Ledger)?;
    tracing::info!(sale = %after.config.id, version = after.config.version, "a sale's settings were changed");
    Ok(Json(view(&app, &after).await))
}

/// The settings of a version.
pub async fn version(
    _: Operator,
    State(app): State<Arc<App>>,
    Path((id, version)): Path<(String, i64)>,
) -> Result<Json<SaleConfig>, Refusal> {
    let sale: SaleId = id.parse().map_err(|_| AdminError::NotFound)?;
    let found = app.ledger.sale_version(&sale, version).await.map_err(ChangeError::Ledger)?;
    let config = found.ok_or_else(|| Refusal::new(ProblemKind::NotFound).detail("the sale has no such version"))?;
    Ok(Json(config))
}

/// What stock rows, gate and orders are made of stays.
fn unchangeable(before: &SaleConfig, after: &SaleConfig) -> Result<(), SaleConfigError> {
    for (field, same) in [
        ("total", before.total == after.total),
        ("buckets", before.buckets == after.buckets),
        ("shards", before.shards == after.shards),
        ("price", before.price == after.price),
    ] {
        if !same {
            return Err(SaleConfigError { field, problem: "cannot be changed: make another sale".into() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SaleConfig {
        serde_json::from_value(serde_json::json!({
            "id": "s", "version": 1, "title": "t", "price": {"amount_minor": 1, "currency": "EUR"}, "total": 5,
            "per_buyer_limit": 1, "opens_at_ms": 1, "closes_at_ms": 2, "buckets": 1, "admit_factor": 5.0,
            "enter_rate_per_s": 5.0, "pay_window_ms": 1, "grace_ms": 1, "second_try": false, "anonymous_entry": true,
            "backlog_limit": 5
        }))
        .unwrap()
    }

    #[test]
    fn what_the_stock_is_made_of_cannot_change() {
        let before = config();
        assert!(unchangeable(&before, &SaleConfig { title: "other".into(), closes_at_ms: 9, ..config() }).is_ok());
        for (field, after) in [
            ("total", SaleConfig { total: 6, ..config() }),
            ("buckets", SaleConfig { buckets: 2, ..config() }),
            ("shards", SaleConfig { shards: 2, ..config() }),
            ("price", SaleConfig { price: before.price.times(2).unwrap(), ..config() }),
        ] {
            assert_eq!(unchangeable(&before, &after).unwrap_err().field, field);
        }
    }
}
