//! Who waits for news of which claim: the event streams. News is a hint; streams poll as well.

use flashgate_shared::ClaimId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::Notify;

/// The open event streams of this process, by claim.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<ClaimId, Entry>>);

#[derive(Debug)]
struct Entry {
    notify: Arc<Notify>,
    streams: usize,
}

impl Watchers {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<ClaimId, Entry>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Registers a stream; it is forgotten when the answer is dropped.
    pub fn watch(self: &Arc<Self>, claim_id: ClaimId) -> Watch {
        let notify = self.with(|map| {
            let entry = map.entry(claim_id).or_insert_with(|| Entry { notify: Arc::default(), streams: 0 });
            entry.streams += 1;
            entry.notify.clone()
        });
        Watch { all: self.clone(), claim_id, notify }
    }

    /// Something happened to this claim.
    pub fn news(&self, claim_id: &ClaimId) {
        self.with(|map| {
            if let Some(entry) = map.get(claim_id) {
                entry.notify.notify_waiters();
            }
        });
    }
}

/// One stream's registration.
#[derive(Debug)]
pub struct Watch {
    all: Arc<Watchers>,
    claim_id: ClaimId,
    notify: Arc<Notify>,
}

impl Watch {
    /// Waits for news that comes after this call.
    pub async fn news(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.all.with(|map| {
            if let Some(entry) = map.get_mut(&self.claim_id) {
                entry.streams -= 1;
                if entry.streams == 0 {
                    map.remove(&self.claim_id);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn news_reaches_the_stream_and_nothing_is_left_behind() {
        let all = Arc::new(Watchers::default());
        let claim_id = ClaimId(uuid::Uuid::nil());
        let watch = all.watch(claim_id);
        {
            let waiting = watch.news();
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            all.news(&claim_id);
            waiting.await;
        }
        drop(watch);
        assert!(all.with(|map| map.is_empty()));
    }
}
