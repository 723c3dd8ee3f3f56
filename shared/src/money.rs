//! Money: an integer amount of minor units and a currency. No floats, no conversion.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An amount in the currency's minor unit (cents for EUR, yen for JPY).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Money {
    /// Minor units; never negative in a price.
    pub amount_minor: i64,
    /// ISO 4217 code, three upper-case letters.
    pub currency: Currency,
}

impl Money {
    /// This price for `quantity` units; `None` when it does not fit.
    pub fn times(&self, quantity: u32) -> Option<Money> {
        let amount_minor = self.amount_minor.checked_mul(i64::from(quantity))?;
        Some(Money { amount_minor, currency: self.currency.clone() })
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (minor units)", self.amount_minor, self.currency.as_str())
    }
}

/// An ISO 4217 alphabetic code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency(String);

impl Currency {
    /// The code, e.g. `EUR`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Currency {
    type Error = &'static str;
    fn try_from(code: String) -> Result<Self, Self::Error> {
        if code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase()) {
            Ok(Self(code))
        } else {
            Err("a currency is three upper-case letters (ISO 4217)")
        }
    }
}

impl From<Currency> for String {
    fn from(code: Currency) -> String {
        code.0
    }
}
