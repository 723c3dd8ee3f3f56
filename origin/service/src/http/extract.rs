//! What handlers take from a request: credentials, the trace, the entry token, bodies.

use crate::{App, http::problem::Refusal, sales::Sale};
use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
};
use bytes::Bytes;
use flashgate_shared::{
    BuyerId, UnixMs, limits,
    problem::ProblemKind,
    token::{self, EntryClaims, Lifetime, TokenError},
    trace::TraceId,
    wire::EDGE_KEY_HEADER,
};
use http::{HeaderMap, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::{convert::Infallible, sync::Arc};

/// The caller is an edge of ours.
#[derive(Debug, Clone, Copy)]
pub struct Edge;

impl FromRequestParts<Arc<App>> for Edge {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let given = parts.headers.get(EDGE_KEY_HEADER).ok_or(ProblemKind::Unauthorized)?;
        if app.secrets.is_edge_key(given.as_bytes()) { Ok(Self) } else { Err(ProblemKind::Unauthorized.into()) }
    }
}

/// The caller is an operator.
#[derive(Debug, Clone, Copy)]
pub struct Operator;

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let given = parts.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = given.and_then(token::bearer).ok_or(ProblemKind::Unauthorized)?;
        if app.secrets.is_admin_token(token.as_bytes()) { Ok(Self) } else { Err(ProblemKind::Unauthorized.into()) }
    }
}

/// The request's trace, set by the outermost layer.
#[derive(Debug, Clone, Copy)]
pub struct Trace(pub TraceId);

impl FromRequestParts<Arc<App>> for Trace {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Trace>().copied().unwrap_or(Self(TraceId::from_random(0))))
    }
}

impl OptionalFromRequestParts<Arc<App>> for Trace {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Trace>().copied())
    }
}

/// A sale by the text of its id.
pub fn sale(app: &App, id: &str) -> Result<Arc<Sale>, Refusal> {
    app.sales.get(id).ok_or_else(|| Refusal::new(ProblemKind::NotFound).detail("no such sale"))
}

/// The entry token that came with the request: the header wins over the cookie.
fn entry_token(headers: &HeaderMap, sale: &Sale) -> Result<String, TokenError> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().map_err(|_| TokenError::Malformed)?;
        return token::bearer(text).map(str::to_owned).ok_or(TokenError::Malformed);
    }
    let name = token::cookie_name(sale.id());
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    cookies.into_iter().find_map(|c| token::cookie(c, &name).map(str::to_owned)).ok_or(TokenError::Missing)
}

/// Verifies the token for a new claim.
pub fn entrant(app: &App, headers: &HeaderMap, sale: &Sale, now_ms: UnixMs) -> Result<EntryClaims, TokenError> {
    verify(app, headers, sale, now_ms, Lifetime::Strict)
}

/// Verifies the token for status, my-claim and pay, where its `exp` does not bind (design §4).
pub fn buyer(app: &App, headers: &HeaderMap, sale: &Sale, now_ms: UnixMs) -> Result<BuyerId, TokenError> {
    let until = sale.row.config.closes_at_ms.saturating_add(limits::TOKEN_AFTERLIFE_MS);
    verify(app, headers, sale, now_ms, Lifetime::Until(until)).map(|claims| claims.sub)
}

fn verify(
    app: &App,
    headers: &HeaderMap,
    sale: &Sale,
    now_ms: UnixMs,
    lifetime: Lifetime,
) -> Result<EntryClaims, TokenError> {
    let text = entry_token(headers, sale)?;
    token::verify(&text, &app.secrets.keys, &app.config.token.issuer, sale.id(), now_ms, lifetime)
}

/// Reads a body of at most `limit` bytes.
pub async fn bytes(body: Body, limit: usize) -> Result<Bytes, ProblemKind> {
    match Limited::new(body, limit).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ProblemKind::BodyTooLarge),
        Err(_) => Err(ProblemKind::BadRequest),
    }
}

/// Reads a JSON body; `None` when there is none.
pub async fn json<T: DeserializeOwned>(headers: &HeaderMap, body: Body, limit: usize) -> Result<Option<T>, Refusal> {
    let body = bytes(body, limit).await?;
    if body.is_empty() {
        return Ok(None);
    }
    let media = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        return Err(ProblemKind::UnsupportedMedia.into());
    }
    // serde takes an array for a struct, by position; the API has objects only.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::new(ProblemKind::BadRequest).detail("the body must be a JSON object"));
    }
    match serde_json::from_slice(&body) {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.is_data() => Err(Refusal::new(ProblemKind::Unprocessable).detail(e.to_string())),
        Err(e) => Err(Refusal::new(ProblemKind::BadRequest).detail(e.to_string())),
    }
}

/// Reads a JSON body that must be there.
pub async fn json_required<T: DeserializeOwned>(headers: &HeaderMap, body: Body, limit: usize) -> Result<T, Refusal> {
    json(headers, body, limit)
        .await?
        .ok_or_else(|| Refusal::new(ProblemKind::Unprocessable).detail("a JSON body is needed"))
}
