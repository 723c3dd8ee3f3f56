//! One buyer: what he does next, decided from what he was told. Pure: no clock, no network.
//!
//! A buyer enters, clicks, repeats with the same key as long as he has no answer, retries when he is
//! told to, asks `my-claim` before he believes a "no" that follows an unanswered click, polls to a
//! final answer and pays. He must never be cleverer than the sale page.

use flashgate_shared::{
    ClaimId, SaleId, UnixMs,
    order::{LostReason, OrderStatus},
    problem::{Problem, ProblemKind},
    wire::{ClaimAccepted, ClaimState, ClaimStatus, EnterAnswer, MyClaim, PayAccepted, PayRequest},
};
use serde::de::DeserializeOwned;

/// Keys a buyer uses at most: after LOST the page takes a new one.
const KEYS_MAX: u8 = 5;
/// The wait when an answer says "later" and not when, in milliseconds.
const RETRY_DEFAULT_MS: u64 = 500;
/// The shortest and longest wait between two requests of a buyer, in milliseconds.
const RETRY_BOUNDS_MS: (u64, u64) = (20, 30_000);
/// How long after a hold's end the money of a late payer arrives, in milliseconds.
const LATE_BY_MS: i64 = 1_500;
/// How long after his order expired a late payer waits for "refunded", in milliseconds.
const REFUND_WAIT_MS: UnixMs = 60_000;

/// The request to make next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// Ask for an entry token.
    Enter,
    /// Click.
    Claim,
    /// Ask what became of an unanswered click.
    MyClaim,
    /// Poll.
    Status,
    /// Pay.
    Pay,
}

impl Act {
    /// The word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enter => "enter",
            Self::Claim => "claim",
            Self::MyClaim => "my-claim",
            Self::Status => "status",
            Self::Pay => "pay",
        }
    }
}

/// What a winner does with his reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Pays at once.
    Pays,
    /// Never pays.
    Lapses,
    /// Pays in time, but the money comes when the hold is over.
    PaysLate,
}

/// The end of a buyer's story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// "Sold out", or fewer left than asked for.
    SoldOut,
    /// "The sale has ended".
    Closed,
    /// The unit is his.
    Paid,
    /// He did not pay in time.
    Expired {
        /// Money that came late was given back.
        refunded: bool,
    },
    /// Every key ended in LOST; the last reason.
    Lost(LostReason),
    /// An answer that no buyer should get, by its HTTP status.
    Refused(u16),
}

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// No connection, no answer in time, half an answer.
    Lost,
    /// An answer.
    Http {
        /// Its status.
        status: u16,
        /// Its `Retry-After`, in milliseconds.
        retry_after_ms: Option<u64>,
        /// Its body.
        body: bytes::Bytes,
    },
}

impl Answer {
    fn json<T: DeserializeOwned>(&self) -> Option<T> {
        match self {
            Self::Http { body, .. } => serde_json::from_slice(body).ok(),
            Self::Lost => None,
        }
    }

    /// The HTTP status; 0 when there was no answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Http { status, .. } => *status,
            Self::Lost => 0,
        }
    }
}

/// What the buyer decides with, beside the answer.
pub trait World {
    /// The shop's time.
    fn now_ms(&self) -> UnixMs;
    /// When the sale opens.
    fn opens_at_ms(&self) -> UnixMs;
    /// How long after `pay_by` a hold lasts, in milliseconds.
    fn grace_ms(&self) -> i64;
    /// A random wait of about this length, for a request that was lost.
    fn jitter_ms(&mut self, around_ms: u64) -> u64;
    /// When this buyer clicks first, in shop time.
    fn click_at_ms(&mut self) -> UnixMs;
    /// The role of the next winner.
    fn next_role(&mut self) -> Role;
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The buyer's [`Buyer::act`], after this many milliseconds.
    In(u64),
    /// Nothing: the story ended.
    Done,
}

/// A claim in hand.
#[derive(Debug)]
pub struct Claim {
    /// Its id.
    pub id: ClaimId,
    /// Where to ask.
    pub status_url: String,
    /// What its owner does with a reservation; drawn when he hears RESERVED.
    pub role: Option<Role>,
    /// His payment was accepted.
    pub paying: bool,
    /// Since when the order is known to have expired.
    expired_at_ms: Option<UnixMs>,
    /// The last moment to start paying.
    pay_by_ms: Option<UnixMs>,
}

#[cfg(test)]
impl Claim {
    pub(crate) fn for_test(paying: bool) -> Self {
        Self {
            id: ClaimId(uuid::Uuid::from_u128(1)),
            status_url: String::new(),
            role: None,
            paying,
            expired_at_ms: None,
            pay_by_ms: None,
        }
    }
}

