//! Stock that is split over several rows: settled side by side, and refused only when all of it is gone.

use crate::bench::{Bench, claim_id, message, message_of, money, notice, sale};
use flashgate_ledger::{NoticeOutcome, Settled};
use flashgate_shared::{
    chain::EntryKind,
    envelope::ClaimEnvelope,
    order::{LostReason, OrderStatus},
    sale::{RebuildCause, SaleConfig, SaleState},
    wire::NoticeKind,
};
use sqlx::Connection;
use uuid::Uuid;

async fn split(total: u32, shards: u16) -> Bench {
    Bench::with(SaleConfig { shards, ..sale("phones", total) }).await
}

/// Messages of so many buyers.
fn of_buyers(count: u32) -> Vec<ClaimEnvelope> {
    (0..count).map(|n| message(&format!("b{n}"), "k", 1, n)).collect()
}

#[tokio::test]
async fn a_row_that_is_full_sends_its_batch_to_the_others_before_anybody_is_refused() {
    let bench = split(9, 3).await;
    assert_eq!(bench.rows().await, [(3, 0), (3, 0), (3, 0)]);
    // Three fit into the batch's row, six go elsewhere, and only then there is nothing.
    let batch = of_buyers(10);
    let answers = bench.settle(&batch).await;
    assert!(answers[..9].iter().all(|a| matches!(a, Settled::Reserved(_))), "{answers:?}");
    assert_eq!(answers[9], Settled::Lost(LostReason::GateLeaked));
    assert_eq!(bench.rows().await, [(3, 3), (3, 3), (3, 3)]);
    assert_eq!(bench.settle(&batch).await, vec![Settled::Repeat; 10]);
    bench.sound().await;
}

#[tokio::test]
async fn batches_take_the_rows_in_turn() {
    let bench = split(30, 3).await;
    for part in of_buyers(6).chunks(2) {
        bench.settle(part).await;
    }
    assert_eq!(bench.rows().await, [(10, 2), (10, 2), (10, 2)]);
    bench.sound().await;
}

#[tokio::test]
async fn an_order_remembers_its_row_and_gives_back_to_it() {
    let bench = split(6, 2).await;
    // Three in one row, two in the other.
    let batch = of_buyers(5);
    bench.settle(&batch[..3]).await;
    bench.settle(&batch[3..]).await;
    let rows = bench.rows().await;
    assert!(rows == [(3, 3), (3, 2)] || rows == [(3, 2), (3, 3)], "{rows:?}");
    let (full, other) = if rows[0].1 == 3 { (0, 1) } else { (1, 0) };
    bench.ledger.let_go(&batch[4].claim_id, &batch[4].buyer).await.unwrap();
    let sold = async || {
        let rows = bench.rows().await;
        (rows[full].1, rows[other].1)
    };
    assert_eq!(sold().await, (3, 1));
    // A payment is booked under the lock of its row alone: another row's lock is nobody's hindrance.
    let mut blocker = sqlx::PgConnection::connect_with(&bench.sql.connect_options()).await.unwrap();
    let mut tx = blocker.begin().await.unwrap();
    sqlx::query("SELECT FROM stock WHERE shard = $1 FOR UPDATE").bind(other as i16).execute(&mut *tx).await.unwrap();
    let paid = notice(NoticeKind::Succeeded, "p1", batch[0].claim_id, money(5_000, "EUR"));
    assert_eq!(bench.ledger.apply_notice(&paid).await.unwrap(), NoticeOutcome::Paid);
    tx.rollback().await.unwrap();
    for m in &batch[1..4] {
        bench.age(m.claim_id, 1_000_000).await;
    }
    assert_eq!(bench.ledger.sweep(&bench.sale, 2).await.unwrap().expired, 2, "no more than asked for");
    bench.ledger.sweep(&bench.sale, 10).await.unwrap();
    assert_eq!(sold().await, (1, 0));
    bench.sound().await;
}

