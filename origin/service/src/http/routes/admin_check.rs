//! `GET /v1/admin/sales/{sale}/check`: whether everything behind the edges is ready for the sale.

use crate::{
    App,
    audit::{AuditError, audit},
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row},
    },
    provider::ProviderError,
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_ledger::SaleRow;
use flashgate_shared::{
    Clock, UnixMs,
    sale::{SalePhase, SaleState},
    wire::{AuditReport, Check, Finding, PaymentsPage},
};
use flashgate_stock::Persistence;
use std::{fmt::Display, sync::Arc};

/// How far the clocks of the stores may be from one another, in milliseconds.
const CLOCKS_APART_MS: i64 = 500;

/// How full Redis may be before a sale.
const MEMORY_SHARE_MAX: f64 = 0.5;

/// Looks at everything; the answer has a line for each thing, good or not.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Check>>, Refusal> {
    let row = row(&app, &id).await?;
    let report = audit(&app, &row).await?;
    let ledger_ms = app.ledger.now_ms().await.map_err(AdminError::from)?;
    let redis_ms = app.stock.now_ms().await.map_err(AuditError::Stock)?;
    let generations = app.stock.generations(&row.config.id, row.config.buckets).await.map_err(AuditError::Stock)?;
    let whole = generations.iter().all(|generation| generation.is(row.epoch));
    let mut checks = vec![
        state(&row, app.clock.now_ms()),
        gate(&report, whole),
        motion(&report),
        money(&report),
        clocks(ledger_ms, redis_ms),
    ];
    checks.extend(persistence(&app.stock.persistence().await.map_err(AuditError::Stock)?));
    checks.push(writes("postgres", app.ledger.takes_writes().await));
    checks.push(writes("rabbitmq", app.queue.takes_messages().await));
    checks.push(provider(app.provider.payments(&row.config.id, None).await));
    checks.push(documents(app.secrets.has_document_key()));
    Ok(Json(checks))
}

fn check(what: &str, finding: Finding, detail: impl Into<String>) -> Check {
    Check { what: what.to_owned(), finding, detail: detail.into() }
}

fn yes_or_no(what: &str, good: bool, detail: impl Into<String>) -> Check {
    check(what, if good { Finding::Yes } else { Finding::No }, detail)
}

fn state(row: &SaleRow, now_ms: UnixMs) -> Check {
    let phase = row.config.phase(row.state, now_ms, false);
    match (row.state, phase) {
        (SaleState::Open, SalePhase::Scheduled | SalePhase::Open) => {
            check("state", Finding::Yes, format!("{phase}, version {}", row.config.version))
        }
        (SaleState::Paused, _) => check("state", Finding::No, "paused: `flashgate sale resume` lets it sell"),
        (state, phase) => check("state", Finding::No, format!("{state}, {phase}: it will not sell")),
    }
}

fn gate(report: &AuditReport, whole: bool) -> Check {
    let adds_up = report.on_offer + report.live_units == report.total;
    let detail = format!("{} units on offer and {} sold of {}", report.on_offer, report.live_units, report.total);
    match (whole, adds_up) {
        (true, true) => check("gate", Finding::Yes, detail),
        (false, _) => {
            check("gate", Finding::No, "a bucket is not loaded, or Redis was restarted: wait for the rebuild")
        }
        (true, false) => check("gate", Finding::No, format!("{detail}: `flashgate reconcile --repair` mends that")),
    }
}

fn motion(report: &AuditReport) -> Check {
    let (outbox, queued, dead) = (report.outbox, report.queued, report.dead_letters);
    let detail = format!("{outbox} claims in the outbox, {queued} in the queue, {dead} dead letters");
    yes_or_no("queue", outbox == 0 && queued == 0 && dead == 0, detail)
}

fn money(report: &AuditReport) -> Check {
    let (releases, refunds) = (report.releases_pending, report.refunds_pending);
    let finding = if releases == 0 && refunds == 0 { Finding::Yes } else { Finding::Warn };
    check("outboxes", finding, format!("{releases} releases and {refunds} refunds are under way"))
}

fn clocks(ledger_ms: UnixMs, redis_ms: UnixMs) -> Check {
    let apart_ms = ledger_ms - redis_ms;
    let detail = format!("Postgres and Redis are {apart_ms} ms apart, at most {CLOCKS_APART_MS} are good");
    yes_or_no("clocks", apart_ms.abs() <= CLOCKS_APART_MS, detail)
}

