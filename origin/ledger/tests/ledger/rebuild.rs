//! Rebuilds of the gate: who may do them, and what a cut says.

use crate::bench::{Bench, buyer, claim_id, message, message_of};
use flashgate_ledger::{LedgerError, ReleaseOutcome, Settled};
use flashgate_shared::{
    order::{LostReason, OrderStatus},
    sale::{RebuildCause, SaleState},
    trace::TraceId,
};
use uuid::Uuid;

const LONG_MS: i64 = 60_000;

async fn opened(total: u32) -> Bench {
    let bench = Bench::new(total).await;
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    bench
}

impl Bench {
    async fn ordered(&self) -> bool {
        self.ledger.order_rebuild(&self.sale, RebuildCause::NotLoaded, None).await.unwrap()
    }

    async fn states(&self) -> (SaleState, Option<SaleState>) {
        let row = self.ledger.sale(&self.sale).await.unwrap().unwrap();
        (row.state, row.state_after)
    }
}

#[tokio::test]
async fn a_rebuild_is_ordered_once_and_only_while_its_cause_is_of_today() {
    let bench = Bench::new(5).await;
    let order = |seen| bench.ledger.order_rebuild(&bench.sale, RebuildCause::ServerChanged, seen);
    assert!(matches!(order(None).await, Err(LedgerError::Conflict(_))), "never loaded");
    bench.ledger.set_state(&bench.sale, &[SaleState::Loading], SaleState::Open).await.unwrap();
    assert_eq!(order(Some(7)).await, Ok(false), "seen at another epoch");
    assert_eq!(order(Some(1)).await, Ok(true));
    assert_eq!(bench.states().await, (SaleState::Rebuilding, Some(SaleState::Open)));
    assert_eq!(order(Some(1)).await, Ok(false), "ordered already");
    let told = bench.ledger.rebuilds(&bench.sale).await.unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].cause, told[0].epoch, told[0].ended_at_ms), (RebuildCause::ServerChanged, None, None));
    let unknown = bench.ledger.order_rebuild(&"none".parse().unwrap(), RebuildCause::Operator, None).await;
    assert_eq!(unknown, Err(LedgerError::NotFound));
}

#[tokio::test]
async fn what_an_operator_orders_meanwhile_holds_afterwards() {
    let bench = opened(5).await;
    assert!(bench.ordered().await);
    let set = |from: &'static [SaleState], to| bench.ledger.set_state(&bench.sale, from, to);
    let paused = set(&[SaleState::Open], SaleState::Paused).await.unwrap();
    assert_eq!((paused.state, paused.state_after), (SaleState::Rebuilding, Some(SaleState::Paused)));
    assert!(set(&[SaleState::Open], SaleState::Paused).await.is_err(), "it is paused by then");
    let me = Uuid::new_v4();
    let rebuild = bench.ledger.own_rebuild(&bench.sale, me, LONG_MS).await.unwrap().unwrap();
    let cut = bench.ledger.cut(&bench.sale, rebuild, me, 0).await.unwrap();
    assert!(bench.ledger.end_rebuild(&bench.sale, rebuild, cut.epoch).await.unwrap());
    assert_eq!(bench.states().await, (SaleState::Paused, None));
}

