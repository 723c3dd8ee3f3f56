//! `POST /v1/claims/{id}/release`: the buyer lets a reservation go.

use crate::{
    App,
    http::{
        extract::Edge,
        problem::Refusal,
        routes::{claim_status::subject, orders::ledger_refusal},
    },
    status,
    status_url::StatusQuery,
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::{order::OrderStatus, problem::ProblemKind, wire::ClaimStatus};
use http::HeaderMap;
use std::sync::Arc;

/// Why it is not let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetGoError {
    /// Paid already, or lost.
    WrongState(OrderStatus),
    /// The ledger says no.
    Ledger(LedgerError),
}

impl From<LetGoError> for Refusal {
    fn from(error: LetGoError) -> Self {
        match error {
            LetGoError::WrongState(status) => {
                Refusal::from(ProblemKind::WrongState).detail(format!("the order is {status}"))
            }
            LetGoError::Ledger(error) => ledger_refusal(&error),
        }
    }
}

/// Ends the buyer's own reservation early, through the path of expiry. Repeatable.
pub async fn handler(
    _: Edge,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<StatusQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<ClaimStatus>, Refusal> {
    let (claim_id, _sale, buyer, query) = subject(&app, &headers, &id, query)?;
    let order = app.ledger.let_go(&claim_id, &buyer).await.map_err(LetGoError::Ledger)?;
    if order.status != OrderStatus::Expired {
        return Err(LetGoError::WrongState(order.status).into());
    }
    app.releases.notify_one();
    app.watchers.news(&claim_id);
    Ok(Json(status::from_order(&app, &order, query.t)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paid_order_is_not_let_go() {
        assert_eq!(Refusal::from(LetGoError::WrongState(OrderStatus::Paid)).0.status, 409);
        assert_eq!(Refusal::from(LetGoError::Ledger(LedgerError::NotFound)).0.status, 404);
    }
}
