//! Buyers are forgotten; amounts, payments and the chain stay.

use crate::bench::{Bench, buyer, claim_id, message, money, notice};
use flashgate_ledger::{LedgerError, NoticeOutcome};
use flashgate_shared::{
    order::OrderStatus,
    sale::{RebuildCause, SaleState},
    wire::NoticeKind,
};

/// Ann has paid, Bob's time is over, Carl was refused; the sale is closed and nothing is under way.
async fn closed() -> Bench {
    let bench = Bench::new(5).await;
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.reserve(&message("bob", "k", 1, 2)).await;
    bench.settle_one(&message("ann", "other", 1, 3)).await;
    let paid = notice(NoticeKind::Succeeded, "p1", claim_id("ann", "k"), money(5_000, "EUR"));
    assert_eq!(bench.ledger.apply_notice(&paid).await.unwrap(), NoticeOutcome::Paid);
    bench.ledger.let_go(&claim_id("bob", "k"), &buyer("bob")).await.unwrap();
    for release in bench.ledger.releases_due(10).await.unwrap() {
        bench.ledger.release_done(release.id, flashgate_ledger::ReleaseOutcome::Returned).await.unwrap();
    }
    bench.ledger.set_state(&bench.sale, &[SaleState::Open], SaleState::Closed).await.unwrap();
    bench
}

fn why(error: Result<flashgate_shared::wire::Erasure, LedgerError>) -> String {
    match error {
        Err(LedgerError::Conflict(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_buyer_is_forgotten_and_his_orders_stay() {
    let bench = closed().await;
    let before = bench.chain().await;
    let erasure = bench.ledger.erase(&bench.sale, Some(&buyer("ann"))).await.unwrap();
    assert_eq!(erasure.buyers, 1);
    let order = bench.order(claim_id("ann", "k")).await;
    assert_eq!((order.status, order.amount), (OrderStatus::Paid, money(5_000, "EUR")));
    assert!(order.buyer.as_str().starts_with("erased-"), "{}", order.buyer);
    let refused = bench.order(claim_id("ann", "other")).await;
    assert_eq!(refused.buyer, order.buyer, "both are of the same nobody");
    assert_eq!(bench.order(claim_id("bob", "k")).await.buyer, buyer("bob"));
    let releases: Vec<String> = sqlx::query_scalar("SELECT DISTINCT buyer FROM gate_releases ORDER BY buyer")
        .fetch_all(&bench.sql)
        .await
        .unwrap();
    assert_eq!(releases, ["bob".to_owned(), order.buyer.to_string()]);
    assert_eq!(bench.ledger.newest_order(&bench.sale, &buyer("ann")).await.unwrap(), None);
    assert_eq!(bench.chain().await, before, "no entry was touched");
    bench.sound().await;
    // The gate is to forget too.
    let row = bench.ledger.sale(&bench.sale).await.unwrap().unwrap();
    assert_eq!((row.state, row.state_after), (SaleState::Rebuilding, Some(SaleState::Closed)));
    let rebuilds = bench.ledger.rebuilds(&bench.sale).await.unwrap();
    assert_eq!((rebuilds.len(), rebuilds[0].cause), (1, RebuildCause::Operator));
    assert!(why(bench.ledger.erase(&bench.sale, None).await).contains("being rebuilt"));
}

#[tokio::test]
async fn the_tags_of_the_chain_lead_to_nobody_afterwards() {
    let bench = closed().await;
    let tags = async || -> Vec<String> {
        let entries = bench.ledger.entries(&bench.sale, 0, 0, 100).await.unwrap();
        entries.into_iter().filter_map(|entry| entry.buyer).collect()
    };
    let salt =
        async || -> Vec<u8> { sqlx::query_scalar("SELECT salt FROM sales").fetch_one(&bench.sql).await.unwrap() };
    let tag = |salt: &[u8]| flashgate_shared::chain::buyer_tag(salt, &buyer("ann"));
    assert!(tags().await.contains(&tag(&salt().await)), "whoever has the salt finds her");
    bench.ledger.erase(&bench.sale, None).await.unwrap();
    assert!(!tags().await.contains(&tag(&salt().await)));
    assert_eq!(salt().await.len(), 32);
}

#[tokio::test]
async fn a_sale_that_may_still_need_its_buyers_forgets_nobody() {
    let bench = Bench::new(5).await;
    let erase = async || bench.ledger.erase(&bench.sale, None).await;
    assert!(why(erase().await).contains("only a closed one"));
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.ledger.set_state(&bench.sale, &[SaleState::Open], SaleState::Closed).await.unwrap();
    assert!(why(erase().await).contains("1 reservations"));
    bench.ledger.let_go(&claim_id("ann", "k"), &buyer("ann")).await.unwrap();
    assert!(why(erase().await).contains("1 releases"));
    let release = bench.ledger.releases_due(10).await.unwrap().remove(0);
    bench.ledger.release_done(release.id, flashgate_ledger::ReleaseOutcome::Returned).await.unwrap();
    let nobody = bench.ledger.erase(&bench.sale, Some(&buyer("nobody"))).await;
    assert!(matches!(nobody, Err(LedgerError::NotFound)), "{nobody:?}");
    assert_eq!(erase().await.unwrap().buyers, 1);
}

#[tokio::test]
async fn sales_whose_time_is_over_are_named_until_they_are_erased() {
    let bench = closed().await;
    let due = async |ms| bench.ledger.sales_to_erase(ms).await.unwrap();
    assert_eq!(due(3_600_000).await, []);
    assert_eq!(due(0).await, std::slice::from_ref(&bench.sale));
    bench.ledger.erase(&bench.sale, None).await.unwrap();
    bench.run("UPDATE sales SET state = 'closed', state_after = NULL, version = version + 1").await;
    assert_eq!(due(0).await, []);
    let refused = sqlx::query("DELETE FROM erasures").execute(&bench.sql).await;
    assert!(refused.unwrap_err().to_string().contains("only ever added"));
}
