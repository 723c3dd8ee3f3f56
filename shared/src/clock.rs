//! Time as an argument.

/// Milliseconds since 1970-01-01T00:00:00Z, leap seconds smeared as the system does.
pub type UnixMs = i64;

/// Where a component gets "now" from, so that tests and the edge (which follows the authority's
/// clock, not its own) can decide it.
pub trait Clock {
    /// The current time in milliseconds since the Unix epoch.
    fn now_ms(&self) -> UnixMs;
}

/// A clock that stands where it is put; for tests and for decisions at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedClock(pub UnixMs);

impl Clock for FixedClock {
    fn now_ms(&self) -> UnixMs {
        self.0
    }
}
