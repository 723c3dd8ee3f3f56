//! The bodies and headers of the HTTP API. Field names are the vocabulary of design §4.

use crate::{
    chain::{Entry, Head},
    clock::UnixMs,
    envelope::ClaimEnvelope,
    ids::{ClaimId, Epoch, SaleId},
    money::Money,
    order::{DriftKind, LostReason, OrderStatus},
    sale::{RebuildCause, SaleConfig, SalePhase, SaleState},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The edge's own credential towards the origin.
pub const EDGE_KEY_HEADER: &str = "flashgate-edge-key";
/// The permit of a forwarded claim; see [`crate::admission::Permit`].
pub const PERMIT_HEADER: &str = "flashgate-permit";
/// The buyer's idempotency key.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// W3C trace context.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// On every answer of edge and origin: the trace id.
pub const TRACE_ID_HEADER: &str = "flashgate-trace-id";

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

/// What an edge needs to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeSale {
    /// The settings; `sale.version` is the document's version.
    pub sale: SaleConfig,
    /// The operator's state.
    pub state: SaleState,
    /// Public keys of entry tokens (RFC 7517).
    pub jwks: serde_json::Value,
    /// The `iss` of entry tokens.
    pub issuer: String,
    /// The authority's clock.
    pub now_ms: UnixMs,
}

/// The answer of `GET /v1/edge/sales/{sale}` (edge key).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeSaleAnswer {
    /// What it says now.
    #[serde(flatten)]
    pub sale: EdgeSale,
    /// The same, signed, for the edge's store; absent where the origin has no document key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
}

/// `GET /v1/admin/sales/{sale}/document`: what `flashgate sale publish` takes to the edges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentAnswer {
    /// The version of the document.
    pub version: i64,
    /// The sale document, signed.
    pub document: String,
    /// Lets it be put into an edge's store.
    pub publish_ticket: String,
    /// Lets it be read there.
    pub read_ticket: String,
}

/// The answer of an edge to a document that it took: `PUT /v1/edge/sales/{sale}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedAnswer {
    /// The version that is there now.
    pub version: i64,
    /// The version that was there before, if any.
    pub before: Option<i64>,
}

/// What a lease admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// Claims: `admit_factor × stock` a second.
    Claim,
    /// Entries: `enter_rate_per_s`.
    Enter,
}

/// `POST /v1/edge/leases` (edge key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The sale.
    pub sale: SaleId,
    /// What for.
    pub kind: LeaseKind,
    /// Permits wanted: the demand of one period.
    pub want: u32,
}

/// 200 of a lease request. `granted` may be 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Permits granted, at most `want`.
    pub granted: u32,
    /// When, by the authority's clock; goes into every permit.
    pub granted_at_ms: UnixMs,
    /// How long the permits may be spent, from `granted_at_ms`.
    pub ttl_ms: i64,
    /// When to ask again at the earliest; also the age at which the state below is old.
    pub retry_ms: i64,
    /// The authority's clock when it answered.
    pub now_ms: UnixMs,
    /// The operator's state.
    pub state: SaleState,
    /// Every bucket is known to hold zero.
    pub sold_out: bool,
    /// The gate's epoch.
    pub epoch: Epoch,
    /// The sale config's version: when it differs, fetch the document again.
    pub config_version: i64,
    /// Names of the keys that may have signed an entry, in order: when they differ, fetch the document
    /// again. Absent from an origin that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ids: Option<Vec<String>>,
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

/// `GET /v1/admin/sales[/{sale}]`, and the answer of `POST /v1/admin/sales`, `PUT /v1/admin/sales/{sale}`,
/// and of `pause`, `resume`, `close`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdminSale {
    /// The settings.
    pub sale: SaleConfig,
    /// The operator's state.
    pub state: SaleState,
    /// While the gate is rebuilt: the state afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_after: Option<SaleState>,
    /// What a buyer meets now.
    pub phase: SalePhase,
    /// The gate's epoch in the ledger.
    pub epoch: Epoch,
    /// Units in live orders, in the ledger.
    pub sold: u32,
    /// Units in the buckets; absent when the gate does not answer.
    pub on_offer: Option<u32>,
    /// Server time.
    pub now_ms: UnixMs,
}

/// One of `GET /v1/admin/sales/{sale}/rebuilds`: a rebuild of the gate from the ledger (design §9).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// Counts over all sales.
    pub id: i64,
    /// Why.
    pub cause: RebuildCause,
    /// The gate's epoch afterwards; absent before the cut.
    pub epoch: Option<Epoch>,
    /// Units that were free at the cut.
    pub on_offer: Option<i64>,
    /// When it was ordered.
    pub began_at_ms: UnixMs,
    /// When the sale had its state again; absent while it goes on.
    pub ended_at_ms: Option<UnixMs>,
}

/// One of `GET /v1/admin/sales/{sale}/dead-letters`: a message that could not be settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Names it when it is to be sent again.
    pub id: i64,
    /// Why it could not be settled.
    pub why: String,
    /// What it says, if it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope: Option<ClaimEnvelope>,
    /// The message as it was, in base64.
    pub body: String,
    /// When it was given up.
    pub seen_at_ms: UnixMs,
    /// When it was sent again, last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_at_ms: Option<UnixMs>,
}

/// Whether one thing is as it must be before a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It is.
    Yes,
    /// It is not: the sale is not ready.
    No,
    /// It could be better, or could not be looked at.
    Warn,
}

/// One line of `GET /v1/admin/sales/{sale}/check`, and of `flashgate sale check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// What was found.
    pub finding: Finding,
    /// A sentence; where it is not as it must be, with what to do.
    pub detail: String,
}