/// One buyer. Small: there may be a million.
#[derive(Debug)]
pub struct Buyer {
    /// The request to make next.
    pub act: Act,
    /// The entry token.
    pub token: Option<Box<str>>,
    /// The claim, once one was accepted.
    pub claim: Option<Box<Claim>>,
    /// Which key he uses, from 0.
    pub key: u8,
    /// A click of this key is unanswered: its outcome is not known.
    in_doubt: bool,
    /// He was told LOST with an earlier key.
    lost: Option<LostReason>,
    /// What a "nothing known" of `my-claim` would confirm.
    if_nothing: Option<End>,
    /// He was told RESERVED at least once.
    pub won: bool,
    /// 202s he got for his click.
    pub accepted: u8,
    /// The end, once it is known.
    pub end: Option<End>,
}

impl Default for Buyer {
    fn default() -> Self {
        Self {
            act: Act::Enter,
            token: None,
            claim: None,
            key: 0,
            in_doubt: false,
            lost: None,
            if_nothing: None,
            won: false,
            accepted: 0,
            end: None,
        }
    }
}

impl Buyer {
    /// Takes the answer to [`Buyer::act`] and decides what comes next.
    pub fn hear(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        match self.act {
            Act::Enter => self.hear_enter(answer, world),
            Act::Claim => self.hear_claim(answer, world),
            Act::MyClaim => self.hear_my_claim(answer, world),
            Act::Status => match answer.json::<ClaimStatus>().filter(|_| answer.status() == 200) {
                Some(status) => self.hear_status(&status, world),
                None => self.again_or(answer, world),
            },
            Act::Pay => self.hear_pay(answer, world),
        }
    }

    /// The body of [`Act::Pay`].
    pub fn payment(&self, sale: &SaleId, world: &impl World) -> Option<PayRequest> {
        let claim = self.claim.as_deref()?;
        let payment = match claim.role? {
            Role::PaysLate => {
                let hold_ends_in = claim.pay_by_ms? + world.grace_ms() - world.now_ms();
                format!("late:{}", hold_ends_in.max(0) + LATE_BY_MS)
            }
            Role::Pays | Role::Lapses => "ok".to_owned(),
        };
        Some(PayRequest { claim_id: claim.id, sale: sale.clone(), payment })
    }

    /// Whether this buyer has a claim in hand, or may have one: his requests go first.
    pub fn is_through(&self) -> bool {
        matches!(self.act, Act::MyClaim | Act::Status | Act::Pay)
    }

    fn hear_enter(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        match answer.json::<EnterAnswer>().filter(|_| answer.status() == 200) {
            Some(entered) => {
                self.token = Some(entered.token.into());
                self.act = Act::Claim;
                Next::In(u64::try_from(world.click_at_ms() - world.now_ms()).unwrap_or(0))
            }
            None => self.again_or(answer, world),
        }
    }

    fn hear_claim(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        let problem = answer.json::<Problem>();
        let kind = problem.as_ref().and_then(Problem::kind);
        match (answer.status(), kind) {
            (202, _) => match answer.json::<ClaimAccepted>() {
                Some(accepted) => {
                    self.accepted = self.accepted.saturating_add(1);
                    self.in_doubt = false;
                    self.take(accepted.claim_id, accepted.status_url);
                    self.then(Act::Status, accepted.poll_after_ms)
                }
                None => self.end(End::Refused(202)),
            },
            (410, Some(ProblemKind::Closed)) => self.no(End::Closed),
            (410, _) | (409, Some(ProblemKind::NotEnoughLeft)) => self.no(End::SoldOut),
            (409, _) => {
                self.if_nothing = Some(End::Refused(409));
                self.then(Act::MyClaim, 0)
            }
            (425, _) => {
                let opens = problem.as_ref().and_then(|p| p.opens_at_ms).unwrap_or(world.opens_at_ms());
                let told = problem.as_ref().and_then(|p| p.retry_after_ms);
                let wait = told.unwrap_or(u64::try_from(opens - world.now_ms()).unwrap_or(0));
                self.then(Act::Claim, wait)
            }
            (0 | 500..=599, _) => {
                use ProblemKind::{BacklogFull, Paused, PermitRefused, TryAgain};
                let nothing_taken = matches!(kind, Some(TryAgain | Paused | BacklogFull | PermitRefused));
                self.in_doubt |= !nothing_taken;
                self.again_or(answer, world)
            }
            _ => self.again_or(answer, world),
        }
    }

    fn hear_my_claim(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        let Some(mine) = answer.json::<MyClaim>().filter(|_| answer.status() == 200) else {
            return self.again_or(answer, world);
        };
        match (mine.claim, self.if_nothing) {
            // A row that ended LOST is an earlier key's: the "no" stands.
            (Some(status), Some(end)) if status.status == ClaimState::Ledger(OrderStatus::Lost) => self.end(end),
            (Some(status), _) => {
                self.in_doubt = false;
                self.take(status.claim_id, status.status_url.clone());
                self.hear_status(&status, world)
            }
            (None, Some(end)) => self.end(end),
            (None, None) => self.then(Act::Claim, 0),
        }
    }

