//! Checkout, notices, refunds.

use crate::bench::{Bench, buyer, claim_id, message, money, notice, sale};
use flashgate_ledger::{Checkout, LedgerError, NoticeOutcome, RefundReason};
use flashgate_shared::{
    ClaimId, Money,
    order::{LostReason, OrderStatus},
    wire::NoticeKind::{Failed, Succeeded},
};

const PRICE: i64 = 5_000;
/// Past pay window and grace.
const LONG_MS: i64 = 630_001;

fn eur(amount_minor: i64) -> Money {
    money(amount_minor, "EUR")
}

/// A bench with one reserved order of ann's.
async fn reserved() -> (Bench, ClaimId) {
    let bench = Bench::new(5).await;
    let order = bench.reserve(&message("ann", "k", 1, 1)).await;
    (bench, order.claim_id)
}

impl Bench {
    async fn succeed(&self, payment: &str, claim_id: ClaimId, amount: Money) -> NoticeOutcome {
        let notice = notice(Succeeded, payment, claim_id, amount);
        self.ledger.apply_notice(&notice).await.unwrap()
    }

    /// Payment, reason and amount of every refund row.
    async fn refunds(&self) -> Vec<(String, String, i64)> {
        sqlx::query_as("SELECT payment_id, reason, amount_minor FROM refunds ORDER BY payment_id")
            .fetch_all(&self.sql)
            .await
            .unwrap()
    }
}

fn refunding(reason: RefundReason) -> NoticeOutcome {
    NoticeOutcome::Refunding { reason }
}

#[tokio::test]
async fn a_checkout_starts_until_pay_by_and_for_the_owner_only() {
    let (bench, claim) = reserved().await;
    let checkout = |name: &str| {
        let (ledger, name) = (bench.ledger.clone(), buyer(name));
        async move { ledger.checkout(&claim, &name).await }
    };
    assert_eq!(checkout("bob").await, Err(LedgerError::NotFound));
    assert!(!bench.order(claim).await.paying);
    for _ in 0..2 {
        match checkout("ann").await.unwrap() {
            Checkout::Start { order } => assert!(order.paying && order.amount == eur(PRICE)),
            other => panic!("{other:?}"),
        }
    }
    bench.age(claim, 600_001).await;
    assert_eq!(checkout("ann").await.unwrap(), Checkout::TooLate);
    bench.ledger.let_go(&claim, &buyer("ann")).await.unwrap();
    match checkout("ann").await.unwrap() {
        Checkout::NotReserved(order) => assert_eq!((order.status, order.paying), (OrderStatus::Expired, false)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_payment_pays_and_its_repeated_notice_leaves_the_order_alone() {
    let (bench, claim) = reserved().await;
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Paid);
    for _ in 0..2 {
        assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Repeat);
    }
    let order = bench.order(claim).await;
    assert_eq!((order.status, order.refunded, order.paying), (OrderStatus::Paid, false, false));
    assert_eq!(bench.refunds().await, []);
    bench.age(claim, LONG_MS).await;
    assert_eq!(bench.ledger.sweep(&bench.sale, 10).await.unwrap().expired, 0);
    assert_eq!(bench.ledger.let_go(&claim, &buyer("ann")).await.unwrap().status, OrderStatus::Paid);
    assert_eq!(bench.sold().await, 1);
    bench.sound().await;
}

#[tokio::test]
async fn a_notice_in_the_grace_still_pays() {
    let (bench, claim) = reserved().await;
    bench.age(claim, 600_001).await;
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Paid);
}

#[tokio::test]
async fn a_payment_past_the_hold_expires_it_and_goes_back() {
    let (bench, claim) = reserved().await;
    bench.age(claim, LONG_MS).await;
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, refunding(RefundReason::Expired));
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Repeat);
    let order = bench.order(claim).await;
    assert_eq!((order.status, order.refunded), (OrderStatus::Expired, true));
    assert_eq!(bench.sold().await, 0);
    assert_eq!(bench.releases().await.len(), 1);
    assert_eq!(bench.ledger.sweep(&bench.sale, 10).await.unwrap().expired, 0);
    assert_eq!(bench.succeed("p2", claim, eur(PRICE)).await, refunding(RefundReason::Expired));
    assert_eq!(bench.refunds().await.len(), 2);
    bench.sound().await;
}

