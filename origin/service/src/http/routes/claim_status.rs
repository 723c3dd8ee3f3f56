//! `GET /v1/claims/{id}`: what became of a claim.

use crate::{
    App,
    http::{
        extract::{self, Edge, Trace},
        problem::Refusal,
    },
    sales::Sale,
    status::{self, StatusError},
    status_url::StatusQuery,
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::{BuyerId, ClaimId, Clock, problem::ProblemKind, token::TokenError, wire::ClaimStatus};
use flashgate_stock::StockError;
use http::HeaderMap;
use std::sync::Arc;

/// The mapping of a status that cannot be told.
pub fn refusal(error: &StatusError) -> Refusal {
    match error {
        StatusError::NotFound | StatusError::Ledger(LedgerError::NotFound) => no_such_claim(),
        // A rebuild is under way: nothing is said of the claim before it ends.
        StatusError::Ledger(LedgerError::Unavailable(_) | LedgerError::Conflict(_))
        | StatusError::Stock(StockError::Unknown(_) | StockError::Unavailable(_)) => {
            tracing::warn!(%error, "a status could not be read");
            ProblemKind::Unavailable.into()
        }
        StatusError::Ledger(LedgerError::Invalid(_) | LedgerError::Bug(_))
        | StatusError::Stock(StockError::Protocol(_)) => {
            tracing::error!(%error, "a status could not be read");
            ProblemKind::Internal.into()
        }
    }
}

fn no_such_claim() -> Refusal {
    Refusal::new(ProblemKind::NotFound).detail("no such claim")
}

/// The claim, sale and buyer that a request about a claim names. Another's claim looks like none.
pub fn subject(
    app: &App,
    headers: &HeaderMap,
    id: &str,
    query: Result<Query<StatusQuery>, QueryRejection>,
) -> Result<(ClaimId, Arc<Sale>, BuyerId, StatusQuery), Refusal> {
    let claim_id: ClaimId = id.parse().map_err(|_| no_such_claim())?;
    let Query(query) = query.map_err(|_| Refusal::new(ProblemKind::BadRequest).detail("the query needs sale=…"))?;
    let sale = extract::sale(app, query.sale.as_str())?;
    let buyer = extract::buyer(app, headers, &sale, app.clock.now_ms()).map_err(|error: TokenError| {
        Refusal::from(crate::http::problem::token_kind(&error)).detail(error.to_string())
    })?;
    Ok((claim_id, sale, buyer, query))
}

/// Ledger row, else receipt, else, after 30 s and under design §7's conditions, *lost*.
pub async fn handler(
    _: Edge,
    Trace(trace): Trace,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<StatusQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<ClaimStatus>, Refusal> {
    let (claim_id, sale, buyer, query) = subject(&app, &headers, &id, query)?;
    let status = status::of_claim(&app, &sale, claim_id, &buyer, &query, trace).await;
    status.map(Json).map_err(|error| refusal(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_404_and_silence_is_503() {
        assert_eq!(refusal(&StatusError::NotFound).0.status, 404);
        assert_eq!(refusal(&StatusError::Stock(StockError::Unknown("x".into()))).0.status, 503);
        assert_eq!(refusal(&StatusError::Ledger(LedgerError::Bug("x".into()))).0.status, 500);
    }
}
