//! `POST /v1/edge/leases`: the admission authority's counter (design §5, I6).

use crate::{
    App,
    http::{
        extract::{self, Edge},
        problem::Refusal,
    },
    sales::Sale,
};
use axum::{Json, body::Body, extract::State};
use flashgate_shared::{
    Clock, UnixMs, limits,
    problem::ProblemKind,
    sale::SalePhase,
    wire::{LeaseAnswer, LeaseKind, LeaseRequest},
};
use flashgate_stock::{LeaseAsk, LeaseGrant, StockError};
use http::HeaderMap;
use std::sync::Arc;

/// The shortest time after which asking again is worth an answer, in milliseconds.
const RETRY_MIN_MS: i64 = 10;

/// Why there is no lease: then nobody is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseError {
    /// The authority does not answer.
    Authority(StockError),
}

impl From<LeaseError> for Refusal {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Authority(error) => {
                tracing::warn!(%error, "the admission authority does not answer");
                ProblemKind::Unavailable.into()
            }
        }
    }
}

/// Grants permits, as many as the stock allows, and tells the sale's state.
pub async fn handler(
    _: Edge,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<LeaseAnswer>, Refusal> {
    let request: LeaseRequest = extract::json_required(&headers, body, limits::BUYER_BODY_BYTES).await?;
    let sale = extract::sale(&app, request.sale.as_str())?;
    sale.demand(app.clock.mono_us());
    let reading = sale.young(&app.stock, &app.clock).await.map_err(LeaseError::Authority)?;
    let sold_out = reading.map.sold_out(sale.row.epoch);
    let config = &sale.row.config;
    let now_ms = app.clock.now_ms();
    let on_offer = u32::try_from(reading.map.on_offer()).unwrap_or(u32::MAX);
    let phase = config.phase(sale.row.state, now_ms, sold_out);
    let rate_per_s = match (request.kind, phase) {
        (LeaseKind::Claim, SalePhase::Open) => Some(config.permits_per_s(on_offer)),
        (LeaseKind::Enter, SalePhase::Closed) | (LeaseKind::Claim, _) => None,
        (LeaseKind::Enter, _) => Some(config.enter_rate_per_s),
    };
    let grant = match rate_per_s {
        Some(rate_per_s) => {
            let ask = LeaseAsk { sale: config.id.clone(), kind: request.kind, want: request.want, rate_per_s };
            app.stock.lease(&ask).await.map_err(LeaseError::Authority)?
        }
        None => LeaseGrant { granted: 0, now_ms, retry_ms: idle_retry_ms(phase, config.opens_at_ms, now_ms) },
    };
    if let (LeaseKind::Claim, Some(rate_per_s)) = (request.kind, rate_per_s) {
        let stock = on_offer.max(config.total.div_ceil(10)).max(1);
        sale.live.traffic.granted(grant.granted, stock, rate_per_s, app.clock.mono_us());
        metrics::counter!("flashgate_permits_granted_total").increment(u64::from(grant.granted));
    }
    Ok(Json(answer(&sale, grant, sold_out, app.secrets.keys.ids())))
}

fn answer(sale: &Sale, grant: LeaseGrant, sold_out: bool, key_ids: Vec<String>) -> LeaseAnswer {
    LeaseAnswer {
        granted: grant.granted,
        granted_at_ms: grant.now_ms,
        ttl_ms: limits::LEASE_LIFE_MS,
        retry_ms: grant.retry_ms.clamp(RETRY_MIN_MS, limits::LEASE_LIFE_MS),
        now_ms: grant.now_ms,
        state: sale.row.state,
        sold_out,
        epoch: sale.row.epoch,
        config_version: sale.row.config.version,
        key_ids: Some(key_ids),
    }
}

/// How often a sale is asked about that does not sell, in milliseconds: the news that it does must reach
/// every edge within a lease's life.
const IDLE_RETRY_MS: i64 = 200;
const _: () = assert!(IDLE_RETRY_MS < limits::LEASE_LIFE_MS);

/// A sale that does not sell is asked about a little oftener than once a lease life, and right at its opening.
fn idle_retry_ms(phase: SalePhase, opens_at_ms: UnixMs, now_ms: UnixMs) -> i64 {
    match phase {
        SalePhase::Scheduled => (opens_at_ms - now_ms).clamp(RETRY_MIN_MS, IDLE_RETRY_MS),
        _ => IDLE_RETRY_MS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opening_is_not_slept_through() {
        assert_eq!(idle_retry_ms(SalePhase::Scheduled, 10_000, 0), IDLE_RETRY_MS);
        assert_eq!(idle_retry_ms(SalePhase::Scheduled, 10_000, 9_950), 50);
        assert_eq!(idle_retry_ms(SalePhase::SoldOut, 0, 9_950), IDLE_RETRY_MS);
    }

    #[test]
    fn a_silent_authority_admits_nobody() {
        assert_eq!(Refusal::from(LeaseError::Authority(StockError::Unavailable("x".into()))).0.status, 503);
    }
}
