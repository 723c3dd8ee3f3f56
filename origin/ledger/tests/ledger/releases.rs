//! Expiry, letting go, and the outbox of units on their way back.

use crate::bench::{Bench, buyer, claim_id, message, message_of};
use flashgate_ledger::{LedgerError, ReleaseOutcome};
use flashgate_shared::order::{OrderStatus, ReleaseMode};

/// Past pay window and grace.
const LONG_MS: i64 = 630_001;

#[tokio::test]
async fn a_sweep_expires_what_is_due_once() {
    let bench = Bench::new(9).await;
    for (n, name) in ["ann", "bob", "cyd"].into_iter().enumerate() {
        bench.reserve(&message_of(n as u32 + 1, name, "k", n as u32)).await;
    }
    assert_eq!(bench.ledger.sales_with_due().await.unwrap(), []);
    // In the grace the hold stands.
    bench.age(claim_id("ann", "k"), 600_001).await;
    assert_eq!(bench.ledger.sweep(&bench.sale, 10).await.unwrap().expired, 0);
    bench.age(claim_id("bob", "k"), LONG_MS).await;
    bench.age(claim_id("cyd", "k"), LONG_MS).await;
    assert_eq!(bench.ledger.sales_with_due().await.unwrap(), std::slice::from_ref(&bench.sale));
    assert_eq!(bench.ledger.sweep(&bench.sale, 1).await.unwrap().expired, 1);
    assert_eq!(bench.ledger.sweep(&bench.sale, 10).await.unwrap().expired, 1);
    assert_eq!(bench.ledger.sweep(&bench.sale, 10).await.unwrap().expired, 0);
    assert_eq!(bench.sold().await, 1);
    assert_eq!(bench.status(claim_id("bob", "k")).await.0, OrderStatus::Expired);
    let releases = bench.releases().await;
    assert_eq!(releases.iter().map(|r| r.2).sum::<i32>(), 5);
    assert!(releases.iter().all(|r| r.3 == "spent"));
    bench.sound().await;
}

#[tokio::test]
async fn two_sweepers_expire_each_hold_once() {
    let bench = Bench::new(50).await;
    let batch: Vec<_> = (0..50).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    bench.settle(&batch).await;
    for m in &batch {
        bench.age(m.claim_id, LONG_MS).await;
    }
    let sweep = || bench.ledger.sweep(&bench.sale, 30);
    let (a, b, c) = tokio::join!(sweep(), sweep(), sweep());
    let expired: u64 = [a, b, c].into_iter().map(|r| r.unwrap().expired).sum();
    assert_eq!(expired, 50);
    assert_eq!(bench.sold().await, 0);
    assert_eq!(bench.releases().await.len(), 50);
    bench.sound().await;
}

#[tokio::test]
async fn a_buyer_lets_go_of_the_own_order_only() {
    let bench = Bench::new(5).await;
    let m = message_of(2, "ann", "k", 1);
    bench.reserve(&m).await;
    let theirs = bench.ledger.let_go(&m.claim_id, &buyer("bob")).await;
    assert_eq!(theirs, Err(LedgerError::NotFound));
    let unknown = bench.ledger.let_go(&claim_id("ann", "none"), &buyer("ann")).await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
    for _ in 0..2 {
        let order = bench.ledger.let_go(&m.claim_id, &m.buyer).await.unwrap();
        assert_eq!(order.status, OrderStatus::Expired);
    }
    assert_eq!(bench.sold().await, 0);
    assert_eq!(bench.releases().await.len(), 1);
    bench.sound().await;
}

#[tokio::test]
async fn a_release_is_handed_out_hidden_and_marked() {
    let bench = Bench::new(5).await;
    let m = message_of(2, "ann", "k", 1);
    bench.reserve(&m).await;
    bench.ledger.let_go(&m.claim_id, &m.buyer).await.unwrap();
    let due = bench.ledger.releases_due(10).await.unwrap();
    let [row] = &due[..] else { panic!("{due:?}") };
    assert_eq!(
        (row.release.claim_id, row.release.units, row.release.mode, row.release.epoch),
        (m.claim_id, 2, ReleaseMode::Spent, 1)
    );
    assert_eq!((&row.release.hold, &row.release.buyer, row.buckets, row.attempts), (&m.hold, &m.buyer, 4, 0));
    assert_eq!(row.trace_id, m.trace_id);
    assert_eq!(bench.ledger.releases_due(10).await.unwrap(), [], "leased");
    // Its worker died: the lease ends.
    bench.run("UPDATE gate_releases SET next_try_at_ms = 0").await;
    assert_eq!(bench.ledger.releases_due(10).await.unwrap()[0].attempts, 1);
    bench.ledger.release_again(row.id).await.unwrap();
    let wait_ms: i64 = sqlx::query_scalar("SELECT next_try_at_ms - updated_at_ms FROM gate_releases")
        .fetch_one(&bench.sql)
        .await
        .unwrap();
    assert!(wait_ms > 0, "it waits: {wait_ms} ms");
    bench.ledger.release_done(row.id, ReleaseOutcome::Returned).await.unwrap();
    bench.ledger.release_done(row.id, ReleaseOutcome::NoChange).await.unwrap();
    bench.ledger.release_again(row.id).await.unwrap();
    bench.run("UPDATE gate_releases SET next_try_at_ms = 0").await;
    assert_eq!(bench.ledger.releases_due(10).await.unwrap(), []);
    let outcome: String = sqlx::query_scalar("SELECT outcome FROM gate_releases").fetch_one(&bench.sql).await.unwrap();
    assert_eq!(outcome, "returned", "the first answer stands");
    assert_eq!(bench.ledger.audit(&bench.sale).await.unwrap().releases_pending, 0);
    let unknown = bench.ledger.release_done(row.id + 1, ReleaseOutcome::Returned).await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn two_workers_never_hold_the_same_release() {
    let bench = Bench::new(40).await;
    let batch: Vec<_> = (0..40).map(|n| message(&format!("b{n}"), "k", 1, n)).collect();
    bench.settle(&batch).await;
    for m in &batch {
        bench.ledger.let_go(&m.claim_id, &m.buyer).await.unwrap();
    }
    let fetch = || bench.ledger.releases_due(25);
    let (a, b) = tokio::join!(fetch(), fetch());
    let mut ids: Vec<i64> = a.unwrap().into_iter().chain(b.unwrap()).map(|r| r.id).collect();
    ids.extend(fetch().await.unwrap().into_iter().map(|r| r.id));
    let handed_out = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), handed_out), (40, 40));
}
