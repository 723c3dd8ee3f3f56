//! What the ledger tells: rows as values of the shared vocabulary.

use flashgate_shared::{
    BuyerId, ClaimId, Epoch, HoldId, Money, SaleId, UnixMs,
    order::{LostReason, OrderStatus, Release},
    sale::{SaleConfig, SaleState},
    trace::TraceId,
};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A sale as the ledger has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SaleRow {
    /// The settings; `config.version` is the row's version.
    pub config: SaleConfig,
    /// The operator's state.
    pub state: SaleState,
    /// While the gate is rebuilt: the state afterwards.
    pub state_after: Option<SaleState>,
    /// The gate's epoch.
    pub epoch: Epoch,
    /// Units of live orders.
    pub sold: i64,
}

/// A claim that the ledger has spoken about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The claim.
    pub claim_id: ClaimId,
    /// The sale.
    pub sale: SaleId,
    /// Who claimed.
    pub buyer: BuyerId,
    /// Units.
    pub quantity: u32,
    /// The state.
    pub status: OrderStatus,
    /// Why, when it is `LOST`.
    pub reason: Option<LostReason>,
    /// The hold that became this row; none when the claim was declared lost without its message.
    pub hold: Option<HoldId>,
    /// Price × quantity when the row was written.
    pub amount: Money,
    /// When the ledger reserved the units; none when it never did.
    pub reserved_at_ms: Option<UnixMs>,
    /// The last moment at which a checkout may start; none when never reserved.
    pub pay_by_ms: Option<UnixMs>,
    /// When the hold ends: `pay_by_ms` plus the sale's grace; none when never reserved.
    pub hold_until_ms: Option<UnixMs>,
    /// A checkout has started and no failure was heard since; only while `RESERVED`.
    pub paying: bool,
    /// Money came for this claim that could not buy it and goes back.
    pub refunded: bool,
    /// The trace of the claim.
    pub trace_id: TraceId,
    /// When the row was written.
    pub created_at_ms: UnixMs,
}

/// What became of one message of a batch (design §7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// Class 7: the units are the buyer's until `hold_until_ms`.
    Reserved(Order),
    /// Class 1: the ledger knew this claim and hold.
    Repeat,
    /// Classes 2, 4, 5, 6, and 7 of a dead letter: refused for good.
    Lost(LostReason),
    /// Class 3: a second hold of a known claim; its units go back.
    SecondHold,
    /// Class 0: nothing was written. Raise an alarm and dead-letter the message.
    Mismatch(String),
}

/// What a checkout may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkout {
    /// Charge the buyer `order.amount`.
    Start {
        /// The order, `paying`.
        order: Order,
    },
    /// Reserved still, but `pay_by_ms` has passed.
    TooLate,
    /// Paid, expired or lost.
    NotReserved(Order),
}

/// Why a payment goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefundReason {
    /// The hold had ended.
    Expired,
    /// The claim was refused.
    Lost,
    /// Another payment had paid the order.
    AlreadyPaid,
    /// Amount, currency or sale differ from the order's.
    Mismatch,
    /// The sale is ours, the claim is not.
    UnknownClaim,
}

impl RefundReason {
    /// The word used in the table and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::AlreadyPaid => "already_paid",
            Self::Mismatch => "mismatch",
            Self::UnknownClaim => "unknown_claim",
        }
    }
}

/// What a payment notice did (design §8). All of them are to be acknowledged to the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeOutcome {
    /// The order is paid.
    Paid,
    /// This payment was noted before: nothing changed.
    Repeat,
    /// A failed payment: the hold stays as it is.
    FailedNoted,
    /// The money could not buy the order; a refund is recorded.
    Refunding {
        /// Why.
        reason: RefundReason,
    },
    /// Amount, currency or sale differ: a refund is recorded, the order stays as it was.
    Mismatch {
        /// What the order costs.
        expected: Money,
        /// What was paid.
        paid: Money,
    },
    /// No such claim. In a known sale the money goes back; a foreign sale's is left alone.
    UnknownClaim,
}

/// Money to give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refund {
    /// The row: the idempotency key towards the provider.
    pub id: Uuid,
    /// The provider's payment.
    pub payment_id: String,
    /// What to give back: what was paid.
    pub amount: Money,
    /// How often this row was handed out before: when it is not 0, ask the provider before repeating.
    pub attempts: u32,
}

