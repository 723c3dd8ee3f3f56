//! `flashgate sale check`: a plain yes or no before a sale.

use super::{FAIL, Where, publish::AtEdges, sale::unknown_sale, say, stdout_colour, takes_stdout, write_json};
use crate::{steps::paint, times};
use anyhow::{Context, Result};
use flashgate_shared::{
    SaleId,
    wire::{Check, Finding, SaleView, TimeAnswer},
};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long one edge may take to answer.
const EDGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A certificate that ends sooner should be renewed now, in days.
const CERTIFICATE_DAYS: i64 = 14;
const DAY_MS: i64 = 86_400_000;
/// How far an edge's time may be off the origin's, beyond the error that it tells, in milliseconds.
const EDGE_CLOCK_MS: i64 = 500;

/// Exit code 1 when the answer is no.
pub(super) async fn run(at: &AtEdges, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
    let (sale, admin) = (at.sale(), place.admin()?);
    let mut checks = admin.check(sale).await.map_err(|e| unknown_sale(e, sale))?;
    let known = admin.show(sale).await?;
    let http = reqwest::Client::builder().timeout(EDGE_TIMEOUT).tls_info(true).build()?;
    for edge in at.edges(place)? {
        let (asked, ahead_ms) = (Instant::now(), known.now_ms - jiff::Timestamp::now().as_millisecond());
        let finding = match look(&http, &edge, sale).await {
            Ok(seen) => {
                let here_ms = jiff::Timestamp::now().as_millisecond() + ahead_ms;
                if let Some(ends_at_ms) = seen.certificate_ends_at_ms {
                    let (finding, detail) = certificate(ends_at_ms, here_ms, known.sale.closes_at_ms);
                    checks.push(Check { what: format!("certificate {edge}"), finding, detail });
                }
                judge(&seen.view, &seen.time, &known.sale, here_ms, asked.elapsed())
            }
            Err(error) => (Finding::No, format!("{error:#}")),
        };
        let what = format!("edge {edge}");
        checks.push(Check { what, finding: finding.0, detail: finding.1 });
    }
    let ready = checks.iter().all(|check| check.finding != Finding::No);
    if let Some(path) = json {
        write_json(path, &serde_json::json!({ "ready": ready, "checks": checks }))?;
    }
    if !takes_stdout(json) {
        for check in &checks {
            say(&line(check))?;
        }
        let verdict = if ready { ("1;32", "yes") } else { ("1;31", "no") };
        say(&format!("ready: {}", paint(stdout_colour(), verdict.0, verdict.1)))?;
    }
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::from(FAIL) })
}

/// What an edge shows.
struct Seen {
    view: SaleView,
    time: TimeAnswer,
    /// When the certificate ends that it showed, over TLS.
    certificate_ends_at_ms: Option<i64>,
}

/// What an edge says of the sale and of the time. Over TLS its certificate is checked on the way.
async fn look(http: &reqwest::Client, edge: &str, sale: &SaleId) -> Result<Seen> {
    let view = http.get(format!("{edge}/v1/sales/{sale}")).send().await?.error_for_status()?;
    let tls = view.extensions().get::<reqwest::tls::TlsInfo>();
    let certificate_ends_at_ms = tls.and_then(|tls| tls.peer_certificate()).map(ends_at_ms).transpose()?;
    let view = view.json().await.context("its view of the sale cannot be read")?;
    let time = http.get(format!("{edge}/v1/time")).send().await?.error_for_status()?;
    let time = time.json().await.context("its time cannot be read")?;
    Ok(Seen { view, time, certificate_ends_at_ms })
}

/// When a certificate ends (RFC 5280 §4.1.2.5), in Unix milliseconds.
fn ends_at_ms(der: &[u8]) -> Result<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).context("its certificate cannot be read")?;
    Ok(certificate.validity().not_after.timestamp().saturating_mul(1_000))
}

/// Whether a certificate outlives the sale, and leaves time to renew it.
fn certificate(ends_at_ms: i64, now_ms: i64, closes_at_ms: i64) -> (Finding, String) {
    let (ends, days) = (times::show(ends_at_ms), (ends_at_ms - now_ms) / DAY_MS);
    if ends_at_ms <= closes_at_ms {
        return (Finding::No, format!("ends {ends}, before the sale does"));
    }
    let finding = if days >= CERTIFICATE_DAYS { Finding::Yes } else { Finding::Warn };
    (finding, format!("ends {ends}, in {days} days"))
}

