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
mod tests {
    use super::*;
    use crate::lease::LeaseBook;
    use flashgate_shared::sale::SaleState;
    use proptest::prelude::*;

    fn answer(granted: u32, granted_at_ms: i64, now_ms: i64) -> LeaseAnswer {
        LeaseAnswer {
            granted,
            granted_at_ms,
            ttl_ms: 250,
            retry_ms: 100,
            now_ms,
            state: SaleState::Open,
            sold_out: false,
            epoch: 1,
            config_version: 1,
            key_ids: None,
        }
    }

    fn told(turn: Turn) -> Option<LeaseAnswer> {
        match turn {
            Turn::Told(answer) => answer,
            other => panic!("not told: {other:?}"),
        }
    }

    #[test]
    fn questions_gather_into_one_and_split_its_answer_by_their_demand() {
        let mut pool = Pool::default();
        let first = pool.join(6, 1000).unwrap();
        let second = pool.join(3, 1002).unwrap();
        assert_eq!(pool.turn(&first, 1002), Turn::Wait(3), "others may come");
        let third = pool.join(1, 1004).unwrap();
        assert_eq!(pool.turn(&second, 1005), Turn::Ask(10), "whoever looks first asks for all");
        assert_eq!(pool.turn(&first, 1006), Turn::Wait(WAIT_STEP_MS));
        let late = pool.join(5, 1007).unwrap();
        assert_eq!(pool.turn(&late, 1100), Turn::Wait(WAIT_STEP_MS), "one question at a time");
        pool.hear(second.round, Some(answer(5, 90_000, 90_001)));
        let shares = [first, second, third].map(|t| told(pool.turn(&t, 1030)).unwrap());
        assert_eq!(shares.each_ref().map(|a| a.granted), [3, 1, 1], "5 of 10 wanted");
        assert_eq!(shares.each_ref().map(|a| a.retry_ms), [105, 103, 101], "all come again when it is time");
        assert_eq!(shares[0], LeaseAnswer { granted: 3, retry_ms: 105, ..answer(5, 90_000, 90_001) });
        assert_eq!(pool.turn(&late, 1030), Turn::Wait(75), "the next round at the authority's pace");
        assert_eq!(pool.turn(&late, 1105), Turn::Ask(5));
    }

    #[test]
    fn a_deaf_authority_is_said_at_once_to_all_and_asked_again_after_a_pause() {
        let mut pool = Pool::default();
        let asker = pool.join(2, 0).unwrap();
        assert_eq!(pool.turn(&asker, GATHER_MS), Turn::Ask(2));
        let meanwhile = pool.join(2, 50).unwrap();
        pool.hear(asker.round, None);
        assert_eq!(pool.turn(&asker, 60), Turn::Told(None));
        assert_eq!(pool.turn(&meanwhile, 60), Turn::Told(None));
        assert_eq!(pool.join(2, 100), None);
        let again = pool.join(2, GATHER_MS + BACKOFF_FIRST_MS).unwrap();
        assert_eq!(pool.turn(&again, 2 * GATHER_MS + BACKOFF_FIRST_MS), Turn::Ask(2), "without those who left");
    }

    #[test]
    fn a_cancelled_asker_blocks_nobody_for_long() {
        let mut pool = Pool::default();
        let asker = pool.join(2, 0).unwrap();
        assert_eq!(pool.turn(&asker, GATHER_MS), Turn::Ask(2));
        let waiting = pool.join(1, 700).unwrap();
        let lost_ms = GATHER_MS + ROUND_DEADLINE_MS as i64 + FLIGHT_SLACK_MS;
        assert_eq!(pool.turn(&waiting, lost_ms - 1), Turn::Wait(WAIT_STEP_MS));
        assert_eq!(pool.turn(&waiting, lost_ms), Turn::Told(None));
        pool.hear(asker.round, Some(answer(2, 0, 0)));
        assert_eq!(pool.turn(&asker, lost_ms), Turn::Told(None), "a late answer is nobody's");
        assert!(pool.join(1, lost_ms + BACKOFF_FIRST_MS).is_some());
    }

