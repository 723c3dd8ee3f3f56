//! Random sequences of operations against a model of the ledger in memory.

use crate::bench::{Bench, buyer, claim_id, message, money, notice, sale};
use flashgate_shared::{
    ClaimId,
    envelope::ClaimEnvelope,
    order::{LostReason, OrderStatus},
    sale::SaleConfig,
    trace::TraceId,
    wire::NoticeKind,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use std::collections::HashMap;

const BUYERS: u32 = 4;
const KEYS: u32 = 3;
const HOLDS: u32 = 2;
const TOTAL: u32 = 5;
const CASES: u32 = 12;

/// A message by small numbers, so that repeats, second holds and duplicates are frequent.
type Draw = (u32, u32, u32, u32);

#[derive(Debug, Clone)]
enum Step {
    Settle(Vec<Draw>),
    Dead(Draw),
    /// The hold's time is over, then a sweep.
    Expire(u32, u32),
    LetGo(u32, u32),
    /// The payment's number, and whether the hold's time is over before it.
    Pay(u32, u32, u32, bool),
    DeclareLost(u32, u32),
}

fn draw() -> impl Strategy<Value = Draw> {
    (0..BUYERS, 0..KEYS, 0..HOLDS, 1..4u32)
}

fn step() -> impl Strategy<Value = Step> {
    let (b, k) = (0..BUYERS, 0..KEYS);
    prop_oneof![
        4 => prop::collection::vec(draw(), 1..7).prop_map(Step::Settle),
        1 => draw().prop_map(Step::Dead),
        2 => (b.clone(), k.clone()).prop_map(|(b, k)| Step::Expire(b, k)),
        1 => (b.clone(), k.clone()).prop_map(|(b, k)| Step::LetGo(b, k)),
        2 => (b.clone(), k.clone(), 0..4u32, any::<bool>()).prop_map(|(b, k, p, late)| Step::Pay(b, k, p, late)),
        1 => (b, k).prop_map(|(b, k)| Step::DeclareLost(b, k)),
    ]
}

fn ids(b: u32, k: u32) -> (String, String, ClaimId) {
    let (name, key) = (format!("b{b}"), format!("k{k}"));
    let claim = claim_id(&name, &key);
    (name, key, claim)
}

fn envelope((b, k, hold, quantity): Draw) -> ClaimEnvelope {
    let (name, key, _) = ids(b, k);
    // A hold id is minted once: its quantity never changes.
    let number = ((b * KEYS + k) * HOLDS + hold) * 10 + quantity;
    ClaimEnvelope { quantity, ..message(&name, &key, 1, number) }
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    status: OrderStatus,
    reason: Option<LostReason>,
    hold: Option<String>,
    units: u32,
    name: String,
}

/// The ledger, told as simply as possible.
#[derive(Default)]
struct Model {
    rows: HashMap<ClaimId, Row>,
    released: HashMap<(ClaimId, String), u32>,
    payments: HashMap<String, ClaimId>,
    refunds: u32,
}

impl Model {
    fn sold(&self) -> u32 {
        self.rows.values().filter(|r| r.status.is_live()).map(|r| r.units).sum()
    }

    fn settle(&mut self, m: &ClaimEnvelope, dead: bool) {
        let hold = m.hold.to_string();
        let key = (m.claim_id, hold.clone());
        if let Some(row) = self.rows.get(&m.claim_id) {
            if row.hold.as_ref() != Some(&hold) {
                self.released.entry(key).or_insert(m.quantity);
            }
            return;
        }
        let has = |f: fn(OrderStatus) -> bool| self.rows.values().any(|r| r.name == m.buyer.as_str() && f(r.status));
        let free = TOTAL - self.sold();
        let lost = if has(OrderStatus::is_live) {
            Some((LostReason::Duplicate, m.quantity))
        } else if has(|s| s == OrderStatus::Expired) {
            Some((LostReason::SecondTry, m.quantity))
        } else if m.quantity > free {
            Some((LostReason::GateLeaked, free))
        } else {
            dead.then_some((LostReason::Poison, m.quantity))
        };
        if let Some((_, units)) = lost {
            self.released.insert(key, units);
        }
        self.rows.insert(
            m.claim_id,
            Row {
                status: lost.map_or(OrderStatus::Reserved, |_| OrderStatus::Lost),
                reason: lost.map(|(reason, _)| reason),
                hold: Some(hold),
                units: m.quantity,
                name: m.buyer.to_string(),
            },
        );
    }

    fn expire(&mut self, claim: ClaimId) {
        if let Some(row) = self.rows.get_mut(&claim).filter(|r| r.status == OrderStatus::Reserved) {
            row.status = OrderStatus::Expired;
            let hold = row.hold.clone().unwrap();
            self.released.insert((claim, hold), row.units);
        }
    }

    fn pay(&mut self, payment: &str, claim: ClaimId, late: bool) {
        if self.payments.contains_key(payment) {
            return;
        }
        self.payments.insert(payment.into(), claim);
        match self.rows.get_mut(&claim) {
            Some(row) if row.status == OrderStatus::Reserved && !late => row.status = OrderStatus::Paid,
            _ => {
                if late {
                    self.expire(claim);
                }
                self.refunds += 1;
            }
        }
    }

    fn declare_lost(&mut self, name: &str, claim: ClaimId) {
        self.rows.entry(claim).or_insert_with(|| Row {
            status: OrderStatus::Lost,
            reason: Some(LostReason::GateLost),
            hold: None,
            units: 1,
            name: name.into(),
        });
    }
}

const LONG_MS: i64 = 700_000;

async fn take(bench: &Bench, model: &mut Model, step: &Step) {
    match step {
        Step::Settle(draws) => {
            let batch: Vec<_> = draws.iter().map(|d| envelope(*d)).collect();
            bench.settle(&batch).await;
            batch.iter().for_each(|m| model.settle(m, false));
        }
        Step::Dead(d) => {
            bench.ledger.settle_dead(&envelope(*d)).await.unwrap();
            model.settle(&envelope(*d), true);
        }
        Step::Expire(b, k) => {
            let (_, _, claim) = ids(*b, *k);
            bench.age(claim, LONG_MS).await;
            bench.ledger.sweep(&bench.sale, 100).await.unwrap();
            model.expire(claim);
        }
        Step::LetGo(b, k) => {
            let (name, _, claim) = ids(*b, *k);
            let known = bench.ledger.let_go(&claim, &buyer(&name)).await.is_ok();
            assert_eq!(known, model.rows.contains_key(&claim));
            model.expire(claim);
        }
        Step::Pay(b, k, p, late) => {
            let (_, _, claim) = ids(*b, *k);
            let payment = format!("p{p}");
            if *late && !model.payments.contains_key(&payment) {
                bench.age(claim, LONG_MS).await;
            }
            let units = model.rows.get(&claim).map_or(1, |r| r.units);
            let amount = money(5_000 * i64::from(units), "EUR");
            let notice = notice(NoticeKind::Succeeded, &payment, claim, amount);
            bench.ledger.apply_notice(&notice).await.unwrap();
            model.pay(&payment, claim, *late);
        }
        Step::DeclareLost(b, k) => {
            let (name, _, claim) = ids(*b, *k);
            let trace = TraceId::from_random(1);
            let owner = buyer(&name);
            let declared = bench.ledger.declare_lost(&bench.sale, &claim, &owner, 1, trace);
            declared.await.unwrap();
            model.declare_lost(&name, claim);
        }
    }
}

async fn agree(bench: &Bench, model: &Model) {
    bench.sound().await;
    assert_eq!(bench.sold().await, i64::from(model.sold()));
    assert!(model.sold() <= TOTAL);
    assert_eq!(bench.orders().await, model.rows.len() as i64);
    for (claim, row) in &model.rows {
        let order = bench.order(*claim).await;
        let seen = Row {
            status: order.status,
            reason: order.reason,
            hold: order.hold.map(|h| h.to_string()),
            units: order.quantity,
            name: order.buyer.to_string(),
        };
        assert_eq!(seen, *row, "{claim}");
    }
    let releases = bench.releases().await;
    let released: HashMap<_, _> = releases.into_iter().map(|r| ((r.0, r.1), r.2 as u32)).collect();
    assert_eq!(released, model.released);
    let audit = bench.ledger.audit(&bench.sale).await.unwrap();
    assert_eq!(audit.refunds_pending, i64::from(model.refunds));
}

fn agrees_with_the_model(shards: u16) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(step(), 1..25);
    TestRunner::new(config)
        .run(&steps, |steps| {
            runtime.block_on(async {
                let config = SaleConfig { shards, ..sale("phones", TOTAL) };
                let (bench, mut model) = (Bench::with(config).await, Model::default());
                for step in &steps {
                    take(&bench, &mut model, step).await;
                }
                agree(&bench, &model).await;
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_operations_agree_with_the_model_and_never_oversell() {
    agrees_with_the_model(1);
}

#[test]
fn random_operations_on_split_stock_agree_with_the_same_model() {
    agrees_with_the_model(3);
}
