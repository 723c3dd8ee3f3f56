//! The simulator's books: payments and refunds, each known by the key that asked for it.

use flashgate_shared::{
    ClaimId, Money, SaleId, UnixMs,
    limits::PAYMENTS_PAGE,
    wire::{ChargeRequest, ProviderPayment, RefundRequest},
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, str::FromStr, time::Duration};
use uuid::Uuid;

/// Most payments that are remembered; more are refused with 503. About 0.5 kB each.
pub const PAYMENTS_MAX: usize = 400_000;
/// Longest delay of a late notice, in milliseconds.
pub const LATE_MAX_MS: u64 = 86_400_000;
/// Longest `payment` of a charge, in bytes.
const PAYMENT_BYTES_MAX: usize = 256;

/// What happens to a charge, chosen by its `payment`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// `ok`: succeeds at once.
    Ok,
    /// `declined`: fails at once.
    Declined,
    /// `late:<ms>`: succeeds after that time.
    Late(Duration),
    /// `silent`: no notice ever comes, no money moves.
    Silent,
    /// `twice`: succeeds at once, and the notice comes twice.
    Twice,
    /// `wrong-amount`: succeeds at once with one minor unit too much.
    WrongAmount,
}

impl FromStr for Behaviour {
    type Err = Refusal;
    fn from_str(payment: &str) -> Result<Self, Refusal> {
        Ok(match payment {
            "ok" => Self::Ok,
            "declined" => Self::Declined,
            "silent" => Self::Silent,
            "twice" => Self::Twice,
            "wrong-amount" => Self::WrongAmount,
            _ => {
                let ms: u64 = payment
                    .strip_prefix("late:")
                    .and_then(|ms| ms.parse().ok())
                    .filter(|ms| *ms <= LATE_MAX_MS)
                    .ok_or(Refusal::Behaviour)?;
                Self::Late(Duration::from_millis(ms))
            }
        })
    }
}

/// Why the simulator says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A charge or refund without a usable key.
    #[error("an Idempotency-Key of 1 to 128 characters is needed")]
    KeyMissing,
    /// The `payment` is none that is known.
    #[error("payment must be ok, declined, late:<ms>, silent, twice or wrong-amount")]
    Behaviour,
    /// The key was used with another body.
    #[error("the Idempotency-Key was used with another body")]
    KeyReused,
    /// A charge of nothing, or a refund of more than was paid.
    #[error("the amount or currency does not fit")]
    Amount,
    /// No such payment.
    #[error("no such payment")]
    NoSuchPayment,
    /// No refund was made with this key.
    #[error("no refund was made with this key")]
    NoSuchRefund,
    /// The payment has not succeeded.
    #[error("the payment has not succeeded")]
    NotPaid,
    /// The books are full.
    #[error("the simulator's books are full")]
    Full,
    /// Told to fail, by a test.
    #[error("told to fail")]
    Told,
}

/// Where a payment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Not decided yet (late or silent).
    Pending,
    /// The money is the shop's.
    Succeeded,
    /// It never will be.
    Failed,
}

/// One payment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentEntry {
    /// Its id.
    pub payment_id: String,
    /// The claim it pays.
    pub claim_id: ClaimId,
    /// The sale.
    pub sale: SaleId,
    /// What is paid: what was charged, or one minor unit more.
    pub amount: Money,
    /// The buyer's means of payment.
    pub payment: String,
    /// Where it stands.
    pub state: PaymentState,
    /// When it was charged.
    pub charged_at_ms: UnixMs,
    /// When it succeeded, if it did.
    #[serde(default)]
    pub succeeded_at_ms: Option<UnixMs>,
    /// How often its notice was taken by the receiver.
    pub notices_taken: u32,
}

/// One refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundEntry {
    /// Its id.
    pub refund_id: String,
    /// The key that asked for it.
    pub key: String,
    /// The payment.
    pub payment_id: String,
    /// How much went back.
    pub amount: Money,
    /// When.
    pub refunded_at_ms: UnixMs,
}

/// All that was paid and given back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderLedger {
    /// In the order of the charges.
    pub payments: Vec<PaymentEntry>,
    /// In the order of the refunds.
    pub refunds: Vec<RefundEntry>,
}

impl ProviderLedger {
    /// Minor units of this payment that were given back.
    pub fn refunded_minor(&self, payment_id: &str) -> i64 {
        let of = self.refunds.iter().filter(|r| r.payment_id == payment_id);
        of.map(|r| r.amount.amount_minor).sum()
    }

    /// Payments of a sale that succeeded and were not given back in full: what the shop keeps.
    pub fn kept<'a>(&'a self, sale: &'a SaleId) -> impl Iterator<Item = &'a PaymentEntry> {
        let mut back: HashMap<&str, i64> = HashMap::new();
        for refund in &self.refunds {
            *back.entry(&refund.payment_id).or_default() += refund.amount.amount_minor;
        }
        self.payments.iter().filter(move |p| {
            let given_back = back.get(p.payment_id.as_str()).copied().unwrap_or_default();
            p.sale == *sale && p.state == PaymentState::Succeeded && given_back < p.amount.amount_minor
        })
    }
}

/// The books.
#[derive(Debug, Default)]
pub struct Book {
    payments: Vec<PaymentEntry>,
    by_id: HashMap<String, usize>,
    charges: HashMap<String, (ChargeRequest, usize)>,
    refunds: Vec<RefundEntry>,
    refund_keys: HashMap<String, usize>,
}

