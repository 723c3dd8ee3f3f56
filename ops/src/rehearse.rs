//! A rehearsal: a sale of its own, a crowd of buyers over real HTTP, and a verdict.

pub mod buyer;
pub mod crowd;
pub mod net;
pub mod progress;
pub mod report;
pub mod show;
pub mod tally;

use crate::{
    admin::AdminClient,
    provider::ProviderLedger,
    steps::Steps,
    values::{Share, price},
};
use anyhow::{Context, Result, ensure};
use crowd::{Orders, Outcome};
use flashgate_shared::{
    SaleId,
    sale::{AddressLimits, SaleConfig},
    wire::AuditReport,
};
use net::{BUYERS_MAX, Edge};
use progress::Progress;
use report::{Evidence, PeakRss, Report, Seconds, Told};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Entries a second that the sale admits.
const ENTER_RATE_PER_S: f64 = 8_000.0;
/// Entries a second that the crowd makes before the opening: an orderly arrival.
const ENTRIES_PER_S: u64 = 2_000;
/// From the last planned entry to the opening, in milliseconds: the slow ones arrive as well.
const ENTRY_MARGIN_MS: i64 = 3_000;
/// How long a rehearsal's sale stays open, in milliseconds.
const SALE_MS: i64 = 3_600_000;
/// Design I6's factor, unless a rehearsal asks for another.
pub const ADMIT_FACTOR: f64 = 5.0;
/// Most buckets of a rehearsal's sale; each holds at least ten units.
const BUCKETS_MAX: u32 = 10;
/// The pay window and grace when some winners do not pay, in milliseconds: short, to see them end.
const LAPSE_WINDOW_MS: (i64, i64) = (5_000, 1_000);
/// The pay window and grace when all pay, in milliseconds.
const PAY_WINDOW_MS: (i64, i64) = (600_000, 30_000);
/// What a deadline for final answers starts from, in seconds, and buyers answered a second at least.
const ANSWER_DEADLINE: (u64, u64) = (180, 300);
/// Longest sale that a low admission factor makes, in seconds.
const SELLING_S_MAX: f64 = 3_600.0;
/// How long the sale may take to come to rest after the last answer, in seconds.
const QUIET_TIMEOUT_S: u64 = 90;
/// How often the audit is asked meanwhile, in milliseconds.
const QUIET_POLL_MS: u64 = 200;

/// What to rehearse.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Buyers, 1 to [`BUYERS_MAX`].
    pub buyers: u32,
    /// Units.
    pub stock: u32,
    /// Share of the winners that never pays.
    pub lapse: Share,
    /// Share of the winners whose money comes too late.
    pub late: Share,
    /// Claims admitted a second, as a multiple of the stock (design I6). A low one makes the sale last.
    pub admit_factor: f64,
    /// Rows of the ledger that the stock is split over.
    pub shards: u16,
}

/// Where to rehearse.
#[derive(Debug, Clone)]
pub struct Target {
    /// The edges, `http://host:port`; buyers are dealt to them in turn.
    pub edge_urls: Vec<String>,
    /// The admin API.
    pub admin: AdminClient,
    /// The provider simulator, to audit the money.
    pub provider_url: Option<String>,
    /// Processes whose memory can be looked at.
    pub edge_pids: Vec<u32>,
    /// As above.
    pub origin_pids: Vec<u32>,
}

impl Plan {
    /// The sale of a rehearsal that opens after everybody has entered.
    fn sale(&self, id: SaleId, now_ms: i64) -> Result<SaleConfig> {
        let all_pay = self.all_pay();
        let (pay_window_ms, grace_ms) = if all_pay { PAY_WINDOW_MS } else { LAPSE_WINDOW_MS };
        let opens_at_ms = now_ms + i64::try_from(self.entry_ms())? + ENTRY_MARGIN_MS;
        let sale = SaleConfig {
            id,
            version: 1,
            title: format!("Rehearsal: {} buyers, {} units", self.buyers, self.stock),
            description: String::new(),
            price: price("199.00 EUR").map_err(anyhow::Error::msg)?,
            total: self.stock,
            per_buyer_limit: 1,
            opens_at_ms,
            closes_at_ms: opens_at_ms + SALE_MS,
            buckets: u16::try_from((self.stock / 10).clamp(1, BUCKETS_MAX))?,
            shards: self.shards.min(u16::try_from(self.stock).unwrap_or(u16::MAX)),
            admit_factor: self.admit_factor,
            enter_rate_per_s: ENTER_RATE_PER_S,
            pay_window_ms,
            grace_ms,
            second_try: false,
            anonymous_entry: true,
            backlog_limit: self.stock.max(1_000),
            address_limits: AddressLimits::default(),
        };
        sale.validate().map_err(|e| anyhow::anyhow!("a rehearsal like this cannot be: {e}"))?;
        Ok(sale)
    }

