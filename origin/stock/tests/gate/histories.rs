//! Random histories of claims, releases and loads against an independent model.

use crate::{LIMIT, attempt, connect, release, sale};
use anyhow::Result;
use flashgate_shared::{
    Epoch, HoldId,
    order::{ReceiptState, ReleaseMode},
};
use flashgate_stock::{BucketLoad, ClaimAttempt, ClaimReply, LoadReply, Receipt, ReleaseReply, Stock};
use proptest::prelude::*;
use std::collections::BTreeMap;

const TOTAL: i64 = 6;

/// The gate as a person would tell it: one bucket.
struct Model {
    epoch: Epoch,
    stock: i64,
    outbox: u64,
    receipts: BTreeMap<String, (String, Receipt)>,
}

/// An epoch told by its distance from the gate's.
type Ahead = i64;

#[derive(Debug, Clone)]
enum Step {
    Claim { buyer: u8, key: u8, quantity: u32, second_try: bool, ahead: Ahead },
    Release { buyer: u8, void: bool, right_hold: bool, ahead: Ahead },
    Load { ahead: Ahead },
}

fn step() -> impl Strategy<Value = Step> {
    let ahead = || prop_oneof![8 => Just(0_i64), 1 => Just(-1), 1 => Just(1)];
    prop_oneof![
        10 => (0..4_u8, 0..3_u8, 0..5_u32, any::<bool>(), ahead()).prop_map(
            |(buyer, key, quantity, second_try, ahead)| Step::Claim { buyer, key, quantity, second_try, ahead }
        ),
        10 => (0..4_u8, any::<bool>(), any::<bool>(), ahead())
            .prop_map(|(buyer, void, right_hold, ahead)| Step::Release { buyer, void, right_hold, ahead }),
        2 => (-1..=2_i64).prop_map(|ahead| Step::Load { ahead }),
    ]
}

impl Model {
    fn claim(&mut self, key: &str, a: &ClaimAttempt) -> &'static str {
        if a.epoch != self.epoch {
            return "not loaded";
        }
        if !(1..=LIMIT).contains(&a.quantity) {
            return "bad";
        }
        match self.receipts.get(a.buyer.as_str()) {
            Some((k, _)) if k == key => return "replay",
            Some((_, r)) if r.state == ReceiptState::Held => return "already",
            Some((_, r)) if r.state == ReceiptState::Released && !a.second_try => return "had",
            _ => {}
        }
        if self.stock < i64::from(a.quantity) {
            return "empty";
        }
        self.stock -= i64::from(a.quantity);
        self.outbox += 1;
        "ok"
    }

    fn release(&mut self, buyer: &str, hold: &HoldId, epoch: Epoch, mode: ReleaseMode) -> ReleaseReply {
        if epoch > self.epoch {
            return ReleaseReply::Keep;
        }
        if epoch < self.epoch {
            return ReleaseReply::Superseded;
        }
        match self.receipts.get_mut(buyer) {
            Some((_, r)) if r.state == ReceiptState::Held && r.hold == *hold => {
                self.stock += i64::from(r.quantity);
                r.state = match mode {
                    ReleaseMode::Spent => ReceiptState::Released,
                    ReleaseMode::Void => ReceiptState::Void,
                };
                ReleaseReply::Returned
            }
            _ => ReleaseReply::NoChange,
        }
    }
}

