//! The chain as the ledger writes it.

use crate::bench::{Bench, buyer, claim_id, message, money, notice};
use flashgate_shared::{
    chain::{EntryKind, buyer_tag},
    sale::{RebuildCause, SaleState},
    trace::TraceId,
    wire::NoticeKind,
};

#[tokio::test]
async fn every_change_of_an_order_is_an_entry() {
    let bench = Bench::new(5).await;
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.reserve(&message("bob", "k", 1, 2)).await;
    bench.settle_one(&message("ann", "other", 1, 3)).await;
    let paid = notice(NoticeKind::Succeeded, "p1", claim_id("ann", "k"), money(5_000, "EUR"));
    bench.ledger.apply_notice(&paid).await.unwrap();
    bench.ledger.let_go(&claim_id("bob", "k"), &buyer("bob")).await.unwrap();
    let trace = TraceId::from_random(1);
    for _ in 0..2 {
        bench.ledger.declare_lost(&bench.sale, &claim_id("eve", "k"), &buyer("eve"), 2, trace).await.unwrap();
    }
    bench.ledger.order_rebuild(&bench.sale, RebuildCause::Operator, None).await.unwrap();
    let me = uuid::Uuid::new_v4();
    let rebuild = bench.ledger.own_rebuild(&bench.sale, me, 60_000).await.unwrap().unwrap();
    bench.ledger.cut(&bench.sale, rebuild, me, 0).await.unwrap();

    let entries = bench.ledger.entries(&bench.sale, 0, 0, 100).await.unwrap();
    let told: Vec<_> =
        entries.iter().map(|e| (e.kind, e.claim_id, e.quantity, e.units, e.sold, e.detail.as_deref())).collect();
    assert_eq!(
        told,
        [
            (EntryKind::Created, None, 0, 0, 0, None),
            (EntryKind::Reserved, Some(claim_id("ann", "k")), 1, 1, 1, None),
            (EntryKind::Reserved, Some(claim_id("bob", "k")), 1, 1, 2, None),
            (EntryKind::Lost, Some(claim_id("ann", "other")), 1, 0, 2, Some("duplicate")),
            (EntryKind::Paid, Some(claim_id("ann", "k")), 1, 0, 2, None),
            (EntryKind::Expired, Some(claim_id("bob", "k")), 1, -1, 1, None),
            (EntryKind::Lost, Some(claim_id("eve", "k")), 2, 0, 1, Some("gate_lost")),
            (EntryKind::Rebuilt, None, 0, 0, 1, Some("2")),
        ]
    );
    let salt: Vec<u8> = sqlx::query_scalar("SELECT salt FROM sales").fetch_one(&bench.sql).await.unwrap();
    assert_eq!(entries[1].buyer, Some(buyer_tag(&salt, &buyer("ann"))));
    assert_eq!(entries[1].buyer, entries[4].buyer);
    let page: Vec<_> = bench.ledger.entries(&bench.sale, 0, 3, 2).await.unwrap().iter().map(|e| e.seq).collect();
    assert_eq!(page, [4, 5]);
    bench.sound().await;
}

#[tokio::test]
async fn nobody_changes_an_entry_and_the_database_agrees_about_the_hashes() {
    let bench = Bench::new(5).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.reserve(&message("bob", "k", 1, 2)).await;
    for statement in
        ["UPDATE ledger_entries SET at_ms = 0", "DELETE FROM ledger_entries WHERE seq = 2", "TRUNCATE ledger_entries"]
    {
        let refused = sqlx::raw_sql(statement).execute(&bench.sql).await.unwrap_err().to_string();
        assert!(refused.contains("only ever added"), "{statement}: {refused}");
    }
    // The same hashes by another's hand.
    let wrong: i64 = sqlx::query_scalar(
        r"SELECT count(*) FROM (
              SELECT hash, sha256(
                  COALESCE(lag(hash) OVER (PARTITION BY sale, shard ORDER BY seq), decode(repeat('00', 32), 'hex'))
                  || convert_to(concat_ws(E'\n', 'flashgate-ledger-1', sale, shard, seq, at_ms, kind,
                         COALESCE(claim_id::text, '-'), COALESCE(buyer, '-'), quantity, units, sold, total,
                         COALESCE(detail, '-'), ''), 'UTF8')) AS expected
              FROM ledger_entries) e WHERE hash <> expected",
    )
    .fetch_one(&bench.sql)
    .await
    .unwrap();
    assert_eq!(wrong, 0);
    assert_eq!(bench.chain().await.entries[&EntryKind::Reserved], 2);
}
