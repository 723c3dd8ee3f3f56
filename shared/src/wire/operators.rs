//! What operators ask and hear.

use crate::{
    chain::{Entry, Head},
    clock::UnixMs,
    envelope::ClaimEnvelope,
    ids::{BuyerId, ClaimId, Epoch, SaleId},
    order::{DriftKind, LostReason, Wisher},
    sale::{RebuildCause, SaleConfig, SalePhase, SaleState},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// A drift that was mended: an entry of `GET /v1/admin/sales/{sale}/repairs`, the newest first, at most 1,000.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Its number.
    pub id: i64,
    /// When.
    pub made_at_ms: UnixMs,
    /// By whose wish.
    pub wished_by: Wisher,
    /// What was found, and what was done.
    #[serde(flatten)]
    pub drift: Drift,
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
    /// What could not be compared, and why.
    #[serde(default)]
    pub unseen: Vec<String>,
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

/// `POST /v1/admin/sales/{sale}/erasures`: whose personal data goes. In the body, because addresses are logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErasureRequest {
    /// `{"buyer": "…"}`: one buyer's.
    Buyer(BuyerId),
    /// `{"everybody": {}}`: that of all buyers of the sale.
    Everybody {},
}

/// Personal data that was erased from a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// Its number.
    pub id: i64,
    /// Buyers of whom something was found.
    pub buyers: i64,
    /// When.
    pub at_ms: UnixMs,
}