/// A row of the release outbox, handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRow {
    /// The row.
    pub id: i64,
    /// What is to be done.
    pub release: Release,
    /// Buckets of the sale: with the buyer they name the home bucket.
    pub buckets: u16,
    /// How often this row was handed out before.
    pub attempts: u32,
    /// The trace of the claim.
    pub trace_id: TraceId,
}

/// What the gate answered to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The units are on offer again.
    Returned,
    /// The receipt was not held with this hold.
    NoChange,
    /// The gate was rebuilt since; the rebuild counted the units.
    Superseded,
}

impl ReleaseOutcome {
    /// The word used in the table and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Returned => "returned",
            Self::NoChange => "no_change",
            Self::Superseded => "superseded",
        }
    }
}

/// The moment of a rebuild at which the ledger's numbers are what the gate is to hold (design §9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The gate's new epoch.
    pub epoch: Epoch,
    /// Free units.
    pub on_offer: u32,
    /// The last word about each buyer that the ledger knows: a live order, else the newest that expired,
    /// else the newest that was refused.
    pub standings: Vec<Standing>,
    /// Releases whose units are counted in `on_offer`.
    pub superseded: u64,
}

/// What the ledger says of a buyer at a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Who.
    pub buyer: BuyerId,
    /// His claim.
    pub claim_id: ClaimId,
    /// What became of it.
    pub status: OrderStatus,
    /// Its hold; none when it was declared lost without its message.
    pub hold: Option<HoldId>,
    /// Units.
    pub quantity: u32,
    /// When the row was written.
    pub created_at_ms: UnixMs,
}

/// A message that could not be settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The row.
    pub id: i64,
    /// The message as it was.
    pub body: Vec<u8>,
    /// Why.
    pub why: String,
    /// When it was given up.
    pub seen_at_ms: UnixMs,
    /// When an operator sent it again, last.
    pub replayed_at_ms: Option<UnixMs>,
}

/// Money that came and is nowhere accounted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedPayment {
    /// The provider's payment.
    pub payment_id: String,
    /// What it was for.
    pub claim_id: ClaimId,
}

/// A succeeded payment of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerPayment {
    /// The provider's id.
    pub payment_id: String,
    /// What it was for.
    pub claim_id: ClaimId,
    /// What was paid.
    pub amount: Money,
    /// When the ledger heard of it.
    pub noted_at_ms: UnixMs,
    /// It goes back, or went.
    pub refund_ordered: bool,
    /// The provider has confirmed that.
    pub refunded: bool,
}

/// A release that the gate has not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnansweredHold {
    /// The claim.
    pub claim_id: ClaimId,
    /// The hold.
    pub hold: HoldId,
    /// Units.
    pub units: i32,
    /// How often it was tried.
    pub attempts: i32,
}

/// What became of a sale's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleFigures {
    /// The ledger's clock.
    pub at_ms: UnixMs,
    /// Units that were paid.
    pub paid_units: i64,
    /// Units that are reserved.
    pub reserved_units: i64,
    /// Reservations that ended unpaid.
    pub lapsed_orders: i64,
    /// Buyers with a row.
    pub buyers: i64,
    /// Buyers with more than two.
    pub insistent_buyers: i64,
    /// Refunds.
    pub refunds: i64,
    /// Rebuilds of the gate.
    pub rebuilds: i64,
    /// Refused claims, by reason.
    pub lost: BTreeMap<LostReason, i64>,
    /// What was paid, in minor units, by currency.
    pub revenue: BTreeMap<String, i64>,
}

/// What one sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Orders that expired.
    pub expired: u64,
}

/// A sale's numbers in one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerAudit {
    /// Units the sale has.
    pub total: i64,
    /// `sold`, summed over the stock rows.
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
    /// Live orders beyond one a buyer: must be 0.
    pub double_orders: i64,
    /// Releases that the gate has not answered yet.
    pub releases_pending: i64,
    /// Their units.
    pub releases_pending_units: i64,
    /// Refunds that the provider has not confirmed yet.
    pub refunds_pending: i64,
    /// The ledger's epoch of the gate.
    pub epoch: Epoch,
}

/// A live order as the audit compares it with the gate's receipts.
pub type LiveOrder = (BuyerId, ClaimId, Option<HoldId>, u32);
