//! Every row of the table of design §7, alone and where two apply.

use crate::bench::{Bench, buyer, claim_id, message, message_of, sale};
use flashgate_ledger::Settled;
use flashgate_shared::{
    envelope::ClaimEnvelope,
    order::{LostReason, OrderStatus},
    trace::TraceId,
};

fn void(message: &ClaimEnvelope, units: i32, epoch: i64) -> crate::bench::Release {
    (message.claim_id, message.hold.to_string(), units, "void".into(), epoch)
}

/// Class 0 writes nothing at all.
async fn refuses_as_mismatch(bench: &Bench, message: &ClaimEnvelope) {
    let (orders, sold) = (bench.orders().await, bench.sold().await);
    let answer = bench.settle_one(message).await;
    assert!(matches!(answer, Settled::Mismatch(_)), "{answer:?}");
    let answer = bench.ledger.settle_dead(message).await.unwrap();
    assert!(matches!(answer, Settled::Mismatch(_)), "{answer:?}");
    assert_eq!((bench.orders().await, bench.sold().await), (orders, sold));
    assert_eq!(bench.releases().await, []);
}

#[tokio::test]
async fn row_0_what_no_gate_of_ours_can_have_said_writes_nothing() {
    let bench = Bench::new(5).await;
    let good = message("ann", "k", 1, 1);
    refuses_as_mismatch(&bench, &message("ann", "k", 2, 1)).await;
    refuses_as_mismatch(&bench, &ClaimEnvelope { hold: "1.4.1-1".parse().unwrap(), ..good.clone() }).await;
    for quantity in [0, 101, u32::MAX] {
        refuses_as_mismatch(&bench, &message_of(quantity, "ann", "k", 1)).await;
    }
    bench.reserve(&good).await;
    let other_buyer = ClaimEnvelope { buyer: buyer("bob"), ..good.clone() };
    refuses_as_mismatch(&bench, &other_buyer).await;
    refuses_as_mismatch(&bench, &message_of(2, "ann", "k", 1)).await;
    bench.sound().await;
}

#[tokio::test]
async fn row_0_a_message_of_another_or_unknown_sale() {
    let bench = Bench::new(5).await;
    let mut astray = message("ann", "k", 1, 1);
    astray.sale = "noodles".parse().unwrap();
    let answers = bench.settle(std::slice::from_ref(&astray)).await;
    assert!(matches!(answers[..], [Settled::Mismatch(_)]));
    let answers = bench.ledger.settle(&astray.sale, std::slice::from_ref(&astray)).await.unwrap();
    assert!(matches!(answers[..], [Settled::Mismatch(_)]));
    assert_eq!(bench.orders().await, 0);
}

#[tokio::test]
async fn row_1_the_same_claim_and_hold_is_a_repeat_whatever_became_of_it() {
    let bench = Bench::new(1).await;
    let (won, lost) = (message("ann", "k", 1, 1), message("bob", "k", 1, 2));
    bench.reserve(&won).await;
    assert_eq!(bench.settle_one(&lost).await, Settled::Lost(LostReason::GateLeaked));
    assert_eq!(bench.settle(&[won.clone(), lost.clone()]).await, [Settled::Repeat, Settled::Repeat]);
    bench.age(won.claim_id, 1_000_000).await;
    bench.ledger.sweep(&bench.sale, 10).await.unwrap();
    assert_eq!(bench.settle_one(&won).await, Settled::Repeat);
    assert_eq!(bench.ledger.settle_dead(&won).await.unwrap(), Settled::Repeat);
    assert_eq!(bench.releases().await.len(), 2);
    bench.sound().await;
}

#[tokio::test]
async fn row_2_an_older_epoch_is_lost_without_a_release() {
    let bench = Bench::new(5).await;
    bench.set_epoch(2).await;
    let old = message("ann", "k", 1, 1);
    assert_eq!(bench.settle_one(&old).await, Settled::Lost(LostReason::GateRebuilt));
    assert_eq!(bench.status(old.claim_id).await, (OrderStatus::Lost, Some(LostReason::GateRebuilt)));
    assert_eq!(bench.settle_one(&old).await, Settled::Repeat);
    assert_eq!(bench.releases().await, []);
    assert_eq!(bench.sold().await, 0);
}

