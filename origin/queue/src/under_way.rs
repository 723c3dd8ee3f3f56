//! Publications whose outcome is not known yet, of one channel.
//!
//! The client library hands a returned message to whichever confirm it completes next, not to the one
//! it belongs to; the message that was returned may then see a plain ack. What is certain is the
//! order: before a message's own confirm is completed, its return has been attached to a confirm
//! completed no later. So a plain ack is believed only after all confirms that were complete when it
//! was seen have been looked at, and none of them carries a return with this message's id.

use crate::Published;
use lapin::{Confirmation, message::BasicReturnMessage};
use std::{
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The future of one publication's confirm.
pub(crate) type Confirming = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send>>;

/// Whoever waits for an outcome, and his share of the limit.
pub(crate) struct Waiter {
    pub tell: oneshot::Sender<Published>,
    /// Held until the outcome is known, not until somebody loses patience: this is what bounds the
    /// frames in memory.
    pub _permit: OwnedSemaphorePermit,
}

impl Waiter {
    pub(crate) fn unknown(self, reason: &str) {
        // Whoever asked may have given up.
        let _ = self.tell.send(Published::Unknown(reason.to_owned()));
    }
}

struct Publication {
    message_id: String,
    confirming: Confirming,
    waiter: Waiter,
}

struct Completed {
    message_id: String,
    waiter: Waiter,
    outcome: Result<(), String>,
}

/// The set; polled by one task only, so that the library sees publications in one order.
#[derive(Default)]
pub(crate) struct UnderWay {
    publications: Vec<Publication>,
    /// Message ids in returns whose own confirms have not been seen, with how often.
    returned: HashMap<String, usize>,
    /// The channel failed: nothing more will come of it.
    failed: bool,
}

impl UnderWay {
    pub(crate) fn is_empty(&self) -> bool {
        self.publications.is_empty()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Takes a publication and starts it: the library numbers it and queues its frames at this poll.
    pub(crate) async fn add(&mut self, message_id: String, mut confirming: Confirming, waiter: Waiter) {
        let started = poll_fn(|cx| Poll::Ready(confirming.as_mut().poll(cx))).await;
        if let Poll::Ready(early) = started {
            confirming = Box::pin(std::future::ready(early));
        }
        self.publications.push(Publication { message_id, confirming, waiter });
    }

    /// Waits for outcomes and tells them; returns after some were told, so never while the set is empty.
    /// Cancel-safe: nothing is awaited between seeing a confirm and telling it.
    pub(crate) async fn settle(&mut self) {
        poll_fn(|cx| if self.settle_complete(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Tells every outcome that is certain; whether there was any.
    fn settle_complete(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        let mut seen = self.pass(cx);
        while !seen.is_empty() {
            // A return that belongs to one of `seen` sits on a confirm that was complete by now: it was
            // in this pass, or, if the pass had gone by it already, it is in the next.
            let next = self.pass(cx);
            for completed in seen {
                self.tell(completed);
                any = true;
            }
            seen = next;
        }
        if self.publications.is_empty() {
            // What is left belongs to nobody any more.
            self.returned.clear();
        }
        any
    }

    /// Looks at every publication once; takes out those that are complete and notes their returns.
    fn pass(&mut self, cx: &mut Context<'_>) -> Vec<Completed> {
        let mut complete = Vec::new();
        let mut at = 0;
        while let Some(publication) = self.publications.get_mut(at) {
            let Poll::Ready(confirmed) = publication.confirming.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            let Publication { message_id, waiter, .. } = self.publications.swap_remove(at);
            let outcome = match confirmed {
                Ok(confirmation) => self.read(confirmation),
                Err(error) => {
                    self.failed = true;
                    Err(error.to_string())
                }
            };
            complete.push(Completed { message_id, waiter, outcome });
        }
        complete
    }

    fn read(&mut self, confirmation: Confirmation) -> Result<(), String> {
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Nack(None) => Err("refused by the broker: the queue is full".into()),
            Confirmation::NotRequested => Err("the channel has no confirms".into()),
            // Perhaps this message's own, perhaps another's: its owner is found by id, and this one,
            // whose confirm is mixed up with it, is not certain either.
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
                let reason = format!("returned by the broker: {}", returned.reply_text);
                self.note(returned);
                Err(reason)
            }
        }
    }

    fn note(&mut self, returned: BasicReturnMessage) {
        if let Some(id) = returned.delivery.properties.message_id() {
            *self.returned.entry(id.to_string()).or_default() += 1;
        }
    }

    fn tell(&mut self, completed: Completed) {
        let Completed { message_id, waiter, mut outcome } = completed;
        if let Some(times) = self.returned.get_mut(&message_id) {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.returned.remove(&message_id);
            }
            outcome = outcome.and(Err("returned by the broker".into()));
        }
        match outcome {
            Ok(()) => drop(waiter.tell.send(Published::Confirmed)),
            Err(reason) => waiter.unknown(&reason),
        }
    }

    /// Gives everything up; the outcome of each is unknown.
    pub(crate) fn give_up(&mut self, reason: &str) {
        for publication in self.publications.drain(..) {
            publication.waiter.unknown(reason);
        }
        self.returned.clear();
        self.failed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::{BasicProperties, message::Delivery};
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    type Broker = oneshot::Sender<lapin::Result<Confirmation>>;

    fn confirming() -> (Broker, Confirming) {
        let (broker, confirm) = oneshot::channel();
        (broker, Box::pin(async move { confirm.await.unwrap() }))
    }

    fn waiter() -> (Waiter, oneshot::Receiver<Published>) {
        let (tell, told) = oneshot::channel();
        let _permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (Waiter { tell, _permit }, told)
    }

    async fn add(set: &mut UnderWay, id: &str, confirming: Confirming) -> oneshot::Receiver<Published> {
        let (waiter, told) = waiter();
        set.add(id.into(), confirming, waiter).await;
        told
    }

    fn returned(id: &str) -> BasicReturnMessage {
        let mut delivery = Delivery::mock(0, "exchange".into(), "key".into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(id.into());
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    fn error() -> lapin::Error {
        lapin::ErrorKind::MissingHeartbeatError.into()
    }

    #[tokio::test]
    async fn only_a_plain_ack_is_a_confirm() {
        let mut set = UnderWay::default();
        let (ack, confirm) = confirming();
        let acked = add(&mut set, "a", confirm).await;
        let (nack, confirm) = confirming();
        let nacked = add(&mut set, "b", confirm).await;
        let (off, confirm) = confirming();
        let without = add(&mut set, "c", confirm).await;
        ack.send(Ok(Confirmation::Ack(None))).unwrap();
        nack.send(Ok(Confirmation::Nack(None))).unwrap();
        off.send(Ok(Confirmation::NotRequested)).unwrap();
        set.settle().await;
        assert_eq!(acked.await.unwrap(), Published::Confirmed);
        assert!(matches!(nacked.await.unwrap(), Published::Unknown(_)));
        assert!(matches!(without.await.unwrap(), Published::Unknown(_)));
        assert!(set.is_empty() && !set.has_failed());
    }

    #[tokio::test]
    async fn a_return_on_anothers_confirm_finds_its_owner() {
        // Whichever was published first.
        for owner_first in [true, false] {
            let mut set = UnderWay::default();
            let ((owner, owners), (taker, takers)) = (confirming(), confirming());
            let (owned, took) = if owner_first {
                let owned = add(&mut set, "owner", owners).await;
                (owned, add(&mut set, "taker", takers).await)
            } else {
                let took = add(&mut set, "taker", takers).await;
                (add(&mut set, "owner", owners).await, took)
            };
            let (other, confirm) = confirming();
            let others = add(&mut set, "other", confirm).await;
            taker.send(Ok(Confirmation::Ack(Some(returned("owner"))))).unwrap();
            owner.send(Ok(Confirmation::Ack(None))).unwrap();
            other.send(Ok(Confirmation::Ack(None))).unwrap();
            set.settle().await;
            assert!(matches!(owned.await.unwrap(), Published::Unknown(_)));
            assert!(matches!(took.await.unwrap(), Published::Unknown(_)));
            assert_eq!(others.await.unwrap(), Published::Confirmed);
            assert!(set.returned.is_empty());
        }
    }

    #[tokio::test]
    async fn a_return_that_completes_while_the_set_is_looked_at_is_not_missed() {
        let mut set = UnderWay::default();
        let (taker, takers) = confirming();
        let took = add(&mut set, "taker", takers).await;
        // By the time the owner is looked at, the taker has been, in vain.
        let mut polls = 0;
        let mut taker = Some(taker);
        let owners = Box::pin(poll_fn(move |cx| {
            polls += 1;
            if polls < 2 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(taker) = taker.take() {
                taker.send(Ok(Confirmation::Ack(Some(returned("owner"))))).unwrap();
            }
            Poll::Ready(Ok(Confirmation::Ack(None)))
        }));
        let owned = add(&mut set, "owner", owners).await;
        set.settle().await;
        assert!(matches!(owned.await.unwrap(), Published::Unknown(_)));
        assert!(matches!(took.await.unwrap(), Published::Unknown(_)));
    }

    #[tokio::test]
    async fn a_lost_channel_leaves_every_outcome_unknown() {
        let mut set = UnderWay::default();
        let (broken, confirm) = confirming();
        let first = add(&mut set, "a", confirm).await;
        let (_waits, confirm) = confirming();
        let second = add(&mut set, "b", confirm).await;
        broken.send(Err(error())).unwrap();
        set.settle().await;
        assert!(set.has_failed());
        set.give_up("the channel is lost");
        assert!(matches!(first.await.unwrap(), Published::Unknown(_)));
        assert!(matches!(second.await.unwrap(), Published::Unknown(_)));
        assert!(set.is_empty() && !set.has_failed());
        // Refused at the first poll: known as soon as anybody looks.
        let third = add(&mut set, "c", Box::pin(std::future::ready(Err(error())))).await;
        set.settle().await;
        assert!(set.has_failed());
        assert!(matches!(third.await.unwrap(), Published::Unknown(_)));
    }

    #[tokio::test]
    async fn a_permit_is_held_until_the_outcome_is_known() {
        let limit = Arc::new(Semaphore::new(1));
        let mut set = UnderWay::default();
        let (tell, told) = oneshot::channel();
        let _permit = Arc::clone(&limit).try_acquire_owned().unwrap();
        let (broker, confirm) = confirming();
        set.add("a".into(), confirm, Waiter { tell, _permit }).await;
        drop(told);
        assert_eq!(limit.available_permits(), 0, "who asked has lost patience, but the frames are out");
        broker.send(Ok(Confirmation::Ack(None))).unwrap();
        set.settle().await;
        assert_eq!(limit.available_permits(), 1);
    }
}
