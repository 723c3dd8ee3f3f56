use super::*;

struct Fixed {
    now_ms: UnixMs,
    role: Role,
}

impl World for Fixed {
    fn now_ms(&self) -> UnixMs {
        self.now_ms
    }
    fn opens_at_ms(&self) -> UnixMs {
        10_000
    }
    fn grace_ms(&self) -> i64 {
        1_000
    }
    fn jitter_ms(&mut self, around_ms: u64) -> u64 {
        around_ms
    }
    fn click_at_ms(&mut self) -> UnixMs {
        10_100
    }
    fn next_role(&mut self) -> Role {
        self.role
    }
}

fn world(role: Role) -> Fixed {
    Fixed { now_ms: 1_000, role }
}

fn answer(status: u16, body: &impl serde::Serialize) -> Answer {
    Answer::Http { status, retry_after_ms: Some(2_000), body: serde_json::to_vec(body).unwrap().into() }
}

fn problem(kind: ProblemKind) -> Answer {
    answer(kind.status(), &Problem::new(kind))
}

fn sale() -> SaleId {
    "s".parse().unwrap()
}

fn claim_id() -> ClaimId {
    ClaimId::derive(&sale(), &"b".parse().unwrap(), &"k".parse().unwrap())
}

fn status(state: ClaimState) -> ClaimStatus {
    ClaimStatus {
        claim_id: claim_id(),
        sale: sale(),
        status: state,
        quantity: 1,
        amount: None,
        pay_by_ms: None,
        paying: false,
        reason: None,
        refunded: false,
        now_ms: 0,
        poll_after_ms: Some(300),
        status_url: "/v1/claims/x".into(),
    }
}

fn order(state: OrderStatus) -> ClaimStatus {
    status(ClaimState::Ledger(state))
}

fn accepted() -> Answer {
    answer(202, &ClaimAccepted { claim_id: claim_id(), status_url: "/v1/claims/x".into(), poll_after_ms: 250 })
}

/// A buyer who entered and is about to click.
fn entered(w: &mut Fixed) -> Buyer {
    let mut b = Buyer::default();
    let token = EnterAnswer { token: "t".into(), position: None, expires_at_ms: 0, now_ms: 0 };
    assert_eq!(b.hear(&answer(200, &token), w), Next::In(9_100), "waits for the opening");
    assert_eq!(b.act, Act::Claim);
    b
}

#[test]
fn a_winner_polls_pays_and_ends_paid() {
    let mut w = world(Role::Pays);
    let mut b = entered(&mut w);
    assert_eq!(b.hear(&accepted(), &mut w), Next::In(250));
    assert_eq!(b.hear(&answer(200, &status(ClaimState::Pending)), &mut w), Next::In(300));
    assert_eq!(b.hear(&answer(200, &order(OrderStatus::Reserved)), &mut w), Next::In(0));
    assert_eq!(b.act, Act::Pay);
    assert_eq!(b.payment(&sale(), &w).unwrap().payment, "ok");
    let paying = PayAccepted { claim_id: claim_id(), status_url: String::new(), poll_after_ms: 100 };
    assert_eq!(b.hear(&answer(202, &paying), &mut w), Next::In(100));
    // Reserved still, and paying: no second charge.
    assert_eq!(b.hear(&answer(200, &order(OrderStatus::Reserved)), &mut w), Next::In(300));
    assert_eq!(b.act, Act::Status);
    assert_eq!(b.hear(&answer(200, &order(OrderStatus::Paid)), &mut w), Next::Done);
    assert_eq!((b.end, b.won, b.accepted), (Some(End::Paid), true, 1));
}

#[test]
fn a_refusal_is_retried_as_told_and_sold_out_ends_it() {
    let mut w = world(Role::Pays);
    let mut b = entered(&mut w);
    let mut try_again = Problem::new(ProblemKind::TryAgain);
    try_again.retry_after_ms = Some(777);
    assert_eq!(b.hear(&answer(503, &try_again), &mut w), Next::In(777));
    assert_eq!(b.hear(&problem(ProblemKind::SlowDown), &mut w), Next::In(2_000), "the header's seconds");
    assert_eq!(b.hear(&problem(ProblemKind::NotOpen), &mut w), Next::In(9_000), "until the opening");
    assert_eq!(b.hear(&problem(ProblemKind::SoldOut), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::SoldOut));
}