#[tokio::test]
async fn row_3_a_second_hold_goes_back_and_the_order_stays() {
    let bench = Bench::new(5).await;
    bench.reserve(&message_of(2, "ann", "k", 1)).await;
    let second = message_of(3, "ann", "k", 2);
    assert_eq!(bench.settle_one(&second).await, Settled::SecondHold);
    assert_eq!(bench.settle_one(&second).await, Settled::SecondHold);
    assert_eq!(bench.ledger.settle_dead(&second).await.unwrap(), Settled::SecondHold);
    assert_eq!(bench.releases().await, [void(&second, 3, 1)]);
    assert_eq!(bench.order(second.claim_id).await.hold.unwrap().to_string(), "1.0.1-1");
    assert_eq!(bench.sold().await, 2);
    bench.sound().await;
}

#[tokio::test]
async fn row_3_a_message_that_turns_up_after_its_claim_was_declared_lost() {
    let bench = Bench::new(5).await;
    let late = message("ann", "k", 1, 1);
    let declare = || {
        let trace = TraceId::from_random(9);
        bench.ledger.declare_lost(&bench.sale, &late.claim_id, &late.buyer, 0, trace)
    };
    let order = declare().await.unwrap();
    assert_eq!((order.reason, order.hold.clone(), order.quantity), (Some(LostReason::GateLost), None, 1));
    assert_eq!(declare().await.unwrap(), order);
    assert_eq!(bench.settle_one(&late).await, Settled::SecondHold);
    assert_eq!(bench.releases().await, [void(&late, 1, 1)]);
    // The refusal was no try: another key is a new claim.
    bench.reserve(&message("ann", "k2", 1, 2)).await;
    bench.sound().await;
}

#[tokio::test]
async fn row_4_a_buyer_with_a_live_order_loses_the_next_claim() {
    let bench = Bench::new(5).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    let second = message_of(2, "ann", "other", 2);
    assert_eq!(bench.settle_one(&second).await, Settled::Lost(LostReason::Duplicate));
    assert_eq!(bench.releases().await, [void(&second, 2, 1)]);
    bench.sound().await;
}

#[tokio::test]
async fn row_5_an_ended_order_was_the_only_try_unless_the_sale_allows_more() {
    for second_try in [false, true] {
        let mut config = sale("phones", 5);
        config.second_try = second_try;
        let bench = Bench::with(config).await;
        let first = message("ann", "k", 1, 1);
        bench.reserve(&first).await;
        bench.ledger.let_go(&first.claim_id, &first.buyer).await.unwrap();
        let second = message("ann", "other", 1, 2);
        let answer = bench.settle_one(&second).await;
        if second_try {
            assert!(matches!(answer, Settled::Reserved(_)), "{answer:?}");
            assert_eq!(bench.releases().await.len(), 1);
        } else {
            assert_eq!(answer, Settled::Lost(LostReason::SecondTry));
            assert_eq!(bench.releases().await[1], void(&second, 1, 1));
        }
        bench.sound().await;
    }
}

#[tokio::test]
async fn row_6_more_than_is_free_gives_back_what_exists_and_burns_the_rest() {
    let bench = Bench::new(5).await;
    bench.reserve(&message_of(3, "ann", "k", 1)).await;
    let leaked = message_of(4, "bob", "k", 2);
    assert_eq!(bench.settle_one(&leaked).await, Settled::Lost(LostReason::GateLeaked));
    assert_eq!(bench.releases().await, [void(&leaked, 2, 1)]);
    // A refusal by the gate's fault is no try.
    bench.reserve(&message_of(2, "bob", "again", 3)).await;
    let nothing_left = message("cyd", "k", 1, 4);
    assert_eq!(bench.settle_one(&nothing_left).await, Settled::Lost(LostReason::GateLeaked));
    assert_eq!(bench.releases().await[1], void(&nothing_left, 0, 1));
    assert_eq!(bench.sold().await, 5);
    bench.sound().await;
}

#[tokio::test]
async fn row_7_reserves_with_times_and_price_of_now() {
    let bench = Bench::new(5).await;
    let before = bench.ledger.now_ms().await.unwrap();
    let order = bench.reserve(&message_of(3, "ann", "k", 1)).await;
    let after = bench.ledger.now_ms().await.unwrap();
    let reserved_at = order.reserved_at_ms.unwrap();
    assert!((before..=after).contains(&reserved_at));
    assert_eq!(order.pay_by_ms, Some(reserved_at + 600_000));
    assert_eq!(order.hold_until_ms, Some(reserved_at + 630_000));
    assert_eq!(order.amount.amount_minor, 15_000);
    assert_eq!(order.status, OrderStatus::Reserved);
    assert_eq!(bench.order(order.claim_id).await, order);
    assert_eq!(bench.sold().await, 3);
    assert_eq!(bench.releases().await, []);
}

