//! Refusals on their way out. A handler says which problem; the outermost layer adds what every
//! problem document has (trace id, server time, headers) and renders it, in one place.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use flashgate_shared::{
    SaleId, UnixMs,
    problem::{PROBLEM_JSON, Problem, ProblemKind},
    token::TokenError,
    trace::TraceId,
};
use http::{HeaderValue, StatusCode, header};

/// A problem that is not rendered yet.
#[derive(Debug, Clone)]
pub struct Refusal(pub Box<Problem>);

impl Refusal {
    /// Of this kind.
    pub fn new(kind: ProblemKind) -> Self {
        Self(Box::new(Problem::new(kind)))
    }

    /// With a sentence.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// With a jittered wait of `around_ms`, half to one and a half times.
    pub fn retry_around(mut self, around_ms: u64) -> Self {
        self.0.retry_after_ms = Some(jitter(around_ms));
        self
    }

    /// With the way to a claim whose answer was lost.
    pub fn my_claim(mut self, sale: &SaleId) -> Self {
        self.0.my_claim = Some(format!("/v1/sales/{sale}/my-claim"));
        self
    }
}

/// Half to one and a half times `around_ms`.
pub fn jitter(around_ms: u64) -> u64 {
    around_ms / 2 + rand::random_range(0..=around_ms)
}

impl From<ProblemKind> for Refusal {
    fn from(kind: ProblemKind) -> Self {
        let refusal = Self::new(kind);
        if kind.retryable() { refusal.retry_around(500) } else { refusal }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(self);
        response
    }
}

/// Renders the refusal that a response carries, if it does.
pub fn render(response: &mut Response, trace: TraceId, now_ms: UnixMs) -> Option<ProblemKind> {
    let Refusal(mut problem) = response.extensions_mut().remove::<Refusal>()?;
    problem.trace_id = Some(trace);
    problem.now_ms = Some(now_ms);
    let kind = problem.kind();
    let headers = response.headers_mut();
    // The router has measured the empty body that the refusal had until now.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if let Some(wait_ms) = problem.retry_after_ms {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1_000).max(1)));
    }
    if kind == Some(ProblemKind::Unauthorized) {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    *response.body_mut() = Body::from(serde_json::to_vec(&problem).unwrap_or_default());
    kind
}

/// The kind of a refused entry token: one mapping for every endpoint.
pub fn token_kind(error: &TokenError) -> ProblemKind {
    match error {
        TokenError::Missing => ProblemKind::TokenMissing,
        TokenError::Expired => ProblemKind::TokenExpired,
        TokenError::NotYetValid => ProblemKind::TokenNotYetValid,
        TokenError::Audience => ProblemKind::Forbidden,
        TokenError::Malformed
        | TokenError::Algorithm
        | TokenError::UnknownKey
        | TokenError::Signature
        | TokenError::Issuer => ProblemKind::TokenInvalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendered_problem_names_the_trace_and_the_wait() {
        let mut response = Refusal::from(ProblemKind::Overloaded).into_response();
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        let kind = render(&mut response, TraceId::from_random(7), 5);
        assert_eq!(kind, Some(ProblemKind::Overloaded));
        assert_eq!(response.status(), 503);
        assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
        assert_eq!(render(&mut response, TraceId::from_random(7), 5), None);
    }

    #[test]
    fn waits_are_jittered_around_the_wish() {
        for _ in 0..100 {
            assert!((50..=150).contains(&jitter(100)));
        }
    }
}
