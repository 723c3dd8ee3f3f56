//! Admission leases (design §5): permits that the authority granted, and when to ask for more.
//!
//! Permits die by the authority's clock. The edge counts their life from the moment it *asked*, so
//! an answer that was long on its way makes them die early, never late; they never outlive their
//! whole life from the moment the edge got them either. A permit is spent at most once.

use crate::limits;
use flashgate_shared::{
    Epoch, UnixMs,
    admission::Permit,
    limits::{LEASE_LIFE_MS, LEASE_WANT_MAX},
    wire::LeaseAnswer,
};
use std::collections::VecDeque;

/// What is left of one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grant {
    granted_at_ms: UnixMs,
    epoch: Epoch,
    left: u32,
    /// Edge clock: alive from here …
    from_ms: UnixMs,
    /// … and dead from here on.
    dies_ms: UnixMs,
}

/// The permits of one kind in one sale, and the questions about them.
#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    grants: VecDeque<Grant>,
    /// Requests that came as far as admission since the last question: the demand.
    arrived: u32,
    /// The demand of the period before; what a refused buyer's wait is reckoned from.
    crowd: u32,
    /// When the last question began, while it is under way.
    asking_since_ms: Option<UnixMs>,
    /// When the last question began, answered or not.
    asked_at_ms: Option<UnixMs>,
    /// When the last answer came.
    answered_at_ms: Option<UnixMs>,
    /// How long to keep still after the last question.
    still_ms: i64,
    /// Questions without an answer, in a row.
    failures: u32,
    /// The last answer granted all that was asked for.
    plenty: bool,
}

impl LeaseBook {
    /// A request came as far as admission.
    pub(crate) fn arrive(&mut self) {
        self.arrived = self.arrived.saturating_add(1);
    }

    /// Whether a permit is there.
    pub(crate) fn has_permit(&mut self, now_ms: UnixMs) -> bool {
        self.bury(now_ms);
        !self.grants.is_empty()
    }

    /// Spends one permit, the oldest first.
    pub(crate) fn spend(&mut self, now_ms: UnixMs) -> Option<Permit> {
        self.bury(now_ms);
        let grant = self.grants.front_mut()?;
        grant.left = grant.left.saturating_sub(1);
        let permit = Permit { granted_at_ms: grant.granted_at_ms, epoch: grant.epoch };
        if grant.left == 0 {
            self.grants.pop_front();
        }
        Some(permit)
    }

    fn bury(&mut self, now_ms: UnixMs) {
        self.grants.retain(|g| g.left > 0 && (g.from_ms..g.dies_ms).contains(&now_ms));
    }

    /// Whether a question is under way (one that never ended is forgotten after a while).
    pub(crate) fn is_asking(&self, now_ms: UnixMs) -> bool {
        self.asking_since_ms
            .is_some_and(|since| (since..since.saturating_add(limits::FLIGHT_LOST_MS)).contains(&now_ms))
    }

    /// Whether it is time for a question, and nobody else asks.
    pub(crate) fn is_due(&self, now_ms: UnixMs) -> bool {
        let still = self.asked_at_ms.is_some_and(|at| (at..at.saturating_add(self.still_ms)).contains(&now_ms));
        !still && !self.is_asking(now_ms)
    }

    /// Whether there has been no answer for the life of a lease: then a request waits for the
    /// authority instead of being refused.
    pub(crate) fn is_cold(&self, now_ms: UnixMs) -> bool {
        !self.answered_at_ms.is_some_and(|at| (at..at.saturating_add(LEASE_LIFE_MS)).contains(&now_ms))
    }

    /// Whether the last question had no answer.
    pub(crate) fn is_deaf(&self) -> bool {
        self.failures > 0
    }

    /// Whether the authority has no more to give, or does not answer: waiting for it helps nobody.
    pub(crate) fn is_short(&self) -> bool {
        !self.plenty
    }

    /// Whether the authority answers and hardly anybody else wants a permit.
    pub(crate) fn is_nearly_alone(&self) -> bool {
        !self.is_deaf() && self.crowd() <= limits::NEARLY_ALONE
    }

    /// Requests that met the last shortage.
    pub(crate) fn crowd(&self) -> u32 {
        self.arrived.max(self.crowd)
    }

    /// Begins a question: how many permits to ask for. The demand since the last question, one for
    /// the request that asks, and a few to spare for the next comers.
    pub(crate) fn begin(&mut self, now_ms: UnixMs) -> u32 {
        let seen = self.arrived;
        self.crowd = seen;
        self.arrived = 0;
        self.asking_since_ms = Some(now_ms);
        self.asked_at_ms = Some(now_ms);
        self.still_ms = self.still_ms.max(limits::RETRY_MIN_MS);
        seen.saturating_add(1 + seen.clamp(1, limits::WANT_SPARE_MAX)).min(LEASE_WANT_MAX)
    }

    /// The question ended, with an answer or without: others may ask again.
    pub(crate) fn end(&mut self) {
        self.asking_since_ms = None;
    }

    /// The answer to a question that was sent at `sent_ms` and asked for `want` permits.
    pub(crate) fn granted(&mut self, want: u32, answer: &LeaseAnswer, sent_ms: UnixMs, received_ms: UnixMs) {
        self.failures = 0;
        self.answered_at_ms = Some(received_ms);
        self.still_ms = answer.retry_ms.clamp(limits::RETRY_MIN_MS, limits::RETRY_MAX_MS);
        // A new epoch fences the old one's permits: the origin would refuse them.
        self.grants.retain(|g| g.epoch == answer.epoch);
        let age_ms = answer.now_ms.saturating_sub(answer.granted_at_ms).max(0);
        let ttl_ms = answer.ttl_ms.clamp(0, LEASE_LIFE_MS);
        let dies_ms = sent_ms.saturating_add(ttl_ms.saturating_sub(age_ms)).min(received_ms.saturating_add(ttl_ms));
        let left = answer.granted.min(want);
        self.plenty = left == want;
        if left == 0 || dies_ms <= received_ms {
            return;
        }
        if self.grants.len() >= limits::GRANTS_MAX {
            self.grants.pop_front();
        }
        self.grants.push_back(Grant {
            granted_at_ms: answer.granted_at_ms,
            epoch: answer.epoch,
            left,
            from_ms: sent_ms,
            dies_ms,
        });
    }

