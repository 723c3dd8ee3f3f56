//! The authority's clock, as this edge knows it: the origin's answers carry `now_ms`, the round trip
//! bounds the error. Windows and tokens are judged by it, so that a wrong edge clock opens nothing.

use crate::limits::DRIFT_ONE_IN;
use flashgate_shared::UnixMs;

/// One measured difference of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// Authority minus edge.
    offset_ms: i64,
    /// How far that may be off, either way, when it was taken.
    error_ms: i64,
    /// When, by the edge's clock.
    taken_at_ms: UnixMs,
}

impl Sample {
    /// The error grows with age, because clocks drift.
    fn error_at(&self, edge_now_ms: UnixMs) -> i64 {
        let age_ms = edge_now_ms.saturating_sub(self.taken_at_ms).max(0);
        self.error_ms.saturating_add(age_ms / DRIFT_ONE_IN)
    }
}

/// The best estimate of the authority's clock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct AuthorityClock {
    best: Option<Sample>,
}

impl AuthorityClock {
    /// Learns from an answer: asked at `sent_ms`, answered at `received_ms` (edge clock), at some
    /// moment in between the authority's clock showed `authority_ms`.
    pub(crate) fn learn(&mut self, sent_ms: UnixMs, received_ms: UnixMs, authority_ms: UnixMs) {
        let round_trip_ms = received_ms.saturating_sub(sent_ms);
        if round_trip_ms < 0 {
            return; // the edge's own clock was set back in between
        }
        let fresh = Sample {
            offset_ms: authority_ms.saturating_sub(sent_ms.saturating_add(round_trip_ms / 2)),
            // Half the round trip, and what whole milliseconds hide.
            error_ms: round_trip_ms / 2 + 1,
            taken_at_ms: received_ms,
        };
        let keep_old = self.best.is_some_and(|old| {
            let apart_ms = old.offset_ms.abs_diff(fresh.offset_ms);
            let old_error_ms = old.error_at(received_ms);
            // Samples that contradict each other: one of the clocks was set; only the new one counts.
            let agree = apart_ms <= old_error_ms.saturating_add(fresh.error_ms).unsigned_abs();
            agree && old_error_ms < fresh.error_ms && old.taken_at_ms <= received_ms
        });
        if !keep_old {
            self.best = Some(fresh);
        }
    }

    /// The authority's time; the edge's own before anything was heard.
    pub(crate) fn now_ms(&self, edge_now_ms: UnixMs) -> UnixMs {
        edge_now_ms.saturating_add(self.best.map_or(0, |s| s.offset_ms))
    }

    /// How far [`Self::now_ms`] may be off, either way; `None` before anything was heard.
    pub(crate) fn error_ms(&self, edge_now_ms: UnixMs) -> Option<i64> {
        self.best.map(|s| s.error_at(edge_now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_round_trip_wins_until_it_has_aged_or_a_clock_was_set() {
        let mut clock = AuthorityClock::default();
        assert_eq!((clock.now_ms(5), clock.error_ms(5)), (5, None));
        clock.learn(1000, 1010, 2005);
        assert_eq!((clock.now_ms(1010), clock.error_ms(1010)), (2010, Some(6)));
        clock.learn(1100, 1200, 2160);
        assert_eq!(clock.now_ms(1200), 2200, "a worse sample that agrees changes nothing");
        clock.learn(1300, 1302, 2303);
        assert_eq!((clock.now_ms(1302), clock.error_ms(1302)), (2304, Some(2)));
        clock.learn(2000, 2100, 9000);
        assert_eq!(clock.now_ms(2100), 9050, "a clock was set: the old sample is void");
        clock.learn(3000, 2900, 1);
        assert_eq!(clock.now_ms(3000), 9950, "the edge's own step back teaches nothing");
    }

    proptest! {
        #[test]
        fn the_error_bound_holds(offset in -1_000_000i64..1_000_000, trips in prop::collection::vec((0i64..300, 0i64..300, 0i64..5_000), 1..20)) {
            let mut clock = AuthorityClock::default();
            let mut now = 10_000_000i64;
            for (there, back, idle) in trips {
                let sent = now;
                now += there;
                let authority = now + offset;
                now += back;
                clock.learn(sent, now, authority);
                now += idle;
                let off = (clock.now_ms(now) - (now + offset)).abs();
                prop_assert!(off <= clock.error_ms(now).unwrap());
            }
        }
    }
}