/// Whether an edge knows the sale as it is, and the time.
fn judge(
    view: &SaleView,
    time: &TimeAnswer,
    sale: &flashgate_shared::sale::SaleConfig,
    here_ms: i64,
    took: Duration,
) -> (Finding, String) {
    if (view.opens_at_ms, view.closes_at_ms, &view.price) != (sale.opens_at_ms, sale.closes_at_ms, &sale.price) {
        return (
            Finding::No,
            "it shows older settings: `flashgate sale publish`, or wait for its next lease".to_owned(),
        );
    }
    let slack_ms = time.error_ms.unwrap_or(0) + i64::try_from(took.as_millis()).unwrap_or(i64::MAX) + EDGE_CLOCK_MS;
    let off_ms = time.now_ms - here_ms;
    if off_ms.abs() > slack_ms {
        return (Finding::No, format!("its time is {off_ms} ms off"));
    }
    match time.error_ms {
        Some(error_ms) => (Finding::Yes, format!("knows the sale; time within {error_ms} ms of the authority's")),
        None => (Finding::Warn, "knows the sale; has not heard the authority's time yet".to_owned()),
    }
}

fn line(check: &Check) -> String {
    let (colour, word) = match check.finding {
        Finding::Yes => ("32", "yes "),
        Finding::No => ("1;31", "no  "),
        Finding::Warn => ("33", "warn"),
    };
    format!("  {}  {}: {}", paint(stdout_colour(), colour, word), check.what, check.detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::sale::SalePhase;

    #[test]
    fn a_certificate_that_ends_before_the_sale_is_a_no() {
        let mut parameters = rcgen::CertificateParams::new(vec!["edge.example".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(2026, 12, 31);
        let key = rcgen::KeyPair::generate().unwrap();
        let ends = ends_at_ms(parameters.self_signed(&key).unwrap().der()).unwrap();
        assert_eq!(times::show(ends), "2026-12-31T00:00:00Z");
        assert!(ends_at_ms(b"no certificate").is_err());
        let (hour, day) = (3_600_000, DAY_MS);
        assert_eq!(certificate(ends, ends - 60 * day, ends - 59 * day).0, Finding::Yes);
        assert_eq!(certificate(ends, ends - 5 * day, ends - 4 * day).0, Finding::Warn);
        assert_eq!(certificate(ends, ends - 5 * day, ends + hour).0, Finding::No);
    }

    #[test]
    fn an_edge_with_other_settings_or_another_time_is_not_ready() {
        let sale: flashgate_shared::sale::SaleConfig = serde_json::from_value(serde_json::json!({
            "id": "s", "version": 1, "title": "T", "total": 1, "price": {"amount_minor": 5, "currency": "EUR"},
            "per_buyer_limit": 1, "opens_at_ms": 1000, "closes_at_ms": 2000, "buckets": 1, "admit_factor": 5.0,
            "enter_rate_per_s": 1.0, "pay_window_ms": 1, "grace_ms": 1, "second_try": false,
            "anonymous_entry": true, "backlog_limit": 1
        }))
        .unwrap();
        let view = SaleView {
            id: sale.id.clone(),
            title: sale.title.clone(),
            description: String::new(),
            price: sale.price.clone(),
            per_buyer_limit: 1,
            opens_at_ms: 1000,
            closes_at_ms: 2000,
            phase: SalePhase::Scheduled,
            anonymous_entry: true,
            now_ms: 500,
            poll_after_ms: 1,
        };
        let finding = |view: &SaleView, now_ms, error_ms| {
            judge(view, &TimeAnswer { now_ms, error_ms }, &sale, 10_000, Duration::from_millis(20)).0
        };
        assert_eq!(finding(&view, 10_010, Some(5)), Finding::Yes);
        assert_eq!(finding(&view, 10_010, None), Finding::Warn);
        assert_eq!(finding(&view, 12_000, Some(5)), Finding::No);
        assert_eq!(finding(&SaleView { opens_at_ms: 900, ..view }, 10_010, Some(5)), Finding::No);
    }
}
