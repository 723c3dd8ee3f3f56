//! `flashgate sale set` and `rollback`: other settings for a sale, or those it had.

use crate::{admin::AdminClient, times};
use anyhow::{Context, Result};
use clap::Args;
use flashgate_shared::{SaleId, sale::SaleConfig, wire::AdminSale};

#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    /// The sale
    #[arg(value_name = "SALE")]
    pub(super) id: SaleId,
    /// The version whose settings are wanted
    #[arg(long, value_name = "VERSION")]
    to: i64,
}

/// What is not given stays.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("setting").required(true).multiple(true)))]
pub(super) struct SetArgs {
    /// The sale
    #[arg(value_name = "SALE")]
    pub(super) id: SaleId,
    /// What buyers see
    #[arg(long, group = "setting")]
    title: Option<String>,
    /// A sentence for buyers
    #[arg(long, group = "setting")]
    description: Option<String>,
    /// The opening, with a zone, "in 30s" or now
    #[arg(long, value_name = "TIME", group = "setting")]
    opens: Option<String>,
    /// The end, written like --opens
    #[arg(long, value_name = "TIME", group = "setting")]
    closes: Option<String>,
    /// Most units in one claim
    #[arg(long, value_name = "UNITS", group = "setting")]
    per_buyer: Option<u32>,
    /// How long a buyer may take to start paying
    #[arg(long, value_name = "LENGTH", group = "setting")]
    pay_window: Option<String>,
    /// How long after that a payment made in time may arrive
    #[arg(long, value_name = "LENGTH", group = "setting")]
    grace: Option<String>,
    /// Claims admitted a second, as a multiple of the stock
    #[arg(long, value_name = "FACTOR", group = "setting")]
    admit_factor: Option<f64>,
    /// Entries admitted a second
    #[arg(long, value_name = "RATE", group = "setting")]
    enter_rate: Option<f64>,
}

impl SetArgs {
    /// The settings with the changes.
    fn apply(&self, sale: SaleConfig, now: jiff::Timestamp) -> Result<SaleConfig> {
        let time = |text: &Option<String>, option: &'static str, old: i64| -> Result<i64> {
            let Some(text) = text else { return Ok(old) };
            Ok(times::parse(text, now).context(option)?.as_millisecond())
        };
        let length = |text: &Option<String>, option: &'static str, old: i64| -> Result<i64> {
            text.as_ref().map_or(Ok(old), |text| times::length_ms(text).context(option))
        };
        let sale = SaleConfig {
            opens_at_ms: time(&self.opens, "--opens", sale.opens_at_ms)?,
            closes_at_ms: time(&self.closes, "--closes", sale.closes_at_ms)?,
            pay_window_ms: length(&self.pay_window, "--pay-window", sale.pay_window_ms)?,
            grace_ms: length(&self.grace, "--grace", sale.grace_ms)?,
            title: self.title.clone().unwrap_or(sale.title),
            description: self.description.clone().unwrap_or(sale.description),
            per_buyer_limit: self.per_buyer.unwrap_or(sale.per_buyer_limit),
            admit_factor: self.admit_factor.unwrap_or(sale.admit_factor),
            enter_rate_per_s: self.enter_rate.unwrap_or(sale.enter_rate_per_s),
            ..sale
        };
        sale.validate()?;
        Ok(sale)
    }
}

impl SetArgs {
    /// Changes the sale. Somebody else's change meanwhile is not overwritten: it is told.
    pub(super) async fn run(&self, admin: &AdminClient) -> Result<AdminSale> {
        let now = admin.show(&self.id).await?.sale;
        Ok(admin.change(&self.apply(now, jiff::Timestamp::now())?).await?)
    }
}

impl RollbackArgs {
    /// Makes the old settings the next version.
    pub(super) async fn run(&self, admin: &AdminClient) -> Result<AdminSale> {
        let version = admin.show(&self.id).await?.sale.version;
        let then = admin.version(&self.id, self.to).await?;
        Ok(admin.change(&SaleConfig { version, ..then }).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: SetArgs,
    }

    fn sale() -> SaleConfig {
        serde_json::from_value(serde_json::json!({
            "id": "s", "version": 3, "title": "t", "price": {"amount_minor": 1, "currency": "EUR"}, "total": 5,
            "per_buyer_limit": 1, "opens_at_ms": 1_000, "closes_at_ms": 2_000_000_000_000_i64, "buckets": 1,
            "admit_factor": 5.0, "enter_rate_per_s": 5.0, "pay_window_ms": 1_000, "grace_ms": 1, "second_try": false,
            "anonymous_entry": true, "backlog_limit": 5
        }))
        .unwrap()
    }

    fn set(line: &[&str]) -> Result<SaleConfig> {
        let line = Line::try_parse_from(["set", "s"].iter().chain(line))?;
        line.set.apply(sale(), "2026-11-30T12:00:00Z".parse()?)
    }

    #[test]
    fn what_is_not_given_stays() {
        let changed = set(&["--title", "other", "--opens", "2026-12-01T20:00:00Z", "--grace", "5s"]).unwrap();
        let opens_at_ms = "2026-12-01T20:00:00Z".parse::<jiff::Timestamp>().unwrap().as_millisecond();
        assert_eq!(changed, SaleConfig { title: "other".into(), opens_at_ms, grace_ms: 5_000, ..sale() });
    }

    #[test]
    fn mistakes_are_told_by_their_option_or_field() {
        for (line, says) in [
            (vec![], "required"),
            (vec!["--opens", "soon"], "--opens"),
            (vec!["--pay-window", "long"], "--pay-window"),
            (vec!["--closes", "2020-01-01T00:00:00Z", "--opens", "2026-12-01T20:00:00Z"], "closes_at_ms"),
            (vec!["--per-buyer", "6"], "per_buyer_limit"),
        ] {
            let error = format!("{:#}", set(&line).unwrap_err());
            assert!(error.contains(says), "{line:?}: {error}");
        }
    }
}
