//! The queue on a real RabbitMQ, each test in a virtual host of its own: what is confirmed is there,
//! what is not is unknown, and nothing that was confirmed is lost.

mod support;

use anyhow::Result;
use flashgate_queue::{Published, Queue, QueueConfig, QueueError, Source};
use flashgate_servers::{Proxy, shared, until};
use flashgate_shared::{HoldId, SaleId, envelope::ClaimEnvelope};
use std::collections::BTreeSet;
use support::{
    PATIENCE, ROOMY, batch, claim, config, declared, drain, is_unknown, publish_all, publish_surely, sale, settles_at,
    take,
};

fn claims(numbers: std::ops::Range<u64>) -> Vec<ClaimEnvelope> {
    numbers.map(|number| claim(&sale(), number)).collect()
}

fn holds<'a>(envelopes: impl IntoIterator<Item = &'a ClaimEnvelope>) -> BTreeSet<HoldId> {
    envelopes.into_iter().map(|envelope| envelope.hold.clone()).collect()
}

/// Puts a body into the sale's queue that no publisher here would.
async fn publish_raw(config: &QueueConfig, body: &[u8]) -> Result<()> {
    use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
    let connection = lapin::Connection::connect(&config.url, lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let exchange = format!("{}.claims", config.prefix);
    let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = lapin::BasicProperties::default();
    let confirm = channel.basic_publish(exchange.into(), sale().as_str().into(), mandatory, body, properties).await?;
    assert_eq!(confirm.await?, lapin::Confirmation::Ack(None));
    Ok(())
}

#[tokio::test]
async fn a_claim_arrives_as_it_was_published_and_is_gone_once_acknowledged() -> Result<()> {
    let queue = declared(&config("round-trip").await?, ROOMY).await?;
    queue.ping().await?;
    assert!(queue.is_connected().await);
    let sent = claims(0..3);
    for envelope in &sent {
        assert_eq!(queue.publish(envelope).await, Published::Confirmed);
    }
    settles_at(&queue, 3, 0).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    let came = take(&mut consumer, 3).await?;
    for (message, envelope) in came.iter().zip(&sent) {
        assert_eq!(message.envelope.as_ref().unwrap(), envelope);
        assert_eq!(message.raw, envelope.encode());
        assert!(!message.redelivered);
    }
    // The last is not acknowledged: it alone comes again.
    let mut came = came.into_iter();
    for message in came.by_ref().take(2) {
        message.ack().await;
    }
    drop(came);
    consumer.pause().await;
    settles_at(&queue, 1, 0).await?;
    let again = take(&mut consumer, 1).await?.remove(0);
    assert_eq!(again.envelope.as_ref().unwrap(), &sent[2]);
    assert!(again.redelivered);
    again.ack().await;
    consumer.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test]
async fn a_full_queue_refuses_and_takes_more_once_drained() -> Result<()> {
    const CAP: u64 = 5;
    let queue = declared(&config("cap").await?, CAP).await?;
    let mut confirmed = BTreeSet::new();
    // The broker may take a few more than the cap, as it learns late how long the queue is.
    let mut refused = None;
    for envelope in claims(0..1_000) {
        match queue.publish(&envelope).await {
            Published::Confirmed => drop(confirmed.insert(envelope.hold)),
            Published::Unknown(reason) => {
                refused = Some((envelope, reason));
                break;
            }
        }
    }
    let (envelope, reason) = refused.expect("the cap is never reached");
    assert!(reason.contains("full"), "{reason}");
    assert!(confirmed.len() as u64 >= CAP, "refused after {}", confirmed.len());
    let mut consumer = queue.consume(sale(), Source::Claims);
    // Rejecting publishers, not dropping the oldest: each winner that was confirmed is there.
    drain(&mut consumer, &confirmed).await?;
    publish_surely(&queue, &envelope).await?;
    drain(&mut consumer, &holds([&envelope])).await?;
    consumer.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test]
async fn what_is_no_claim_comes_with_its_bytes_and_goes_to_the_dead_letters() -> Result<()> {
    let config = config("malformed").await?;
    let queue = declared(&config, ROOMY).await?;
    let mut newer = serde_json::to_value(claim(&sale(), 0))?;
    newer["v"] = 99.into();
    let bodies = [b"\xff\x00 no claim".to_vec(), Vec::new(), newer.to_string().into_bytes()];
    for body in &bodies {
        publish_raw(&config, body).await?;
    }
    let good = claim(&sale(), 1);
    assert_eq!(queue.publish(&good).await, Published::Confirmed);
    let mut consumer = queue.consume(sale(), Source::Claims);
    let mut came = take(&mut consumer, bodies.len() + 1).await?;
    let last = came.pop().unwrap();
    assert_eq!(last.envelope.as_ref().unwrap(), &good);
    last.ack().await;
    for (message, body) in came.into_iter().zip(&bodies) {
        assert!(message.envelope.is_err());
        assert_eq!(&message.raw, body);
        message.dead_letter().await;
    }
    consumer.pause().await;
    settles_at(&queue, 0, bodies.len() as u64).await?;
    // There they wait with the same bytes, and can be taken by an operator.
    let mut dead = queue.consume(sale(), Source::Dead);
    let letters = take(&mut dead, bodies.len()).await?;
    let raw: BTreeSet<_> = letters.iter().map(|letter| letter.raw.to_vec()).collect();
    assert_eq!(raw, bodies.into_iter().collect());
    for letter in letters {
        letter.ack().await;
    }
    dead.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test]
async fn a_dead_letter_cannot_be_dropped_by_dead_lettering_it() -> Result<()> {
    let queue = declared(&config("dead-twice").await?, ROOMY).await?;
    publish_surely(&queue, &claim(&sale(), 0)).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    take(&mut consumer, 1).await?.remove(0).dead_letter().await;
    let mut dead = queue.consume(sale(), Source::Dead);
    take(&mut dead, 1).await?.remove(0).dead_letter().await;
    dead.pause().await;
    settles_at(&queue, 0, 1).await
}

#[tokio::test]
async fn a_message_returned_too_often_dies_and_takes_no_other_along() -> Result<()> {
    const LIMIT: i64 = 2;
    let config = QueueConfig { delivery_limit: LIMIT, ..config("delivery-limit").await? };
    let queue = declared(&config, ROOMY).await?;
    let (poison, good) = (claim(&sale(), 0), claims(1..4));
    publish_surely(&queue, &poison).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    for delivery in 0..=LIMIT {
        let message = take(&mut consumer, 1).await?.remove(0);
        assert_eq!(message.envelope.as_ref().unwrap(), &poison);
        assert_eq!(message.redelivered, delivery > 0);
        drop(message);
        consumer.pause().await;
    }
    settles_at(&queue, 0, 1).await?;
    for envelope in &good {
        publish_surely(&queue, envelope).await?;
    }
    assert_eq!(drain(&mut consumer, &holds(&good)).await?, holds(&good));
    consumer.pause().await;
    settles_at(&queue, 0, 1).await?;
    let mut dead = queue.consume(sale(), Source::Dead);
    let letter = take(&mut dead, 1).await?.remove(0);
    assert_eq!(letter.envelope.as_ref().unwrap(), &poison);
    letter.ack().await;
    Ok(())
}

#[tokio::test]
async fn before_any_sale_is_declared_outcomes_are_unknown_and_then_all_is_well() -> Result<()> {
    // Not even the exchange exists: the broker closes the channel, and with it all that is under way.
    let queue = Queue::connect(&config("no-exchange").await?).await?;
    let envelopes = claims(0..20);
    assert!(publish_all(&queue, &envelopes).await?.iter().all(is_unknown));
    assert_eq!(queue.depth(&sale()).await, Err(QueueError::NotFound));
    queue.declare(&sale(), ROOMY).await?;
    for envelope in &envelopes {
        publish_surely(&queue, envelope).await?;
    }
    assert_eq!(drain(&mut queue.consume(sale(), Source::Claims), &holds(&envelopes)).await?, holds(&envelopes));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unroutable_claims_are_unknown_even_among_many_that_are_not() -> Result<()> {
    let queue = declared(&config("unroutable").await?, ROOMY).await?;
    let undeclared: SaleId = "laptops".parse()?;
    assert!(is_unknown(&queue.publish(&claim(&undeclared, 0)).await));
    assert_eq!(queue.publish(&claim(&sale(), 0)).await, Published::Confirmed);
    // The broker confirms several at once, and a return may be seen with a neighbour's confirm. The
    // neighbour may then be unknown too, but no return may ever pass for a confirm.
    let sales = [sale(), undeclared];
    let mixed: Vec<_> =
        (1..501).flat_map(|n| sales.iter().enumerate().map(move |(at, s)| claim(s, 2 * n + at as u64))).collect();
    let outcomes = publish_all(&queue, &mixed).await?;
    let confirmed: Vec<_> =
        mixed.iter().zip(&outcomes).filter(|(_, outcome)| !is_unknown(outcome)).map(|(envelope, _)| envelope).collect();
    assert!(confirmed.iter().all(|envelope| envelope.sale == sale()), "an unroutable claim was confirmed");
    drain(&mut queue.consume(sale(), Source::Claims), &holds(confirmed)).await?;
    assert_eq!(queue.publish(&claim(&sale(), 9_999)).await, Published::Confirmed);
    Ok(())
}

#[tokio::test]
async fn declaring_again_is_fine_and_with_another_cap_refused_without_harm() -> Result<()> {
    let queue = declared(&config("declare").await?, 10).await?;
    queue.declare(&sale(), 10).await?;
    let other = queue.declare(&sale(), 11).await;
    assert!(matches!(other, Err(QueueError::Refused(_))), "{other:?}");
    let envelope = claim(&sale(), 0);
    assert_eq!(queue.publish(&envelope).await, Published::Confirmed);
    let came = take(&mut queue.consume(sale(), Source::Claims), 1).await?;
    assert_eq!(came[0].envelope.as_ref().unwrap(), &envelope);
    queue.declare(&sale(), 10).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_publishers_at_once_are_all_confirmed() -> Result<()> {
    let queue = declared(&config("many").await?, ROOMY).await?;
    let envelopes = claims(0..2_000);
    let outcomes = publish_all(&queue, &envelopes).await?;
    let unknown: Vec<_> = outcomes.iter().filter(|outcome| is_unknown(outcome)).collect();
    assert!(unknown.is_empty(), "{} unknown, such as {:?}", unknown.len(), unknown[0]);
    settles_at(&queue, 2_000, 0).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    assert_eq!(drain(&mut consumer, &holds(&envelopes)).await?, holds(&envelopes));
    consumer.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn more_publishers_than_may_be_unconfirmed_wait_their_turn() -> Result<()> {
    let config = QueueConfig { max_unconfirmed: 3, ..config("turns").await? };
    let queue = declared(&config, ROOMY).await?;
    let outcomes = publish_all(&queue, &claims(0..200)).await?;
    assert!(outcomes.iter().all(|outcome| *outcome == Published::Confirmed));
    settles_at(&queue, 200, 0).await
}

#[tokio::test]
async fn a_batch_is_acknowledged_as_a_whole() -> Result<()> {
    const COUNT: u64 = 8;
    // A linger beyond the test's patience: batches are full, or the test fails.
    let config = QueueConfig { batch_max: 8, batch_linger_ms: 600_000, ..config("ack-all").await? };
    let queue = declared(&config, ROOMY).await?;
    for envelope in claims(0..COUNT) {
        publish_surely(&queue, &envelope).await?;
    }
    let mut consumer = queue.consume(sale(), Source::Claims);
    let whole = batch(&mut consumer).await?;
    assert_eq!(whole.messages.len() as u64, COUNT);
    whole.ack_all().await;
    consumer.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test]
async fn acknowledging_a_batch_spares_what_an_earlier_one_left_unanswered() -> Result<()> {
    let config = QueueConfig { batch_max: 2, batch_linger_ms: 600_000, ..config("ack-all-spares").await? };
    let queue = declared(&config, ROOMY).await?;
    let envelopes = claims(0..4);
    for envelope in &envelopes {
        publish_surely(&queue, envelope).await?;
    }
    let mut consumer = queue.consume(sale(), Source::Claims);
    let unanswered = batch(&mut consumer).await?;
    batch(&mut consumer).await?.ack_all().await;
    drop(unanswered);
    consumer.pause().await;
    settles_at(&queue, 2, 0).await?;
    let again = batch(&mut consumer).await?;
    let came: Vec<_> = again.messages.iter().map(|message| message.envelope.as_ref().unwrap().clone()).collect();
    assert_eq!(came, envelopes[..2]);
    // One is answered singly, the rest of the batch as a whole.
    let mut again = again;
    again.messages.remove(0).ack().await;
    again.ack_all().await;
    consumer.pause().await;
    settles_at(&queue, 0, 0).await
}

#[tokio::test]
async fn what_a_cancelled_wait_has_taken_is_in_the_next_batch() -> Result<()> {
    let config = QueueConfig { batch_max: 2, batch_linger_ms: 600_000, ..config("cancel").await? };
    let queue = declared(&config, ROOMY).await?;
    let envelopes = claims(0..2);
    publish_surely(&queue, &envelopes[0]).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    // The wait is cancelled once the message left the queue, be it taken or still on its way.
    tokio::select! {
        _ = consumer.next_batch() => panic!("a batch of one within the linger"),
        left = settles_at(&queue, 0, 0) => left?,
    }
    publish_surely(&queue, &envelopes[1]).await?;
    let whole = batch(&mut consumer).await?;
    let came: Vec<_> = whole.messages.iter().map(|message| message.envelope.as_ref().unwrap().clone()).collect();
    assert_eq!(came, envelopes);
    assert!(whole.messages.iter().all(|message| !message.redelivered));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cut_connections_come_back_and_lose_nothing_that_was_confirmed() -> Result<()> {
    const ROUNDS: u64 = 5;
    const EACH: u64 = 200;
    let mut config = config("cut").await?;
    let server = shared().await?.rabbit().port();
    let proxy = Proxy::before(server).await?;
    config.url = proxy.through(&config.url, server).expect("the broker's address");
    // An operation under way at the cut may end by its limit only: many rounds need it short.
    config.operation_timeout_ms = 3_000;
    config.confirm_timeout_ms = 3_000;
    let queue = declared(&config, ROOMY).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    let mut confirmed = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        // A message in hand when its channel is lost: acknowledging it must do no harm.
        let before = claim(&sale(), 10_000 + round);
        publish_surely(&queue, &before).await?;
        let in_hand = batch(&mut consumer).await?;
        let envelopes = claims(round * EACH..(round + 1) * EACH);
        let publishing = {
            let (queue, envelopes) = (queue.clone(), envelopes.clone());
            tokio::spawn(async move { publish_all(&queue, &envelopes).await })
        };
        assert!(proxy.cut() > 0, "nothing to cut");
        let outcomes = publishing.await??;
        in_hand.ack_all().await;
        confirmed.insert(before.hold);
        for (envelope, outcome) in envelopes.iter().zip(&outcomes) {
            if *outcome == Published::Confirmed {
                confirmed.insert(envelope.hold.clone());
            }
        }
        // By itself: nothing is told that the connection was lost.
        let after = claim(&sale(), 20_000 + round);
        publish_surely(&queue, &after).await?;
        confirmed.insert(after.hold);
        let missing = confirmed.difference(&seen).cloned().collect();
        seen.extend(drain(&mut consumer, &missing).await?);
    }
    until("the queue is connected again", PATIENCE, || async { Ok(queue.is_connected().await) }).await?;
    assert!(confirmed.is_subset(&seen));
    // What is left are duplicates and claims of unknown outcome, of which nothing was dead.
    assert_eq!(queue.depth(&sale()).await?.dead, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_silent_broker_makes_outcomes_unknown_and_holds_nobody_for_ever() -> Result<()> {
    let mut config = config("silent").await?;
    let server = shared().await?.rabbit().port();
    let proxy = Proxy::before(server).await?;
    config.url = proxy.through(&config.url, server).expect("the broker's address");
    config.confirm_timeout_ms = 500;
    config.operation_timeout_ms = 500;
    config.max_unconfirmed = 10;
    let queue = Queue::connect(&config).await?;
    until("the sale is declared", PATIENCE, || async { Ok(queue.declare(&sale(), ROOMY).await.is_ok()) }).await?;
    publish_surely(&queue, &claim(&sale(), 0)).await?;
    proxy.fall_silent();
    // More than may be unconfirmed: those that wait their turn end in time as well. `publish_all` fails
    // if any does not end.
    let stuck = claims(1..101);
    assert!(publish_all(&queue, &stuck).await?.iter().all(is_unknown));
    let asked = tokio::time::timeout(PATIENCE, queue.depth(&sale())).await?;
    assert!(matches!(asked, Err(QueueError::Unavailable(_))), "{asked:?}");
    proxy.speak();
    // Each permit is free again: more than there are can be published.
    let after = claims(101..201);
    for envelope in &after {
        publish_surely(&queue, envelope).await?;
    }
    let mut wanted = holds(&after);
    wanted.insert(claim(&sale(), 0).hold);
    drain(&mut queue.consume(sale(), Source::Claims), &wanted).await?;
    Ok(())
}

#[tokio::test]
async fn a_consumer_waits_for_its_queue_to_be_declared() -> Result<()> {
    let queue = Queue::connect(&config("early-consumer").await?).await?;
    let mut consumer = queue.consume(sale(), Source::Claims);
    let early = tokio::spawn(async move { batch(&mut consumer).await });
    queue.declare(&sale(), ROOMY).await?;
    let envelope = claim(&sale(), 0);
    publish_surely(&queue, &envelope).await?;
    let came = early.await??;
    assert_eq!(came.messages[0].envelope.as_ref().unwrap(), &envelope);
    Ok(())
}
