//! Telling the shop: signed notices, repeated until they are taken.

use super::{
    Shared,
    book::{Behaviour, PaymentEntry, PaymentState},
    now_ms, take_one,
};
use anyhow::{Context, Result};
use flashgate_shared::wire::{NoticeKind, PaymentNotice};
use rand::Rng;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Most notices on the way at once.
const IN_FLIGHT_MAX: usize = 64;
/// How long the receiver may take, in seconds.
const ANSWER_TIMEOUT_S: u64 = 10;
/// First and longest pause between two tries of a notice, in milliseconds.
const PAUSE_MS: (u64, u64) = (100, 5_000);
/// Tries of one notice: with the pauses above about five minutes.
const TRIES_MAX: u32 = 64;

/// What a delivery needs.
pub(crate) struct Sender {
    webhook: Mutex<Arc<Webhook>>,
    http: reqwest::Client,
    in_flight: Semaphore,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

impl Sender {
    pub(crate) fn new(secret: &str) -> Result<Self> {
        let webhook = Mutex::new(Arc::new(signer(secret)?));
        let http = reqwest::Client::builder().timeout(Duration::from_secs(ANSWER_TIMEOUT_S)).no_proxy().build()?;
        Ok(Self { webhook, http, in_flight: Semaphore::new(IN_FLIGHT_MAX) })
    }

    pub(crate) fn set_secret(&self, secret: &str) -> Result<()> {
        *self.webhook.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(signer(secret)?);
        Ok(())
    }

    fn webhook(&self) -> Arc<Webhook> {
        self.webhook.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn signer(secret: &str) -> Result<Webhook> {
    Webhook::new(secret).context("the webhook secret must be whsec_ and base64")
}

/// Decides the payment as its behaviour says and tells the shop, in a task of its own.
pub(crate) fn announce(shared: Arc<Shared>, payment_id: String, behaviour: Behaviour) {
    let (delay, state, copies) = match behaviour {
        Behaviour::Silent => return,
        Behaviour::Ok | Behaviour::WrongAmount => (Duration::ZERO, PaymentState::Succeeded, 1),
        Behaviour::Twice => (Duration::ZERO, PaymentState::Succeeded, 2),
        Behaviour::Declined => (Duration::ZERO, PaymentState::Failed, 1),
        Behaviour::Late(delay) => (delay, PaymentState::Succeeded, 1),
    };
    tokio::spawn(async move {
        let stopping = shared.stopping.clone();
        let work = async {
            tokio::time::sleep(delay).await;
            let entry = shared.book().decide(&payment_id, state, now_ms());
            if let Some(entry) = entry
                && !take_one(&shared.notice_losses)
            {
                // A provider that repeats a notice repeats its id.
                let message_id = format!("msg-{}", Uuid::new_v4());
                for _ in 0..copies {
                    deliver(&shared, &entry, &message_id).await;
                }
            }
        };
        tokio::select! {
            () = stopping.cancelled() => {}
            () = work => {}
        }
    });
}

async fn deliver(shared: &Shared, entry: &PaymentEntry, message_id: &str) {
    let notice = PaymentNotice {
        kind: match entry.state {
            PaymentState::Succeeded => NoticeKind::Succeeded,
            PaymentState::Pending | PaymentState::Failed => NoticeKind::Failed,
        },
        payment_id: entry.payment_id.clone(),
        claim_id: entry.claim_id,
        sale: entry.sale.clone(),
        amount: entry.amount.clone(),
        at_ms: now_ms(),
    };
    let mut pause_ms = PAUSE_MS.0;
    for attempt in 1..=TRIES_MAX {
        match attempt_once(shared, &notice, message_id).await {
            Ok(()) => {
                shared.book().notice_taken(&entry.payment_id);
                return;
            }
            Err(error) => {
                tracing::debug!(payment = entry.payment_id, attempt, error = format!("{error:#}"), "notice not taken");
            }
        }
        let jitter = rand::rng().random_range(0..=pause_ms / 2);
        tokio::time::sleep(Duration::from_millis(pause_ms / 2 + jitter)).await;
        pause_ms = (pause_ms * 2).min(PAUSE_MS.1);
    }
    tracing::warn!(payment = entry.payment_id, tries = TRIES_MAX, "notice given up");
}

async fn attempt_once(shared: &Shared, notice: &PaymentNotice, message_id: &str) -> Result<()> {
    let url = shared.notify_url().context("no address for notices is set")?;
    let sender = &shared.notices;
    let body = serde_json::to_vec(notice)?;
    let timestamp = now_ms() / 1000;
    let signature = sender.webhook().sign(message_id, timestamp, &body)?;
    let _permit = sender.in_flight.acquire().await?;
    let answer = sender
        .http
        .post(url)
        .header("content-type", "application/json")
        .header(HEADER_WEBHOOK_ID, message_id)
        .header(HEADER_WEBHOOK_TIMESTAMP, timestamp)
        .header(HEADER_WEBHOOK_SIGNATURE, signature)
        .body(body)
        .send()
        .await?;
    answer.error_for_status()?;
    Ok(())
}
