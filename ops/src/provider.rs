//! A payment provider simulator over real HTTP, for the demo, rehearsals and tests.
//!
//! `POST /v1/charges` (with `Idempotency-Key`) takes a charge and tells its outcome later, in a
//! notice signed as Standard Webhooks 1.0 wants, repeated until the receiver says 2xx. What
//! happens is chosen by the charge's `payment`: see [`Behaviour`]. `POST /v1/refunds` and
//! `GET /v1/refunds/{key}` give money back, once per key. `GET /v1/payments?sale=S&after=ID` tells what
//! succeeded, for whoever compares his books with these. `GET /v1/ledger` tells all that was paid
//! and given back, so that money can be audited without asking the shop.
//!
//! It must never be lenient: what a real provider would refuse, it refuses.

mod book;
mod notices;

pub use book::{Behaviour, PaymentEntry, PaymentState, ProviderLedger, RefundEntry};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use book::{Book, Refusal};
use flashgate_shared::{
    SaleId, limits,
    wire::{ChargeAnswer, ChargeRequest, IDEMPOTENCY_KEY_HEADER, PaymentsPage, RefundAnswer, RefundRequest},
};
use serde::Deserialize;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Path of the origin's endpoint for notices.
pub const NOTICES_PATH: &str = "/v1/payments/notices";

/// How the simulator is run.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The webhook secret, `whsec_` and base64.
    pub secret: String,
    /// The full URL that notices are posted to; may be set later.
    pub notify_url: Option<String>,
}

/// A running simulator. It stops when it is dropped.
#[derive(Debug)]
pub struct Provider {
    url: String,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    book: Mutex<Book>,
    notify_url: Mutex<Option<String>>,
    /// How many of the next refund calls fail without being done.
    refund_failures: AtomicU32,
    /// How many of the next refund calls are done and then answered with an error.
    refund_silences: AtomicU32,
    /// How many of the next notices are lost.
    notice_losses: AtomicU32,
    notices: notices::Sender,
    stopping: CancellationToken,
}

impl Shared {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_url(&self) -> Option<String> {
        self.notify_url.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Provider {
    /// Starts the simulator.
    pub async fn start(config: ProviderConfig) -> Result<Self> {
        let notices = notices::Sender::new(&config.secret)?;
        let listener = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("the payment provider cannot listen on {}", config.listen))?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            book: Mutex::default(),
            notify_url: Mutex::new(config.notify_url),
            refund_failures: AtomicU32::new(0),
            refund_silences: AtomicU32::new(0),
            notice_losses: AtomicU32::new(0),
            notices,
            stopping: CancellationToken::new(),
        });
        let app = routes(shared.clone());
        let stopping = shared.stopping.clone();
        let server = tokio::spawn(async move {
            let served = axum::serve(listener, app).with_graceful_shutdown(stopping.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "the payment provider stopped serving");
            }
        });
        Ok(Self { url, shared, server: Some(server) })
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where notices go from now on, repeated ones too: the full URL.
    pub fn set_notify_url(&self, url: impl Into<String>) {
        let mut slot = self.shared.notify_url.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(url.into());
    }

    /// What notices are signed with from now on, repeated ones too: `whsec_` and base64.
    pub fn set_secret(&self, secret: &str) -> Result<()> {
        self.shared.notices.set_secret(secret)
    }

    /// All payments and refunds.
    pub fn ledger(&self) -> ProviderLedger {
        self.shared.book().ledger()
    }

    /// The notices of the next `count` decided payments are lost: they are never sent.
    pub fn lose_notices(&self, count: u32) {
        self.shared.notice_losses.store(count, Ordering::SeqCst);
    }

    /// The next `count` refund calls fail with 503 and are not done.
    pub fn fail_refunds(&self, count: u32) {
        self.shared.refund_failures.store(count, Ordering::SeqCst);
    }

    /// The next `count` refund calls are done, yet answered with 503.
    pub fn silence_refunds(&self, count: u32) {
        self.shared.refund_silences.store(count, Ordering::SeqCst);
    }

    /// Stops serving; notices that are still to come are given up.
    pub async fn stop(mut self) {
        self.shared.stopping.cancel();
        if let Some(server) = self.server.take() {
            // A task that was cancelled or that panicked has stopped as well.
            let _ = server.await;
        }
    }

    /// Serves until the task is cancelled from outside.
    pub async fn serve(mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.await;
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.stopping.cancel();
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/charges", post(charge))
        .route("/v1/refunds", post(refund))
        .route("/v1/refunds/{key}", get(refund_by_key))
        .route("/v1/payments", get(payments))
        .route("/v1/ledger", get(ledger))
        .layer(DefaultBodyLimit::max(limits::ADMIN_BODY_BYTES))
        .with_state(shared)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Refusal::KeyMissing | Refusal::Behaviour | Refusal::KeyReused | Refusal::Amount => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Refusal::NoSuchPayment | Refusal::NoSuchRefund => StatusCode::NOT_FOUND,
            Refusal::NotPaid => StatusCode::CONFLICT,
            Refusal::Full | Refusal::Told => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(serde_json::json!({ "error": self.to_string() }))).into_response()
    }
}

fn key(headers: &HeaderMap) -> Result<String, Refusal> {
    let key = headers.get(IDEMPOTENCY_KEY_HEADER).and_then(|v| v.to_str().ok());
    key.filter(|k| (1..=limits::IDEMPOTENCY_KEY_BYTES).contains(&k.len())).map(str::to_owned).ok_or(Refusal::KeyMissing)
}

async fn charge(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(request): Json<ChargeRequest>,
) -> Result<Json<ChargeAnswer>, Refusal> {
    let (payment_id, new) = shared.book().charge(key(&headers)?, request, now_ms())?;
    if let Some(behaviour) = new {
        notices::announce(shared, payment_id.clone(), behaviour);
    }
    Ok(Json(ChargeAnswer { payment_id }))
}

async fn refund(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(request): Json<RefundRequest>,
) -> Result<Json<RefundAnswer>, Refusal> {
    if take_one(&shared.refund_failures) {
        return Err(Refusal::Told);
    }
    let refund_id = shared.book().refund(key(&headers)?, request, now_ms())?;
    if take_one(&shared.refund_silences) {
        return Err(Refusal::Told);
    }
    Ok(Json(RefundAnswer { refund_id }))
}

async fn refund_by_key(
    State(shared): State<Arc<Shared>>,
    Path(key): Path<String>,
) -> Result<Json<RefundAnswer>, Refusal> {
    let refund_id = shared.book().refund_by_key(&key).ok_or(Refusal::NoSuchRefund)?;
    Ok(Json(RefundAnswer { refund_id }))
}

/// Which payments.
#[derive(Debug, Deserialize)]
struct PaymentsQuery {
    sale: SaleId,
    after: Option<String>,
}

async fn payments(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<PaymentsQuery>,
) -> Result<Json<PaymentsPage>, Refusal> {
    Ok(Json(PaymentsPage { payments: shared.book().succeeded(&query.sale, query.after.as_deref())? }))
}

async fn ledger(State(shared): State<Arc<Shared>>) -> Json<ProviderLedger> {
    Json(shared.book().ledger())
}

/// Takes one from a counter that stops at zero.
fn take_one(counter: &AtomicU32) -> bool {
    let less = |n: u32| n.checked_sub(1);
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
}

/// The simulator's clock: the system's.
fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests;
