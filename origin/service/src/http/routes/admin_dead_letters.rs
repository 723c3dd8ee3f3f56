//! `GET /v1/admin/sales/{sale}/dead-letters` and `POST …/dead-letters/{id}/replay`.

use crate::{
    App,
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
use base64::{Engine, prelude::BASE64_STANDARD};
use flashgate_ledger::DeadLetterRow;
use flashgate_queue::Published;
use flashgate_shared::{envelope::ClaimEnvelope, problem::ProblemKind, wire::DeadLetter};
use std::sync::Arc;

/// Why a dead letter is not sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayError {
    /// It is no message of ours.
    Unreadable(String),
    /// The broker did not confirm it.
    Unconfirmed(String),
}

impl From<ReplayError> for Refusal {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Unreadable(why) => {
                Refusal::new(ProblemKind::Unprocessable).detail(format!("it cannot be read, so it stays: {why}"))
            }
            ReplayError::Unconfirmed(why) => Refusal::from(ProblemKind::Unavailable).detail(format!("queue: {why}")),
        }
    }
}

/// The sale's dead letters, the newest first; at most 100.
pub async fn list(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<DeadLetter>>, Refusal> {
    let sale = row(&app, &id).await?.config.id;
    let rows = app.ledger.dead_letters(&sale).await.map_err(AdminError::from)?;
    Ok(Json(rows.into_iter().map(told).collect()))
}

/// Sends one again. What the ledger knows by then decides; if it is refused once more, it comes back here.
pub async fn replay(
    _: Operator,
    State(app): State<Arc<App>>,
    Path((id, letter)): Path<(String, i64)>,
) -> Result<Json<DeadLetter>, Refusal> {
    let sale = row(&app, &id).await?.config.id;
    let dead = app.ledger.dead_letter(&sale, letter).await.map_err(AdminError::from)?;
    let envelope = ClaimEnvelope::decode(&dead.body).map_err(|e| ReplayError::Unreadable(e.to_string()))?;
    if envelope.sale != sale {
        return Err(ReplayError::Unreadable(format!("it is of the sale {}", envelope.sale)).into());
    }
    match app.queue.publish(&envelope).await {
        Published::Confirmed => app.ledger.dead_letter_replayed(letter).await.map_err(AdminError::from)?,
        Published::Unknown(error) => return Err(ReplayError::Unconfirmed(error.to_string()).into()),
    }
    tracing::warn!(%sale, letter, claim = %envelope.claim_id, "an operator sent a dead letter again");
    Ok(Json(told(app.ledger.dead_letter(&sale, letter).await.map_err(AdminError::from)?)))
}

fn told(row: DeadLetterRow) -> DeadLetter {
    DeadLetter {
        id: row.id,
        why: row.why,
        envelope: ClaimEnvelope::decode(&row.body).ok(),
        body: BASE64_STANDARD.encode(&row.body),
        seen_at_ms: row.seen_at_ms,
        replayed_at_ms: row.replayed_at_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        assert_eq!(Refusal::from(ReplayError::Unreadable("x".into())).0.status, 422);
        assert_eq!(Refusal::from(ReplayError::Unconfirmed("x".into())).0.status, 503);
    }
}
