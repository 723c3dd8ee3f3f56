//! A sale: what marketing sets, and what a moment in time makes of it.

pub use crate::order::UnknownWord;
use crate::{clock::UnixMs, ids::SaleId, limits, money::Money, order::words};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

words! {
    /// What the operator wants of the sale; stored in the ledger.
    SaleState {
        /// Being set up: the gate is not loaded yet.
        Loading = "loading",
        /// Sells between its two times.
        Open = "open",
        /// Stopped by the operator: "please wait".
        Paused = "paused",
        /// The gate is being rebuilt: "please wait".
        Rebuilding = "rebuilding",
        /// Ended for good.
        Closed = "closed",
    }
}

words! {
    /// Why a sale's gate is rebuilt (design §9).
    RebuildCause {
        /// An operator's order.
        Operator = "operator",
        /// A bucket has no epoch: Redis lost it.
        NotLoaded = "not_loaded",
        /// A bucket's epoch is not the ledger's: Redis is another one, or one of the past.
        OtherEpoch = "other_epoch",
        /// A bucket's server was restarted or replaced since: it may have forgotten the newest writes.
        ServerChanged = "server_changed",
    }
}

words! {
    /// What a buyer would meet right now: state, window and stock taken together.
    SalePhase {
        /// Before the opening.
        Scheduled = "scheduled",
        /// Selling.
        Open = "open",
        /// Stopped for now (paused, loading or rebuilding).
        Paused = "paused",
        /// Every bucket is known to hold nothing.
        SoldOut = "sold_out",
        /// After the end.
        Closed = "closed",
    }
}

/// A token bucket: `burst` tokens deep, refilled at `rate_per_s`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BucketLimit {
    /// Tokens a second.
    pub rate_per_s: f64,
    /// Most tokens that gather.
    pub burst: f64,
}

/// Per-address limits at the edge. Generous, because a carrier puts thousands behind one address.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressLimits {
    /// Claims.
    pub claim: BucketLimit,
    /// Enter.
    pub enter: BucketLimit,
    /// Claim status, my-claim, events and pay: the page's own polling.
    pub status: BucketLimit,
    /// Page, sale and time.
    pub read: BucketLimit,
}

impl Default for AddressLimits {
    fn default() -> Self {
        Self {
            claim: BucketLimit { rate_per_s: 10.0, burst: 40.0 },
            enter: BucketLimit { rate_per_s: 10.0, burst: 40.0 },
            status: BucketLimit { rate_per_s: 20.0, burst: 100.0 },
            read: BucketLimit { rate_per_s: 20.0, burst: 100.0 },
        }
    }
}

/// Everything that is set for a sale. Versioned: each change raises `version`.
///
/// An edge ignores members that it does not know: they are of a later version of the origin. What an
/// operator writes is read by [`SaleConfig::strictly`], which does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaleConfig {
    /// The sale.
    pub id: SaleId,
    /// Raised by one with every change, from 1.
    pub version: i64,
    /// Shown to buyers.
    pub title: String,
    /// Shown to buyers.
    #[serde(default)]
    pub description: String,
    /// Price of one unit.
    pub price: Money,
    /// Units the sale has, in the ledger.
    pub total: u32,
    /// Most units in one claim.
    pub per_buyer_limit: u32,
    /// First moment at which a claim is taken.
    pub opens_at_ms: UnixMs,
    /// First moment at which none is taken any more.
    pub closes_at_ms: UnixMs,
    /// Redis buckets the stock is spread over.
    pub buckets: u16,
    /// Rows of the ledger that the stock is split over: more than one lets settling use several connections
    /// at once.
    #[serde(default = "one_shard")]
    pub shards: u16,
    /// Claims admitted a second = `admit_factor` × stock (design I6).
    pub admit_factor: f64,
    /// Entries admitted a second, all edges together.
    pub enter_rate_per_s: f64,
    /// How long a buyer may take to start paying, from the reservation.
    pub pay_window_ms: i64,
    /// How long after that a notice of a payment made in time may come.
    pub grace_ms: i64,
    /// Whether a buyer whose order expired may claim again.
    pub second_try: bool,
    /// Whether a buyer may enter without the shop's assertion.
    pub anonymous_entry: bool,
    /// Most claims waiting in outbox and queue before new ones are refused.
    pub backlog_limit: u32,
    /// Per-address limits at the edge.
    #[serde(default)]
    pub address_limits: AddressLimits,
}

const fn one_shard() -> u16 {
    1
}

/// What is wrong with a sale's settings; one line a person can act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SaleConfigError {
    /// The field to change.
    pub field: &'static str,
    /// What it must be.
    pub problem: String,
}

/// The path of the first member that was written and is not known.
fn unknown_member(written: &serde_json::Value, known: &serde_json::Value) -> Option<String> {
    let (written, known) = (written.as_object()?, known.as_object()?);
    written.iter().find_map(|(name, value)| match known.get(name) {
        None => Some(name.clone()),
        Some(known) => unknown_member(value, known).map(|path| format!("{name}.{path}")),
    })
}