    #[test]
    fn a_round_is_bounded_and_slows_down_with_its_crowd() {
        let mut pool = Pool::default();
        let tickets: Vec<_> = (0..QUESTIONS_MAX).map(|_| pool.join(u32::MAX, 0).unwrap()).collect();
        assert_eq!(pool.join(1, 0), None);
        assert_eq!(pool.turn(&tickets[0], GATHER_MS), Turn::Ask(LEASE_WANT_MAX));
        pool.hear(0, Some(LeaseAnswer { retry_ms: 25, ..answer(LEASE_WANT_MAX, 0, 0) }));
        let given: u64 = tickets.iter().map(|t| u64::from(told(pool.turn(t, 20)).unwrap().granted)).sum();
        assert_eq!(given, u64::from(LEASE_WANT_MAX));
        assert_eq!(told(pool.turn(&tickets[0], 20)).unwrap().retry_ms, LEASE_LIFE_MS + GATHER_MS);
        for n in 0..ROUNDS_KEPT as i64 {
            let next = pool.join(1, 1_000 * (n + 1)).unwrap();
            assert_eq!(pool.turn(&next, 1_000 * (n + 1) + GATHER_MS), Turn::Ask(1));
            pool.hear(next.round, Some(answer(1, 0, 0)));
        }
        assert_eq!(pool.turn(&Ticket { came_ms: 9_000, ..tickets[0] }, 9_001), Turn::Told(None), "forgotten");
        let mut pool = Pool::default();
        let none = pool.join(0, 0).unwrap();
        assert_eq!(pool.turn(&none, GATHER_MS), Turn::Ask(0));
        pool.hear(0, Some(answer(7, 0, 0)));
        assert_eq!(told(pool.turn(&none, 20)).unwrap().granted, 0);
    }