    fn entry_ms(&self) -> u64 {
        u64::from(self.buyers) * 1000 / ENTRIES_PER_S
    }

    fn all_pay(&self) -> bool {
        self.lapse.is_zero() && self.late.is_zero()
    }

    fn check(&self) -> Result<()> {
        ensure!((1..=BUYERS_MAX).contains(&self.buyers), "--buyers must be 1 to {BUYERS_MAX}");
        let shares = self.lapse.plus(self.late);
        shares.context("--lapse and --late together must be at most 100%")?;
        Ok(())
    }
}

/// How far a rehearsal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The crowd is at this sale.
    Crowd(SaleId),
    /// Every buyer has a final answer, or was given up.
    Over,
}

/// Rehearses and judges.
pub async fn rehearse(plan: &Plan, target: &Target, steps: Steps) -> Result<Report> {
    rehearse_watched(plan, target, steps, |_| {}).await
}

/// The same; each phase is told.
pub async fn rehearse_watched(
    plan: &Plan,
    target: &Target,
    steps: Steps,
    mut tell: impl FnMut(Phase),
) -> Result<Report> {
    let from = Instant::now();
    plan.check()?;
    let mut edges = Vec::new();
    for url in &target.edge_urls {
        edges.push(Arc::new(Edge::resolve(url).await?));
    }
    ensure!(!edges.is_empty(), "a rehearsal needs an edge");
    if edges.iter().any(|edge| !edge.is_loopback()) {
        steps.note("the edge is not on this machine: all buyers share one address, and its limits bind them");
    }
    let (sale, clock_offset_ms) = create(plan, &target.admin).await?;
    steps.note(&format!("sale {} created, {} units in {} buckets", sale.id, sale.total, sale.buckets));
    let orders = Orders {
        sale: sale.id.clone(),
        opens_at_ms: sale.opens_at_ms,
        grace_ms: sale.grace_ms,
        buyers: plan.buyers,
        entry_ms: plan.entry_ms(),
        lapse: plan.lapse,
        late: plan.late,
        clock_offset_ms,
        deadline: deadline(plan, &sale),
    };
    let mut progress = Progress::start(steps);
    let opening = opening(&sale, clock_offset_ms);
    tell(Phase::Crowd(sale.id.clone()));
    let outcome = crowd::run(&orders, &edges, |standing| progress.show(standing)).await;
    tell(Phase::Over);
    progress.finish();
    let what = "the sale has come to rest";
    let audit = steps.run(what, until_quiet(&target.admin, &sale.id)).await?;
    judge(plan, target, &sale, &outcome, audit, opening, from).await
}

/// Creates the sale; also how far the shop's clock is ahead of ours, in milliseconds.
async fn create(plan: &Plan, admin: &AdminClient) -> Result<(SaleConfig, i64)> {
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let id: SaleId = format!("rehearsal-{now_ms}").parse()?;
    let made = admin.create_sale(&plan.sale(id.clone(), now_ms)?).await?;
    // Measured on a call that does little: creating loads the gate and takes long.
    let before_ms = jiff::Timestamp::now().as_millisecond();
    let shown = admin.show(&id).await?;
    let after_ms = jiff::Timestamp::now().as_millisecond();
    let offset_ms = shown.now_ms - (before_ms + after_ms) / 2;
    let on_time = shown.now_ms < made.sale.opens_at_ms;
    ensure!(on_time, "the shop's clock is ahead of this machine's by {offset_ms} ms: set the clocks first");
    Ok((made.sale, offset_ms))
}

/// When the sale opens, on this machine's monotonic clock.
fn opening(sale: &SaleConfig, clock_offset_ms: i64) -> Instant {
    let now_ms = jiff::Timestamp::now().as_millisecond() + clock_offset_ms;
    Instant::now() + Duration::from_millis(u64::try_from(sale.opens_at_ms - now_ms).unwrap_or(0))
}

/// Generous: it tells a hang from a slow machine, and nothing else.
fn deadline(plan: &Plan, sale: &SaleConfig) -> Instant {
    let crowd_s = ANSWER_DEADLINE.0 + u64::from(plan.buyers) / ANSWER_DEADLINE.1;
    let lapse_ms = match plan.all_pay() {
        true => 0,
        false => u64::try_from(sale.pay_window_ms + sale.grace_ms).unwrap_or(0),
    };
    // Until the stock is a tenth, the rate falls with it; from there on it stays (design I6).
    let selling_s = (10f64.ln() + 1.0) / sale.admit_factor;
    Instant::now()
        + Duration::from_secs(crowd_s)
        + Duration::from_secs_f64(selling_s.min(SELLING_S_MAX))
        + Duration::from_millis(plan.entry_ms() + lapse_ms)
}

