//! How long to wait before trying again.

use std::time::Duration;

/// Shortest wait between two attempts, in milliseconds.
const WAIT_MIN_MS: u64 = 50;
/// Longest wait between two attempts, in milliseconds; attempts never end.
const WAIT_MAX_MS: u64 = 2_000;

/// Waits that double up to a limit. Of each wait the second half is jitter, derived from the seed, so
/// that processes which lost the same broker do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    seed: u64,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, failures: 0 }
    }

    /// The next failure starts from the shortest wait again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait after one more failure.
    pub(crate) fn failed(&mut self) -> Duration {
        let full_ms = WAIT_MIN_MS.saturating_mul(1 << self.failures.min(16)).min(WAIT_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.seed = mix(self.seed);
        let half_ms = full_ms / 2;
        Duration::from_millis(half_ms + self.seed % (full_ms - half_ms + 1))
    }
}

/// One step of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_again() {
        let mut backoff = Backoff::new(7);
        let first = backoff.failed();
        assert!((25..=50).contains(&first.as_millis()), "{first:?}");
        for _ in 0..100 {
            assert!(backoff.failed() <= Duration::from_millis(WAIT_MAX_MS));
        }
        assert!(backoff.failed() >= Duration::from_millis(WAIT_MAX_MS / 2));
        backoff.reset();
        assert!(backoff.failed() <= Duration::from_millis(WAIT_MIN_MS));
    }

    #[test]
    fn two_processes_do_not_wait_in_step() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..8).map(|_| backoff.failed()).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
