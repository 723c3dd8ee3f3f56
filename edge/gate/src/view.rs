//! What the edge answers by itself: time, sale, health.

use crate::{refuse, sales::Sale};
use bytes::Bytes;
use flashgate_shared::{
    UnixMs,
    sale::SalePhase,
    trace::TraceId,
    wire::{SaleView, TimeAnswer},
};
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use serde::Serialize;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Polls before the opening are at least this far apart, in milliseconds.
const POLL_MIN_MS: u64 = 2_000;
/// And at most this far.
const POLL_MAX_MS: u64 = 30_000;

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize, trace: TraceId) -> Response<Bytes> {
    let Ok(body) = serde_json::to_vec(value) else {
        // Structs of strings and numbers always serialise.
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    };
    let mut response = Response::new(Bytes::from(body));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    refuse::common_headers(response.headers_mut(), trace);
    response
}

/// `GET /v1/time`.
pub(crate) fn time(now_ms: UnixMs, error_ms: Option<i64>, trace: TraceId) -> Response<Bytes> {
    json(&TimeAnswer { now_ms, error_ms }, trace)
}

/// `GET /healthz`: this instance answers. It says nothing about the origin.
pub(crate) fn health(trace: TraceId) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"{\"status\":\"ok\"}"));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    refuse::common_headers(response.headers_mut(), trace);
    response
}

/// `GET /v1/sales/{sale}`.
pub(crate) fn sale(sale: &Sale, now_ms: UnixMs, random: u64, trace: TraceId) -> Response<Bytes> {
    let config = &sale.doc.sale;
    let phase = sale.phase(now_ms);
    json(
        &SaleView {
            id: config.id.clone(),
            title: config.title.clone(),
            description: config.description.clone(),
            price: config.price.clone(),
            per_buyer_limit: config.per_buyer_limit,
            opens_at_ms: config.opens_at_ms,
            closes_at_ms: config.closes_at_ms,
            phase,
            anonymous_entry: config.anonymous_entry,
            now_ms,
            poll_after_ms: poll_after_ms(phase, config.opens_at_ms.saturating_sub(now_ms), random),
        },
        trace,
    )
}

/// Seldom while nothing is near, and never everybody at once.
fn poll_after_ms(phase: SalePhase, opens_in_ms: i64, random: u64) -> u64 {
    let base = match phase {
        SalePhase::Scheduled => (opens_in_ms.max(0).unsigned_abs() / 4).clamp(POLL_MIN_MS, POLL_MAX_MS),
        SalePhase::Open | SalePhase::Paused => POLL_MIN_MS,
        SalePhase::SoldOut => POLL_MAX_MS / 3,
        SalePhase::Closed => POLL_MAX_MS,
    };
    base + random % base.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_spread_and_keep_their_bounds() {
        for phase in SalePhase::ALL {
            for random in [0, 1, 12_345, u64::MAX] {
                let ms = poll_after_ms(*phase, 3_600_000, random);
                assert!((POLL_MIN_MS..2 * POLL_MAX_MS).contains(&ms));
            }
        }
        assert_eq!(poll_after_ms(SalePhase::Scheduled, -5, 0), POLL_MIN_MS);
    }

    #[test]
    fn time_tells_its_error_only_when_it_is_known() {
        let body = |error| String::from_utf8(time(5, error, TraceId::from_random(1)).into_body().to_vec()).unwrap();
        assert_eq!(body(None), r#"{"now_ms":5,"error_ms":null}"#);
        assert_eq!(body(Some(3)), r#"{"now_ms":5,"error_ms":3}"#);
    }
}
