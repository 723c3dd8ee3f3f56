//! Sub-leases: one desk per sale and location asks the authority for many instances of the gate.
//!
//! Where instances come and go by the hundred, each with a small demand, the authority would be asked
//! by all of them all the time. So they ask a [`Sublessor`] near them, with the very question that they
//! would ask the authority. Questions gather into *rounds*: a round is one question to the authority,
//! for the demand of all who joined it, and its answer is split among them by their demand. Rounds
//! follow each other at the authority's own pace (`retry_ms`).
//!
//! Every question waits for a round that is asked *after* it came. So its answer is as young as the
//! authority's own, and the whole of it, clock and grant time included, can be handed on unchanged but
//! for the number of permits: a [`crate::lease::LeaseBook`] counts a permit's life from the moment its
//! own question began, which is before the round's, so a sub-lease inherits what is left of its
//! parent's life and never more. A share that nobody fetches is lost, like any unused grant.
//!
//! It remembers nothing that matters: a desk that was restarted asks again.

use crate::{
    GateConfig, forward,
    gate::trace_of,
    host::{Body, Host, Terms},
    limits::{
        BACKOFF_FIRST_MS, FLIGHT_SLACK_MS, GATHER_MS, LEASE_ANSWER_BYTES, QUESTION_EACH_MS, QUESTIONS_MAX,
        RETRY_MIN_MS, ROUND_DEADLINE_MS, ROUNDS_KEPT, SUBLEASE_WAIT_MS, WAIT_STEP_MS,
    },
    refresh::LEASES_TARGET,
};
use bytes::Bytes;
use flashgate_shared::{
    SaleId, UnixMs,
    limits::{LEASE_LIFE_MS, LEASE_WANT_MAX},
    wire::{LeaseAnswer, LeaseKind, LeaseRequest},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use std::{cell::RefCell, collections::VecDeque};

/// The sale that a request of the gate asks a lease for; `None` when it is any other request. Where
/// there are sub-leases, the runtime sends such a request to the sale's [`Sublessor`].
pub fn lease_question(request: &Request<Bytes>) -> Option<SaleId> {
    if request.uri().path() != LEASES_TARGET {
        return None;
    }
    serde_json::from_slice::<LeaseRequest>(request.body()).ok().map(|ask| ask.sale)
}

/// The desk of one sale in one location. Single-threaded; questions take turns at their awaits, and no
/// borrow is held across one.
pub struct Sublessor {
    edge_key: HeaderValue,
    pools: RefCell<[Pool; 2]>,
}

impl Sublessor {
    /// A desk that knows nothing yet.
    pub fn new(config: GateConfig) -> Self {
        Self { edge_key: config.edge_key_header(), pools: RefCell::default() }
    }

    /// Answers the question of an instance as the authority would: 200 with a [`LeaseAnswer`], 503 when
    /// the authority does not answer, 400 to anything else.
    pub async fn handle<H: Host>(&self, host: &H, request: Request<Bytes>) -> Response<Bytes> {
        let Ok(ask) = serde_json::from_slice::<LeaseRequest>(request.body()) else {
            return empty(StatusCode::BAD_REQUEST);
        };
        let answer = self.lease(host, &request, &ask).await;
        let Some(document) = answer.and_then(|answer| serde_json::to_vec(&answer).ok()) else {
            return empty(StatusCode::SERVICE_UNAVAILABLE);
        };
        let mut response = Response::new(Bytes::from(document));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }

    async fn lease<H: Host>(&self, host: &H, request: &Request<Bytes>, ask: &LeaseRequest) -> Option<LeaseAnswer> {
        let ticket = self.with(ask.kind, |pool| pool.join(ask.want, host.now_ms()))?;
        loop {
            match self.with(ask.kind, |pool| pool.turn(&ticket, host.now_ms())) {
                Turn::Told(answer) => return answer,
                Turn::Wait(ms) => host.pause(ms).await,
                Turn::Ask(want) => {
                    let whole = LeaseRequest { sale: ask.sale.clone(), kind: ask.kind, want };
                    let answer = self.ask(host, request, &whole).await;
                    self.with(ask.kind, |pool| pool.hear(ticket.round, answer));
                }
            }
        }
    }

    /// The round's question to the authority.
    async fn ask<H: Host>(&self, host: &H, request: &Request<Bytes>, ask: &LeaseRequest) -> Option<LeaseAnswer> {
        let body = Bytes::from(serde_json::to_vec(ask).ok()?);
        let trace = trace_of(host, request.headers());
        let onward = forward::own(Method::POST, LEASES_TARGET, body, &self.edge_key, trace, host.random_u64())?;
        let terms = Terms { deadline_ms: ROUND_DEADLINE_MS, max_bytes: LEASE_ANSWER_BYTES, stream: false };
        let answer = host.origin(onward, terms).await.ok()?;
        match (answer.status(), answer.into_body()) {
            (StatusCode::OK, Body::Bytes(bytes)) => serde_json::from_slice(&bytes).ok(),
            _ => None,
        }
    }

    fn with<T>(&self, kind: LeaseKind, look: impl FnOnce(&mut Pool) -> T) -> T {
        let [claim, enter] = &mut *self.pools.borrow_mut();
        look(match kind {
            LeaseKind::Claim => claim,
            LeaseKind::Enter => enter,
        })
    }
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// A question's place in a round: the demand of those before it, and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket {
    round: u64,
    before: u32,
    want: u32,
    came_ms: UnixMs,
}

/// What a waiting question has to do.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Ask the authority for so many permits, then tell [`Pool::hear`].
    Ask(u32),
    /// Look again after so many milliseconds.
    Wait(u64),
    /// The answer; `None` when the authority gave none.
    Told(Option<LeaseAnswer>),
}