impl SaleConfig {
    /// Reads what an operator wrote: a member that means nothing is a mistake, and is named.
    pub fn strictly(written: &serde_json::Value) -> Result<Self, String> {
        let read = Self::deserialize(written).map_err(|e| e.to_string())?;
        let known = serde_json::to_value(&read).map_err(|e| e.to_string())?;
        match unknown_member(written, &known) {
            Some(path) => Err(format!("unknown field `{path}`")),
            None => Ok(read),
        }
    }

    /// Checks every bound; the first that is broken is returned.
    pub fn validate(&self) -> Result<(), SaleConfigError> {
        let fail = |field, problem: String| Err(SaleConfigError { field, problem });
        let text = |t: &str| t.len() <= limits::SALE_TEXT_BYTES && !t.chars().any(char::is_control);
        if self.title.is_empty() || !text(&self.title) {
            return fail("title", format!("must have 1 to {} bytes on one line", limits::SALE_TEXT_BYTES));
        }
        if !text(&self.description) {
            return fail("description", format!("must have at most {} bytes on one line", limits::SALE_TEXT_BYTES));
        }
        if self.price.amount_minor < 0 {
            return fail("price", "must not be negative".into());
        }
        if self.total == 0 || self.total > limits::TOTAL_MAX {
            return fail("total", format!("must be 1 to {}", limits::TOTAL_MAX));
        }
        if self.per_buyer_limit == 0 || self.per_buyer_limit > limits::PER_BUYER_MAX.min(self.total) {
            let most = limits::PER_BUYER_MAX.min(self.total);
            return fail("per_buyer_limit", format!("must be 1 to {most}"));
        }
        if self.price.times(self.per_buyer_limit).is_none() {
            return fail("price", "times per_buyer_limit must fit 63 bits".into());
        }
        if self.closes_at_ms <= self.opens_at_ms {
            return fail("closes_at_ms", "must be after opens_at_ms".into());
        }
        if self.buckets == 0 || self.buckets > limits::BUCKETS_MAX {
            return fail("buckets", format!("must be 1 to {}", limits::BUCKETS_MAX));
        }
        let most = u32::from(limits::SHARDS_MAX).min(self.total);
        if self.shards == 0 || u32::from(self.shards) > most {
            return fail("shards", format!("must be 1 to {most}"));
        }
        for (field, value) in [("admit_factor", self.admit_factor), ("enter_rate_per_s", self.enter_rate_per_s)] {
            if !(value.is_finite() && value > 0.0 && value <= 1e6) {
                return fail(field, "must be more than 0 and at most 1000000".into());
            }
        }
        const DAY_MS: i64 = 86_400_000;
        for (field, value) in [("pay_window_ms", self.pay_window_ms), ("grace_ms", self.grace_ms)] {
            if !(0..=7 * DAY_MS).contains(&value) {
                return fail(field, "must be 0 to 604800000 (a week)".into());
            }
        }
        if self.pay_window_ms == 0 {
            return fail("pay_window_ms", "must be more than 0".into());
        }
        if self.backlog_limit == 0 {
            return fail("backlog_limit", "must be at least 1".into());
        }
        let l = &self.address_limits;
        for (field, b) in [
            ("address_limits.claim", l.claim),
            ("address_limits.enter", l.enter),
            ("address_limits.status", l.status),
            ("address_limits.read", l.read),
        ] {
            let sane = |v: f64| v.is_finite() && v > 0.0 && v <= 1e6;
            if !(sane(b.rate_per_s) && sane(b.burst) && b.burst >= 1.0) {
                return fail(field, "rate_per_s must be more than 0, burst at least 1, both at most 1000000".into());
            }
        }
        Ok(())
    }

    /// What a buyer meets at `now_ms`. `sold_out` is the gate's last word about its buckets.
    ///
    /// The order is the order in which reasons win: closed, paused, not open yet, sold out.
    pub fn phase(&self, state: SaleState, now_ms: UnixMs, sold_out: bool) -> SalePhase {
        if state == SaleState::Closed || now_ms >= self.closes_at_ms {
            SalePhase::Closed
        } else if state != SaleState::Open {
            SalePhase::Paused
        } else if now_ms < self.opens_at_ms {
            SalePhase::Scheduled
        } else if sold_out {
            SalePhase::SoldOut
        } else {
            SalePhase::Open
        }
    }

    /// Permits a second that the authority refills: `admit_factor × max(on offer, total/10, 1)`
    /// (design §5).
    pub fn permits_per_s(&self, on_offer: u32) -> f64 {
        let stock = f64::from(on_offer).max(f64::from(self.total) / 10.0).max(1.0);
        self.admit_factor * stock
    }
}