#[test]
fn a_lost_answer_is_asked_for_before_a_no_is_believed() {
    let mut w = world(Role::Pays);
    let mut b = entered(&mut w);
    assert_eq!(b.hear(&Answer::Lost, &mut w), Next::In(500));
    assert_eq!((b.act, b.key), (Act::Claim, 0), "the same key again");
    assert_eq!(b.hear(&problem(ProblemKind::SoldOut), &mut w), Next::In(0));
    assert_eq!(b.act, Act::MyClaim);
    let mine = MyClaim { claim: Some(status(ClaimState::Pending)), now_ms: 0 };
    assert_eq!(b.hear(&answer(200, &mine), &mut w), Next::In(300));
    assert!(b.act == Act::Status && b.claim.is_some());

    let mut nothing = entered(&mut w);
    nothing.hear(&problem(ProblemKind::Unknown), &mut w);
    nothing.hear(&problem(ProblemKind::SoldOut), &mut w);
    let none = MyClaim { claim: None, now_ms: 0 };
    assert_eq!(nothing.hear(&answer(200, &none), &mut w), Next::Done);
    assert_eq!(nothing.end, Some(End::SoldOut));
}

#[test]
fn a_late_payer_waits_for_his_money_and_a_lapsing_one_does_not_pay() {
    let mut w = world(Role::PaysLate);
    let mut b = entered(&mut w);
    b.hear(&accepted(), &mut w);
    let reserved = ClaimStatus { pay_by_ms: Some(6_000), ..order(OrderStatus::Reserved) };
    b.hear(&answer(200, &reserved), &mut w);
    // pay_by 6,000 + grace 1,000 − now 1,000 + 1,500.
    assert_eq!(b.payment(&sale(), &w).unwrap().payment, "late:7500");
    b.hear(&answer(202, &()), &mut w);
    assert_eq!(b.hear(&answer(200, &order(OrderStatus::Expired)), &mut w), Next::In(300));
    let refunded = ClaimStatus { refunded: true, ..order(OrderStatus::Expired) };
    assert_eq!(b.hear(&answer(200, &refunded), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Expired { refunded: true }));

    let mut w = world(Role::Lapses);
    let mut b = entered(&mut w);
    b.hear(&accepted(), &mut w);
    assert_eq!(b.hear(&answer(200, &reserved), &mut w), Next::In(300));
    assert_eq!(b.act, Act::Status);
    assert_eq!(b.hear(&answer(200, &order(OrderStatus::Expired)), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Expired { refunded: false }));
}

#[test]
fn after_lost_a_new_key_is_used_and_the_reason_is_kept() {
    let mut w = world(Role::Pays);
    let mut b = entered(&mut w);
    b.hear(&accepted(), &mut w);
    let lost = ClaimStatus { reason: Some(LostReason::GateLost), ..order(OrderStatus::Lost) };
    assert_eq!(b.hear(&answer(200, &lost), &mut w), Next::In(500));
    assert_eq!((b.act, b.key), (Act::Claim, 1));
    assert_eq!(b.hear(&problem(ProblemKind::SoldOut), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Lost(LostReason::GateLost)));
}

#[test]
fn an_answer_no_buyer_should_get_ends_the_story() {
    let mut w = world(Role::Pays);
    let mut b = entered(&mut w);
    assert_eq!(b.hear(&problem(ProblemKind::TokenInvalid), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Refused(401)));
    let mut b = Buyer::default();
    assert_eq!(b.hear(&problem(ProblemKind::Closed), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Closed));
    let mut b = Buyer::default();
    assert_eq!(b.hear(&answer(200, &"not ours"), &mut w), Next::Done);
    assert_eq!(b.end, Some(End::Refused(200)));
}