#[tokio::test]
async fn a_cut_tells_what_the_gate_is_to_hold() {
    let bench = opened(10).await;
    let live = bench.reserve(&message_of(2, "ann", "k", 1)).await;
    bench.reserve(&message("bob", "k", 1, 2)).await;
    bench.ledger.let_go(&claim_id("bob", "k"), &buyer("bob")).await.unwrap();
    let lost = bench.settle_one(&message("ann", "other", 1, 3)).await;
    assert_eq!(lost, Settled::Lost(LostReason::Duplicate));
    let trace = TraceId::from_random(1);
    bench.ledger.declare_lost(&bench.sale, &claim_id("eve", "k"), &buyer("eve"), 1, trace).await.unwrap();
    let done = bench.ledger.releases_due(1).await.unwrap().remove(0);
    bench.ledger.release_done(done.id, ReleaseOutcome::Returned).await.unwrap();

    assert!(bench.ordered().await);
    let me = Uuid::new_v4();
    let rebuild = bench.ledger.own_rebuild(&bench.sale, me, LONG_MS).await.unwrap().unwrap();
    let cut = bench.ledger.cut(&bench.sale, rebuild, me, 41).await.unwrap();
    assert_eq!((cut.epoch, cut.on_offer, cut.superseded), (42, 8, 1), "above the ledger's and the gate's");
    let told: Vec<_> = cut.standings.iter().map(|s| (s.buyer.as_str(), s.status, s.claim_id, s.quantity)).collect();
    assert_eq!(
        told,
        [
            ("ann", OrderStatus::Reserved, live.claim_id, 2),
            ("bob", OrderStatus::Expired, claim_id("bob", "k"), 1),
            ("eve", OrderStatus::Lost, claim_id("eve", "k"), 1),
        ]
    );
    assert_eq!(cut.standings[2].hold, None);
    assert_eq!(bench.ledger.releases_due(9).await.unwrap(), [], "the cut has counted them");
    // What comes now from the old gate is lost, and gives nothing back.
    let late = bench.settle_one(&message("max", "k", 1, 4)).await;
    assert_eq!(late, Settled::Lost(LostReason::GateRebuilt));
    assert!(bench.ledger.end_rebuild(&bench.sale, rebuild, cut.epoch).await.unwrap());
    assert_eq!(bench.states().await, (SaleState::Open, None));
    assert!(matches!(bench.settle_one(&message("zoe", "k", 42, 1)).await, Settled::Reserved(_)));
    bench.sound().await;
}

#[tokio::test]
async fn a_process_that_lost_its_rebuild_can_neither_cut_nor_end_it() {
    let bench = opened(5).await;
    assert!(bench.ordered().await);
    let (zombie, me) = (Uuid::new_v4(), Uuid::new_v4());
    let own = |owner| bench.ledger.own_rebuild(&bench.sale, owner, LONG_MS);
    let rebuild = own(zombie).await.unwrap().unwrap();
    assert_eq!(own(me).await.unwrap(), None, "it has an owner");
    assert_eq!(own(zombie).await.unwrap(), Some(rebuild), "who may renew it");
    let old = bench.ledger.cut(&bench.sale, rebuild, zombie, 0).await.unwrap();
    // The zombie sleeps for longer than it owns the rebuild.
    bench.run("UPDATE gate_rebuilds SET owned_until_ms = 0").await;
    assert_eq!(own(me).await.unwrap(), Some(rebuild));
    let new = bench.ledger.cut(&bench.sale, rebuild, me, 0).await.unwrap();
    assert!(new.epoch > old.epoch);
    // It wakes: whatever its next step is, nothing comes of it.
    assert!(matches!(bench.ledger.cut(&bench.sale, rebuild, zombie, 0).await, Err(LedgerError::Conflict(_))));
    assert!(!bench.ledger.end_rebuild(&bench.sale, rebuild, old.epoch).await.unwrap());
    assert_eq!(bench.states().await.0, SaleState::Rebuilding);
    assert!(bench.ledger.end_rebuild(&bench.sale, rebuild, new.epoch).await.unwrap());
    assert!(!bench.ledger.end_rebuild(&bench.sale, rebuild, new.epoch).await.unwrap(), "ended once");
    assert!(matches!(bench.ledger.cut(&bench.sale, rebuild, me, 0).await, Err(LedgerError::Conflict(_))), "over");
    assert_eq!(own(zombie).await.unwrap(), None);
}

#[tokio::test]
async fn an_order_that_ends_between_the_cut_and_the_opening_gives_its_unit_back_to_the_new_gate() {
    let bench = opened(5).await;
    let order = bench.reserve(&message("ann", "k", 1, 1)).await;
    assert!(bench.ordered().await);
    let me = Uuid::new_v4();
    let rebuild = bench.ledger.own_rebuild(&bench.sale, me, LONG_MS).await.unwrap().unwrap();
    let cut = bench.ledger.cut(&bench.sale, rebuild, me, 0).await.unwrap();
    assert_eq!((cut.on_offer, cut.standings[0].status), (4, OrderStatus::Reserved));
    bench.ledger.let_go(&order.claim_id, &order.buyer).await.unwrap();
    let release = bench.ledger.releases_due(9).await.unwrap().remove(0).release;
    assert_eq!((release.epoch, release.units, Some(release.hold)), (cut.epoch, 1, order.hold));
}
