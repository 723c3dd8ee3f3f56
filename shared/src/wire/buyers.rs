//! What buyers and their pages say and hear.

use crate::{
    clock::UnixMs,
    ids::{ClaimId, SaleId},
    money::Money,
    order::{LostReason, OrderStatus},
    sale::SalePhase,
};
use serde::{Deserialize, Serialize};

/// `POST /v1/sales/{sale}/claim`. An empty body asks for one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Units, `1 ..= per_buyer_limit`.
    #[serde(default = "one")]
    pub quantity: u32,
}

const fn one() -> u32 {
    1
}

/// 202 of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimAccepted {
    /// The claim.
    pub claim_id: ClaimId,
    /// Where to ask for its state: a path with its query.
    pub status_url: String,
    /// When to ask first (jittered).
    pub poll_after_ms: u64,
}

/// `GET /v1/claims/{id}`: what the buyer is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimStatus {
    /// The claim.
    pub claim_id: ClaimId,
    /// The sale.
    pub sale: SaleId,
    /// `PENDING` or the order's state.
    pub status: ClaimState,
    /// Units.
    pub quantity: u32,
    /// What the units cost together; once reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Money>,
    /// The last moment to start paying; while reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pay_by_ms: Option<UnixMs>,
    /// Whether a payment is on its way; while reserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paying: bool,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// Whether money came that could not buy the unit and goes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refunded: bool,
    /// Server time.
    pub now_ms: UnixMs,
    /// When to ask again (jittered); absent when the state is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_after_ms: Option<u64>,
    /// This resource.
    pub status_url: String,
}

/// What a claim is, seen by its buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClaimState {
    /// The gate said yes; the ledger has not spoken.
    #[serde(rename = "PENDING")]
    Pending,
    /// See [`OrderStatus`].
    #[serde(untagged)]
    Ledger(OrderStatus),
}

/// `GET /v1/sales/{sale}/my-claim`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MyClaim {
    /// The buyer's newest claim in this sale, or `null`: nothing known, repeat with the same key.
    pub claim: Option<ClaimStatus>,
    /// Server time.
    pub now_ms: UnixMs,
}

/// `POST /v1/sales/{sale}/enter`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnterRequest {
    /// The shop's assertion of who the buyer is (a JWT); absent for anonymous entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
}

/// 200 of enter. The token also comes as an HttpOnly cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnterAnswer {
    /// The entry token.
    pub token: String,
    /// Place in line, when the sale has one.
    pub position: Option<u64>,
    /// When the token ends.
    pub expires_at_ms: UnixMs,
    /// Server time.
    pub now_ms: UnixMs,
}

/// `GET /v1/time`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeAnswer {
    /// Server time in Unix milliseconds.
    pub now_ms: UnixMs,
    /// How far `now_ms` may be off the authority's clock, either way; absent before the edge has
    /// heard from the authority.
    pub error_ms: Option<i64>,
}

/// `GET /v1/sales/{sale}`: what a page needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaleView {
    /// The sale.
    pub id: SaleId,
    /// Its name.
    pub title: String,
    /// A sentence.
    pub description: String,
    /// Price of one unit.
    pub price: Money,
    /// Most units a buyer may claim.
    pub per_buyer_limit: u32,
    /// Opening.
    pub opens_at_ms: UnixMs,
    /// End.
    pub closes_at_ms: UnixMs,
    /// What a buyer meets now.
    pub phase: SalePhase,
    /// Whether entry needs no assertion.
    pub anonymous_entry: bool,
    /// Server time.
    pub now_ms: UnixMs,
    /// When to ask again (jittered).
    pub poll_after_ms: u64,
}

/// `POST /v1/orders`: pay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayRequest {
    /// The claim to pay.
    pub claim_id: ClaimId,
    /// The sale: chooses the token's cookie and audience.
    pub sale: SaleId,
    /// The provider's token for the buyer's means of payment (opaque to us, ≤ 256 bytes).
    pub payment: String,
}

/// 202 of pay: the provider's notice decides; the status tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayAccepted {
    /// The claim.
    pub claim_id: ClaimId,
    /// Where to ask.
    pub status_url: String,
    /// When to ask first.
    pub poll_after_ms: u64,
}