/// One thing that `POST /v1/admin/sales/{sale}/reconcile` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// What.
    pub kind: DriftKind,
    /// The claim that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<ClaimId>,
    /// Units that it is about; 0 where it is about money.
    pub units: i64,
    /// A sentence for a person.
    pub cause: String,
    /// What was done about it; absent when nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

/// The answer of `POST /v1/admin/sales/{sale}/reconcile?repair=true|false&older_than_ms=N`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// The sale.
    pub sale: SaleId,
    /// What was found; empty when all stores say the same.
    pub drifts: Vec<Drift>,
    /// Nothing was in motion: the counters could be compared.
    pub quiet: bool,
}

/// `GET /v1/admin/sales/{sale}/report`: what became of a sale. Final once the sale is closed and quiet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosingReport {
    /// The sale.
    pub sale: SaleId,
    /// The operator's state.
    pub state: SaleState,
    /// When this was read, by the ledger's clock.
    pub at_ms: UnixMs,
    /// Units the sale has.
    pub total: i64,
    /// Units that were paid.
    pub paid_units: i64,
    /// Units that are reserved and not paid yet.
    pub reserved_units: i64,
    /// Units on offer.
    pub on_offer: i64,
    /// Units sold that were not there.
    pub oversold: i64,
    /// Units neither sold nor on offer, with nothing on its way.
    pub stranded: i64,
    /// Reservations that ended unpaid.
    pub lapsed_orders: i64,
    /// Claims refused by the ledger, by reason.
    pub lost: BTreeMap<LostReason, i64>,
    /// What was paid, in minor units, by currency.
    pub revenue: BTreeMap<String, i64>,
    /// Refunds, and those that the provider has not confirmed.
    pub refunds: i64,
    /// Of these, those that the provider has not confirmed.
    pub refunds_pending: i64,
    /// Buyers of whom the ledger knows.
    pub buyers: i64,
    /// Of these, those who came with more than two keys: people retry, programs insist.
    pub insistent_buyers: i64,
    /// Rebuilds of the gate.
    pub rebuilds: i64,
    /// Where the ledger's chains end: publish these, and nobody can change the past unseen.
    pub heads: Vec<Head>,
    /// Nothing was in motion.
    pub quiet: bool,
}

/// `GET /v1/admin/sales/{sale}/ledger?shard=S&after=N`: a page of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerPage {
    /// Where the sale's chains end now, by shard.
    pub heads: Vec<Head>,
    /// The shard's entries after number `after`, in order; at most
    /// [`LEDGER_PAGE_ENTRIES`](crate::limits::LEDGER_PAGE_ENTRIES), none at the end.
    pub entries: Vec<Entry>,
}

/// `GET /v1/admin/sales/{sale}/audit`: design I1–I4 as the origin finds them at one moment.
///
/// The parts are read one after the other: on a sale in motion `in_flight` and `drift` may differ
/// from zero without fault; `quiet` says that nothing was in motion while they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// The sale.
    pub sale: SaleId,
    /// Units the sale has.
    pub total: i64,
    /// `sold` in the stock row.
    pub sold: i64,
    /// Units of live orders, summed over the orders: must equal `sold`.
    pub live_units: i64,
    /// Live orders.
    pub live_orders: i64,
    /// Paid orders.
    pub paid_orders: i64,
    /// Expired orders.
    pub expired_orders: i64,
    /// Refused claims.
    pub lost_claims: i64,
    /// Units on offer in the gate's buckets.
    pub on_offer: i64,
    /// Units of held receipts that no live order answers to, at the ledger's epoch.
    pub held_without_order: i64,
    /// Outbox entries in the gate.
    pub outbox: i64,
    /// Messages in the sale's queue, ready or unacknowledged.
    pub queued: i64,
    /// Messages in the dead letter queue.
    pub dead_letters: i64,
    /// Releases not yet given back to the gate.
    pub releases_pending: i64,
    /// Refunds not yet confirmed by the provider.
    pub refunds_pending: i64,
    /// I1: `max(0, live_units − total)`.
    pub oversold: i64,
    /// I2: live orders beyond one a buyer.
    pub double_orders: i64,
    /// I4: `total − on_offer − live_units − units in flight`; positive is stranded, negative is leaked.
    pub drift: i64,
    /// Units neither sold nor claimable: `max(0, drift)`, plus what lies in a bucket out of reach.
    pub stranded: i64,
    /// Nothing was in motion.
    pub quiet: bool,
    /// Human sentences, one for each broken invariant; empty when all hold.
    pub broken: Vec<String>,
}

/// `GET /v1/admin/sales/{sale}/traffic`: what this origin process counted since it started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Claims that passed the permit check.
    pub claims: u64,
    /// Most of them in any one second.
    pub claims_peak_1s: u64,
    /// Most of them in any ten seconds.
    pub claims_peak_10s: u64,
    /// The largest stock seen by the lease authority: S of design I6.
    pub stock_max: u32,
    /// The bound of I6 for one second.
    pub bound_1s: f64,
    /// Permits granted.
    pub permits_granted: u64,
    /// Permits that the authority could have granted: its rate, over the time in which edges asked.
    pub permits_grantable: f64,
    /// When the first 202 was said, Unix ms.
    pub first_accepted_ms: Option<UnixMs>,
    /// When the last 202 was said.
    pub last_accepted_ms: Option<UnixMs>,
    /// When the last settling transaction committed.
    pub last_settled_ms: Option<UnixMs>,
    /// Resident set of this process, peak, in MiB.
    pub peak_rss_mib: f64,
}
