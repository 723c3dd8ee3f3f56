//! Deletes outbox entries whose publication the broker has confirmed; in batches, behind the answers.
//! An entry that is not deleted is published once more by the relay, which harms nobody.

use crate::App;
use flashgate_shared::{HoldId, SaleId};
use std::{collections::HashMap, sync::Mutex, time::Duration};
use tokio::sync::Notify;

/// Most entries that wait; beyond, they are left to the relay.
const WAITING_MAX: usize = 100_000;
/// Most entries in one command.
const BATCH_MAX: usize = 500;
/// How long entries gather.
const GATHER: Duration = Duration::from_millis(5);
/// How long to wait when nobody nudges.
const IDLE: Duration = Duration::from_secs(1);

/// Holds that wait for their outbox entries to go.
#[derive(Debug, Default)]
pub struct Confirmed {
    waiting: Mutex<Vec<(SaleId, HoldId)>>,
    nudge: Notify,
}

impl Confirmed {
    /// This hold's message is in the queue.
    pub fn add(&self, sale: SaleId, hold: HoldId) {
        let mut waiting = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        if waiting.len() < WAITING_MAX {
            waiting.push((sale, hold));
        }
        drop(waiting);
        self.nudge.notify_one();
    }

    fn take(&self) -> Vec<(SaleId, HoldId)> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Deletes until shutdown.
    pub async fn run(&self, app: &App) {
        while !app.shutdown.is_cancelled() {
            super::pause_or(IDLE, self.nudge.notified(), &app.shutdown).await;
            super::pause(GATHER, &app.shutdown).await;
            self.flush(app).await;
        }
    }

    /// Deletes what waits now.
    pub async fn flush(&self, app: &App) {
        let mut by_sale: HashMap<SaleId, Vec<HoldId>> = HashMap::new();
        for (sale, hold) in self.take() {
            by_sale.entry(sale).or_default().push(hold);
        }
        for (sale, holds) in by_sale {
            for batch in holds.chunks(BATCH_MAX) {
                if let Err(error) = app.stock.outbox_delete(&sale, batch).await {
                    tracing::warn!(%error, %sale, entries = batch.len(), "outbox entries not deleted; the relay will");
                }
            }
        }
    }
}
