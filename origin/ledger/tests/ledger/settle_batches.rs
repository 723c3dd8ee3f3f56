//! Batches: earlier messages count, batches meet each other, and one bad row does not hold up the rest.

use crate::bench::{Bench, buyer, claim_id, message, message_of, money, notice};
use flashgate_ledger::Settled;
use flashgate_shared::{
    envelope::ClaimEnvelope,
    order::{LostReason, OrderStatus},
    wire::NoticeKind,
};

/// One letter for each answer.
fn letters(answers: &[Settled]) -> String {
    let letter = |a: &Settled| match a {
        Settled::Reserved(_) => 'R',
        Settled::Repeat => '=',
        Settled::Lost(LostReason::Duplicate) => 'D',
        Settled::Lost(LostReason::GateLeaked) => 'L',
        Settled::Lost(_) => '?',
        Settled::SecondHold => '2',
        Settled::Mismatch(_) => 'M',
    };
    answers.iter().map(letter).collect()
}

#[tokio::test]
async fn earlier_messages_of_the_batch_count() {
    let bench = Bench::new(5).await;
    let first = message_of(2, "ann", "k", 1);
    let answers = bench
        .settle(&[
            first.clone(),
            first.clone(),
            message_of(2, "ann", "k", 2),
            message("ann", "other", 1, 3),
            message_of(3, "ann", "k", 1),
            message_of(4, "bob", "k", 4),
            message_of(3, "cyd", "k", 5),
            message("dee", "k", 1, 6),
        ])
        .await;
    assert_eq!(letters(&answers), "R=2DMLRL");
    assert_eq!(bench.sold().await, 5);
    let units: Vec<i32> = bench.releases().await.iter().map(|r| r.2).collect();
    assert_eq!(units.iter().sum::<i32>(), 2 + 1 + 3, "{units:?}");
    assert_eq!(units.len(), 4);
    bench.sound().await;
}

#[tokio::test]
async fn sold_counts_what_was_really_inserted() {
    let bench = Bench::new(10).await;
    let batch: Vec<_> = (0..4).map(|n| message_of(2, &format!("b{n}"), "k", n)).collect();
    bench.settle(&batch[..2]).await;
    let mut twice = batch.clone();
    twice.extend(batch.clone());
    assert_eq!(letters(&bench.settle(&twice).await), "==RR====");
    assert_eq!(bench.sold().await, 8);
    assert_eq!(letters(&bench.settle(&[]).await), "");
    bench.sound().await;
}

#[tokio::test]
async fn two_batches_with_the_same_buyers_in_opposite_order_do_not_deadlock() {
    let bench = Bench::new(400).await;
    for round in 0..5u32 {
        let batch = |key: &str, from: u32| -> Vec<ClaimEnvelope> {
            let one = |n: u32| message(&format!("b{round}-{n}"), key, 1, round * 1_000 + from + n);
            (0..60).map(one).collect()
        };
        let forth = batch("x", 0);
        let mut back = batch("y", 500);
        back.reverse();
        let (a, b) = tokio::join!(bench.ledger.settle(&bench.sale, &forth), bench.ledger.settle(&bench.sale, &back));
        let both = letters(&a.unwrap()) + &letters(&b.unwrap());
        assert_eq!(both.matches('R').count(), 60, "{both}");
        assert_eq!(both.matches('D').count(), 60, "{both}");
    }
    assert_eq!(bench.sold().await, 300);
    bench.sound().await;
}

#[tokio::test]
async fn one_bad_row_does_not_hold_up_its_neighbours() {
    let bench = Bench::new(20).await;
    bench.run("ALTER TABLE orders ADD CONSTRAINT test_refuses_one CHECK (buyer <> 'b5')").await;
    let batch: Vec<_> = (0..11).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    assert_eq!(letters(&bench.settle(&batch).await), "RRRRRMRRRRR");
    assert_eq!(bench.sold().await, 10);
    bench.sound().await;
}

#[tokio::test]
async fn an_insert_that_keeps_meeting_an_unseen_row_is_given_up_after_a_few_runs() {
    let bench = Bench::new(20).await;
    // A row that swallows its insert looks like a conflict with a row that reading does not show.
    bench
        .run(
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN IF NEW.buyer = 'b1' THEN RETURN NULL; END IF; RETURN NEW; END $$;
             CREATE TRIGGER swallow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION swallow()",
        )
        .await;
    let batch: Vec<_> = (0..3).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    assert_eq!(letters(&bench.settle(&batch).await), "RMR");
    assert_eq!(bench.sold().await, 2);
    bench.sound().await;
}

#[tokio::test]
async fn a_deadlock_runs_the_body_again() {
    let bench = Bench::new(20).await;
    bench
        .run(
            "CREATE SEQUENCE runs;
             CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN IF nextval('runs') <= 2 THEN RAISE EXCEPTION 'as if' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$;
             CREATE TRIGGER fail_twice BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION fail_twice()",
        )
        .await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    assert_eq!(bench.sold().await, 1);
}

