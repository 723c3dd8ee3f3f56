//! What is said between the origin and the payment provider.

use crate::{
    clock::UnixMs,
    ids::{ClaimId, SaleId},
    money::Money,
};
use serde::{Deserialize, Serialize};

/// A charge asked of the payment provider: `POST {provider}/v1/charges`, with `Idempotency-Key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeRequest {
    /// What to charge.
    pub amount: Money,
    /// The claim, given back in the notice.
    pub claim_id: ClaimId,
    /// The sale, given back in the notice.
    pub sale: SaleId,
    /// The buyer's means of payment.
    pub payment: String,
}

/// The provider's answer to a charge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeAnswer {
    /// The provider's id of the payment.
    pub payment_id: String,
}

/// A refund asked of the provider: `POST {provider}/v1/refunds`, with `Idempotency-Key` = the refund
/// row's id. `GET {provider}/v1/refunds/{key}` tells whether it was done (200) or not (404).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundRequest {
    /// The payment to give back.
    pub payment_id: String,
    /// What to give back.
    pub amount: Money,
}

/// The provider's answer to a refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundAnswer {
    /// The provider's id of the refund.
    pub refund_id: String,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeKind {
    /// The money is ours.
    #[serde(rename = "payment.succeeded")]
    Succeeded,
    /// It is not; the hold stays as it is.
    #[serde(rename = "payment.failed")]
    Failed,
}

/// `POST /v1/payments/notices`: the provider's notice, signed as Standard Webhooks 1.0 wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentNotice {
    /// What happened.
    #[serde(rename = "type")]
    pub kind: NoticeKind,
    /// The payment.
    pub payment_id: String,
    /// From the charge.
    pub claim_id: ClaimId,
    /// From the charge.
    pub sale: SaleId,
    /// What was paid.
    pub amount: Money,
    /// When, by the provider's clock.
    pub at_ms: UnixMs,
}

/// `GET /v1/payments?sale=S&after=ID`: the payments of a sale that succeeded, in the order of their charges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentsPage {
    /// At most [`PAYMENTS_PAGE`](crate::limits::PAYMENTS_PAGE), after payment `after`; none at the end.
    pub payments: Vec<ProviderPayment>,
}

/// A payment that succeeded, as the provider's books have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderPayment {
    /// The provider's id.
    pub payment_id: String,
    /// What it was charged for.
    pub claim_id: ClaimId,
    /// What was paid.
    pub amount: Money,
    /// Minor units of it that were given back.
    pub refunded_minor: i64,
    /// When it succeeded, by the provider's clock.
    pub succeeded_at_ms: UnixMs,
}
