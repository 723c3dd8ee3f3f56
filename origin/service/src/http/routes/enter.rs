//! `POST /v1/sales/{sale}/enter`: who the buyer is, signed.

use crate::{
    App,
    http::{
        extract::{self, Edge},
        problem::{Refusal, token_kind},
    },
    sales::Sale,
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use flashgate_shared::{
    BuyerId, Clock, UnixMs, limits,
    problem::ProblemKind,
    sale::{SaleConfig, SalePhase},
    token::{self, EntryClaims, Lifetime, TokenError},
    wire::{EnterAnswer, EnterRequest},
};
use http::{HeaderMap, HeaderName, header};
use std::sync::Arc;
use uuid::Uuid;

/// Tokens are dated back this much, in milliseconds, so that an edge whose estimate of the clock is
/// a little behind does not find them from the future.
const BACKDATE_MS: i64 = 250;

/// Why nobody enters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnterError {
    /// The sale is over.
    Closed,
    /// The sale wants the shop's word, and none came.
    AssertionMissing,
    /// The shop's word does not stand.
    Assertion(TokenError),
    /// The token could not be signed.
    Signing,
}

impl From<EnterError> for Refusal {
    fn from(error: EnterError) -> Self {
        match error {
            EnterError::Closed => ProblemKind::Closed.into(),
            EnterError::AssertionMissing => {
                Refusal::from(ProblemKind::Forbidden).detail("this sale is entered through the shop only")
            }
            EnterError::Assertion(error) => Refusal::from(token_kind(&error)).detail(format!("assertion: {error}")),
            EnterError::Signing => ProblemKind::Internal.into(),
        }
    }
}

/// Issues an entry token, in the body and as a cookie. A buyer who comes again with a token of this
/// sale stays who he is.
pub async fn handler(
    _: Edge,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<([(HeaderName, String); 1], Json<EnterAnswer>), Refusal> {
    let sale = extract::sale(&app, &id)?;
    let request: EnterRequest = extract::json(&headers, body, limits::BUYER_BODY_BYTES).await?.unwrap_or_default();
    let now_ms = app.clock.now_ms();
    if sale.phase(now_ms, app.clock.mono_us()) == SalePhase::Closed {
        return Err(EnterError::Closed.into());
    }
    let buyer = who(&app, &sale, &headers, &request, now_ms)?;
    let claims = claims(&sale.row.config, &app.config.token.issuer, buyer, now_ms, app.config.token.ttl_s);
    let token = app.secrets.sign(&claims).map_err(|error| {
        tracing::error!(%error, "an entry token could not be signed");
        EnterError::Signing
    })?;
    let expires_at_ms = claims.exp * 1_000;
    let max_age_s = (expires_at_ms.max(sale.row.config.closes_at_ms) + limits::TOKEN_AFTERLIFE_MS - now_ms) / 1_000;
    let https = headers.get("x-forwarded-proto").is_some_and(|v| v.as_bytes() == b"https");
    let secure = if https { "; Secure" } else { "" };
    let name = token::cookie_name(sale.id());
    let cookie = format!("{name}={token}; Path=/v1/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}");
    let answer = EnterAnswer { token, position: claims.pos, expires_at_ms, now_ms };
    Ok(([(header::SET_COOKIE, cookie)], Json(answer)))
}

fn who(
    app: &App,
    sale: &Sale,
    headers: &HeaderMap,
    request: &EnterRequest,
    now_ms: UnixMs,
) -> Result<BuyerId, EnterError> {
    if let Some(assertion) = &request.assertion {
        let issuer = &app.config.token.shop_issuer;
        return token::verify(assertion, &app.secrets.shop_keys, issuer, sale.id(), now_ms, Lifetime::Strict)
            .map(|claims| claims.sub)
            .map_err(EnterError::Assertion);
    }
    if !sale.row.config.anonymous_entry {
        return Err(EnterError::AssertionMissing);
    }
    if let Ok(known) = extract::buyer(app, headers, sale, now_ms) {
        return Ok(known);
    }
    format!("anon-{}", Uuid::new_v4()).parse().map_err(|_| EnterError::Signing)
}

fn claims(sale: &SaleConfig, issuer: &str, buyer: BuyerId, now_ms: UnixMs, ttl_s: i64) -> EntryClaims {
    let iat = (now_ms - BACKDATE_MS).div_euclid(1_000);
    EntryClaims {
        iss: issuer.to_owned(),
        aud: sale.id.clone(),
        sub: buyer,
        jti: Uuid::new_v4().to_string(),
        iat,
        nbf: iat,
        exp: iat.saturating_add(ttl_s).min(sale.closes_at_ms.div_euclid(1_000) + 1),
        pos: None,
        did: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_their_status() {
        let status = |e: EnterError| Refusal::from(e).0.status;
        assert_eq!(status(EnterError::Closed), 410);
        assert_eq!(status(EnterError::AssertionMissing), 403);
        assert_eq!(status(EnterError::Assertion(TokenError::Signature)), 401);
        assert_eq!(status(EnterError::Signing), 500);
    }
}
