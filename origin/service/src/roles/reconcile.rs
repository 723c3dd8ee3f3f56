//! Reconciles every sale now and then: what a single hold mends is mended, the rest is told.

use crate::{
    App,
    reconcile::{OLDER_THAN_MS, Wish, reconcile},
    roles::{Next, Pace},
    sales::Sale,
};
use flashgate_shared::{SaleId, order::Wisher, sale::SaleState};
use std::{collections::HashMap, time::Duration};

/// A closed sale that was found at rest and in order is looked at in one tick of so many: a notice or a refund
/// may still come.
const REST_TICKS: u32 = 60;

/// Ticks until shutdown.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.reconcile.period_ms);
    let wish = Wish { repair: true, rebuild: false, older_than_ms: OLDER_THAN_MS, by: Wisher::Schedule };
    let mut pace = Pace::new("reconcile", None, &app.shutdown);
    let mut resting = Resting::default();
    while pace.goes_on() {
        let mut done: Result<_, String> = Ok(Next::After(period));
        for sale in app.sales.all() {
            if matches!(sale.row.state, SaleState::Loading | SaleState::Rebuilding) || app.shutdown.is_cancelled() {
                continue;
            }
            if resting.rests(&sale) {
                continue;
            }
            match reconcile(app, &sale.row, wish).await {
                Ok(found) => resting.looked(&sale, found.quiet && found.drifts.is_empty() && found.unseen.is_empty()),
                Err(error) => done = Err(format!("{}: {error}", sale.id())),
            }
        }
        pace.rest(done).await;
    }
}

/// Closed sales that need no look for a while: their version, and for how many ticks.
#[derive(Debug, Default)]
struct Resting(HashMap<SaleId, (i64, u32)>);

impl Resting {
    fn rests(&mut self, sale: &Sale) -> bool {
        match self.0.get_mut(sale.id()) {
            Some((version, ticks)) if *version == sale.row.config.version && *ticks > 0 => {
                *ticks -= 1;
                true
            }
            _ => false,
        }
    }

    fn looked(&mut self, sale: &Sale, in_order: bool) {
        if in_order && sale.row.state == SaleState::Closed {
            self.0.insert(sale.id().clone(), (sale.row.config.version, REST_TICKS));
        } else {
            self.0.remove(sale.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_ledger::SaleRow;
    use std::sync::Arc;

    fn sale(version: i64, state: SaleState) -> Sale {
        let config = serde_json::from_value(serde_json::json!({
            "id": "s", "version": version, "title": "t", "price": {"amount_minor": 1, "currency": "EUR"}, "total": 5,
            "per_buyer_limit": 1, "opens_at_ms": 1, "closes_at_ms": 2, "buckets": 1, "admit_factor": 5.0,
            "enter_rate_per_s": 5.0, "pay_window_ms": 1, "grace_ms": 1, "second_try": false, "anonymous_entry": true,
            "backlog_limit": 5
        }))
        .unwrap();
        Sale { row: SaleRow { config, state, state_after: None, epoch: 1, sold: 0 }, live: Arc::default() }
    }

    #[test]
    fn only_a_closed_sale_in_order_rests_and_not_for_ever() {
        let mut resting = Resting::default();
        let (open, closed) = (sale(1, SaleState::Open), sale(2, SaleState::Closed));
        resting.looked(&open, true);
        assert!(!resting.rests(&open));
        resting.looked(&closed, false);
        assert!(!resting.rests(&closed));
        resting.looked(&closed, true);
        assert!((0..REST_TICKS).all(|_| resting.rests(&closed)));
        assert!(!resting.rests(&closed), "a look is due");
        resting.looked(&closed, true);
        assert!(!resting.rests(&sale(3, SaleState::Closed)), "it changed");
    }
}