#[tokio::test]
async fn row_7_of_a_dead_letter_is_poison_and_goes_back() {
    let bench = Bench::new(5).await;
    let dead = message_of(2, "ann", "k", 1);
    assert_eq!(bench.ledger.settle_dead(&dead).await.unwrap(), Settled::Lost(LostReason::Poison));
    assert_eq!(bench.releases().await, [void(&dead, 2, 1)]);
    assert_eq!(bench.sold().await, 0);
    bench.sound().await;
}

#[tokio::test]
async fn a_newer_epoch_wins_over_a_repeat() {
    let bench = Bench::new(5).await;
    bench.set_epoch(2).await;
    let order = message("ann", "k", 2, 1);
    bench.reserve(&order).await;
    bench.set_epoch(1).await;
    assert!(matches!(bench.settle_one(&order).await, Settled::Mismatch(_)));
}

#[tokio::test]
async fn a_repeat_wins_over_an_older_epoch() {
    let bench = Bench::new(5).await;
    let order = message("ann", "k", 1, 1);
    bench.reserve(&order).await;
    bench.set_epoch(2).await;
    assert_eq!(bench.settle_one(&order).await, Settled::Repeat);
    assert_eq!(bench.status(order.claim_id).await.0, OrderStatus::Reserved);
}

#[tokio::test]
async fn an_older_epoch_wins_over_a_second_hold_and_a_duplicate() {
    let bench = Bench::new(5).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.set_epoch(2).await;
    // A second hold of a known claim, but the cut counted it: no release.
    assert_eq!(bench.settle_one(&message("ann", "k", 1, 2)).await, Settled::Repeat);
    // Another claim of a buyer with a live order.
    let duplicate = message("ann", "other", 1, 3);
    assert_eq!(bench.settle_one(&duplicate).await, Settled::Lost(LostReason::GateRebuilt));
    assert_eq!(bench.releases().await, []);
    bench.sound().await;
}

#[tokio::test]
async fn a_second_hold_wins_over_duplicate_and_leak() {
    let bench = Bench::new(1).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    let second = message("ann", "k", 1, 2);
    assert_eq!(bench.settle_one(&second).await, Settled::SecondHold);
    assert_eq!(bench.releases().await, [void(&second, 1, 1)]);
}

#[tokio::test]
async fn a_duplicate_wins_over_second_try_and_leak() {
    let mut config = sale("phones", 1);
    config.second_try = true;
    let bench = Bench::with(config).await;
    let first = message("ann", "k1", 1, 1);
    bench.reserve(&first).await;
    bench.ledger.let_go(&first.claim_id, &first.buyer).await.unwrap();
    bench.reserve(&message("ann", "k2", 1, 2)).await;
    bench.run("UPDATE sales SET config = config || '{\"second_try\": false}', version = version + 1").await;
    let third = message("ann", "k3", 1, 3);
    assert_eq!(bench.settle_one(&third).await, Settled::Lost(LostReason::Duplicate));
    assert_eq!(bench.releases().await[1], void(&third, 1, 1));
    bench.sound().await;
}

#[tokio::test]
async fn a_second_try_wins_over_a_leak() {
    let bench = Bench::new(1).await;
    let first = message("ann", "k1", 1, 1);
    bench.reserve(&first).await;
    bench.ledger.let_go(&first.claim_id, &first.buyer).await.unwrap();
    bench.reserve(&message("bob", "k", 1, 2)).await;
    let second = message("ann", "k2", 1, 3);
    assert_eq!(bench.settle_one(&second).await, Settled::Lost(LostReason::SecondTry));
    assert_eq!(bench.releases().await[1], void(&second, 1, 1));
}

#[tokio::test]
async fn a_leak_wins_over_poison() {
    let bench = Bench::new(1).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    let dead = message("bob", "k", 1, 2);
    assert_eq!(bench.ledger.settle_dead(&dead).await.unwrap(), Settled::Lost(LostReason::GateLeaked));
    assert_eq!(bench.releases().await, [void(&dead, 0, 1)]);
}

#[tokio::test]
async fn a_release_carries_the_ledgers_epoch_not_the_holds() {
    let bench = Bench::new(2).await;
    let order = message("ann", "k", 1, 1);
    bench.reserve(&order).await;
    bench.set_epoch(7).await;
    bench.ledger.let_go(&order.claim_id, &order.buyer).await.unwrap();
    let spent = (claim_id("ann", "k"), "1.0.1-1".to_owned(), 1, "spent".to_owned(), 7);
    assert_eq!(bench.releases().await, [spent]);
}