/// What Redis forgets, and when.
fn persistence(found: &Persistence) -> Vec<Check> {
    let setting = |name: &str, value: &Option<String>, wanted: &str, else_: Finding| match value.as_deref() {
        Some(value) if value == wanted => check("redis", Finding::Yes, format!("{name} {value}")),
        Some(value) => check("redis", else_, format!("{name} is {value}, should be {wanted}")),
        None => check("redis", Finding::Warn, format!("{name} cannot be seen; it should be {wanted}")),
    };
    vec![
        setting("appendonly", &found.appendonly, "yes", Finding::No),
        setting("appendfsync", &found.appendfsync, "always", Finding::Warn),
        setting("maxmemory-policy", &found.maxmemory_policy, "noeviction", Finding::No),
        match found.last_write.as_deref() {
            Some("ok") => check("redis", Finding::Yes, "its last write reached the disk"),
            Some(status) => check("redis", Finding::No, format!("its last write is {status}: is its disk full?")),
            None => check("redis", Finding::Warn, "whether its disk takes writes cannot be seen"),
        },
        memory(found.used_bytes, found.max_bytes),
    ]
}

/// Under `noeviction` a full Redis refuses claims.
fn memory(used_bytes: Option<u64>, max_bytes: Option<u64>) -> Check {
    match (used_bytes, max_bytes) {
        (Some(used), Some(max)) if max > 0 => {
            let share = used as f64 / max as f64;
            let finding = if share <= MEMORY_SHARE_MAX { Finding::Yes } else { Finding::No };
            check("redis", finding, format!("{:.0} % of maxmemory are used", share * 100.0))
        }
        (Some(_), Some(_)) => check("redis", Finding::Yes, "no maxmemory is set"),
        _ => check("redis", Finding::Warn, "how much memory it has left cannot be seen"),
    }
}

/// A write that the store really made just now: what a full disk refuses.
fn writes(what: &str, made: Result<(), impl Display>) -> Check {
    match made {
        Ok(()) => check(what, Finding::Yes, "takes writes"),
        Err(error) => check(what, Finding::No, format!("takes no writes: {error}")),
    }
}

fn provider(told: Result<PaymentsPage, ProviderError>) -> Check {
    match told {
        Ok(_) => check("provider", Finding::Yes, "tells its payments: the reconciler compares them"),
        Err(ProviderError::Refused(_)) => {
            check("provider", Finding::Warn, "tells no payments: one whose notice is lost will not be found")
        }
        Err(error) => check("provider", Finding::No, format!("nobody can pay: {error}")),
    }
}

fn documents(has_key: bool) -> Check {
    match has_key {
        true => check("documents", Finding::Yes, "sale documents can be published to the edges"),
        false => {
            check("documents", Finding::Warn, "no document key: edges that start while the origin is away know no sale")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_would_forget_is_told() {
        let text = |text: &str| Some(text.to_owned());
        let found = |a: Option<String>, f: Option<String>, m: Option<String>| {
            let found = Persistence { appendonly: a, appendfsync: f, maxmemory_policy: m, ..Persistence::default() };
            persistence(&found).into_iter().map(|check| check.finding).take(3).collect::<Vec<_>>()
        };
        use Finding::{No, Warn, Yes};
        assert_eq!(found(text("yes"), text("always"), text("noeviction")), [Yes, Yes, Yes]);
        assert_eq!(found(text("no"), text("everysec"), text("allkeys-lru")), [No, Warn, No]);
        assert_eq!(found(None, None, None), [Warn, Warn, Warn]);
    }

    #[test]
    fn a_store_that_is_full_is_told() {
        let findings =
            |found: Persistence| persistence(&found).into_iter().skip(3).map(|check| check.finding).collect::<Vec<_>>();
        let of = |status: &str, used, max| Persistence {
            last_write: Some(status.to_owned()),
            used_bytes: Some(used),
            max_bytes: Some(max),
            ..Persistence::default()
        };
        use Finding::{No, Warn, Yes};
        assert_eq!(findings(of("ok", 1, 0)), [Yes, Yes]);
        assert_eq!(findings(of("err", 60, 100)), [No, No]);
        assert_eq!(findings(Persistence::default()), [Warn, Warn]);
        assert_eq!(writes("postgres", Err("no space left on device")).finding, No);
    }

    #[test]
    fn a_provider_that_tells_no_payments_is_a_warning_and_one_that_is_away_a_no() {
        assert_eq!(provider(Ok(PaymentsPage { payments: Vec::new() })).finding, Finding::Yes);
        assert_eq!(provider(Err(ProviderError::Refused(404))).finding, Finding::Warn);
        assert_eq!(provider(Err(ProviderError::Unreachable)).finding, Finding::No);
    }

    #[test]
    fn clocks_that_are_apart_are_told() {
        assert_eq!(clocks(1_000, 1_400).finding, Finding::Yes);
        assert_eq!(clocks(1_000, 2_000).finding, Finding::No);
        assert_eq!(clocks(2_000, 1_000).finding, Finding::No);
    }
}