#[tokio::test]
async fn what_fits_no_single_row_is_put_together() {
    let bench = split(6, 3).await;
    // One unit is left in each row.
    for one in of_buyers(3).chunks(1) {
        bench.settle(one).await;
    }
    assert_eq!(bench.rows().await, [(2, 1), (2, 1), (2, 1)]);
    assert!(matches!(bench.settle_one(&message_of(3, "big", "k", 900)).await, Settled::Reserved(_)));
    let mut rows = bench.rows().await;
    rows.sort();
    assert_eq!(rows, [(1, 1), (1, 1), (4, 4)]);
    let sum = bench.chain().await;
    assert_eq!((sum.total, sum.sold, sum.entries[&EntryKind::Moved]), (6, 6, 4));
    bench.sound().await;
}

#[tokio::test]
async fn batches_side_by_side_sell_exactly_the_stock() {
    let bench = split(300, 4).await;
    let of = |workers: u32, n: u32| message(&format!("w{workers}-b{n}"), "k", 1, workers * 1_000 + n);
    let batches: Vec<Vec<_>> = (0..4).map(|w| (0..100).map(|n| of(w, n)).collect()).collect();
    let [a, b, c, d] = &batches[..] else { unreachable!() };
    let settle = |batch| bench.ledger.settle(&bench.sale, batch);
    let (a, b, c, d) = tokio::join!(settle(a), settle(b), settle(c), settle(d));
    let answers: Vec<Settled> = [a, b, c, d].into_iter().flat_map(Result::unwrap).collect();
    let reserved = answers.iter().filter(|a| matches!(a, Settled::Reserved(_))).count();
    let leaked = answers.iter().filter(|a| **a == Settled::Lost(LostReason::GateLeaked)).count();
    assert_eq!((reserved, leaked), (300, 100));
    assert_eq!(bench.sold().await, 300);
    bench.sound().await;
}

#[tokio::test]
async fn one_buyers_claims_in_two_batches_make_one_order() {
    let bench = split(40, 4).await;
    let batch =
        |key: &str, from: u32| -> Vec<_> { (0..40).map(|n| message(&format!("b{n}"), key, 1, from + n)).collect() };
    let (x, mut y) = (batch("x", 0), batch("y", 100));
    y.reverse();
    let (a, b) = tokio::join!(bench.ledger.settle(&bench.sale, &x), bench.ledger.settle(&bench.sale, &y));
    let answers = [a.unwrap(), b.unwrap()].concat();
    assert_eq!(answers.iter().filter(|a| matches!(a, Settled::Reserved(_))).count(), 40);
    assert_eq!(answers.iter().filter(|a| **a == Settled::Lost(LostReason::Duplicate)).count(), 40);
    bench.sound().await;
}

#[tokio::test]
async fn a_rebuild_counts_all_rows_and_its_epoch_is_that_of_all() {
    let bench = split(8, 4).await;
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    let batch: Vec<_> = (0..5).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    bench.settle(&batch).await;
    bench.ledger.order_rebuild(&bench.sale, RebuildCause::Operator, None).await.unwrap();
    let me = Uuid::from_u128(1);
    let rebuild = bench.ledger.own_rebuild(&bench.sale, me, 10_000).await.unwrap().unwrap();
    let cut = bench.ledger.cut(&bench.sale, rebuild, me, 1).await.unwrap();
    assert_eq!((cut.epoch, cut.on_offer, cut.standings.len()), (2, 3, 5));
    let epochs: Vec<i64> = sqlx::query_scalar("SELECT epoch FROM stock").fetch_all(&bench.sql).await.unwrap();
    assert_eq!(epochs, [2; 4]);
    let late = message("late", "k", 1, 77);
    assert_eq!(bench.settle_one(&late).await, Settled::Lost(LostReason::GateRebuilt));
    assert_eq!(bench.status(claim_id("late", "k")).await, (OrderStatus::Lost, Some(LostReason::GateRebuilt)));
    bench.sound().await;
}
