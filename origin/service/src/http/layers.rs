//! Around every request, cheapest first: trace id, load shedding, time-out, panic to 500, problem
//! rendering, common headers. One function instead of a stack of boxed layers: this is the path of
//! every loser whom the edge did not stop.

use crate::{
    App,
    http::{
        extract::Trace,
        problem::{Refusal, render},
    },
};
use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
};
use flashgate_shared::{
    Clock, limits,
    problem::ProblemKind,
    trace::TraceId,
    wire::{TRACE_ID_HEADER, TRACEPARENT_HEADER},
};
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, header};
use hyper::body::Incoming;
use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tower::Service;

const TRACE_ID: HeaderName = HeaderName::from_static(TRACE_ID_HEADER);

/// Answers one request. Never fails and never panics.
pub async fn answer(app: Arc<App>, router: Router, mut request: Request<Incoming>) -> Result<Response, Infallible> {
    let given = request.headers().get(TRACEPARENT_HEADER).and_then(|v| v.to_str().ok());
    let trace =
        given.and_then(|v| TraceId::from_traceparent(v).ok()).unwrap_or_else(|| TraceId::from_random(rand::random()));
    request.extensions_mut().insert(Trace(trace));
    let mut response = admit(&app, router, request, trace).await;
    if let Some(kind) = render(&mut response, trace, app.clock.now_ms()) {
        metrics::counter!("flashgate_origin_refusals_total", "kind" => kind.as_str()).increment(1);
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&trace.to_string()) {
        headers.insert(TRACE_ID, value);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn admit(app: &App, mut router: Router, request: Request<Incoming>, trace: TraceId) -> Response {
    let target = request.uri().path_and_query().map_or(0, |t| t.as_str().len());
    if target > limits::TARGET_BYTES {
        return Refusal::from(ProblemKind::TargetTooLong).into_response();
    }
    let Ok(_slot) = app.in_flight.try_acquire() else {
        return Refusal::from(ProblemKind::Overloaded).into_response();
    };
    let safe = request.method() == Method::GET || request.method() == Method::HEAD;
    let limit = Duration::from_millis(app.config.server.request_timeout_ms);
    let work = AssertUnwindSafe(router.call(request.map(Body::new))).catch_unwind();
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_panic)) => {
            // The panic hook has told where.
            tracing::error!(%trace, "a request handler panicked");
            Refusal::from(ProblemKind::Internal).into_response()
        }
        Err(_late) => {
            tracing::warn!(%trace, "a request took too long");
            let kind = if safe { ProblemKind::Unavailable } else { ProblemKind::Unknown };
            Refusal::from(kind).into_response()
        }
    }
}