#[tokio::test]
async fn a_second_payment_of_a_paid_order_goes_back() {
    let (bench, claim) = reserved().await;
    bench.succeed("p1", claim, eur(PRICE)).await;
    assert_eq!(bench.succeed("p2", claim, eur(PRICE)).await, refunding(RefundReason::AlreadyPaid));
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Repeat);
    assert_eq!(bench.refunds().await, [("p2".into(), "already_paid".into(), PRICE)]);
    assert_eq!(bench.status(claim).await.0, OrderStatus::Paid);
}

#[tokio::test]
async fn a_payment_of_a_lost_claim_goes_back() {
    let (bench, _) = reserved().await;
    let lost = message("ann", "other", 1, 2);
    bench.settle_one(&lost).await;
    assert_eq!(bench.succeed("p1", lost.claim_id, eur(PRICE)).await, refunding(RefundReason::Lost));
    assert_eq!(bench.status(lost.claim_id).await, (OrderStatus::Lost, Some(LostReason::Duplicate)));
    bench.sound().await;
}

#[tokio::test]
async fn a_wrong_amount_or_currency_goes_back_and_the_hold_stays() {
    let (bench, claim) = reserved().await;
    for (n, wrong) in [eur(PRICE - 1), eur(PRICE + 1), money(PRICE, "USD"), eur(0)].into_iter().enumerate() {
        let outcome = bench.succeed(&format!("p{n}"), claim, wrong.clone()).await;
        let expected = eur(PRICE);
        assert_eq!(outcome, NoticeOutcome::Mismatch { expected, paid: wrong });
    }
    let amounts: Vec<i64> = bench.refunds().await.into_iter().map(|r| r.2).collect();
    assert_eq!(amounts, [PRICE - 1, PRICE + 1, PRICE], "what was paid; nothing for nothing");
    assert_eq!(bench.status(claim).await.0, OrderStatus::Reserved);
    let negative = notice(Succeeded, "p9", claim, eur(-1));
    assert!(matches!(bench.ledger.apply_notice(&negative).await, Err(LedgerError::Invalid(_))));
    let nameless = notice(Succeeded, "", claim, eur(PRICE));
    assert!(matches!(bench.ledger.apply_notice(&nameless).await, Err(LedgerError::Invalid(_))));
    assert_eq!(bench.succeed("p8", claim, eur(PRICE)).await, NoticeOutcome::Paid);
}

#[tokio::test]
async fn a_failed_payment_leaves_the_hold_for_another_card() {
    let (bench, claim) = reserved().await;
    bench.ledger.checkout(&claim, &buyer("ann")).await.unwrap();
    let failed = notice(Failed, "p1", claim, eur(PRICE));
    assert_eq!(bench.ledger.apply_notice(&failed).await.unwrap(), NoticeOutcome::FailedNoted);
    let order = bench.order(claim).await;
    assert_eq!((order.status, order.paying), (OrderStatus::Reserved, false));
    // Only a success is a payment: the same id may still succeed.
    assert_eq!(bench.succeed("p1", claim, eur(PRICE)).await, NoticeOutcome::Paid);
    assert_eq!(bench.ledger.apply_notice(&failed).await.unwrap(), NoticeOutcome::FailedNoted);
    assert_eq!(bench.status(claim).await.0, OrderStatus::Paid);
}

#[tokio::test]
async fn money_for_an_unknown_claim_goes_back_but_a_foreign_sales_is_left_alone() {
    let (bench, _) = reserved().await;
    let unknown = claim_id("eve", "k");
    assert_eq!(bench.succeed("p1", unknown, eur(PRICE)).await, NoticeOutcome::UnknownClaim);
    assert_eq!(bench.refunds().await, [("p1".into(), "unknown_claim".into(), PRICE)]);
    let mut foreign = notice(Succeeded, "p2", unknown, eur(PRICE));
    foreign.sale = "noodles".parse().unwrap();
    assert_eq!(bench.ledger.apply_notice(&foreign).await.unwrap(), NoticeOutcome::UnknownClaim);
    assert_eq!(bench.refunds().await.len(), 1);
    let failed = notice(Failed, "p3", unknown, eur(PRICE));
    assert_eq!(bench.ledger.apply_notice(&failed).await.unwrap(), NoticeOutcome::UnknownClaim);
}