/// Questions that are, or were, asked as one.
#[derive(Debug, Clone, Default)]
struct Round {
    number: u64,
    want: u32,
    questions: u32,
    /// When its first question came, then when it was asked.
    since_ms: Option<UnixMs>,
}

/// The rounds of one kind of lease.
#[derive(Debug, Default)]
struct Pool {
    /// The round that questions join.
    gathering: Round,
    /// The round that is being asked.
    flying: Option<Round>,
    /// The last ones that ended, with what the authority answered.
    ended: VecDeque<(Round, Option<LeaseAnswer>)>,
    /// When the authority was last asked, and how long to keep still after that.
    asked_at_ms: Option<UnixMs>,
    still_ms: i64,
    /// The last question had no answer.
    deaf: bool,
}

impl Pool {
    /// A question joins the round that gathers. `None`: too many are in it, or the authority did not
    /// answer a moment ago.
    fn join(&mut self, want: u32, now_ms: UnixMs) -> Option<Ticket> {
        self.give_up(now_ms);
        if self.gathering.questions >= QUESTIONS_MAX
            || (self.deaf && self.flying.is_none() && self.still_for(now_ms) > 0)
        {
            return None;
        }
        let round = &mut self.gathering;
        let want = want.min(LEASE_WANT_MAX);
        let ticket = Ticket { round: round.number, before: round.want, want, came_ms: now_ms };
        round.want = round.want.saturating_add(want);
        round.questions += 1;
        round.since_ms.get_or_insert(now_ms);
        Some(ticket)
    }

    /// What a question with this ticket has to do now.
    fn turn(&mut self, ticket: &Ticket, now_ms: UnixMs) -> Turn {
        self.give_up(now_ms);
        if let Some((round, answer)) = self.ended.iter().find(|(round, _)| round.number == ticket.round) {
            return Turn::Told(answer.as_ref().map(|answer| share(ticket, round, answer)));
        }
        let waited_ms = now_ms.saturating_sub(ticket.came_ms);
        if !(0..SUBLEASE_WAIT_MS).contains(&waited_ms) {
            return Turn::Told(None);
        }
        let flying = self.flying.as_ref().map(|round| round.number);
        if ticket.round != self.gathering.number && flying != Some(ticket.round) {
            return Turn::Told(None); // it looked so late that its round is forgotten
        }
        if flying.is_some() {
            return Turn::Wait(WAIT_STEP_MS);
        }
        let gathered_ms = self.gathering.since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        let wait_ms = self.still_for(now_ms).max(GATHER_MS.saturating_sub(gathered_ms).min(GATHER_MS));
        if wait_ms > 0 {
            return Turn::Wait(wait_ms.unsigned_abs());
        }
        Turn::Ask(self.fly(now_ms))
    }

