//! Health and metrics for the operator, on an address of their own.

use crate::metrics::Metrics;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait.
const MAX_CONNECTIONS: usize = 32;

/// Time for a request's header.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until the server has ended.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    abort: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = abort.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
                tokio::spawn(async move {
                    connection(stream, metrics, shutdown).await;
                    drop(place);
                });
            }
            Err(e) => {
                tracing::warn!(error = %e, "admin accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, metrics: Arc<Metrics>, shutdown: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.uri().path(), &metrics, shutdown.is_cancelled());
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(e) = served {
        tracing::debug!(error = %e, "admin connection ended");
    }
}

fn answer(path: &str, metrics: &Metrics, shutting_down: bool) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/healthz" if shutting_down => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/metrics" => (StatusCode::OK, metrics.text()),
        _ => (StatusCode::NOT_FOUND, "only /healthz and /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_tells_of_the_shutdown() {
        let metrics = Metrics::default();
        assert_eq!(answer("/healthz", &metrics, false).status(), StatusCode::OK);
        assert_eq!(answer("/healthz", &metrics, true).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer("/metrics", &metrics, true).status(), StatusCode::OK);
        assert_eq!(answer("/", &metrics, false).status(), StatusCode::NOT_FOUND);
    }
}
