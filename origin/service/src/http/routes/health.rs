//! `/healthz`, `/readyz`, `/metrics`: for whoever runs the process. No credential: bind privately.

use crate::{App, http::problem::Refusal};
use axum::extract::State;
use flashgate_shared::problem::ProblemKind;
use http::StatusCode;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// How long each part may take to show a sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The process answers.
pub async fn alive() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Redis, RabbitMQ and Postgres answer, and the process is not ending.
pub async fn ready(State(app): State<Arc<App>>) -> Result<StatusCode, Refusal> {
    let (redis, rabbit, postgres) = tokio::join!(
        async { timeout(SIGN_OF_LIFE, app.stock.ping()).await.is_ok_and(|r| r.is_ok()) },
        async { timeout(SIGN_OF_LIFE, app.queue.is_connected()).await.unwrap_or(false) },
        async { timeout(SIGN_OF_LIFE, app.ledger.ping()).await.is_ok_and(|r| r.is_ok()) },
    );
    let silent: Vec<&str> = [("redis", redis), ("rabbitmq", rabbit), ("postgres", postgres)]
        .into_iter()
        .filter_map(|(name, answers)| (!answers).then_some(name))
        .chain(app.shutdown.is_cancelled().then_some("ending"))
        .collect();
    if silent.is_empty() {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refusal::from(ProblemKind::Unavailable).detail(format!("not ready: {}", silent.join(", "))))
    }
}

/// Prometheus text.
pub async fn metrics(State(app): State<Arc<App>>) -> String {
    app.metrics.render()
}
