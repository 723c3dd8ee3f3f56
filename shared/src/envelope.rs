//! What travels through the queue: one claim, versioned.

use crate::{
    clock::UnixMs,
    ids::{BuyerId, ClaimId, HoldId, SaleId},
    trace::TraceId,
};
use serde::{Deserialize, Serialize};

/// The version that this code writes.
pub const ENVELOPE_VERSION: u32 = 1;

/// One claimed unit on its way from the gate's outbox to the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEnvelope {
    /// Always [`ENVELOPE_VERSION`] when written here.
    pub v: u32,
    /// The sale.
    pub sale: SaleId,
    /// The claim.
    pub claim_id: ClaimId,
    /// Who claims.
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// The hold that `claim.lua` minted.
    pub hold: HoldId,
    /// When the gate said OK, by the origin's clock.
    pub claimed_at_ms: UnixMs,
    /// The request's trace.
    pub trace_id: TraceId,
}

/// Why a message body is no envelope.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Not JSON, or a field is missing or out of its range.
    #[error("not an envelope: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A version this code does not read.
    #[error("envelope version {0} is not known here")]
    Version(u32),
    /// A quantity of zero.
    #[error("an envelope's quantity must be at least 1")]
    Quantity,
}

impl ClaimEnvelope {
    /// The message body.
    pub fn encode(&self) -> Vec<u8> {
        // A struct of strings and integers always serialises.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a message body. Unknown fields are ignored, so that a newer origin may add some.
    pub fn decode(body: &[u8]) -> Result<Self, EnvelopeError> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let Version { v } = serde_json::from_slice(body)?;
        if v != ENVELOPE_VERSION {
            return Err(EnvelopeError::Version(v));
        }
        let envelope: Self = serde_json::from_slice(body)?;
        if envelope.quantity == 0 {
            return Err(EnvelopeError::Quantity);
        }
        Ok(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> ClaimEnvelope {
        ClaimEnvelope {
            v: ENVELOPE_VERSION,
            sale: "s".parse().unwrap(),
            claim_id: ClaimId::derive(&"s".parse().unwrap(), &"b".parse().unwrap(), &"k".parse().unwrap()),
            buyer: "b".parse().unwrap(),
            quantity: 2,
            hold: "1.0.5-1".parse().unwrap(),
            claimed_at_ms: 5,
            trace_id: TraceId::from_random(7),
        }
    }

    #[test]
    fn envelopes_round_trip_and_refuse_what_they_do_not_know() {
        assert_eq!(ClaimEnvelope::decode(&envelope().encode()).unwrap(), envelope());
        let with = |f: &dyn Fn(&mut serde_json::Value)| {
            let mut json = serde_json::to_value(envelope()).unwrap();
            f(&mut json);
            ClaimEnvelope::decode(json.to_string().as_bytes())
        };
        assert!(with(&|j| j["extra"] = 1.into()).is_ok());
        assert!(matches!(with(&|j| j["v"] = 2.into()), Err(EnvelopeError::Version(2))));
        assert!(matches!(with(&|j| j["quantity"] = 0.into()), Err(EnvelopeError::Quantity)));
        assert!(matches!(with(&|j| j["quantity"] = (-1).into()), Err(EnvelopeError::Malformed(_))));
        assert!(matches!(ClaimEnvelope::decode(b"junk"), Err(EnvelopeError::Malformed(_))));
    }
}