#[tokio::test]
async fn a_missing_table_keeps_the_messages() {
    let bench = Bench::new(20).await;
    bench.run("ALTER TABLE gate_releases RENAME TO elsewhere").await;
    let batch = [message("ann", "k", 1, 1), message("ann", "other", 1, 2)];
    let answer = bench.ledger.settle(&bench.sale, &batch).await;
    assert!(matches!(answer, Err(flashgate_ledger::LedgerError::Bug(_))), "{answer:?}");
    assert_eq!((bench.orders().await, bench.sold().await), (0, 0));
}

#[tokio::test]
async fn ten_thousand_winners_settle_exactly() {
    let bench = Bench::new(10_000).await;
    let all: Vec<_> = (0..10_050).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    let since = std::time::Instant::now();
    let mut answers = String::new();
    for batch in all.chunks(300) {
        answers += &letters(&bench.settle(batch).await);
    }
    println!("10,050 claims settled in {:?}", since.elapsed());
    assert_eq!(answers, "R".repeat(10_000) + &"L".repeat(50));
    bench.sound().await;
}

#[tokio::test]
async fn settling_paying_and_sweeping_read_what_they_touch_and_not_the_whole_sale() {
    const BATCHES: u32 = 30;
    const BATCH: u32 = 100;
    let bench = Bench::new(BATCHES * BATCH).await;
    // As in the first minute of a sale: no statistics tell how large it is.
    bench.run("ALTER TABLE orders SET (autovacuum_enabled = false)").await;
    let all: Vec<_> = (0..BATCHES * BATCH).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    let worker = bench.worker().await;
    for batch in all.chunks(BATCH as usize) {
        worker.settle(&bench.sale, batch).await.unwrap();
    }
    let settled = bench.order_rows_read(worker).await;
    let worker = bench.worker().await;
    for (n, batch) in all.chunks(BATCH as usize).enumerate() {
        let notice = |m: &ClaimEnvelope| {
            let (kind, id) = (if n < 20 { NoticeKind::Succeeded } else { NoticeKind::Failed }, format!("p{}", m.hold));
            notice(kind, &id, m.claim_id, money(5_000, "EUR"))
        };
        for outcome in worker.apply_notices(&batch.iter().map(notice).collect::<Vec<_>>()).await {
            outcome.unwrap();
        }
    }
    let paid = bench.order_rows_read(worker).await - settled;
    bench.run("UPDATE orders SET reserved_at_ms = 1, pay_by_ms = 2, hold_until_ms = 3 WHERE status = 'RESERVED'").await;
    let (before, worker) = (bench.order_rows_read(bench.worker().await).await, bench.worker().await);
    while worker.sweep(&bench.sale, BATCH).await.unwrap().expired > 0 {}
    let swept = bench.order_rows_read(worker).await - before;
    println!("rows of orders read: {settled} to settle 3,000, {paid} to pay 2,000, {swept} to end 1,000");
    assert!(settled <= 3 * 3_000, "{settled} rows were read to settle 3,000 claims");
    assert!(paid <= 6 * 3_000, "{paid} rows were read for 3,000 notices");
    assert!(swept <= 12 * 1_000, "{swept} rows were read to end 1,000 holds");
    bench.sound().await;
}

#[tokio::test]
async fn the_newest_order_is_the_live_one() {
    let bench = Bench::new(5).await;
    let ann = buyer("ann");
    let newest = || bench.ledger.newest_order(&bench.sale, &ann);
    assert_eq!(newest().await.unwrap(), None);
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.settle_one(&message("ann", "later", 1, 2)).await;
    let order = newest().await.unwrap().unwrap();
    assert_eq!((order.claim_id, order.status), (claim_id("ann", "k"), OrderStatus::Reserved));
    bench.ledger.let_go(&order.claim_id, &order.buyer).await.unwrap();
    bench.run("UPDATE orders SET created_at_ms = created_at_ms + 1 WHERE status = 'LOST'").await;
    assert_eq!(newest().await.unwrap().unwrap().status, OrderStatus::Lost);
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_is_unavailable_and_the_batch_settles_when_sent_again() {
    let bench = Bench::new(5).await;
    // The server ends our connection in mid-transaction, once.
    bench
        .run(
            "CREATE SEQUENCE cuts;
             CREATE FUNCTION cut_once() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN IF nextval('cuts') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;
             CREATE TRIGGER cut_once BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION cut_once()",
        )
        .await;
    let batch = [message("ann", "k", 1, 1), message("bob", "k", 1, 2)];
    let cut = bench.ledger.settle(&bench.sale, &batch).await;
    assert!(matches!(cut, Err(flashgate_ledger::LedgerError::Unavailable(_))), "{cut:?}");
    assert_eq!(bench.sold().await, 0);
    // As a worker does it: in a task of its own.
    let (ledger, sale) = (bench.ledger.clone(), bench.sale.clone());
    let settled = tokio::spawn(async move { ledger.settle(&sale, &batch).await }).await.unwrap();
    assert_eq!(letters(&settled.unwrap()), "RR");
    bench.sound().await;
}