    /// The round that gathers is asked; another one gathers from now on.
    fn fly(&mut self, now_ms: UnixMs) -> u32 {
        let next = Round { number: self.gathering.number + 1, ..Round::default() };
        let mut round = std::mem::replace(&mut self.gathering, next);
        round.since_ms = Some(now_ms);
        self.asked_at_ms = Some(now_ms);
        self.still_ms = RETRY_MIN_MS;
        let want = round.want.min(LEASE_WANT_MAX);
        self.flying = Some(round);
        want
    }

    /// The authority answered a round, or did not.
    fn hear(&mut self, number: u64, answer: Option<LeaseAnswer>) {
        // A round that was given up meanwhile has ended: its permits would be handed out to nobody.
        let Some(round) = self.flying.take_if(|round| round.number == number) else {
            return;
        };
        self.deaf = answer.is_none();
        self.still_ms = match &answer {
            Some(answer) => pace_ms(&round, answer),
            None => BACKOFF_FIRST_MS,
        };
        self.end(round, answer);
        if self.deaf && self.gathering.questions > 0 {
            // Nor is there an answer for those who came meanwhile.
            let next = Round { number: self.gathering.number + 1, ..Round::default() };
            let round = std::mem::replace(&mut self.gathering, next);
            self.end(round, None);
        }
    }

    fn end(&mut self, round: Round, answer: Option<LeaseAnswer>) {
        if self.ended.len() >= ROUNDS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back((round, answer));
    }

    /// A question to the authority that never came back (its request was cancelled) ends without an
    /// answer.
    fn give_up(&mut self, now_ms: UnixMs) {
        const LIFE_MS: i64 = ROUND_DEADLINE_MS as i64 + FLIGHT_SLACK_MS;
        let lost = |round: &Round| {
            !round.since_ms.is_some_and(|since| (since..since.saturating_add(LIFE_MS)).contains(&now_ms))
        };
        if let Some(round) = self.flying.as_ref().filter(|round| lost(round)) {
            self.hear(round.number, None);
        }
    }

    /// How long the authority is still to be left alone, in milliseconds.
    fn still_for(&self, now_ms: UnixMs) -> i64 {
        self.asked_at_ms
            .filter(|at| *at <= now_ms) // a clock set back asks again
            .map_or(0, |at| at.saturating_add(self.still_ms).saturating_sub(now_ms).max(0))
    }
}

/// How long after a round the next one may be: the authority's pace, and slower where more would ask
/// than a desk can answer.
fn pace_ms(round: &Round, answer: &LeaseAnswer) -> i64 {
    let crowd_ms = i64::from(round.questions) * QUESTION_EACH_MS;
    answer.retry_ms.max(crowd_ms).clamp(RETRY_MIN_MS, LEASE_LIFE_MS)
}

/// A question's share of the round's answer: by demand, rounded so that all shares together are what
/// was granted. It is told to come again when the next round is due.
fn share(ticket: &Ticket, round: &Round, answer: &LeaseAnswer) -> LeaseAnswer {
    let granted = u64::from(answer.granted.min(round.want));
    let up_to = |demand: u32| (granted * u64::from(demand)).checked_div(round.want.into()).unwrap_or(0);
    let mine = up_to(ticket.before.saturating_add(ticket.want)).saturating_sub(up_to(ticket.before));
    let waited_ms = round.since_ms.map_or(0, |asked| asked.saturating_sub(ticket.came_ms)).max(0);
    LeaseAnswer {
        granted: u32::try_from(mine).unwrap_or(0),
        // Its own rest is counted from its question, ours from the round's.
        retry_ms: pace_ms(round, answer).saturating_add(waited_ms),
        ..answer.clone()
    }
}

#[cfg(test)]
mod tests;
