//! `GET /v1/claims/{id}/events`: the status as server-sent events, until it is final.

use crate::{
    App,
    http::{
        extract::{Edge, Trace},
        problem::{Refusal, jitter},
        routes::claim_status::{refusal, subject},
    },
    status,
    status_url::StatusQuery,
};
use axum::{
    extract::{Path, Query, State, rejection::QueryRejection},
    response::sse::{Event, KeepAlive, Sse},
};
use flashgate_shared::{problem::ProblemKind, wire::ClaimStatus};
use futures_util::{Stream, stream};
use http::HeaderMap;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often a stream asks when nobody tells it anything, in milliseconds (jittered).
const POLL_MS: u64 = 1_000;
/// The same while only the buyer or the provider is awaited.
const RESERVED_POLL_MS: u64 = 3_000;
/// How long a stream lasts; the browser comes back by itself.
const LIFE: Duration = Duration::from_secs(600);
/// How often a sign of life goes out.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Why no stream opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsError {
    /// As many as are allowed are open: poll instead.
    Full,
}

impl From<EventsError> for Refusal {
    fn from(error: EventsError) -> Self {
        match error {
            EventsError::Full => Refusal::from(ProblemKind::Overloaded).detail("too many event streams; poll instead"),
        }
    }
}

fn event(status: &ClaimStatus) -> Event {
    Event::default().event("status").data(serde_json::to_string(status).unwrap_or_default())
}

/// One `status` event at once and one with every change; ends at a final state, on shutdown, and
/// after ten minutes.
pub async fn handler(
    _: Edge,
    Trace(trace): Trace,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<StatusQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let (claim_id, sale, buyer, query) = subject(&app, &headers, &id, query)?;
    let slot = app.streams.clone().try_acquire_owned().map_err(|_| EventsError::Full)?;
    let watch = app.watchers.watch(claim_id);
    let first = status::of_claim(&app, &sale, claim_id, &buyer, &query, trace).await.map_err(|e| refusal(&e))?;
    let begun = Instant::now();
    let follow = async move |mut last: Option<ClaimStatus>, mut due: Option<ClaimStatus>| loop {
        if let Some(status) = due.take() {
            let sent = event(&status);
            last = Some(status);
            return Some((sent, last));
        }
        if last.as_ref().is_some_and(status::is_final) || begun.elapsed() > LIFE {
            return None;
        }
        let reserved = last.as_ref().is_some_and(|l| l.pay_by_ms.is_some());
        let wait = Duration::from_millis(jitter(if reserved { RESERVED_POLL_MS } else { POLL_MS }));
        tokio::select! {
            () = app.shutdown.cancelled() => return None,
            () = watch.news() => {}
            () = tokio::time::sleep(wait) => {}
        }
        let _held = &slot;
        // An unanswered question is asked again; the stream does not end for it.
        if let Ok(now) = status::of_claim(&app, &sale, claim_id, &buyer, &query, trace).await {
            due = Some(now).filter(|now| last.as_ref().is_none_or(|l| differs(l, now)));
        }
    };
    let follow = Arc::new(follow);
    let events = stream::unfold((None, Some(first)), move |(last, due)| {
        let follow = follow.clone();
        async move {
            let (sent, last) = follow(last, due).await?;
            Some((Ok(sent), (last, None)))
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Whether the buyer would see a difference.
fn differs(a: &ClaimStatus, b: &ClaimStatus) -> bool {
    (a.status, a.paying, a.refunded, a.reason, a.pay_by_ms) != (b.status, b.paying, b.refunded, b.reason, b.pay_by_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_house_says_so() {
        assert_eq!(Refusal::from(EventsError::Full).0.status, 503);
    }
}
