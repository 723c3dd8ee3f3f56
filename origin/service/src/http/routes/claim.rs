//! `POST /v1/sales/{sale}/claim`: the one request that everybody sends at once.

use crate::{
    App,
    claims::{Outcome, take},
    http::{
        extract::{self, Edge, Trace},
        problem::{Refusal, jitter, token_kind},
    },
    sales::Sale,
    status_url::Facts,
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use flashgate_queue::Published;
use flashgate_shared::{
    BuyerId, ClaimId, Clock, HoldId, IdempotencyKey, SaleId, UnixMs,
    admission::{Permit, PermitError},
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    limits,
    problem::ProblemKind,
    sale::SalePhase,
    token::TokenError,
    trace::TraceId,
    wire::{ClaimAccepted, ClaimRequest, IDEMPOTENCY_KEY_HEADER, PERMIT_HEADER},
};
use flashgate_stock::ClaimAttempt;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;

/// When to ask for the status first.
const FIRST_POLL_MS: u64 = 300;

/// Why a claim is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimError {
    /// The sale does not sell now; the opening comes with it.
    Phase(SalePhase, UnixMs),
    /// The edge's permit does not admit it.
    Permit(PermitError),
    /// The entry token does not.
    Token(TokenError),
    /// No usable idempotency key.
    Key,
    /// The body is not a claim.
    Body(Box<ClaimBodyError>),
    /// Not 1 to the sale's limit.
    Quantity(u32),
    /// Too much waits to be settled.
    Backlog,
    /// The same key came with another quantity.
    Changed(ClaimId),
    /// What the gate said.
    Gate(Outcome),
}

/// A body's problem, decided where bodies are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimBodyError {
    kind: ProblemKind,
    detail: Option<String>,
}

impl ClaimError {
    fn refusal(self, sale: &SaleId) -> Refusal {
        let about = |kind: ProblemKind, claim_id: ClaimId| {
            let mut refusal = Refusal::from(kind);
            refusal.0.claim_id = Some(claim_id);
            refusal
        };
        let refusal = match self {
            Self::Phase(SalePhase::Scheduled, opens_at_ms) => {
                let mut refusal = Refusal::from(ProblemKind::NotOpen);
                refusal.0.opens_at_ms = Some(opens_at_ms);
                refusal
            }
            Self::Phase(SalePhase::Closed, _) => ProblemKind::Closed.into(),
            Self::Phase(SalePhase::SoldOut, _) | Self::Gate(Outcome::SoldOut) => ProblemKind::SoldOut.into(),
            Self::Phase(SalePhase::Paused | SalePhase::Open, _) | Self::Gate(Outcome::NotLoaded) => {
                ProblemKind::Paused.into()
            }
            Self::Permit(error) => Refusal::from(ProblemKind::PermitRefused).detail(error.to_string()),
            Self::Token(error) => Refusal::from(token_kind(&error)).detail(error.to_string()),
            Self::Key => Refusal::from(ProblemKind::Unprocessable)
                .detail("an Idempotency-Key of 1 to 128 visible ASCII characters is needed"),
            Self::Body(error) => {
                let mut refusal = Refusal::from(error.kind);
                refusal.0.detail = error.detail;
                refusal
            }
            Self::Quantity(limit) => {
                Refusal::from(ProblemKind::Unprocessable).detail(format!("quantity must be 1 to {limit}"))
            }
            Self::Backlog => ProblemKind::BacklogFull.into(),
            Self::Changed(claim_id) => about(ProblemKind::Changed, claim_id),
            Self::Gate(Outcome::Already(claim_id)) => about(ProblemKind::AlreadyClaimed, claim_id),
            Self::Gate(Outcome::AlreadyHad(claim_id)) => about(ProblemKind::AlreadyHad, claim_id),
            Self::Gate(Outcome::NotEnough(left)) => {
                let mut refusal = Refusal::from(ProblemKind::NotEnoughLeft).detail(format!("only {left} left"));
                refusal.0.left = Some(left);
                refusal
            }
            Self::Gate(Outcome::Contended) => ProblemKind::TryAgain.into(),
            Self::Gate(Outcome::Unknown) => ProblemKind::Unknown.into(),
            Self::Gate(Outcome::Unavailable) => ProblemKind::Unavailable.into(),
            Self::Gate(Outcome::BadQuantity) => ProblemKind::Unprocessable.into(),
            // Accepted outcomes are no errors; a mapping must be total all the same.
            Self::Gate(Outcome::Taken { .. } | Outcome::Replay(_)) => ProblemKind::Internal.into(),
        };
        refusal.my_claim(sale)
    }
}

