//! `POST /v1/orders`: pay for a reservation.

use crate::{
    App,
    http::{
        extract::{self, Edge, Trace},
        problem::{Refusal, jitter, token_kind},
    },
    provider::ProviderError,
    status,
};
use axum::{Json, body::Body, extract::State};
use flashgate_ledger::{Checkout, LedgerError};
use flashgate_shared::{
    ClaimId, Clock, limits,
    order::OrderStatus,
    problem::ProblemKind,
    token::TokenError,
    wire::{ChargeRequest, IDEMPOTENCY_KEY_HEADER, PayAccepted, PayRequest},
};
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Longest token of a means of payment, in bytes.
const PAYMENT_BYTES: usize = 256;
/// When to ask for the status first.
const FIRST_POLL_MS: u64 = 500;

/// Why no payment starts.
#[derive(Debug)]
pub enum PayError {
    /// The entry token does not say who pays.
    Token(TokenError),
    /// The means of payment is empty or too long.
    Payment,
    /// Past `pay_by`.
    TooLate,
    /// Paid, expired or lost.
    NotReserved(OrderStatus),
    /// The ledger says no.
    Ledger(LedgerError),
    /// The provider says no, or nothing.
    Provider(ProviderError),
}

impl From<PayError> for Refusal {
    fn from(error: PayError) -> Self {
        match error {
            PayError::Token(error) => Refusal::from(token_kind(&error)).detail(error.to_string()),
            PayError::Payment => Refusal::from(ProblemKind::Unprocessable)
                .detail(format!("payment must have 1 to {PAYMENT_BYTES} bytes")),
            PayError::TooLate => Refusal::from(ProblemKind::WrongState).detail("the time to pay is over"),
            PayError::NotReserved(status) => {
                Refusal::from(ProblemKind::WrongState).detail(format!("the order is {status}"))
            }
            PayError::Ledger(error) => ledger_refusal(&error),
            PayError::Provider(ProviderError::Refused(_)) => {
                Refusal::from(ProblemKind::Unprocessable).detail("the payment provider refused this payment")
            }
            PayError::Provider(ProviderError::Unreachable) => ProblemKind::Unavailable.into(),
            PayError::Provider(ProviderError::Unknown(_)) => Refusal::from(ProblemKind::Unknown).detail(
                "the provider's answer did not come; the status will tell, and the same payment may be repeated",
            ),
        }
    }
}

/// The mapping of the ledger's errors for endpoints about one order.
pub fn ledger_refusal(error: &LedgerError) -> Refusal {
    match error {
        LedgerError::NotFound => Refusal::new(ProblemKind::NotFound).detail("no such claim"),
        LedgerError::Conflict(why) => Refusal::from(ProblemKind::WrongState).detail(why.clone()),
        LedgerError::Invalid(why) => Refusal::from(ProblemKind::Unprocessable).detail(why.clone()),
        LedgerError::Unavailable(_) => {
            tracing::warn!(%error, "the ledger does not answer");
            ProblemKind::Unavailable.into()
        }
        LedgerError::Bug(_) => {
            tracing::error!(%error, "the ledger is in a state that cannot be");
            ProblemKind::Internal.into()
        }
    }
}

/// The provider's idempotency key: the same means of payment for the same claim is the same charge,
/// unless the buyer asks for a new attempt with a key of his own.
fn charge_key(claim_id: ClaimId, payment: &str, attempt: &str) -> String {
    let mut hash = Sha256::new();
    hash.update((payment.len() as u64).to_be_bytes());
    hash.update(payment.as_bytes());
    hash.update(attempt.as_bytes());
    let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{claim_id}-{digest}")
}

/// Starts a payment. 202: the provider's notice decides, the status tells.
pub async fn handler(
    _: Edge,
    Trace(trace): Trace,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<PayAccepted>), Refusal> {
    let request: PayRequest = extract::json_required(&headers, body, limits::BUYER_BODY_BYTES).await?;
    let sale = extract::sale(&app, request.sale.as_str())?;
    let buyer = extract::buyer(&app, &headers, &sale, app.clock.now_ms()).map_err(PayError::Token)?;
    if request.payment.is_empty() || request.payment.len() > PAYMENT_BYTES {
        return Err(PayError::Payment.into());
    }
    let order = match app.ledger.checkout(&request.claim_id, &buyer).await.map_err(PayError::Ledger)? {
        Checkout::Start { order } => order,
        Checkout::TooLate => return Err(PayError::TooLate.into()),
        Checkout::NotReserved(order) => return Err(PayError::NotReserved(order.status).into()),
    };
    let attempt = headers.get(IDEMPOTENCY_KEY_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let key = charge_key(order.claim_id, &request.payment, attempt);
    let charge = ChargeRequest {
        amount: order.amount.clone(),
        claim_id: order.claim_id,
        sale: order.sale.clone(),
        payment: request.payment,
    };
    app.provider.charge(&key, &charge).await.map_err(|error| {
        tracing::warn!(%error, %trace, claim = %order.claim_id, "a charge was not taken");
        PayError::Provider(error)
    })?;
    app.watchers.news(&order.claim_id);
    let status_url = status::from_order(&app, &order, None).status_url;
    let accepted = PayAccepted { claim_id: order.claim_id, status_url, poll_after_ms: jitter(FIRST_POLL_MS) };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        let status = |e: PayError| Refusal::from(e).0.status;
        assert_eq!(status(PayError::TooLate), 409);
        assert_eq!(status(PayError::NotReserved(OrderStatus::Paid)), 409);
        assert_eq!(status(PayError::Ledger(LedgerError::NotFound)), 404);
        assert_eq!(status(PayError::Provider(ProviderError::Unreachable)), 503);
        assert_eq!(status(PayError::Provider(ProviderError::Refused(402))), 422);
    }

    #[test]
    fn the_same_payment_is_the_same_charge() {
        let claim_id = ClaimId(uuid::Uuid::nil());
        assert_eq!(charge_key(claim_id, "card", ""), charge_key(claim_id, "card", ""));
        assert_ne!(charge_key(claim_id, "card", ""), charge_key(claim_id, "other", ""));
        assert_ne!(charge_key(claim_id, "card", "1"), charge_key(claim_id, "card1", ""));
    }
}
