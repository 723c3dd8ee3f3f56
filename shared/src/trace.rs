//! One trace id from edge to ledger (W3C Trace Context, level 1: the `traceparent` header).

use crate::limits;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A W3C trace id: 16 bytes, not all zero. Text form: 32 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceId(u128);

/// Not a trace id or `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C trace id")]
pub struct TraceError;

impl TraceId {
    /// A trace id from 128 random bits; zero (invalid by the standard) becomes one.
    pub fn from_random(bits: u128) -> Self {
        Self(bits.max(1))
    }

    /// The text form. Every answer of the edge carries it, so it is written without the formatter,
    /// which takes 128-bit divisions that Wasm has not.
    pub fn hex(self) -> Hex {
        let mut digits = [0; 32];
        for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(self.0.to_be_bytes()) {
            *pair = [byte >> 4, byte & 15].map(|nibble| if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble });
        }
        Hex(digits)
    }

    /// The trace id of a `traceparent` header: `00-<32 hex>-<16 hex>-<2 hex>`.
    pub fn from_traceparent(header: &str) -> Result<Self, TraceError> {
        if header.len() != limits::TRACEPARENT_BYTES {
            return Err(TraceError);
        }
        let mut parts = header.split('-');
        let mut next = |digits: usize| match parts.next() {
            Some(p) if p.len() == digits && p.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => Ok(p),
            _ => Err(TraceError),
        };
        if next(2)? == "ff" {
            return Err(TraceError);
        }
        let trace = next(32)?.parse()?;
        if next(16)?.bytes().all(|b| b == b'0') {
            return Err(TraceError);
        }
        next(2)?;
        Ok(trace)
    }

    /// The `traceparent` to send on, with this hop's own span id (zero becomes one), sampled.
    pub fn traceparent(self, span: u64) -> String {
        format!("00-{self}-{:016x}-01", span.max(1))
    }
}

/// The 32 hexadecimal digits of a trace id, on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hex([u8; 32]);

impl Hex {
    /// The digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hex().as_str())
    }
}

impl FromStr for TraceId {
    type Err = TraceError;
    fn from_str(text: &str) -> Result<Self, TraceError> {
        let lower_hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 32 || !lower_hex {
            return Err(TraceError);
        }
        match u128::from_str_radix(text, 16) {
            Ok(0) | Err(_) => Err(TraceError),
            Ok(bits) => Ok(Self(bits)),
        }
    }
}

impl TryFrom<String> for TraceId {
    type Error = TraceError;
    fn try_from(text: String) -> Result<Self, TraceError> {
        text.parse()
    }
}

impl From<TraceId> for String {
    fn from(id: TraceId) -> String {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_32_lower_case_digits() {
        for (bits, text) in [
            (1, "00000000000000000000000000000001"),
            (0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, "0123456789abcdeffedcba9876543210"),
            (u128::MAX, "ffffffffffffffffffffffffffffffff"),
        ] {
            assert_eq!(TraceId::from_random(bits).to_string(), text);
            assert_eq!(text.parse(), Ok(TraceId::from_random(bits)));
        }
    }

    #[test]
    fn traceparents_are_read_strictly() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let id = TraceId::from_traceparent(good).unwrap();
        assert_eq!(id.traceparent(0x00f0_67aa_0ba9_02b7), good);
        for bad in [
            "",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
        ] {
            assert_eq!(TraceId::from_traceparent(bad), Err(TraceError), "{bad}");
        }
    }
}