#[tokio::test]
async fn expiry_and_payment_at_the_same_moment_have_one_winner() {
    let bench = Bench::new(20).await;
    for n in 0..20u32 {
        let m = message(&format!("b{n}"), "k", 1, n);
        bench.reserve(&m).await;
        // Some are just over, some just not: the lock decides, both sides agree.
        bench.age(m.claim_id, 630_000 - 30 + i64::from(n) * 3).await;
        let payment = format!("p{n}");
        let pay = bench.succeed(&payment, m.claim_id, eur(PRICE));
        let (paid, _) = tokio::join!(pay, bench.ledger.sweep(&bench.sale, 50));
        match (paid, bench.status(m.claim_id).await.0) {
            (NoticeOutcome::Paid, OrderStatus::Paid) => {}
            (NoticeOutcome::Refunding { reason: RefundReason::Expired }, OrderStatus::Expired) => {}
            other => panic!("{other:?}"),
        }
    }
    let audit = bench.ledger.audit(&bench.sale).await.unwrap();
    assert_eq!(audit.paid_orders + audit.expired_orders, 20);
    assert_eq!((audit.releases_pending, audit.refunds_pending), (audit.expired_orders, audit.expired_orders));
    bench.sound().await;
}

#[tokio::test]
async fn the_same_notice_many_times_at_once_pays_once() {
    let (bench, claim) = reserved().await;
    let one = || bench.succeed("p1", claim, eur(PRICE));
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    let outcomes = [a, b, c, d];
    assert_eq!(outcomes.iter().filter(|o| **o == NoticeOutcome::Paid).count(), 1);
    assert_eq!(outcomes.iter().filter(|o| **o == NoticeOutcome::Repeat).count(), 3);
    assert_eq!(bench.refunds().await, []);
}

