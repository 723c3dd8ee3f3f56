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