    #[test]
    fn only_a_question_for_a_lease_is_one() {
        let ask = |target: &str, body: &'static str| {
            lease_question(&Request::post(target).body(Bytes::from_static(body.as_bytes())).unwrap())
        };
        let body = r#"{"sale":"phones","kind":"claim","want":2}"#;
        assert_eq!(ask("/v1/edge/leases", body).unwrap().as_str(), "phones");
        assert_eq!(ask("/v1/edge/leases", "{}"), None);
        assert_eq!(ask("/v1/sales/phones/claim", body), None);
    }

    /// One instance in the simulation below: its clock, its permits, its question under way.
    struct Instance {
        skew_ms: i64,
        book: LeaseBook,
        /// What was asked for, when it was sent (its clock), when it arrives at the desk.
        sent: Option<(u32, i64, i64)>,
        ticket: Option<Ticket>,
        /// An answer on its way, and when it arrives.
        back: Option<(Option<LeaseAnswer>, i64)>,
        /// When its next question is to be (true time).
        next_ms: i64,
    }

    proptest! {
        #![proptest_config(ProptestConfig { ..ProptestConfig::default() })]
        /// Instances with clocks of their own, an authority that grants what it likes, delays on every
        /// way: never more permits than were granted, none after its parent's death by the authority's
        /// clock, one question at a time and never faster than the authority's pace, no answer older
        /// than the question.
        #[test]
        fn sub_leases_keep_the_authoritys_word(
            skews in prop::collection::vec(-5_000i64..5_000, 1..6),
            delays in prop::collection::vec(0i64..40, 64),
            grants in prop::collection::vec(0u32..12, 64),
            retries in prop::collection::vec(10i64..250, 64),
            arrivals in prop::collection::vec(0usize..4, 64),
        ) {
            const END_MS: i64 = 1_005_000;
            let (mut pool, mut now, mut n) = (Pool::default(), 1_000_000i64, 0usize);
            let delay = |n: &mut usize| { *n += 1; delays[*n % delays.len()] };
            let desk_skew = -777;
            let authority_skew = 60_000;
            let mut instances: Vec<_> = skews
                .iter()
                .map(|&skew_ms| Instance { skew_ms, book: LeaseBook::default(), sent: None, ticket: None, back: None, next_ms: now })
                .collect();
            // The authority's question: round, want, when it is decided, when the answer is back.
            let mut flight: Option<(u64, u32, i64, i64, Option<LeaseAnswer>)> = None;
            let (mut last_asked, mut pace) = (None::<i64>, 0i64);
            // Permits left of each grant, by its time.
            let mut granted = std::collections::BTreeMap::<i64, u32>::new();
            while now < END_MS {
                for (i, it) in instances.iter_mut().enumerate() {
                    let clock = now + it.skew_ms;
                    if it.sent.is_none() && now >= it.next_ms && it.book.is_due(clock) {
                        (0..arrivals[(n + i) % arrivals.len()]).for_each(|_| it.book.arrive());
                        it.sent = Some((it.book.begin(clock), clock, now + delay(&mut n)));
                    }
                    if let Some((want, sent_ms, at)) = it.sent {
                        if it.ticket.is_none() && it.back.is_none() && now >= at {
                            match pool.join(want, now + desk_skew) {
                                Some(ticket) => it.ticket = Some(ticket),
                                None => it.back = Some((None, now + delay(&mut n))),
                            }
                        }
                        if let Some(ticket) = it.ticket {
                            match pool.turn(&ticket, now + desk_skew) {
                                Turn::Wait(ms) => prop_assert!(ms > 0),
                                Turn::Ask(want) => {
                                    prop_assert!(flight.is_none(), "two questions at once");
                                    prop_assert!(last_asked.is_none_or(|at| now >= at + pace), "too soon");
                                    last_asked = Some(now);
                                    let decided = now + delay(&mut n);
                                    flight = Some((ticket.round, want, decided, decided + delay(&mut n), None));
                                }
                                Turn::Told(answer) => {
                                    if let Some(answer) = &answer {
                                        prop_assert!(answer.now_ms >= sent_ms - it.skew_ms + authority_skew, "old news");
                                    }
                                    it.ticket = None;
                                    it.back = Some((answer, now + delay(&mut n)));
                                }
                            }
                        }
                        if let Some((answer, _)) = it.back.take_if(|(_, at)| now >= *at) {
                            match answer {
                                Some(answer) => {
                                    prop_assert!(answer.granted <= want);
                                    it.book.granted(want, &answer, sent_ms, clock);
                                }
                                None => it.book.failed(),
                            }
                            it.book.end();
                            it.sent = None;
                            it.next_ms = now + delay(&mut n);
                        }
                    }
                    if n.is_multiple_of(3) && let Some(permit) = it.book.spend(clock) {
                        let left = granted.get_mut(&permit.granted_at_ms);
                        prop_assert!(left.is_some_and(|left| { let any = *left > 0; *left = left.saturating_sub(1); any }), "more than granted");
                        prop_assert!(now + authority_skew < permit.granted_at_ms + 250, "spent after its death");
                    }
                }
                if let Some((_, want, decided, _, answer)) = &mut flight
                    && *decided == now
                    && grants[n % grants.len()] != 11
                {
                    let at = now + authority_skew;
                    let given = grants[n % grants.len()].min(*want);
                    // Two grants of one moment count together.
                    *granted.entry(at).or_default() += given;
                    *answer = Some(LeaseAnswer { retry_ms: retries[n % retries.len()], ..self::answer(given, at, at) });
                }
                if let Some((round, _, _, _, answer)) = flight.take_if(|(_, _, _, back, _)| now >= *back) {
                    pace = answer.as_ref().map_or(BACKOFF_FIRST_MS, |a| a.retry_ms);
                    pool.hear(round, answer);
                }
                now += 1;
            }
            // An instance that heard nothing comes again after two seconds at the latest.
            prop_assert!(last_asked.is_some_and(|at| at > END_MS - 3_000), "somebody still asks");
        }
    }
}
