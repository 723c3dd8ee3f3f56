//! Which fault comes when: drawn from a seed, the same for the same seed on every machine.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;
use std::{fmt, time::Duration};

/// Between two faults, in milliseconds: at least, and at most.
const BETWEEN_MS: (u64, u64) = (2_000, 9_000);
/// How long a pause or a silence lasts, in milliseconds: at least, and at most.
const LASTS_MS: (u64, u64) = (200, 5_000);
/// How long a process that was killed stays away, in milliseconds, at most.
const AWAY_MS: u64 = 2_000;

/// What is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// One of the origin processes.
    Origin(usize),
    /// One of the edge processes.
    Edge(usize),
    /// Redis.
    Redis,
    /// RabbitMQ.
    Rabbit,
    /// Postgres.
    Postgres,
}

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL, and started again.
    Kill,
    /// SIGTERM, and started again.
    Restart,
    /// SIGSTOP, then SIGCONT.
    Pause,
    /// All its connections break.
    Cut,
    /// Its connections stand, and nothing passes.
    Silence,
    /// Killed, and started again with nothing.
    Empty,
    /// Killed, and started again with data of the past.
    Past,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// After the fault before.
    pub after: Duration,
    /// What.
    pub part: Part,
    /// How.
    pub kind: Kind,
    /// How long.
    pub lasts: Duration,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origin(i) => write!(f, "origin {i}"),
            Self::Edge(i) => write!(f, "edge {i}"),
            Self::Redis => f.write_str("Redis"),
            Self::Rabbit => f.write_str("RabbitMQ"),
            Self::Postgres => f.write_str("Postgres"),
        }
    }
}

impl Kind {
    /// The word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Restart => "restarted",
            Self::Pause => "paused",
            Self::Cut => "cut off",
            Self::Silence => "silent",
            Self::Empty => "emptied",
            Self::Past => "set back in time",
        }
    }
}

impl Fault {
    /// The kind of thing in reports: `Redis emptied`.
    pub fn name(&self) -> String {
        let part = match self.part {
            Part::Origin(_) => "origin".to_owned(),
            Part::Edge(_) => "edge".to_owned(),
            part => part.to_string(),
        };
        format!("{part} {}", self.kind.as_str())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} for {} ms", self.part, self.kind.as_str(), self.lasts.as_millis())
    }
}

/// What there is to draw from; what hurts most comes a little oftener.
const DECK: [(Part, Kind); 24] = [
    (Part::Origin(0), Kind::Kill),
    (Part::Origin(1), Kind::Kill),
    (Part::Origin(0), Kind::Kill),
    (Part::Origin(0), Kind::Restart),
    (Part::Origin(0), Kind::Pause),
    (Part::Origin(1), Kind::Pause),
    (Part::Edge(0), Kind::Kill),
    (Part::Edge(1), Kind::Kill),
    (Part::Edge(0), Kind::Pause),
    (Part::Redis, Kind::Kill),
    (Part::Redis, Kind::Restart),
    (Part::Redis, Kind::Pause),
    (Part::Redis, Kind::Cut),
    (Part::Redis, Kind::Silence),
    (Part::Redis, Kind::Empty),
    (Part::Redis, Kind::Empty),
    (Part::Redis, Kind::Past),
    (Part::Redis, Kind::Past),
    (Part::Rabbit, Kind::Restart),
    (Part::Rabbit, Kind::Cut),
    (Part::Rabbit, Kind::Silence),
    (Part::Postgres, Kind::Restart),
    (Part::Postgres, Kind::Cut),
    (Part::Postgres, Kind::Silence),
];

/// The faults of so long a torment.
pub fn schedule(seed: u64, length: Duration) -> Vec<Fault> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut faults, mut at) = (Vec::new(), Duration::ZERO);
    loop {
        let after = Duration::from_millis(random.random_range(BETWEEN_MS.0..=BETWEEN_MS.1));
        let (part, kind) = DECK[random.random_range(0..DECK.len())];
        let lasts = Duration::from_millis(match kind {
            Kind::Pause | Kind::Silence => random.random_range(LASTS_MS.0..=LASTS_MS.1),
            Kind::Kill | Kind::Restart => random.random_range(0..=AWAY_MS),
            Kind::Cut | Kind::Empty | Kind::Past => 0,
        });
        at += after + lasts;
        if at > length {
            return faults;
        }
        faults.push(Fault { after, part, kind, lasts });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_faults_and_ten_minutes_hold_many_of_all_kinds() {
        let ten = Duration::from_secs(600);
        assert_eq!(schedule(1, ten), schedule(1, ten));
        assert_ne!(schedule(1, ten), schedule(2, ten));
        let all: Vec<_> = (1..=5).flat_map(|seed| schedule(seed, ten)).collect();
        assert!(all.len() >= 300, "{}", all.len());
        for (part, kind) in DECK {
            assert!(all.iter().any(|fault| (fault.part, fault.kind) == (part, kind)), "never {part} {kind:?}");
        }
    }
}
