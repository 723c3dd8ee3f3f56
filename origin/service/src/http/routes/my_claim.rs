//! `GET /v1/sales/{sale}/my-claim`: where a buyer whose answer was lost finds his claim.

use crate::{
    App,
    http::{
        extract::{self, Edge},
        problem::{Refusal, token_kind},
    },
    status::{self, StatusError},
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_shared::{Clock, token::TokenError, wire::MyClaim};
use http::HeaderMap;
use std::sync::Arc;

/// Why there is no answer.
#[derive(Debug)]
pub enum MyClaimError {
    /// The entry token does not say who asks.
    Token(TokenError),
    /// Ledger or gate do not answer: not the same as "nothing known".
    Status(StatusError),
}

impl From<MyClaimError> for Refusal {
    fn from(error: MyClaimError) -> Self {
        match error {
            MyClaimError::Token(error) => Refusal::from(token_kind(&error)).detail(error.to_string()),
            MyClaimError::Status(error) => super::claim_status::refusal(&error),
        }
    }
}

/// The buyer's newest claim in the sale; `null` means: nothing known, repeat with the same key.
pub async fn handler(
    _: Edge,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<MyClaim>, Refusal> {
    let sale = extract::sale(&app, &id)?;
    let now_ms = app.clock.now_ms();
    let buyer = extract::buyer(&app, &headers, &sale, now_ms).map_err(MyClaimError::Token)?;
    let claim = status::newest(&app, &sale, &buyer).await.map_err(MyClaimError::Status)?;
    Ok(Json(MyClaim { claim, now_ms: app.clock.now_ms() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_the_ledger_is_not_nothing_known() {
        let error = StatusError::Ledger(flashgate_ledger::LedgerError::Unavailable("x".into()));
        assert_eq!(Refusal::from(MyClaimError::Status(error)).0.status, 503);
        assert_eq!(Refusal::from(MyClaimError::Token(TokenError::Missing)).0.status, 401);
    }
}
