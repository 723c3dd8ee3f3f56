use super::*;
use crate::rehearse::buyer::Claim;
use flashgate_shared::order::LostReason;

fn audit() -> AuditReport {
    AuditReport {
        sale: "s".parse().unwrap(),
        total: 10,
        sold: 10,
        live_units: 10,
        live_orders: 10,
        paid_orders: 10,
        expired_orders: 0,
        lost_claims: 0,
        on_offer: 0,
        held_without_order: 0,
        outbox: 0,
        queued: 0,
        dead_letters: 0,
        releases_pending: 0,
        refunds_pending: 0,
        oversold: 0,
        double_orders: 0,
        drift: 0,
        stranded: 0,
        quiet: true,
        broken: vec![],
    }
}

fn traffic() -> TrafficReport {
    TrafficReport {
        claims: 60,
        claims_peak_1s: 60,
        claims_peak_10s: 60,
        stock_max: 10,
        bound_1s: 76.0,
        permits_granted: 60,
        permits_grantable: 75.0,
        first_accepted_ms: Some(1_000),
        last_accepted_ms: Some(2_000),
        last_settled_ms: Some(2_140),
        peak_rss_mib: 40.0,
    }
}

fn told() -> Told {
    Told { winners: 10, paid: 10, ..Told::default() }
}

/// Judges a rehearsal of 100 buyers and 10 units after this change to a perfect one.
fn judged(change: impl FnOnce(&mut Told, &mut AuditReport, &mut TrafficReport, &mut Tally, &mut bool)) -> Report {
    let (mut told, mut audit, mut traffic, mut all_pay) = (told(), audit(), traffic(), true);
    let mut tally = Tally { clicks_answered: 500, ..Tally::default() };
    change(&mut told, &mut audit, &mut traffic, &mut tally, &mut all_pay);
    Evidence {
        buyers: 100,
        stock: 10,
        admit_factor: 5.0,
        all_pay,
        told: &told,
        tally: &tally,
        audit,
        traffic,
        money: None,
        peak_rss_mb: PeakRss::default(),
        seconds: Seconds::default(),
        generator_peak_rss_mb: None,
    }
    .report()
}

#[test]
fn a_perfect_rehearsal_passes_with_its_figures() {
    let report = judged(|_, _, _, _, _| {});
    assert_eq!((report.verdict, report.reasons.len()), (Verdict::Pass, 0));
    assert_eq!((report.reserved, report.admission_bound), (10, 76.0));
    assert_eq!((report.settled_ms, report.refused_at_edge), (140, 440));
    let json = serde_json::to_value(&report).unwrap();
    for field in [
        "buyers",
        "stock",
        "reserved",
        "oversold",
        "stranded",
        "double_orders",
        "unanswered",
        "claims_at_origin",
        "admission_bound",
        "refused_at_edge",
        "settled_ms",
        "connections",
    ] {
        assert!(json[field].is_number(), "{field}");
    }
    assert!(json["answer_ms"]["p99"].is_number() && json["peak_rss_mb"].get("edge").is_some());
    assert_eq!(json["verdict"], "pass");
}

#[test]
fn each_broken_promise_fails_it_and_is_named() {
    type Change = fn(&mut Told, &mut AuditReport, &mut TrafficReport, &mut Tally, &mut bool);
    let cases: [(&str, Change); 17] = [
        ("oversold", |_, a, _, _, _| a.oversold = 1),
        ("stranded", |_, a, _, _, _| a.stranded = 1),
        ("beyond one a buyer", |_, a, _, _, _| a.double_orders = 1),
        ("audit: I4", |_, a, _, _, _| a.broken = vec!["I4: drift".into()]),
        ("come to rest", |_, a, _, _, _| a.quiet = false),
        ("dead letters", |_, a, _, _, _| a.dead_letters = 1),
        ("without a final answer", |t, _, _, _, _| t.unanswered = 1),
        ("claims in a second", |_, _, t, _, _| t.claims_peak_1s = 77),
        ("hold a live order", |t, _, _, _, _| t.paid = 9),
        ("told EXPIRED", |t, _, _, _, _| t.lapsed = 1),
        ("told LOST", |_, a, _, _, _| a.lost_claims = 1),
        ("then told sold out", |t, _, _, _, _| t.forgotten = 1),
        ("share a claim", |t, _, _, _, _| t.shared_claims = 1),
        ("status 401", |t, _, _, _, _| *t.refused.entry(401).or_default() = 1),
        ("status 500", |_, _, _, tally, _| {
            *tally.answers.entry((crate::rehearse::buyer::Act::Status, 500)).or_default() = 1
        }),
        ("buyers won", |t, _, _, _, _| t.winners = 9),
        ("late payments", |t, a, _, _, _| (t.late, a.expired_orders) = (1, 1)),
    ];
    for (reason, change) in cases {
        let report = judged(change);
        assert_eq!(report.verdict, Verdict::Fail, "{reason}");
        assert!(report.reasons.iter().any(|r| r.contains(reason)), "{reason}: {:?}", report.reasons);
    }
}

#[test]
fn units_that_lapsed_may_stay_on_offer_only_when_lapses_were_planned() {
    let lapse = |t: &mut Told, a: &mut AuditReport, all_pay: &mut bool, planned: bool| {
        (t.paid, t.lapsed) = (8, 2);
        (a.live_orders, a.paid_orders, a.expired_orders, a.on_offer) = (8, 8, 2, 2);
        *all_pay = !planned;
    };
    assert_eq!(judged(|t, a, _, _, p| lapse(t, a, p, true)).verdict, Verdict::Pass);
    let report = judged(|t, a, _, _, p| lapse(t, a, p, false));
    assert!(report.reasons.iter().any(|r| r.contains("every winner meant to pay")), "{:?}", report.reasons);
}

#[test]
fn money_must_be_kept_once_for_each_paid_order() {
    let (told, tally, ledger) = (told(), Tally::default(), ProviderLedger::default());
    let evidence = Evidence {
        buyers: 100,
        stock: 10,
        admit_factor: 5.0,
        all_pay: true,
        told: &told,
        tally: &tally,
        audit: audit(),
        traffic: traffic(),
        money: Some(&ledger),
        peak_rss_mb: PeakRss::default(),
        seconds: Seconds::default(),
        generator_peak_rss_mb: None,
    };
    assert_eq!(evidence.reasons(), ["the provider kept 0 payments for 0 claims, 10 orders are paid"]);
}

#[test]
fn buyers_are_added_up() {
    let with = |end: Option<End>, accepted: u8, won: bool| {
        let mut buyer = Buyer::default();
        (buyer.end, buyer.accepted, buyer.won) = (end, accepted, won);
        buyer
    };
    let mut late = with(Some(End::Expired { refunded: true }), 1, true);
    late.claim = Some(Box::new(Claim::for_test(true)));
    let buyers = [
        with(None, 0, false),
        with(Some(End::SoldOut), 0, false),
        with(Some(End::SoldOut), 1, false),
        with(Some(End::Paid), 1, true),
        with(Some(End::Expired { refunded: false }), 1, true),
        late,
        with(Some(End::Lost(LostReason::GateLost)), 2, false),
        with(Some(End::Refused(401)), 0, false),
    ];
    let expected = Told {
        unanswered: 1,
        winners: 3,
        paid: 1,
        lapsed: 1,
        late: 1,
        refunded: 1,
        lost: 1,
        forgotten: 1,
        refused: BTreeMap::from([(401, 1)]),
        shared_claims: 0,
    };
    assert_eq!(Told::by(&buyers), expected);
}