    /// The question had no usable answer: keep still, longer each time.
    pub(crate) fn failed(&mut self) {
        let doubled = limits::BACKOFF_FIRST_MS << self.failures.min(8);
        self.still_ms = doubled.min(limits::BACKOFF_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.plenty = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::sale::SaleState;
    use proptest::prelude::*;

    fn answer(granted: u32, granted_at_ms: i64, now_ms: i64, epoch: i64) -> LeaseAnswer {
        LeaseAnswer {
            granted,
            granted_at_ms,
            ttl_ms: 250,
            retry_ms: 100,
            now_ms,
            state: SaleState::Open,
            sold_out: false,
            epoch,
            config_version: 1,
            key_ids: None,
        }
    }

    #[test]
    fn a_permit_carries_its_grant_and_dies_with_it() {
        let mut book = LeaseBook::default();
        assert_eq!(book.begin(1000), 2);
        book.granted(1, &answer(1, 90_000, 90_010, 7), 1000, 1020);
        book.end();
        assert!(book.has_permit(1239) && !book.is_cold(1239));
        let permit = book.spend(1239).unwrap();
        assert_eq!((permit.granted_at_ms, permit.epoch), (90_000, 7));
        assert_eq!(book.spend(1239), None, "spent once");
        book.granted(9, &answer(9, 90_000, 90_010, 7), 1000, 1020);
        assert!(!book.has_permit(1240), "250 ms less its age of 10, from when it was asked for");
    }

    #[test]
    fn one_asks_and_the_others_keep_still_until_it_is_time() {
        let mut book = LeaseBook::default();
        assert!(book.is_due(1000) && book.is_cold(1000));
        book.begin(1000);
        assert!(book.is_asking(1001) && !book.is_due(1001));
        book.granted(1, &answer(0, 1, 1, 1), 1000, 1004);
        book.end();
        assert!(!book.is_due(1099) && book.is_due(1100));
        assert!(book.is_due(999), "a clock set back asks again");
        book.begin(2000);
        assert!(book.is_due(2000 + limits::FLIGHT_LOST_MS), "a lost question does not block for ever");
    }

    #[test]
    fn an_authority_out_of_reach_is_asked_ever_more_rarely() {
        let mut book = LeaseBook::default();
        let mut now = 0;
        let mut gaps = vec![];
        for _ in 0..6 {
            book.begin(now);
            book.failed();
            book.end();
            let from = now;
            while !book.is_due(now) {
                now += 10;
            }
            gaps.push(now - from);
        }
        assert_eq!(gaps, [250, 500, 1000, 2000, 2000, 2000]);
        assert!(book.is_deaf());
        book.granted(1, &answer(1, 0, 0, 1), now, now);
        assert!(!book.is_deaf());
    }

    #[test]
    fn the_wish_follows_the_demand_and_is_bounded() {
        let mut book = LeaseBook::default();
        assert_eq!(book.begin(0), 2);
        (0..3).for_each(|_| book.arrive());
        assert_eq!(book.begin(200), 7);
        (0..100).for_each(|_| book.arrive());
        assert_eq!((book.begin(400), book.crowd()), (105, 100));
        book.arrived = u32::MAX;
        assert_eq!(book.begin(600), LEASE_WANT_MAX);
    }

    #[test]
    fn a_new_epoch_voids_the_old_permits() {
        let mut book = LeaseBook::default();
        book.granted(5, &answer(5, 1000, 1000, 1), 1000, 1000);
        book.granted(5, &answer(1, 1010, 1010, 2), 1010, 1010);
        assert_eq!(book.spend(1020).unwrap().epoch, 2);
        assert_eq!(book.spend(1020), None);
    }

    proptest! {
        /// Against a list of single permits: never more spent than granted, none after its death by
        /// the authority's clock, none refused that the edge knows to be alive.
        #[test]
        fn permits_follow_the_reference(
            offset in -50_000i64..50_000,
            // At least 16 ms apart, so that never more than GRANTS_MAX are alive.
            steps in prop::collection::vec((0u32..6, 0i64..60, 16i64..60, 0i64..40, 0usize..8), 1..40)
        ) {
            let mut book = LeaseBook::default();
            let mut model: Vec<(i64, i64)> = vec![]; // granted_at (authority), asked_at (edge)
            let mut now = 1_000_000i64;
            for (granted, there, back, age, tries) in steps {
                let sent = now;
                now += there;
                let authority = now + offset;
                now += back;
                let granted_at = authority - age;
                book.granted(granted, &answer(granted, granted_at, authority, 1), sent, now);
                model.extend((0..granted).map(|_| (granted_at, sent - age)));
                for _ in 0..tries {
                    now += 7;
                    model.retain(|&(_, born)| now < born + 250);
                    let spent = book.spend(now);
                    match spent {
                        Some(permit) => {
                            prop_assert!(now + offset < permit.granted_at_ms + 250);
                            let at = model.iter().position(|&(g, _)| g == permit.granted_at_ms);
                            prop_assert!(at.is_some());
                            model.remove(at.unwrap());
                        }
                        None => prop_assert!(model.is_empty()),
                    }
                }
            }
        }
    }
}
