//! The protocol as a model, checked exhaustively for small sizes (`stateright`): claim, publish, settle, pay or
//! expire, release, rebuild, with crashes, losses, repeats and failovers at every step.
//!
//! The model is written from the design and not from the code: it says what each step may read and write. Each
//! planted bug takes one guard away and must lead to a counterexample; else the guard would be there for nothing,
//! or the model would not see.

mod protocol;

use protocol::{ALL_PAID, ALWAYS, Bug, Claim, Protocol, SOLD_AGAIN};
use stateright::{Checker, HasDiscoveries, Model};

/// Of one checker; the tests run side by side.
const THREADS: usize = 2;

const ANN: Claim = Claim { buyer: 0, key: 0 };
const ANN_AGAIN: Claim = Claim { buyer: 0, key: 1 };
const BOB: Claim = Claim { buyer: 1, key: 0 };

/// Two buyers, a repeat of any step, one bucket that forgets, one rebuild.
fn all_faults() -> Protocol {
    Protocol {
        total: 1,
        buckets: 2,
        claims: vec![ANN, BOB],
        entries: 3,
        repeats: 1,
        failovers: 1,
        rebuilds: 1,
        bug: Bug::None,
    }
}

/// Nothing goes wrong but that steps are repeated; one buyer comes with two keys.
fn repeats(total: u8) -> Protocol {
    Protocol { total, claims: vec![ANN, ANN_AGAIN, BOB], entries: 4, failovers: 0, rebuilds: 0, ..all_faults() }
}

/// Checks all states. A property that is broken comes with its shortest story.
fn check(protocol: Protocol, wanted: &[&'static str]) {
    let checker = protocol.checker().threads(THREADS).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    assert!(checker.is_done(), "not all states were seen");
    if let Some(story) = story(&checker) {
        panic!("{story}");
    }
    for name in wanted {
        assert!(checker.discovery(name).is_some(), "{name:?} never happens: the model is silent");
    }
}

/// With this guard taken away: the story that must be found, and the invariant that it must break.
fn find(bug: Bug, protocol: Protocol, invariant: &str) {
    let broken = Protocol { bug, ..protocol };
    let checker = broken.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let story = story(&checker).unwrap_or_else(|| panic!("without {bug:?} nothing breaks"));
    println!("{bug:?}: {story}");
    assert!(story.starts_with(invariant), "{story}");
}

fn story(checker: &impl Checker<Protocol>) -> Option<String> {
    ALWAYS.iter().find_map(|name| {
        let steps = checker.discovery(name)?.into_actions();
        Some(steps.iter().fold(format!("{name}:"), |text, step| format!("{text}\n  {step:?}")))
    })
}

#[test]
fn every_state_of_a_sale_with_repeats_a_failover_and_a_rebuild() {
    check(all_faults(), &[ALL_PAID, SOLD_AGAIN]);
}

#[test]
fn every_state_of_a_sale_with_two_rebuilds_at_once() {
    check(Protocol { rebuilds: 2, repeats: 0, failovers: 0, ..all_faults() }, &[ALL_PAID]);
}

#[test]
fn every_state_of_a_sale_with_repeats_and_a_buyer_with_two_keys() {
    check(repeats(1), &[SOLD_AGAIN]);
}

#[test]
fn every_state_of_a_sale_of_two_units() {
    check(repeats(2), &[]);
}

#[test]
fn without_the_receipt_compare_a_unit_comes_back_twice() {
    find(Bug::NoReceiptCompare, repeats(1), "I3, I4");
}

#[test]
fn without_the_conditional_update_a_gate_that_forgot_oversells() {
    find(Bug::NoConditionalUpdate, all_faults(), "I1");
}

#[test]
fn without_the_outbox_a_process_that_dies_strands_a_unit() {
    find(Bug::NoOutbox, all_faults(), "I3, I4");
}

#[test]
fn without_the_unique_live_order_a_buyer_gets_two() {
    find(Bug::NoUniqueLiveOrder, repeats(2), "I2");
}

#[test]
fn without_second_holds_a_replay_in_another_bucket_strands_a_unit() {
    find(Bug::NoSecondHold, repeats(2), "I3, I4");
}

#[test]
fn without_the_epoch_in_settling_a_rebuilt_gate_offers_a_sold_unit() {
    find(Bug::NoEpochInSettle, Protocol { repeats: 0, failovers: 0, total: 2, ..all_faults() }, "I3, I4");
}

#[test]
fn without_refunds_a_late_payment_is_kept() {
    find(Bug::NoRefund, repeats(1), "I7");
}
