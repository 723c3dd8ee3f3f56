//! The admission authority against a reference model, and against the bound of the design (I6).

use anyhow::Result;
use flashgate_servers::shared;
use flashgate_shared::{limits::LEASE_BURST_MS, wire::LeaseKind};
use flashgate_stock::{LeaseAsk, Stock, StockConfig};
use proptest::prelude::*;

/// A lease request: microseconds after the one before, and how many permits.
type Asking = (u64, u32);

const START_US: u64 = 1_700_000_000_000_000;

async fn connect() -> Result<Stock> {
    let url = shared().await?.redis().url();
    Ok(Stock::connect(&StockConfig { url, prefix: "lease".into(), pool_size: 1, ..StockConfig::default() }).await?)
}

fn ask(sale: &str, want: u32, rate_per_s: f64) -> LeaseAsk {
    LeaseAsk { sale: sale.parse().unwrap(), kind: LeaseKind::Claim, want, rate_per_s }
}

/// A token bucket told in tokens instead of moments: another formula for the same promise.
struct Reference {
    tokens: f64,
    depth: f64,
    at_us: u64,
}

impl Reference {
    fn take(&mut self, now_us: u64, want: u32, rate: f64) -> f64 {
        let gained = (now_us - self.at_us) as f64 / 1e6 * rate;
        self.tokens = (self.tokens + gained).min(self.depth);
        self.at_us = now_us;
        self.tokens.min(f64::from(want))
    }
}

async fn history(stock: &Stock, sale: &str, rate: f64, askings: &[Asking]) -> Result<()> {
    let depth = (rate * LEASE_BURST_MS as f64 / 1e3).max(1.0);
    let mut reference = Reference { tokens: 0.0, depth, at_us: START_US };
    let mut now_us = START_US;
    let mut grants: Vec<(u64, u32)> = Vec::new();
    stock.lease_at(&ask(sale, 0, rate), Some(now_us)).await?;
    for (later_us, want) in askings {
        now_us += later_us;
        let grant = stock.lease_at(&ask(sale, *want, rate), Some(now_us)).await?;
        let may = reference.take(now_us, *want, rate);
        let granted = f64::from(grant.granted);
        // The moment is kept to a thousandth of a microsecond: a whole permit may fall to the other
        // side of the comparison, no more.
        assert!(granted <= may + 1e-3 && granted >= (may - 1e-3).floor(), "granted {granted} of {may}");
        reference.tokens -= granted;
        assert_eq!(grant.now_ms, i64::try_from(now_us / 1000)?);
        assert!((25..=250).contains(&grant.retry_ms));
        grants.push((now_us, grant.granted));
    }
    // In every window from one grant to a later one, both included.
    for (i, (from, _)) in grants.iter().enumerate() {
        let mut sum = 0.0;
        for (to, n) in &grants[i..] {
            sum += f64::from(*n);
            let seconds = (to - from) as f64 / 1e6;
            let bound = rate * (seconds + LEASE_BURST_MS as f64 / 1e3) + 1.0;
            assert!(sum <= bound + 1e-3, "{sum} permits in {seconds} s, bound {bound}");
        }
    }
    Ok(())
}

#[test]
fn grants_follow_the_model_and_keep_the_bound() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stock = runtime.block_on(connect()).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 40, ..ProptestConfig::default() });
    let rates = prop_oneof![Just(0.05), Just(0.5), Just(5.0), Just(500.0), Just(50_000.0), 0.1..2_000.0];
    let askings = prop::collection::vec((0..400_000_u64, 0..2_000_u32), 1..60);
    let case = std::cell::Cell::new(0);
    runner
        .run(&(rates, askings), |(rate, askings)| {
            case.set(case.get() + 1);
            runtime
                .block_on(history(&stock, &format!("case-{}", case.get()), rate, &askings))
                .map_err(|e| TestCaseError::fail(e.to_string()))
        })
        .unwrap();
}

#[tokio::test]
async fn a_missing_key_starts_empty_and_a_low_rate_admits_in_time() -> Result<()> {
    let stock = connect().await?;
    let at = async |seconds: u64| {
        let now = START_US + seconds * 1_000_000;
        Ok::<_, anyhow::Error>(stock.lease_at(&ask("slow", 10, 0.5), Some(now)).await?.granted)
    };
    assert_eq!([at(0).await?, at(1).await?, at(2).await?, at(3).await?, at(60).await?], [0, 0, 1, 0, 1]);
    Ok(())
}

