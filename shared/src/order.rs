//! An order's states and reasons: the same words in the table, in JSON and in the docs.

use crate::{BuyerId, ClaimId, Epoch, HoldId, SaleId};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }
        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The word used in the table, in JSON and in metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.as_str()) }
        }
        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word { $($word => Ok($name::$variant),)+ _ => Err(UnknownWord(word.to_owned())) }
            }
        }
    };
}
pub(crate) use words;

/// A word that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown word {0:?}")]
pub struct UnknownWord(pub String);

words! {
    /// The states of an order in the ledger (design §7). A claim that is not in the ledger yet is
    /// `PENDING`, which is no order state.
    OrderStatus {
        /// The unit is the buyer's until `hold_until`.
        Reserved = "RESERVED",
        /// Paid: sold for good.
        Paid = "PAID",
        /// Not paid in time, or let go; the unit went back.
        Expired = "EXPIRED",
        /// The hold never became an order; the reason says why.
        Lost = "LOST",
    }
}

impl OrderStatus {
    /// Whether the order holds units (counts in `sold`).
    pub const fn is_live(self) -> bool {
        matches!(self, OrderStatus::Reserved | OrderStatus::Paid)
    }
}

words! {
    /// Why a claim is `LOST` (design §7).
    LostReason {
        /// The claim was made against an older epoch; the rebuild already counted the unit.
        GateRebuilt = "gate_rebuilt",
        /// The buyer has another live order.
        Duplicate = "duplicate",
        /// The buyer's order ended and the sale allows no second try.
        SecondTry = "second_try",
        /// The gate promised more units than the ledger has.
        GateLeaked = "gate_leaked",
        /// The gate forgot the claim before it reached the ledger.
        GateLost = "gate_lost",
        /// The message could not be settled.
        Poison = "poison",
    }
}

words! {
    /// How a release changes the receipt (rule R2).
    ReleaseMode {
        /// The order lived and ended: the receipt becomes *released*.
        Spent = "spent",
        /// The hold never became an order: the receipt becomes *void*.
        Void = "void",
    }
}

words! {
    /// The state of the gate's note of a hold (design §6).
    ReceiptState {
        /// The unit is out of the gate for this buyer.
        Held = "held",
        /// The order lived and ended.
        Released = "released",
        /// The hold never became an order: another key counts as new.
        Void = "void",
    }
}

words! {
    /// Who wished a repair.
    Wisher {
        /// An operator.
        Operator = "operator",
        /// The role that reconciles by itself.
        Schedule = "schedule",
    }
}

words! {
    /// What a reconciliation finds (design §9): stores that do not say the same.
    DriftKind {
        /// A held receipt whose claim the ledger does not know, with nothing on its way: the message was lost.
        /// Mended by publishing it again.
        LostMessage = "lost_message",
        /// A live order whose hold the gate does not know. Mended by a rebuild.
        MissingReceipt = "missing_receipt",
        /// At rest, units on offer and units sold do not make the total. Mended by a rebuild.
        Counter = "counter",
        /// The stock row and the live orders disagree. Nothing here mends that.
        SoldMismatch = "sold_mismatch",
        /// Money that neither paid an order nor goes back. Nothing here mends that.
        UnmatchedPayment = "unmatched_payment",
        /// Money that the provider has and the ledger was not told of: its notice was lost. Mended by noting it.
        UnnoticedPayment = "unnoticed_payment",
        /// A payment in the ledger that the provider does not know, or knows otherwise. Nothing here mends that.
        UnknownPayment = "unknown_payment",
        /// A release that the gate has not taken for long. It goes on being tried.
        StuckRelease = "stuck_release",
        /// A refund that the provider has not confirmed for long. It goes on being tried.
        StuckRefund = "stuck_refund",
    }
}

/// Units on their way back to the gate (rule R2): what the ledger records and the gate is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The sale.
    pub sale: SaleId,
    /// Whose receipt.
    pub buyer: BuyerId,
    /// The claim.
    pub claim_id: ClaimId,
    /// The hold.
    pub hold: HoldId,
    /// Units to give back; fewer than were held when the gate had promised units that never were.
    pub units: u32,
    /// What becomes of the receipt.
    pub mode: ReleaseMode,
    /// The ledger's epoch when the release was recorded.
    pub epoch: Epoch,
}
