//! Small values of the command line: shares and prices.

use flashgate_shared::Money;
use std::{fmt, str::FromStr};

/// A share in hundredths of a percent, 0 to 10,000: `10%`, `0.5%`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

/// The whole, in hundredths of a percent.
const WHOLE: u32 = 10_000;

impl Share {
    /// Of `count` things, how many this share is, rounded down.
    pub fn of(self, count: u64) -> u64 {
        // Through 128 bits: no count is too large.
        (u128::from(count) * u128::from(self.0) / u128::from(WHOLE)) as u64
    }

    /// Whether it is none at all.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Both together, when that is not more than everything.
    pub fn plus(self, other: Share) -> Option<Share> {
        Some(Share(self.0 + other.0)).filter(|s| s.0 <= WHOLE)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 100.0)
    }
}

impl FromStr for Share {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not a share; write 0% to 100%, such as 10% or 0.5%");
        let number = text.trim().strip_suffix('%').ok_or_else(error)?;
        let hundredths = decimal(number.trim_end(), 2).ok_or_else(error)?;
        u32::try_from(hundredths).ok().filter(|h| *h <= WHOLE).map(Share).ok_or_else(error)
    }
}

/// Reads a price such as `199.00 EUR` or `5000 JPY` into minor units (ISO 4217).
pub fn price(text: &str) -> Result<Money, String> {
    let error = || format!("{text:?} is not a price; write an amount and a currency, such as \"199.00 EUR\"");
    let (amount, currency) = text.trim().split_once(char::is_whitespace).ok_or_else(error)?;
    let currency = currency.trim();
    let digits = minor_digits(currency);
    let amount_minor =
        decimal(amount, digits).ok_or_else(|| format!("{}; {currency} has {digits} decimals", error()))?;
    Ok(Money { amount_minor, currency: currency.to_owned().try_into().map_err(|_| error())? })
}

/// A price as people write it.
pub fn show_price(money: &Money) -> String {
    let currency = money.currency.as_str();
    let digits = minor_digits(currency);
    let scale = 10i64.pow(digits);
    let (whole, part) = (money.amount_minor / scale, money.amount_minor % scale);
    match digits {
        0 => format!("{whole} {currency}"),
        _ => format!("{whole}.{part:0width$} {currency}", width = digits as usize),
    }
}

/// Decimals of a currency (ISO 4217, column "minor unit").
fn minor_digits(currency: &str) -> u32 {
    match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI" | "VND"
        | "VUV" | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        _ => 2,
    }
}

/// A decimal number of at most `digits` decimals as an integer of the last one; no sign.
fn decimal(text: &str, digits: u32) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let all_digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let dot_without_part = text.contains('.') && part.is_empty();
    let width = digits as usize;
    if whole.is_empty() || !all_digits(whole) || !all_digits(part) || part.len() > width || dot_without_part {
        return None;
    }
    format!("{whole}{part:0<width$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_read_and_shown() {
        for (text, of_1000) in [("10%", 100), ("0%", 0), ("100%", 1000), ("0.5%", 5), (" 12.25 %", 122)] {
            assert_eq!(text.parse::<Share>().unwrap().of(1000), of_1000, "{text}");
        }
        for bad in ["", "%", "10", "0.1", "-1%", "100.01%", "1.234%", "1.%", "ten%", "99999999999999999999%"] {
            assert!(bad.parse::<Share>().unwrap_err().contains("write 0% to 100%"), "{bad}");
        }
        assert_eq!("12.5%".parse::<Share>().unwrap().to_string(), "12.5%");
        let (a, b): (Share, Share) = ("60%".parse().unwrap(), "40.01%".parse().unwrap());
        assert_eq!(a.plus(b), None);
        assert_eq!(a.plus("40%".parse().unwrap()), Some("100%".parse().unwrap()));
    }

    #[test]
    fn prices_follow_the_currencys_minor_unit() {
        for (text, minor) in
            [("199.00 EUR", 19_900), ("199 EUR", 19_900), ("0.5 EUR", 50), ("5000 JPY", 5_000), ("1.234 KWD", 1_234)]
        {
            let money = price(text).unwrap();
            assert_eq!(money.amount_minor, minor, "{text}");
            assert_eq!(price(&show_price(&money)).unwrap(), money);
        }
        for bad in
            ["199.00", "EUR 199", "199.001 EUR", "50.5 JPY", "-1 EUR", "1 eur", "1 EURO", "99999999999999999999 EUR"]
        {
            assert!(price(bad).unwrap_err().contains("199.00 EUR"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_share_and_its_rest_are_the_whole(hundredths in 0u32..=10_000, count in any::<u32>()) {
            let (share, rest) = (Share(hundredths), Share(10_000 - hundredths));
            let sum = share.of(u64::from(count)) + rest.of(u64::from(count));
            prop_assert!(sum <= u64::from(count) && sum + 1 >= u64::from(count));
        }
    }
}