/// Claims units for the buyer of the entry token. Needs the edge's key and a permit.
///
/// Cheap refusals first: sale and phase (with "sold out" from a map ≤ 100 ms old), permit, token,
/// key, body, backlog; then Redis decides.
pub async fn handler(
    _: Edge,
    Trace(trace): Trace,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<ClaimAccepted>), Refusal> {
    let sale = extract::sale(&app, &id)?;
    match claim(&app, &sale, &headers, body, trace).await {
        Ok(accepted) => Ok((StatusCode::ACCEPTED, Json(accepted))),
        Err(error) => Err(error.refusal(sale.id())),
    }
}

async fn claim(
    app: &App,
    sale: &Sale,
    headers: &HeaderMap,
    body: Body,
    trace: TraceId,
) -> Result<ClaimAccepted, ClaimError> {
    let config = &sale.row.config;
    let mono_us = app.clock.mono_us();
    let moment = app.clock.moment();
    sale.demand(mono_us);
    match sale.phase(moment.now_ms, mono_us) {
        SalePhase::Open => {}
        phase => return Err(ClaimError::Phase(phase, config.opens_at_ms)),
    }
    let permit = headers.get(PERMIT_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
    permit
        .parse()
        .and_then(|permit: Permit| permit.check(moment.now_ms, moment.error_ms, sale.row.epoch))
        .map_err(ClaimError::Permit)?;
    sale.live.traffic.claim(|| app.clock.mono_us());
    let token = extract::entrant(app, headers, sale, moment.now_ms).map_err(ClaimError::Token)?;
    let key = idempotency_key(headers).ok_or(ClaimError::Key)?;
    let quantity = quantity(headers, body, config.per_buyer_limit).await?;
    backlog(app, sale).await?;
    let attempt = ClaimAttempt {
        sale: config.id.clone(),
        epoch: sale.row.epoch,
        claim_id: ClaimId::derive(&config.id, &token.sub, &key),
        buyer: token.sub,
        quantity,
        per_buyer_limit: config.per_buyer_limit,
        second_try: config.second_try,
        now_ms: app.clock.now_ms(),
        trace_id: trace,
    };
    let claimed_at_ms = match take(app, sale, &attempt).await {
        Outcome::Taken { hold, claimed_at_ms } => {
            publish(app, &attempt, hold).await;
            sale.live.traffic.accepted(app.clock.now_ms());
            claimed_at_ms
        }
        Outcome::Replay(receipt) if receipt.quantity != quantity => return Err(ClaimError::Changed(receipt.claim_id)),
        Outcome::Replay(receipt) => receipt.claimed_at_ms,
        refused => return Err(ClaimError::Gate(refused)),
    };
    Ok(accepted(app, &attempt.claim_id, &config.id, &attempt.buyer, quantity, claimed_at_ms))
}

fn accepted(
    app: &App,
    claim_id: &ClaimId,
    sale: &SaleId,
    buyer: &BuyerId,
    quantity: u32,
    claimed_at_ms: UnixMs,
) -> ClaimAccepted {
    let facts = Facts { claim_id: *claim_id, sale, buyer, quantity, claimed_at_ms };
    ClaimAccepted {
        claim_id: *claim_id,
        status_url: facts.url(&app.secrets.status_macs),
        poll_after_ms: jitter(FIRST_POLL_MS),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Option<IdempotencyKey> {
    headers.get(IDEMPOTENCY_KEY_HEADER)?.to_str().ok()?.parse().ok()
}

async fn quantity(headers: &HeaderMap, body: Body, limit: u32) -> Result<u32, ClaimError> {
    let asked = extract::json::<ClaimRequest>(headers, body, limits::BUYER_BODY_BYTES).await.map_err(|refusal| {
        let kind = refusal.0.kind().unwrap_or(ProblemKind::BadRequest);
        ClaimError::Body(Box::new(ClaimBodyError { kind, detail: refusal.0.detail }))
    })?;
    let quantity = asked.map_or(1, |request| request.quantity);
    if (1..=limit).contains(&quantity) { Ok(quantity) } else { Err(ClaimError::Quantity(limit)) }
}

/// A full queue refuses here, before anything is taken.
async fn backlog(app: &App, sale: &Sale) -> Result<(), ClaimError> {
    let reading = sale.young(&app.stock, &app.clock).await.map_err(|error| {
        tracing::warn!(%error, sale = %sale.id(), "the stock map cannot be read");
        ClaimError::Gate(Outcome::Unavailable)
    })?;
    let waiting = reading.map.outbox().saturating_add(sale.queue_depth());
    if waiting > u64::from(sale.row.config.backlog_limit) { Err(ClaimError::Backlog) } else { Ok(()) }
}

/// Sends the claim to the queue. Whatever does not end in a confirm stays in the outbox, where the
/// relay finds it: the buyer hears 202 in any case.
async fn publish(app: &App, attempt: &ClaimAttempt, hold: HoldId) {
    let envelope = ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: attempt.sale.clone(),
        claim_id: attempt.claim_id,
        buyer: attempt.buyer.clone(),
        quantity: attempt.quantity,
        hold,
        claimed_at_ms: attempt.now_ms,
        trace_id: attempt.trace_id,
    };
    match app.queue.publish(&envelope).await {
        Published::Confirmed => app.confirmed.add(envelope.sale, envelope.hold),
        Published::Unknown(error) => {
            metrics::counter!("flashgate_publish_unconfirmed_total").increment(1);
            tracing::debug!(%error, claim = %envelope.claim_id, trace = %envelope.trace_id, "not confirmed; left to the relay");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(error: ClaimError) -> (u16, Option<ProblemKind>) {
        let refusal = error.refusal(&"s".parse().unwrap());
        assert_eq!(refusal.0.my_claim.as_deref(), Some("/v1/sales/s/my-claim"));
        (refusal.0.status, refusal.0.kind())
    }

    #[test]
    fn every_refusal_points_to_my_claim_and_has_its_status() {
        let claim_id = ClaimId(uuid::Uuid::nil());
        for (error, expected) in [
            (ClaimError::Phase(SalePhase::Scheduled, 5), 425),
            (ClaimError::Phase(SalePhase::SoldOut, 5), 410),
            (ClaimError::Phase(SalePhase::Closed, 5), 410),
            (ClaimError::Phase(SalePhase::Paused, 5), 503),
            (ClaimError::Permit(PermitError::Stale), 503),
            (ClaimError::Token(TokenError::Missing), 401),
            (ClaimError::Token(TokenError::Audience), 403),
            (ClaimError::Key, 422),
            (ClaimError::Quantity(1), 422),
            (ClaimError::Backlog, 503),
            (ClaimError::Changed(claim_id), 422),
            (ClaimError::Gate(Outcome::Already(claim_id)), 409),
            (ClaimError::Gate(Outcome::AlreadyHad(claim_id)), 409),
            (ClaimError::Gate(Outcome::NotEnough(2)), 409),
            (ClaimError::Gate(Outcome::Unknown), 503),
            (ClaimError::Gate(Outcome::NotLoaded), 503),
            (ClaimError::Gate(Outcome::SoldOut), 410),
        ] {
            assert_eq!(status(error.clone()).0, expected, "{error:?}");
        }
    }

    #[tokio::test]
    async fn quantities_are_one_by_default_and_bounded() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse().unwrap());
        let ask = async |text: &'static str| quantity(&headers, Body::from(text), 2).await;
        assert_eq!(ask("").await, Ok(1));
        assert_eq!(ask("{}").await, Ok(1));
        assert_eq!(ask("{\"quantity\":2}").await, Ok(2));
        assert_eq!(ask("{\"quantity\":3}").await, Err(ClaimError::Quantity(2)));
        assert_eq!(ask("{\"quantity\":0}").await, Err(ClaimError::Quantity(2)));
        for bad in ["{\"quantity\":-1}", "{\"quantity\":1,\"x\":1}", "{", "[]", "[2]"] {
            assert!(matches!(ask(bad).await, Err(ClaimError::Body(_))), "{bad}");
        }
    }
}