async fn claim(stock: &Stock, model: &mut Model, key: u8, a: ClaimAttempt) -> Result<()> {
    let key = format!("k{key}");
    let expected = model.claim(&key, &a);
    let known = model.receipts.get(a.buyer.as_str()).map(|(_, receipt)| receipt.clone());
    let said = match stock.claim(&a, 0).await? {
        ClaimReply::Ok { hold, left } => {
            assert_eq!(i64::from(left), model.stock);
            let receipt = Receipt {
                state: ReceiptState::Held,
                claim_id: a.claim_id,
                hold,
                quantity: a.quantity,
                claimed_at_ms: a.now_ms,
            };
            model.receipts.insert(a.buyer.to_string(), (key, receipt));
            "ok"
        }
        ClaimReply::Replay(receipt) => {
            assert_eq!(Some(receipt), known);
            "replay"
        }
        ClaimReply::Already(receipt) => {
            assert_eq!(Some(receipt), known);
            "already"
        }
        ClaimReply::AlreadyHad(receipt) => {
            assert_eq!(Some(receipt), known);
            "had"
        }
        ClaimReply::Empty { left } => {
            assert_eq!(i64::from(left), model.stock);
            "empty"
        }
        ClaimReply::NotLoaded { epoch } => {
            assert_eq!(epoch, Some(model.epoch));
            "not loaded"
        }
        ClaimReply::BadQuantity => "bad",
    };
    assert_eq!(said, expected);
    Ok(())
}

/// A rebuild that knows what the gate knew: stock and receipts as they are, at another epoch.
async fn load(stock: &Stock, model: &mut Model, epoch: Epoch) -> Result<()> {
    let receipts = model.receipts.iter().map(|(buyer, (_, receipt))| (buyer.parse().unwrap(), receipt.clone()));
    let load = BucketLoad { bucket: 0, stock: u32::try_from(model.stock)?, receipts: receipts.collect() };
    let expected = if epoch > model.epoch {
        model.epoch = epoch;
        LoadReply::Loaded
    } else {
        LoadReply::Refused { bucket: 0, epoch: model.epoch }
    };
    assert_eq!(stock.load(&sale(), epoch, &[load]).await?, expected);
    Ok(())
}

async fn run(steps: Vec<Step>, prefix: String) -> Result<()> {
    let stock = connect(&prefix).await?;
    let mut model = Model { epoch: 0, stock: TOTAL, outbox: 0, receipts: BTreeMap::new() };
    load(&stock, &mut model, 1).await?;
    for step in steps {
        match step {
            Step::Claim { buyer, key, quantity, second_try, ahead } => {
                let a = attempt(&format!("b{buyer}"), &format!("k{key}"), quantity);
                let a = ClaimAttempt { second_try, epoch: model.epoch + ahead, ..a };
                claim(&stock, &mut model, key, a).await?;
            }
            Step::Release { buyer, void, right_hold, ahead } => {
                let buyer = format!("b{buyer}");
                let Some((key, receipt)) = model.receipts.get(&buyer).cloned() else {
                    continue;
                };
                let hold = if right_hold { receipt.hold } else { HoldId::new(1, 0, "7-7")? };
                let mode = if void { ReleaseMode::Void } else { ReleaseMode::Spent };
                let epoch = model.epoch + ahead;
                let order = release(&attempt(&buyer, &key, 1), &hold, receipt.quantity, mode, epoch);
                let expected = model.release(&buyer, &hold, epoch, mode);
                assert_eq!(stock.release(&order, 0).await?, expected);
            }
            Step::Load { ahead } => {
                let epoch = model.epoch + ahead;
                load(&stock, &mut model, epoch).await?;
            }
        }
        let map = stock.stock_map(&sale(), 1).await?;
        assert_eq!(
            (map.buckets[0].stock, map.outbox(), map.epoch_agrees(model.epoch)),
            (model.stock, model.outbox, true)
        );
        let out: u32 = stock.held(&sale(), 1).await?.iter().map(|h| h.receipt.quantity).sum();
        assert_eq!(model.stock + i64::from(out), TOTAL, "on offer and held make the total");
    }
    Ok(())
}

#[test]
fn random_histories_agree_with_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 40, ..ProptestConfig::default() });
    let case = std::cell::Cell::new(0);
    runner
        .run(&prop::collection::vec(step(), 1..40), |steps| {
            case.set(case.get() + 1);
            runtime.block_on(run(steps, format!("model{}", case.get()))).map_err(|e| TestCaseError::fail(e.to_string()))
        })
        .unwrap();
}
