use super::*;
use crate::rehearse::report::Told;
use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use flashgate_shared::{
    ClaimId,
    order::OrderStatus,
    problem::{Problem, ProblemKind},
    wire::{ClaimAccepted, ClaimState, ClaimStatus, EnterAnswer, MyClaim, PayAccepted},
};
use proptest::prelude::*;
use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Mutex, PoisonError},
};
use uuid::Uuid;

fn share(percent: u32) -> Share {
    format!("{percent}%").parse().unwrap()
}

proptest! {
    #[test]
    fn roles_keep_to_their_shares_after_every_winner(lapse in 0u32..=60, late in 0u32..=40, winners in 1u64..500) {
        let (lapse, late) = (share(lapse), share(late));
        let mut roles = Roles { lapse, late, winners: 0, lapsing: 0, paying_late: 0 };
        for _ in 0..winners {
            roles.next();
        }
        prop_assert_eq!(roles.lapsing, lapse.of(winners));
        // One behind at most: a winner has one role.
        prop_assert!(late.of(winners) - roles.paying_late <= 1);
    }
}

/// A counter that sells `left` units over HTTP, one a buyer, and cuts every third answer to a click
/// in the middle, after it was decided.
#[derive(Default)]
struct Counter {
    left: u32,
    clicks: u32,
    claims: HashMap<String, (ClaimId, bool)>,
    addresses: HashSet<IpAddr>,
}

type Shared = State<Arc<Mutex<Counter>>>;

fn token(headers: &HeaderMap) -> String {
    headers["authorization"].to_str().unwrap().to_owned()
}

fn status_of(claim: (ClaimId, bool)) -> ClaimStatus {
    ClaimStatus {
        claim_id: claim.0,
        sale: "s".parse().unwrap(),
        status: ClaimState::Ledger(if claim.1 { OrderStatus::Paid } else { OrderStatus::Reserved }),
        quantity: 1,
        amount: None,
        pay_by_ms: None,
        paying: false,
        reason: None,
        refunded: false,
        now_ms: 0,
        poll_after_ms: Some(20),
        status_url: "/v1/claims/mine".into(),
    }
}

async fn enter(
    State(counter): Shared,
    axum::extract::ConnectInfo(from): axum::extract::ConnectInfo<std::net::SocketAddr>,
) -> Json<EnterAnswer> {
    counter.lock().unwrap_or_else(PoisonError::into_inner).addresses.insert(from.ip());
    Json(EnterAnswer { token: Uuid::new_v4().to_string(), position: None, expires_at_ms: 0, now_ms: 0 })
}

async fn click(State(counter): Shared, headers: HeaderMap) -> Response {
    let mut counter = counter.lock().unwrap();
    counter.clicks += 1;
    let cut = counter.clicks.is_multiple_of(3);
    let known = counter.claims.get(&token(&headers)).copied();
    let claim = match (known, counter.left) {
        (Some(claim), _) => Some(claim),
        (None, 0) => None,
        (None, left) => {
            counter.left = left - 1;
            let claim = (ClaimId(Uuid::new_v4()), false);
            counter.claims.insert(token(&headers), claim);
            Some(claim)
        }
    };
    if cut {
        let broken = futures_util::stream::iter([Ok("{".to_owned()), Err(std::io::Error::other("cut"))]);
        return Body::from_stream(broken).into_response();
    }
    match claim {
        Some((claim_id, _)) => {
            let status_url = "/v1/claims/mine".to_owned();
            (StatusCode::ACCEPTED, Json(ClaimAccepted { claim_id, status_url, poll_after_ms: 20 })).into_response()
        }
        None => (StatusCode::GONE, Json(Problem::new(ProblemKind::SoldOut))).into_response(),
    }
}

async fn my_claim(State(counter): Shared, headers: HeaderMap) -> Json<MyClaim> {
    let claim = counter.lock().unwrap().claims.get(&token(&headers)).copied();
    Json(MyClaim { claim: claim.map(status_of), now_ms: 0 })
}

async fn status(State(counter): Shared, headers: HeaderMap) -> Json<ClaimStatus> {
    Json(status_of(counter.lock().unwrap().claims[&token(&headers)]))
}

async fn pay(State(counter): Shared, headers: HeaderMap) -> (StatusCode, Json<PayAccepted>) {
    let mut counter = counter.lock().unwrap();
    let claim = counter.claims.get_mut(&token(&headers)).unwrap();
    claim.1 = true;
    let answer = PayAccepted { claim_id: claim.0, status_url: String::new(), poll_after_ms: 20 };
    (StatusCode::ACCEPTED, Json(answer))
}

async fn counter(left: u32) -> (Arc<Mutex<Counter>>, Arc<Edge>) {
    let counter = Arc::new(Mutex::new(Counter { left, ..Counter::default() }));
    let app = Router::new()
        .route("/v1/sales/s/enter", post(enter))
        .route("/v1/sales/s/claim", post(click))
        .route("/v1/sales/s/my-claim", get(my_claim))
        .route("/v1/claims/mine", get(status))
        .route("/v1/orders", post(pay))
        .with_state(counter.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let edge = Edge::resolve(&format!("http://{}", listener.local_addr().unwrap())).await.unwrap();
    let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (counter, Arc::new(edge))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_buyer_ends_with_an_answer_though_every_third_is_cut() {
    const BUYERS: u32 = 600;
    let (counter, edge) = counter(20).await;
    let orders = Orders {
        sale: "s".parse().unwrap(),
        opens_at_ms: jiff::Timestamp::now().as_millisecond() + 100,
        grace_ms: 0,
        buyers: BUYERS,
        entry_ms: 50,
        lapse: share(0),
        late: share(0),
        clock_offset_ms: 0,
        deadline: Instant::now() + Duration::from_secs(60),
    };
    let outcome = run(&orders, &[edge], |_| {}).await;
    let expected = Told { winners: 20, paid: 20, ..Told::default() };
    assert_eq!(Told::by(&outcome.buyers), expected);
    let tally = &outcome.tally;
    assert!(tally.lost > 0 && tally.connections <= MAX_CONNECTIONS, "{tally:?}");
    let answers_with_end = outcome.buyers.iter().filter(|b| b.end == Some(End::SoldOut)).count();
    assert_eq!(answers_with_end, BUYERS as usize - 20);
    let counter = counter.lock().unwrap();
    assert_eq!(counter.addresses.len(), BUYERS as usize, "each has an address of his own");
    assert!(!counter.addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
}

#[tokio::test]
async fn buyers_whom_nobody_answers_are_given_up_at_the_deadline() {
    // Bound and never accepted from: connections are made, answers never come.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let edge = Edge::resolve(&format!("http://{}", deaf.local_addr().unwrap())).await.unwrap();
    let orders = Orders {
        sale: "s".parse().unwrap(),
        opens_at_ms: 0,
        grace_ms: 0,
        buyers: 3,
        entry_ms: 0,
        lapse: share(0),
        late: share(0),
        clock_offset_ms: 0,
        deadline: Instant::now() + Duration::from_millis(200),
    };
    let outcome = run(&orders, &[Arc::new(edge)], |_| {}).await;
    assert_eq!(Told::by(&outcome.buyers).unanswered, 3);
}