impl Book {
    /// Takes a charge. The behaviour comes back when it is a new one: the caller must announce it.
    pub fn charge(
        &mut self,
        key: String,
        request: ChargeRequest,
        now_ms: UnixMs,
    ) -> Result<(String, Option<Behaviour>), Refusal> {
        if let Some((before, at)) = self.charges.get(&key) {
            return match *before == request {
                true => Ok((self.payments[*at].payment_id.clone(), None)),
                false => Err(Refusal::KeyReused),
            };
        }
        if request.payment.len() > PAYMENT_BYTES_MAX {
            return Err(Refusal::Behaviour);
        }
        let behaviour: Behaviour = request.payment.parse()?;
        if self.payments.len() >= PAYMENTS_MAX {
            return Err(Refusal::Full);
        }
        let mut amount = request.amount.clone();
        if behaviour == Behaviour::WrongAmount {
            amount.amount_minor = amount.amount_minor.checked_add(1).ok_or(Refusal::Amount)?;
        }
        if amount.amount_minor < 0 {
            return Err(Refusal::Amount);
        }
        let payment_id = format!("pay-{}", Uuid::new_v4());
        let at = self.payments.len();
        self.payments.push(PaymentEntry {
            payment_id: payment_id.clone(),
            claim_id: request.claim_id,
            sale: request.sale.clone(),
            amount,
            payment: request.payment.clone(),
            state: PaymentState::Pending,
            charged_at_ms: now_ms,
            succeeded_at_ms: None,
            notices_taken: 0,
        });
        self.by_id.insert(payment_id.clone(), at);
        self.charges.insert(key, (request, at));
        Ok((payment_id, Some(behaviour)))
    }

    /// Decides a payment; the entry as it stands then.
    pub fn decide(&mut self, payment_id: &str, state: PaymentState, now_ms: UnixMs) -> Option<PaymentEntry> {
        let at = *self.by_id.get(payment_id)?;
        let entry = self.payments.get_mut(at)?;
        entry.state = state;
        entry.succeeded_at_ms = (state == PaymentState::Succeeded).then_some(now_ms);
        Some(entry.clone())
    }

    /// Payments of a sale that succeeded, in the order of their charges, after that one: at most a page.
    pub fn succeeded(&self, sale: &SaleId, after: Option<&str>) -> Result<Vec<ProviderPayment>, Refusal> {
        let from = match after {
            Some(id) => self.by_id.get(id).map(|at| at + 1).ok_or(Refusal::NoSuchPayment)?,
            None => 0,
        };
        let mut back: HashMap<&str, i64> = HashMap::new();
        for refund in &self.refunds {
            *back.entry(&refund.payment_id).or_default() += refund.amount.amount_minor;
        }
        let of_sale = self.payments.iter().skip(from).filter(|p| p.sale == *sale);
        let succeeded = of_sale.filter_map(|p| Some((p, p.succeeded_at_ms?))).take(PAYMENTS_PAGE);
        let told = succeeded.map(|(payment, succeeded_at_ms)| ProviderPayment {
            payment_id: payment.payment_id.clone(),
            claim_id: payment.claim_id,
            amount: payment.amount.clone(),
            refunded_minor: back.get(payment.payment_id.as_str()).copied().unwrap_or_default(),
            succeeded_at_ms,
        });
        Ok(told.collect())
    }

    /// Counts a notice that the receiver took.
    pub fn notice_taken(&mut self, payment_id: &str) {
        if let Some(at) = self.by_id.get(payment_id) {
            self.payments[*at].notices_taken += 1;
        }
    }

    /// Gives money back, once per key.
    pub fn refund(&mut self, key: String, request: RefundRequest, now_ms: UnixMs) -> Result<String, Refusal> {
        if let Some(at) = self.refund_keys.get(&key) {
            let before = &self.refunds[*at];
            let same = before.payment_id == request.payment_id && before.amount == request.amount;
            return same.then(|| before.refund_id.clone()).ok_or(Refusal::KeyReused);
        }
        let at = *self.by_id.get(&request.payment_id).ok_or(Refusal::NoSuchPayment)?;
        let payment = &self.payments[at];
        if payment.state != PaymentState::Succeeded {
            return Err(Refusal::NotPaid);
        }
        let back: i64 =
            self.refunds.iter().filter(|r| r.payment_id == request.payment_id).map(|r| r.amount.amount_minor).sum();
        let left = payment.amount.amount_minor - back;
        if request.amount.currency != payment.amount.currency || !(0..=left).contains(&request.amount.amount_minor) {
            return Err(Refusal::Amount);
        }
        let refund_id = format!("ref-{}", Uuid::new_v4());
        self.refund_keys.insert(key.clone(), self.refunds.len());
        self.refunds.push(RefundEntry {
            refund_id: refund_id.clone(),
            key,
            payment_id: request.payment_id,
            amount: request.amount,
            refunded_at_ms: now_ms,
        });
        Ok(refund_id)
    }

    /// The refund made with this key.
    pub fn refund_by_key(&self, key: &str) -> Option<String> {
        let at = self.refund_keys.get(key)?;
        Some(self.refunds[*at].refund_id.clone())
    }

    /// A copy of everything.
    pub fn ledger(&self) -> ProviderLedger {
        ProviderLedger { payments: self.payments.clone(), refunds: self.refunds.clone() }
    }
}