#[tokio::test]
async fn a_refund_is_handed_out_retried_and_confirmed_once() {
    let (bench, claim) = reserved().await;
    bench.succeed("p1", claim, eur(PRICE + 1)).await;
    let due = bench.ledger.refunds_due(10).await.unwrap();
    let [refund] = &due[..] else { panic!("{due:?}") };
    assert_eq!((refund.payment_id.as_str(), &refund.amount, refund.attempts), ("p1", &eur(PRICE + 1), 0));
    assert_eq!(bench.ledger.refunds_due(10).await.unwrap(), [], "leased");
    bench.ledger.refund_failed(refund.id, "no answer\0").await.unwrap();
    assert_eq!(bench.ledger.audit(&bench.sale).await.unwrap().refunds_pending, 1);
    bench.run("UPDATE refunds SET next_try_at_ms = 0").await;
    let again = bench.ledger.refunds_due(10).await.unwrap();
    assert_eq!((again[0].id, again[0].attempts), (refund.id, 1), "ask the provider first");
    for id in ["r1", "r2"] {
        bench.ledger.refund_done(refund.id, id).await.unwrap();
    }
    bench.ledger.refund_failed(refund.id, "late").await.unwrap();
    bench.run("UPDATE refunds SET next_try_at_ms = 0").await;
    assert_eq!(bench.ledger.refunds_due(10).await.unwrap(), []);
    let kept: String =
        sqlx::query_scalar("SELECT provider_refund_id FROM refunds").fetch_one(&bench.sql).await.unwrap();
    assert_eq!(kept, "r1");
    assert_eq!(bench.ledger.audit(&bench.sale).await.unwrap().refunds_pending, 0);
    let unknown = bench.ledger.refund_done(uuid::Uuid::nil(), "r").await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn a_gift_is_paid_with_nothing() {
    let mut config = sale("phones", 1);
    config.price = eur(0);
    let bench = Bench::with(config).await;
    let order = bench.reserve(&message("ann", "k", 1, 1)).await;
    assert_eq!(bench.succeed("p1", order.claim_id, eur(0)).await, NoticeOutcome::Paid);
    assert_eq!(bench.succeed("p2", order.claim_id, eur(0)).await, refunding(RefundReason::AlreadyPaid));
    assert_eq!(bench.refunds().await, []);
}

#[tokio::test]
async fn notices_that_come_together_are_judged_in_their_order() {
    let (bench, ann) = reserved().await;
    let [bob, cid, dan] = [("bob", 2), ("cid", 3), ("dan", 4)].map(|(name, hold)| message(name, "k", 1, hold));
    for m in [&bob, &cid, &dan] {
        bench.reserve(m).await;
    }
    bench.ledger.checkout(&bob.claim_id, &buyer("bob")).await.unwrap();
    bench.age(cid.claim_id, LONG_MS).await;
    let batch = [
        notice(Succeeded, "p1", ann, eur(PRICE)),
        notice(Succeeded, "p1", ann, eur(PRICE)),
        notice(Succeeded, "p2", ann, eur(PRICE)),
        notice(Failed, "p3", bob.claim_id, eur(PRICE)),
        notice(Succeeded, "", ann, eur(PRICE)),
        notice(Succeeded, "p4", cid.claim_id, eur(PRICE)),
        notice(Succeeded, "p5", cid.claim_id, eur(PRICE)),
        notice(Succeeded, "p6", claim_id("eve", "k"), eur(PRICE)),
        notice(Succeeded, "p7", dan.claim_id, eur(1)),
        notice(Succeeded, "p8", dan.claim_id, eur(PRICE)),
    ];
    let answers = bench.ledger.apply_notices(&batch).await;
    assert!(matches!(answers[4], Err(LedgerError::Invalid(_))), "{:?}", answers[4]);
    let outcomes: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
    assert_eq!(
        outcomes,
        [
            NoticeOutcome::Paid,
            NoticeOutcome::Repeat,
            refunding(RefundReason::AlreadyPaid),
            NoticeOutcome::FailedNoted,
            refunding(RefundReason::Expired),
            refunding(RefundReason::Expired),
            NoticeOutcome::UnknownClaim,
            NoticeOutcome::Mismatch { expected: eur(PRICE), paid: eur(1) },
            NoticeOutcome::Paid,
        ]
    );
    let refunds: Vec<_> = bench.refunds().await.into_iter().map(|(payment, reason, _)| (payment, reason)).collect();
    let expected =
        [("p2", "already_paid"), ("p4", "expired"), ("p5", "expired"), ("p6", "unknown_claim"), ("p7", "mismatch")];
    assert_eq!(refunds, expected.map(|(payment, reason)| (payment.to_owned(), reason.to_owned())));
    assert_eq!(bench.status(ann).await.0, OrderStatus::Paid);
    assert_eq!(bench.status(dan.claim_id).await.0, OrderStatus::Paid);
    assert_eq!(bench.status(cid.claim_id).await.0, OrderStatus::Expired);
    assert_eq!(bench.releases().await.len(), 1, "the expired unit goes back once");
    assert!(!bench.order(bob.claim_id).await.paying);
    let again = bench.ledger.apply_notices(&batch).await;
    assert!(matches!(again[0], Ok(NoticeOutcome::Repeat)) && matches!(again[2], Ok(NoticeOutcome::Repeat)));
    assert_eq!(bench.refunds().await.len(), 5);
    bench.sound().await;
}

#[tokio::test]
async fn a_notice_that_postgres_refuses_spoils_no_other() {
    let bench = Bench::new(5).await;
    let messages: Vec<_> = (0..4u32).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    bench.settle(&messages).await;
    // A text of Postgres holds no NUL.
    let id = |n: usize| if n == 2 { "p\0".to_owned() } else { format!("p{n}") };
    let batch: Vec<_> =
        messages.iter().enumerate().map(|(n, m)| notice(Succeeded, &id(n), m.claim_id, eur(PRICE))).collect();
    let answers = bench.ledger.apply_notices(&batch).await;
    for (n, answer) in answers.iter().enumerate() {
        match n {
            2 => assert!(matches!(answer, Err(LedgerError::Invalid(_))), "{answer:?}"),
            _ => assert_eq!(*answer, Ok(NoticeOutcome::Paid), "{n}"),
        }
    }
    assert_eq!(bench.status(messages[2].claim_id).await.0, OrderStatus::Reserved);
    bench.sound().await;
}