    fn hear_status(&mut self, status: &ClaimStatus, world: &mut impl World) -> Next {
        let poll_ms = status.poll_after_ms.unwrap_or(RETRY_DEFAULT_MS);
        match status.status {
            ClaimState::Pending => self.then(Act::Status, poll_ms),
            ClaimState::Ledger(OrderStatus::Reserved) => {
                self.won = true;
                let Some(claim) = self.claim.as_deref_mut() else {
                    return self.end(End::Refused(200));
                };
                claim.pay_by_ms = status.pay_by_ms;
                let role = *claim.role.get_or_insert_with(|| world.next_role());
                let in_time = status.pay_by_ms.is_none_or(|by| world.now_ms() < by);
                let pay_now = role != Role::Lapses && !claim.paying && in_time;
                self.then(if pay_now { Act::Pay } else { Act::Status }, if pay_now { 0 } else { poll_ms })
            }
            ClaimState::Ledger(OrderStatus::Paid) => {
                self.won = true;
                self.end(End::Paid)
            }
            ClaimState::Ledger(OrderStatus::Expired) => {
                self.won = true;
                let now_ms = world.now_ms();
                let Some(claim) = self.claim.as_deref_mut() else {
                    return self.end(End::Refused(200));
                };
                let since = *claim.expired_at_ms.get_or_insert(now_ms);
                if claim.paying && !status.refunded && now_ms - since < REFUND_WAIT_MS {
                    return self.then(Act::Status, poll_ms);
                }
                self.end(End::Expired { refunded: status.refunded })
            }
            ClaimState::Ledger(OrderStatus::Lost) => {
                let reason = status.reason.unwrap_or(LostReason::Poison);
                self.lost = Some(reason);
                self.key += 1;
                if self.key >= KEYS_MAX {
                    return self.end(End::Lost(reason));
                }
                self.claim = None;
                self.then(Act::Claim, RETRY_DEFAULT_MS)
            }
        }
    }

    fn hear_pay(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        match answer.status() {
            202 => {
                if let Some(claim) = self.claim.as_deref_mut() {
                    claim.paying = true;
                }
                let wait = answer.json::<PayAccepted>().map_or(RETRY_DEFAULT_MS, |a| a.poll_after_ms);
                self.then(Act::Status, wait)
            }
            // Too late, or paid already: the status tells.
            409 => {
                if let Some(claim) = self.claim.as_deref_mut() {
                    claim.role = Some(Role::Lapses);
                }
                self.then(Act::Status, RETRY_DEFAULT_MS)
            }
            _ => self.again_or(answer, world),
        }
    }

    /// A "no" to a click. After an unanswered click it proves nothing yet.
    fn no(&mut self, end: End) -> Next {
        if self.in_doubt {
            self.if_nothing = Some(end);
            return self.then(Act::MyClaim, 0);
        }
        self.end(end)
    }

    fn take(&mut self, id: ClaimId, status_url: String) {
        if self.claim.as_ref().is_some_and(|c| c.id == id) {
            return;
        }
        self.claim =
            Some(Box::new(Claim { id, status_url, role: None, paying: false, expired_at_ms: None, pay_by_ms: None }));
    }

    /// The same request again when it was lost or put off; an answer that is neither ends the story.
    fn again_or(&mut self, answer: &Answer, world: &mut impl World) -> Next {
        let problem = answer.json::<Problem>();
        match answer {
            Answer::Lost => {
                let wait = world.jitter_ms(RETRY_DEFAULT_MS);
                self.then(self.act, wait)
            }
            Answer::Http { status: 425 | 429 | 500..=599, retry_after_ms, .. } => {
                // The body's milliseconds are finer than the header's seconds.
                let told = problem.and_then(|p| p.retry_after_ms).or(*retry_after_ms);
                let wait = told.unwrap_or_else(|| world.jitter_ms(RETRY_DEFAULT_MS));
                self.then(self.act, wait)
            }
            Answer::Http { status: 410, .. } => match problem.and_then(|p| p.kind()) {
                Some(ProblemKind::Closed) => self.end(End::Closed),
                _ => self.end(End::SoldOut),
            },
            Answer::Http { status, .. } => self.end(End::Refused(*status)),
        }
    }

    fn then(&mut self, act: Act, wait_ms: u64) -> Next {
        self.act = act;
        let wait_ms = match wait_ms {
            0 => 0,
            _ => wait_ms.clamp(RETRY_BOUNDS_MS.0, RETRY_BOUNDS_MS.1),
        };
        Next::In(wait_ms)
    }

    fn end(&mut self, end: End) -> Next {
        // What the ledger said of an earlier key is told rather than "sold out".
        self.end = Some(match (end, self.lost) {
            (End::SoldOut | End::Closed, Some(reason)) => End::Lost(reason),
            _ => end,
        });
        // A finished buyer of a million should weigh little.
        self.token = None;
        Next::Done
    }
}

#[cfg(test)]
#[path = "buyer_tests.rs"]
mod tests;
