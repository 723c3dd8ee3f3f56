//! The admission authority (`lua/lease.lua`).

use crate::{
    Stock, StockError, keys,
    script::{integer, list},
};
use flashgate_shared::{SaleId, UnixMs, limits, wire::LeaseKind};

/// What is asked of the authority.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseAsk {
    /// The sale.
    pub sale: SaleId,
    /// Claims or entries.
    pub kind: LeaseKind,
    /// Permits wanted.
    pub want: u32,
    /// Permits a second that the bucket refills. Below 10⁻⁶ nothing is granted; above 10⁹ it is 10⁹.
    pub rate_per_s: f64,
}

/// What it granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Permits; may be 0.
    pub granted: u32,
    /// The authority's clock.
    pub now_ms: UnixMs,
    /// When asking again is worth it, in milliseconds.
    pub retry_ms: i64,
}

impl Stock {
    /// Takes permits from the sale's bucket.
    pub async fn lease(&self, ask: &LeaseAsk) -> Result<LeaseGrant, StockError> {
        self.lease_at(ask, None).await
    }

    /// As [`Stock::lease`], at a given moment in microseconds: for tests against a reference model.
    #[doc(hidden)]
    pub async fn lease_at(&self, ask: &LeaseAsk, now_us: Option<u64>) -> Result<LeaseGrant, StockError> {
        let mut arguments = vec![
            format!("{:.6}", ask.rate_per_s).into(),
            limits::LEASE_BURST_MS.to_string().into(),
            ask.want.min(limits::LEASE_WANT_MAX).to_string().into(),
        ];
        arguments.extend(now_us.map(|now| now.to_string().into()));
        let key = keys::lease(self.prefix(), &ask.sale, ask.kind);
        let answer = list(self.call(&self.scripts().lease, vec![key], arguments).await?)?;
        let granted = u32::try_from(integer(&answer, 0)?);
        Ok(LeaseGrant {
            granted: granted.map_err(|_| StockError::Protocol("a grant out of range".into()))?,
            now_ms: integer(&answer, 1)?,
            retry_ms: integer(&answer, 2)?,
        })
    }
}
