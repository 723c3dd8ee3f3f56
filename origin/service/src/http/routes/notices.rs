//! `POST /v1/payments/notices`: what the provider says of a payment, signed as Standard Webhooks 1.0
//! wants it. Every outcome that is recorded is acknowledged; what is not, the provider sends again.

use crate::{
    App,
    http::{
        extract::{self, Trace},
        problem::Refusal,
    },
    notices,
};
use axum::{body::Body, extract::State};
use flashgate_ledger::LedgerError;
use flashgate_shared::{Clock, limits, problem::ProblemKind, wire::PaymentNotice};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;

/// Why a notice is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeError {
    /// Not signed by the provider, or too old.
    Signature,
    /// Signed, but no notice that we know.
    Malformed(String),
    /// Not recorded: to be sent again.
    Ledger(LedgerError),
}

impl From<NoticeError> for Refusal {
    fn from(error: NoticeError) -> Self {
        match error {
            NoticeError::Signature => Refusal::from(ProblemKind::Unauthorized).detail("the signature does not fit"),
            NoticeError::Malformed(why) => Refusal::from(ProblemKind::Unprocessable).detail(why),
            NoticeError::Ledger(LedgerError::Invalid(why)) => Refusal::from(ProblemKind::Unprocessable).detail(why),
            NoticeError::Ledger(LedgerError::Bug(_)) => ProblemKind::Internal.into(),
            NoticeError::Ledger(_) => ProblemKind::Unavailable.into(),
        }
    }
}

/// Applies a notice. 204, also when it was known or the money goes back.
pub async fn handler(
    Trace(trace): Trace,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let body = extract::bytes(body, limits::ADMIN_BODY_BYTES).await?;
    if !app.secrets.is_notice(&body, &headers, app.clock.now_ms()) {
        return Err(NoticeError::Signature.into());
    }
    let notice: PaymentNotice = serde_json::from_slice(&body).map_err(|e| NoticeError::Malformed(e.to_string()))?;
    let outcome = app.notices.apply(notice.clone()).await.map_err(|error| {
        tracing::error!(%error, %trace, payment = %notice.payment_id, claim = %notice.claim_id, "a notice was not recorded");
        NoticeError::Ledger(error)
    })?;
    notices::record(&app, &notice, &outcome);
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_recorded_is_to_be_sent_again() {
        let status = |e: NoticeError| Refusal::from(e).0.status;
        assert_eq!(status(NoticeError::Signature), 401);
        assert_eq!(status(NoticeError::Malformed("x".into())), 422);
        assert_eq!(status(NoticeError::Ledger(LedgerError::Unavailable("x".into()))), 503);
        assert_eq!(status(NoticeError::Ledger(LedgerError::Conflict("x".into()))), 503);
    }
}
