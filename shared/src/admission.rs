//! The admission bound (design I6) and the permit that carries it.

use crate::{clock::UnixMs, ids::Epoch, limits};
use std::{fmt, str::FromStr};

/// The right to forward one claim: the value of the `Flashgate-Permit` header,
/// `<granted_at_ms>.<epoch>`. The grant time is the authority's, so no edge clock is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// When the authority granted the lease this permit is from, by its own clock.
    pub granted_at_ms: UnixMs,
    /// The gate's epoch then: fences a split brain of authorities.
    pub epoch: Epoch,
}

/// Why a permit is refused by the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// Not `<granted_at_ms>.<epoch>`.
    #[error("the permit is malformed")]
    Malformed,
    /// Older than a lease's life plus transit.
    #[error("the permit is stale")]
    Stale,
    /// Granted later than now: a clock or an edge lies.
    #[error("the permit is from the future")]
    Future,
    /// Of another epoch.
    #[error("the permit is of another epoch")]
    Epoch,
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.granted_at_ms, self.epoch)
    }
}

impl FromStr for Permit {
    type Err = PermitError;
    fn from_str(text: &str) -> Result<Self, PermitError> {
        let (at, epoch) = text.split_once('.').ok_or(PermitError::Malformed)?;
        Ok(Self {
            granted_at_ms: at.parse().map_err(|_| PermitError::Malformed)?,
            epoch: epoch.parse().map_err(|_| PermitError::Malformed)?,
        })
    }
}

impl Permit {
    /// Whether the origin takes this permit at `authority_now_ms`, its estimate of the authority's
    /// clock, which may be off by `clock_error_ms` either way. The error counts against the permit.
    pub fn check(&self, authority_now_ms: UnixMs, clock_error_ms: i64, epoch: Epoch) -> Result<(), PermitError> {
        if self.epoch != epoch {
            return Err(PermitError::Epoch);
        }
        let age_ms = authority_now_ms.saturating_sub(self.granted_at_ms);
        if age_ms.saturating_add(clock_error_ms) > limits::LEASE_LIFE_MS + limits::PERMIT_TRANSIT_MS {
            return Err(PermitError::Stale);
        }
        if age_ms < -clock_error_ms - 1 {
            return Err(PermitError::Future);
        }
        Ok(())
    }
}

/// Most claims that may pass the origin's permit check in any `window_s` seconds (design I6), for
/// the largest stock of the window.
pub fn claims_bound(admit_factor: f64, stock: u32, window_s: f64) -> f64 {
    admit_factor * f64::from(stock.max(1)) * (window_s + 0.5) + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_age_by_the_authoritys_clock() {
        let permit: Permit = "1000.3".parse().unwrap();
        assert_eq!(permit.to_string(), "1000.3");
        assert_eq!(permit.check(1400, 0, 3), Ok(()));
        assert_eq!(permit.check(1401, 0, 3), Err(PermitError::Stale));
        assert_eq!(permit.check(1400, 1, 3), Err(PermitError::Stale));
        assert_eq!(permit.check(998, 0, 3), Err(PermitError::Future));
        assert_eq!(permit.check(1000, 0, 4), Err(PermitError::Epoch));
        for bad in ["", "1000", "x.1", "1.x", "1.2.3"] {
            assert_eq!(bad.parse::<Permit>(), Err(PermitError::Malformed), "{bad}");
        }
    }

    #[test]
    fn the_bound_is_the_designs() {
        assert_eq!(claims_bound(5.0, 100, 1.0), 751.0);
        assert_eq!(claims_bound(5.0, 100, 10.0), 5251.0);
    }
}
