//! Sales and their states.

use crate::bench::{Bench, message, sale};
use flashgate_ledger::LedgerError;
use flashgate_shared::{order::LostReason, sale::SaleState, trace::TraceId};

#[tokio::test]
async fn a_sale_is_created_once_and_found_again() {
    let bench = Bench::new(5).await;
    let row = bench.ledger.sale(&bench.sale).await.unwrap().unwrap();
    assert_eq!(row.config, sale("phones", 5));
    assert_eq!((row.state, row.epoch, row.sold), (SaleState::Loading, 1, 0));
    let again = bench.ledger.create_sale(&sale("phones", 5)).await;
    assert!(matches!(again, Err(LedgerError::Conflict(_))), "{again:?}");
    let bad = bench.ledger.create_sale(&sale("none", 0)).await;
    assert!(matches!(bad, Err(LedgerError::Invalid(_))), "{bad:?}");
    assert_eq!(bench.ledger.sale(&"none".parse().unwrap()).await.unwrap(), None);
    bench.ledger.create_sale(&sale("noodles", 340)).await.unwrap();
    assert_eq!(bench.ledger.sales().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_state_changes_only_from_the_states_named() {
    let bench = Bench::new(5).await;
    let set = |from: &'static [SaleState], to| bench.ledger.set_state(&bench.sale, from, to);
    let opened = set(&[SaleState::Loading], SaleState::Open).await.unwrap();
    assert_eq!((opened.state, opened.config.version), (SaleState::Open, 2));
    let again = set(&[SaleState::Loading], SaleState::Open).await;
    assert!(matches!(again, Err(LedgerError::Conflict(_))), "{again:?}");
    let closed = set(&[SaleState::Open, SaleState::Paused], SaleState::Closed).await.unwrap();
    assert_eq!((closed.state, closed.config.version), (SaleState::Closed, 3));
    let unknown = bench.ledger.set_state(&"none".parse().unwrap(), &[SaleState::Open], SaleState::Paused).await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn nothing_is_declared_lost_during_a_rebuild_or_over_an_order() {
    let bench = Bench::new(5).await;
    let known = message("ann", "k", 1, 1);
    let order = bench.reserve(&known).await;
    let trace = TraceId::from_random(1);
    let declare = |m: &flashgate_shared::envelope::ClaimEnvelope| {
        let m = m.clone();
        let ledger = bench.ledger.clone();
        async move { ledger.declare_lost(&m.sale, &m.claim_id, &m.buyer, m.quantity, trace).await }
    };
    assert_eq!(declare(&known).await.unwrap(), order);
    bench.run("UPDATE sales SET state = 'rebuilding', state_after = 'open', version = version + 1").await;
    let unknown = message("bob", "k", 1, 2);
    assert!(matches!(declare(&unknown).await, Err(LedgerError::Conflict(_))));
    bench.run("UPDATE sales SET state = 'open', state_after = NULL, version = version + 1").await;
    assert_eq!(declare(&unknown).await.unwrap().reason, Some(LostReason::GateLost));
    bench.sound().await;
}

#[tokio::test]
async fn an_audit_counts_by_state_and_knows_no_other_sale() {
    let bench = Bench::new(5).await;
    bench.reserve(&message("ann", "k", 1, 1)).await;
    bench.settle_one(&message("ann", "other", 1, 2)).await;
    let gone = message("bob", "k", 1, 3);
    bench.reserve(&gone).await;
    bench.ledger.let_go(&gone.claim_id, &gone.buyer).await.unwrap();
    let audit = bench.ledger.audit(&bench.sale).await.unwrap();
    assert_eq!((audit.total, audit.sold, audit.live_units, audit.live_orders), (5, 1, 1, 1));
    assert_eq!((audit.paid_orders, audit.expired_orders, audit.lost_claims), (0, 1, 1));
    assert_eq!((audit.releases_pending, audit.releases_pending_units, audit.refunds_pending), (2, 2, 0));
    let unknown = bench.ledger.audit(&"none".parse().unwrap()).await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn a_ledger_that_is_not_there_is_unavailable() {
    let config = flashgate_ledger::LedgerConfig {
        url: format!("postgres://nobody@127.0.0.1:{}/none", flashgate_servers::free_port().unwrap()),
        acquire_timeout_ms: 200,
        ..Default::default()
    };
    let error = flashgate_ledger::Ledger::connect(&config).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable(_)), "{error:?}");
    assert!(!format!("{config:?}").contains("nobody"));
}

#[tokio::test]
async fn settings_change_on_top_of_the_version_they_were_read_from_and_every_version_is_kept() {
    let bench = Bench::with(sale("phones", 3)).await;
    let first = bench.ledger.sale(&"phones".parse().unwrap()).await.unwrap().unwrap().config;
    let changed = flashgate_shared::sale::SaleConfig { title: "Other".into(), ..first.clone() };
    let after = bench.ledger.change_sale(&changed).await.unwrap().config;
    assert_eq!((after.version, after.title.as_str()), (first.version + 1, "Other"));
    assert!(
        matches!(bench.ledger.change_sale(&changed).await, Err(LedgerError::Conflict(_))),
        "based on an old version"
    );
    let version = async |n| bench.ledger.sale_version(&first.id, n).await.unwrap();
    assert_eq!(version(first.version).await, Some(first.clone()));
    assert_eq!(version(after.version).await, Some(after.clone()));
    assert_eq!(version(after.version + 1).await, None);
    let bad = flashgate_shared::sale::SaleConfig { total: 0, ..after };
    assert!(matches!(bench.ledger.change_sale(&bad).await, Err(LedgerError::Invalid(_))));
    bench.sound().await;
}
