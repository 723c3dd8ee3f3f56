//! The roles that run in the background: supervised loops, idempotent, on a timer and when nudged.

pub mod confirmed;
pub mod outbox;
pub mod rebuild;
pub mod reconcile;
pub mod refunds;
pub mod releases;
pub mod retention;
pub mod settle;
pub mod sweep;

use futures_util::FutureExt;
use std::{fmt::Display, future::Future, panic::AssertUnwindSafe, time::Duration};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long a loop that panicked stays down.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Waits, or until shutdown.
pub async fn pause(period: Duration, shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep(period) => {}
    }
}

/// Waits, or until nudged, or until shutdown.
pub async fn pause_or(period: Duration, nudge: impl Future<Output = ()>, shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = nudge => {}
        () = tokio::time::sleep(period) => {}
    }
}

/// Runs a loop until it returns, and again when it panics: what it was doing is a record somewhere.
pub async fn supervise<F: Future<Output = ()>>(name: &'static str, shutdown: CancellationToken, body: impl Fn() -> F) {
    while AssertUnwindSafe(body()).catch_unwind().await.is_err() {
        metrics::counter!("flashgate_role_panics_total", "role" => name).increment(1);
        tracing::error!(role = name, "a background loop panicked and is started again");
        pause(RESTART_AFTER, &shutdown).await;
    }
}

/// When the next step of a loop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// There is more to do now.
    AtOnce,
    /// After this time, or when nudged.
    After(Duration),
}

/// The pace of a loop: rests between its steps, until shutdown. Failures in a row are told once, and the
/// waits between them double.
#[derive(Debug)]
pub struct Pace<'a> {
    what: &'static str,
    nudge: Option<&'a Notify>,
    shutdown: &'a CancellationToken,
    backoff: Backoff,
}

impl<'a> Pace<'a> {
    /// Of the loop `what`, which may be nudged.
    pub fn new(what: &'static str, nudge: Option<&'a Notify>, shutdown: &'a CancellationToken) -> Self {
        Self { what, nudge, shutdown, backoff: Backoff::new() }
    }

    /// Whether there is a next step.
    pub fn goes_on(&self) -> bool {
        !self.shutdown.is_cancelled()
    }

    /// Rests after a step.
    pub async fn rest<E: Display>(&mut self, step: Result<Next, E>) {
        let wait = match step {
            Ok(next) => {
                self.backoff = Backoff::new();
                match next {
                    Next::AtOnce => return,
                    Next::After(wait) => wait,
                }
            }
            Err(error) => {
                if self.backoff.is_fresh() {
                    tracing::warn!(%error, role = self.what, "a background loop fails; it goes on trying");
                }
                self.backoff.failed()
            }
        };
        match self.nudge {
            Some(nudge) => pause_or(wait, nudge.notified(), self.shutdown).await,
            None => pause(wait, self.shutdown).await,
        }
    }
}

/// Doubling waits between failures of one loop.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next_ms: u64,
}

impl Backoff {
    const FIRST_MS: u64 = 100;
    const LAST_MS: u64 = 5_000;

    /// As after a success.
    pub const fn new() -> Self {
        Self { next_ms: Self::FIRST_MS }
    }

    /// Whether the last attempt was a success: a failure after it is news.
    pub const fn is_fresh(&self) -> bool {
        self.next_ms == Self::FIRST_MS
    }

    /// The wait after one more failure.
    pub fn failed(&mut self) -> Duration {
        let wait = crate::http::problem::jitter(self.next_ms);
        self.next_ms = (self.next_ms * 2).min(Self::LAST_MS);
        Duration::from_millis(wait)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn a_loop_that_panics_is_started_again() {
        let runs = AtomicU32::new(0);
        supervise("test", CancellationToken::new(), || async {
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                panic!("once");
            }
        })
        .await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn waits_grow_to_a_limit() {
        let mut backoff = Backoff::new();
        for _ in 0..20 {
            backoff.failed();
        }
        assert_eq!(backoff.next_ms, Backoff::LAST_MS);
    }
}
