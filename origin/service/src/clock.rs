//! The origin's estimate of the authority's clock: Redis's own time (design §5).
//!
//! Between samples it runs on the monotonic clock, so that a step of this machine's clock moves
//! nothing. The estimate carries its error, which counts against every permit.

use flashgate_shared::{Clock, UnixMs};
use flashgate_stock::Stock;
use std::{
    sync::RwLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio_util::sync::CancellationToken;

/// How often the authority is asked, in milliseconds.
const SAMPLE_PERIOD_MS: u64 = 250;
/// How far two machines' clocks may drift apart, in milliseconds a millisecond.
const DRIFT: f64 = 0.0005;
/// The error of a clock that has never heard from the authority: no permit passes.
const UNKNOWN_ERROR_MS: i64 = i64::MAX / 4;

/// One exchange with the authority, or the best of many.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    /// The authority's time minus our monotonic time, in milliseconds.
    offset_ms: f64,
    /// How far `offset_ms` may be off, either way, at `taken_ms`.
    error_ms: f64,
    /// Our monotonic time then, in milliseconds.
    taken_ms: f64,
}

impl Estimate {
    /// What an exchange tells. The authority's milliseconds are truncated: half of one is added back.
    fn from_exchange(sent_ms: f64, received_ms: f64, authority_ms: UnixMs) -> Self {
        let half = (received_ms - sent_ms) / 2.0;
        Self { offset_ms: authority_ms as f64 + 0.5 - (sent_ms + half), error_ms: half + 0.5, taken_ms: received_ms }
    }

    fn error_at(&self, mono_ms: f64) -> f64 {
        self.error_ms + (mono_ms - self.taken_ms).max(0.0) * DRIFT
    }

    /// The better of the two; the newer when they contradict each other, for then the clock stepped.
    fn better(self, newer: Self) -> Self {
        let old_error = self.error_at(newer.taken_ms);
        let contradict = (self.offset_ms - newer.offset_ms).abs() > old_error + newer.error_ms;
        if contradict || newer.error_ms <= old_error { newer } else { self }
    }
}

/// A moment by the authority's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The estimate, in Unix milliseconds.
    pub now_ms: UnixMs,
    /// How far it may be off, either way, in milliseconds.
    pub error_ms: i64,
}

/// The clock that every decision of the origin reads.
#[derive(Debug)]
pub struct AuthorityClock {
    start: Instant,
    best: RwLock<Option<Estimate>>,
}

impl Default for AuthorityClock {
    fn default() -> Self {
        Self { start: Instant::now(), best: RwLock::new(None) }
    }
}

impl AuthorityClock {
    /// Microseconds since the process started; never goes back.
    pub fn mono_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn mono_ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1_000.0
    }

    /// Now, and how sure that is.
    pub fn moment(&self) -> Moment {
        let best = *self.best.read().unwrap_or_else(|e| e.into_inner());
        let mono_ms = self.mono_ms();
        match best {
            Some(e) => Moment {
                now_ms: (mono_ms + e.offset_ms).floor() as UnixMs,
                error_ms: e.error_at(mono_ms).ceil() as i64,
            },
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Moment { now_ms: since.as_millis() as UnixMs, error_ms: UNKNOWN_ERROR_MS }
            }
        }
    }

    /// Asks the authority once.
    pub async fn sample(&self, stock: &Stock) -> Result<(), flashgate_stock::StockError> {
        let sent_ms = self.mono_ms();
        let authority_ms = stock.now_ms().await?;
        let newer = Estimate::from_exchange(sent_ms, self.mono_ms(), authority_ms);
        let mut best = self.best.write().unwrap_or_else(|e| e.into_inner());
        *best = Some(best.map_or(newer, |old| old.better(newer)));
        Ok(())
    }

    /// Keeps the estimate fresh until shutdown.
    pub async fn run(&self, stock: &Stock, shutdown: &CancellationToken) {
        let mut failing = false;
        while !shutdown.is_cancelled() {
            let result = self.sample(stock).await;
            match &result {
                Err(error) if !failing => tracing::warn!(%error, "the authority's clock does not answer"),
                Ok(()) if failing => tracing::info!("the authority's clock answers again"),
                _ => {}
            }
            failing = result.is_err();
            crate::roles::pause(Duration::from_millis(SAMPLE_PERIOD_MS), shutdown).await;
        }
    }
}

impl Clock for AuthorityClock {
    fn now_ms(&self) -> UnixMs {
        self.moment().now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_exchange_wins_until_it_has_aged() {
        let tight = Estimate::from_exchange(100.0, 101.0, 5_000);
        assert_eq!(tight.error_ms, 1.0);
        let loose = Estimate::from_exchange(200.0, 210.0, 5_104);
        assert_eq!(tight.better(loose), tight);
        let later = Estimate::from_exchange(30_000.0, 30_010.0, 34_905);
        assert_eq!(tight.better(later), later);
    }

    #[test]
    fn a_contradiction_means_that_the_clock_stepped() {
        let tight = Estimate::from_exchange(100.0, 101.0, 5_000);
        let stepped = Estimate::from_exchange(200.0, 230.0, 9_000);
        assert_eq!(tight.better(stepped), stepped);
    }

    #[test]
    fn before_the_first_exchange_no_permit_passes() {
        let moment = AuthorityClock::default().moment();
        let permit = flashgate_shared::admission::Permit { granted_at_ms: moment.now_ms, epoch: 1 };
        assert!(permit.check(moment.now_ms, moment.error_ms, 1).is_err());
    }
}