/// Asks the audit until nothing moves, or for [`QUIET_TIMEOUT_S`]; the last audit.
async fn until_quiet(admin: &AdminClient, sale: &SaleId) -> Result<AuditReport> {
    let end = Instant::now() + Duration::from_secs(QUIET_TIMEOUT_S);
    loop {
        let late = Instant::now() > end;
        match admin.audit(sale).await {
            Ok(audit) if late || (audit.quiet && audit.refunds_pending == 0 && audit.broken.is_empty()) => {
                return Ok(audit);
            }
            Err(error) if late => return Err(error.into()),
            // In motion, or too busy to be audited.
            Ok(_) | Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(QUIET_POLL_MS)).await;
    }
}

async fn judge(
    plan: &Plan,
    target: &Target,
    sale: &SaleConfig,
    outcome: &Outcome,
    audit: AuditReport,
    opening: Instant,
    from: Instant,
) -> Result<Report> {
    let now = Instant::now();
    let tally = &outcome.tally;
    let between = |a: Instant, b: Option<Instant>| b.map_or(0.0, |b| b.saturating_duration_since(a).as_secs_f64());
    let seconds = Seconds {
        entering: between(outcome.began, tally.last_entry),
        selling: between(opening, tally.last_click),
        finishing: between(opening, Some(outcome.ended)),
        settling: between(outcome.ended, Some(now)),
        total: between(from, Some(now)),
    };
    let traffic = target.admin.traffic(&sale.id).await?;
    let peak = |pids: &[u32]| pids.iter().filter_map(|pid| peak_rss_mib(*pid)).reduce(f64::max);
    let peak_rss_mb =
        PeakRss { edge: peak(&target.edge_pids), origin: peak(&target.origin_pids).or(Some(traffic.peak_rss_mib)) };
    let money = match &target.provider_url {
        Some(url) => Some(provider_ledger(url).await?),
        None => None,
    };
    let evidence = Evidence {
        buyers: plan.buyers,
        stock: plan.stock,
        admit_factor: sale.admit_factor,
        all_pay: plan.all_pay(),
        told: &Told::by(&outcome.buyers),
        tally,
        audit,
        traffic,
        money: money.as_ref(),
        peak_rss_mb,
        seconds,
        generator_peak_rss_mb: peak_rss_mib(std::process::id()),
    };
    Ok(evidence.report())
}

async fn provider_ledger(url: &str) -> Result<ProviderLedger> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
    let answer = client.get(format!("{url}/v1/ledger")).send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status);
    let answer = answer.with_context(|| format!("the payment provider at {url} does not answer"))?;
    answer.json().await.context("the payment provider's ledger cannot be read")
}

/// The peak resident memory of a process, in MiB (Linux: `VmHWM`).
pub fn peak_rss_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(buyers: u32, stock: u32, lapse: &str, late: &str) -> Plan {
        Plan {
            buyers,
            stock,
            lapse: lapse.parse().unwrap(),
            late: late.parse().unwrap(),
            admit_factor: ADMIT_FACTOR,
            shards: 1,
        }
    }

    #[test]
    fn a_rehearsals_sale_is_sound_and_opens_after_the_entries() {
        for (buyers, stock, buckets) in [(1, 1, 1), (500, 20, 2), (20_000, 100, 10), (200_000, 340, 10)] {
            let plan = plan(buyers, stock, "0%", "0%");
            let sale = plan.sale("s".parse().unwrap(), 1_000).unwrap();
            assert_eq!(sale.buckets, buckets);
            assert!(sale.opens_at_ms >= 1_000 + i64::from(buyers) / 2 + ENTRY_MARGIN_MS);
            assert_eq!(sale.pay_window_ms, 600_000);
        }
        let sale = plan(500, 20, "10%", "5%").sale("s".parse().unwrap(), 0).unwrap();
        assert_eq!((sale.pay_window_ms, sale.grace_ms), (5_000, 1_000));
        let error = plan(1, 0, "0%", "0%").sale("s".parse().unwrap(), 0).unwrap_err();
        assert!(error.to_string().contains("total"), "{error}");
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(plan(0, 1, "0%", "0%").check().is_err());
        assert!(plan(BUYERS_MAX + 1, 1, "0%", "0%").check().is_err());
        assert!(plan(1, 1, "60%", "41%").check().is_err());
        assert!(plan(1, 1, "60%", "40%").check().is_ok());
    }

    #[test]
    fn this_process_has_a_peak() {
        assert!(peak_rss_mib(std::process::id()).unwrap() > 0.5);
        assert_eq!(peak_rss_mib(0), None);
    }
}