#[tokio::test]
async fn a_clock_set_back_does_not_close_the_sale() -> Result<()> {
    let stock = connect().await?;
    let rate = 100.0;
    stock.lease_at(&ask("back", 10, rate), Some(START_US)).await?;
    let hour = 3_600_000_000;
    assert_eq!(stock.lease_at(&ask("back", 10, rate), Some(START_US - hour)).await?.granted, 0);
    let soon = START_US - hour + 2 * LEASE_BURST_MS as u64 * 1_000;
    assert_eq!(stock.lease_at(&ask("back", 10, rate), Some(soon)).await?.granted, 10);
    Ok(())
}

#[tokio::test]
async fn the_kinds_and_the_sales_do_not_share_permits() -> Result<()> {
    let stock = connect().await?;
    let later = START_US + 1_000_000;
    for (sale, kind) in [("a", LeaseKind::Claim), ("a", LeaseKind::Enter), ("b", LeaseKind::Claim)] {
        let ask = LeaseAsk { kind, ..ask(sale, 5, 50.0) };
        assert_eq!(stock.lease_at(&ask, Some(START_US)).await?.granted, 0);
        assert_eq!(stock.lease_at(&ask, Some(later)).await?.granted, 5);
    }
    Ok(())
}

#[tokio::test]
async fn a_permit_that_costs_less_than_a_quarter_of_a_microsecond_is_not_free() -> Result<()> {
    // Ten million permits a second, as a sale of two million units asks for; one permit at a time.
    let stock = connect().await?;
    let rate = 1e7;
    stock.lease_at(&ask("fast", 0, rate), Some(START_US)).await?;
    stock.lease_at(&ask("fast", 100_000, rate), Some(START_US + 10_000)).await?;
    let mut granted = 0;
    for _ in 0..50 {
        granted += stock.lease_at(&ask("fast", 1, rate), Some(START_US + 10_001)).await?.granted;
    }
    assert!((9..=11).contains(&granted), "one microsecond holds ten permits, {granted} were granted");
    Ok(())
}

#[tokio::test]
async fn a_rate_that_is_none_is_granted_nothing() -> Result<()> {
    let stock = connect().await?;
    for (n, rate) in [0.0, -1.0, f64::NAN, 1e-9].into_iter().enumerate() {
        for seconds in [0, 1_000] {
            let now = START_US + seconds * 1_000_000;
            let grant = stock.lease_at(&ask(&format!("none-{n}"), 10, rate), Some(now)).await?;
            assert_eq!((grant.granted, grant.retry_ms), (0, 250), "{rate}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_expired_mints_no_permits() -> Result<()> {
    let stock = connect().await?;
    let rate = 1_000.0;
    stock.lease_at(&ask("expired", 0, rate), Some(START_US)).await?;
    let url = shared().await?.redis().url();
    let raw = fred::types::Builder::from_config(fred::types::config::Config::from_url(&url)?).build()?;
    fred::interfaces::ClientLike::init(&raw).await?;
    let key = "{lease:expired}:lease:claim";
    let ttl_ms: i64 = fred::interfaces::KeysInterface::pttl(&raw, key).await?;
    assert!(ttl_ms > 0, "the key must not live for ever");
    // What expiry leaves behind.
    assert_eq!(fred::interfaces::KeysInterface::del::<i64, _>(&raw, key).await?, 1);
    let later = START_US + 3_600_000_000;
    assert_eq!(stock.lease_at(&ask("expired", 10, rate), Some(later)).await?.granted, 0);
    assert_eq!(stock.lease_at(&ask("expired", 10, rate), Some(later + 5_000)).await?.granted, 5);
    Ok(())
}

#[tokio::test]
async fn a_rate_that_changes_takes_no_more_than_the_new_depth_along() -> Result<()> {
    let stock = connect().await?;
    let at = async |ms: u64, rate: f64, want: u32| {
        Ok::<_, anyhow::Error>(stock.lease_at(&ask("change", want, rate), Some(START_US + ms * 1_000)).await?.granted)
    };
    at(0, 0.5, 0).await?;
    // Two seconds' refill gathered at the low rate are cut to 100 ms of the high one.
    assert_eq!(at(2_000, 500.0, 1_000).await?, 50);
    // And what a high rate gathered is worth little at a low one.
    assert_eq!(at(2_100, 0.5, 1_000).await?, 0);
    assert_eq!(at(4_000, 0.5, 1_000).await?, 1);
    Ok(())
}

#[tokio::test]
async fn the_highest_rate_that_a_sale_may_ask_for_is_granted() -> Result<()> {
    let stock = connect().await?;
    let rate = 1e6 * f64::from(flashgate_shared::limits::TOTAL_MAX);
    assert_eq!(stock.lease_at(&ask("most", 10, rate), Some(START_US)).await?.granted, 0);
    assert_eq!(stock.lease_at(&ask("most", 5_000, rate), Some(START_US + 1)).await?.granted, 1_000);
    Ok(())
}
