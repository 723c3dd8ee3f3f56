//! What the generator counts while the crowd is at it.

use super::buyer::{Act, Answer};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Longest time a histogram tells apart, in microseconds: ten minutes.
const HISTOGRAM_MAX_US: u64 = 600_000_000;
/// Kinds of refusal that are counted apart; the catalogue has about thirty.
const KINDS_MAX: usize = 64;

/// Three figures of a distribution, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Millis {
    /// Half are at most this.
    pub p50: f64,
    /// All but one in a hundred are at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// A histogram of microseconds with three significant digits.
#[derive(Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HISTOGRAM_MAX_US, 3).expect("the bounds are sound"))
    }
}

impl Times {
    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(HISTOGRAM_MAX_US);
        self.0.saturating_record(us.max(1));
    }

    /// The three figures.
    pub fn millis(&self) -> Millis {
        let ms = |us: u64| us as f64 / 1000.0;
        let round = |v: f64| (v * 100.0).round() / 100.0;
        Millis {
            p50: round(ms(self.0.value_at_quantile(0.5))),
            p99: round(ms(self.0.value_at_quantile(0.99))),
            max: round(ms(self.0.max())),
        }
    }
}

/// The counts.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests begun.
    pub requests: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Clicks that were answered, whatever the answer.
    pub clicks_answered: u64,
    /// 202s.
    pub accepted: u64,
    /// Answers by request and status.
    pub answers: BTreeMap<(Act, u16), u64>,
    /// Refused clicks by the kind in the problem document.
    pub refusals: BTreeMap<String, u64>,
    /// From opening the connection of a click to the end of its answer.
    pub answer: Times,
    /// How long a click waited in the generator for a free connection: no part of the answer time.
    pub queued: Times,
    /// Most connections at once.
    pub connections: usize,
    /// When the last entry succeeded.
    pub last_entry: Option<Instant>,
    /// When the last click was answered.
    pub last_click: Option<Instant>,
    /// Entries that succeeded.
    pub entered: u64,
}

impl Tally {
    /// Counts an answer to `act` that was due at `due`, begun at `begun` and there at `done`.
    pub fn count(&mut self, act: Act, answer: &Answer, due: Instant, begun: Instant, done: Instant) {
        let status = answer.status();
        *self.answers.entry((act, status)).or_default() += 1;
        if status == 0 {
            self.lost += 1;
            return;
        }
        match act {
            Act::Enter if status == 200 => {
                self.entered += 1;
                self.last_entry = Some(done);
            }
            Act::Claim => {
                self.clicks_answered += 1;
                self.last_click = Some(done);
                self.answer.record(done.saturating_duration_since(begun));
                self.queued.record(begun.saturating_duration_since(due));
                if status == 202 {
                    self.accepted += 1;
                } else {
                    self.count_refusal(answer);
                }
            }
            _ => {}
        }
    }

    fn count_refusal(&mut self, answer: &Answer) {
        let kind = kind_of(answer).unwrap_or("unknown");
        if let Some(count) = self.refusals.get_mut(kind) {
            *count += 1;
        } else if self.refusals.len() < KINDS_MAX {
            self.refusals.insert(kind.to_owned(), 1);
        }
    }

    /// Answers with this status, to whatever request.
    pub fn with_status(&self, status: u16) -> u64 {
        let of_status = self.answers.iter().filter(|((_, s), _)| *s == status);
        of_status.map(|(_, count)| count).sum()
    }

    /// The answers as a report names them: `claim 503`.
    pub fn named_answers(&self) -> BTreeMap<String, u64> {
        let name = |(act, status): &(Act, u16)| match status {
            0 => format!("{} lost", act.as_str()),
            _ => format!("{} {status}", act.as_str()),
        };
        self.answers.iter().map(|(key, count)| (name(key), *count)).collect()
    }
}

/// The kind in a problem document, found without reading it all: there are a hundred thousands.
fn kind_of(answer: &Answer) -> Option<&str> {
    let Answer::Http { body, .. } = answer else {
        return None;
    };
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("\"/problems/")?;
    rest.split_once('"').map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::problem::{Problem, ProblemKind};

    #[test]
    fn clicks_are_timed_and_refusals_told_apart() {
        let mut tally = Tally::default();
        let due = Instant::now();
        let begun = due + Duration::from_millis(30);
        let refusal = |kind: ProblemKind| Answer::Http {
            status: kind.status(),
            retry_after_ms: None,
            body: serde_json::to_vec(&Problem::new(kind)).unwrap().into(),
        };
        for (ms, kind) in [(10, ProblemKind::TryAgain), (20, ProblemKind::TryAgain), (40, ProblemKind::SoldOut)] {
            tally.count(Act::Claim, &refusal(kind), due, begun, begun + Duration::from_millis(ms));
        }
        tally.count(Act::Claim, &Answer::Lost, due, begun, begun + Duration::from_secs(20));
        assert_eq!(tally.refusals, BTreeMap::from([("sold-out".into(), 1), ("try-again".into(), 2)]));
        assert_eq!((tally.clicks_answered, tally.lost), (3, 1));
        let answer = tally.answer.millis();
        assert!((19.9..20.1).contains(&answer.p50) && (39.9..40.1).contains(&answer.max), "{answer:?}");
        assert!((29.9..30.1).contains(&tally.queued.millis().p50));
        assert_eq!(tally.named_answers()["claim lost"], 1);
        assert_eq!(tally.with_status(503), 2);
    }
}
