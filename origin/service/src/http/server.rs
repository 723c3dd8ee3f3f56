//! The accept loop: bounded connections, a time limit on every request head, HTTP/1.1 and HTTP/2
//! by prior knowledge, and a shutdown that ends in bounded time.

use crate::{App, http::layers};
use hyper::{server::conn::http1, server::conn::http2, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

/// What an HTTP/2 connection begins with (RFC 9113 §3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most requests at once on one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;
/// Largest request head, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long to wait for more of a beginning that may become HTTP/2.
const PREFACE_POLL: Duration = Duration::from_millis(5);
/// How long to wait when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until shutdown; returns when every connection has ended, or the grace is over.
pub async fn serve(app: Arc<App>, router: axum::Router, listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(app.config.server.max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let next = async {
            let slot = connections.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, stream) = tokio::select! {
            biased;
            () = app.shutdown.cancelled() => break,
            (slot, accepted) = next => match accepted {
                Ok((stream, _)) => (slot, stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let (app, router, watcher) = (app.clone(), router.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _slot = slot;
            // Broken connections are the clients' affair.
            if let Err(error) = connection(app, router, stream, watcher).await {
                tracing::debug!(%error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    let grace = Duration::from_millis(app.config.server.shutdown_grace_ms);
    if timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!(grace_ms = grace.as_millis() as u64, "requests were cut off at the end of the grace");
    }
}

async fn connection(
    app: Arc<App>,
    router: axum::Router,
    stream: TcpStream,
    watcher: Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let head_limit = Duration::from_millis(app.config.server.header_read_timeout_ms);
    let is_h2 = tokio::select! {
        () = app.shutdown.cancelled() => return Ok(()),
        spoken = timeout(head_limit, speaks_h2(&stream)) => spoken??,
    };
    let service = service_fn(move |request| layers::answer(app.clone(), router.clone(), request));
    let io = TokioIo::new(stream);
    if is_h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        builder.max_concurrent_streams(H2_STREAMS_MAX).max_header_list_size(HEAD_BYTES_MAX as u32);
        builder.keep_alive_interval(head_limit).keep_alive_timeout(head_limit);
        watcher.watch(builder.serve_connection(io, service)).await?;
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new());
        builder.header_read_timeout(head_limit).max_buf_size(HEAD_BYTES_MAX);
        watcher.watch(builder.serve_connection(io, service)).await?;
    }
    Ok(())
}

/// Looks at the first bytes without taking them.
async fn speaks_h2(stream: &TcpStream) -> io::Result<bool> {
    let mut seen = [0u8; PREFACE.len()];
    loop {
        let n = stream.peek(&mut seen).await?;
        let (Some(seen), Some(expected)) = (seen.get(..n), PREFACE.get(..n)) else { return Ok(false) };
        if n == 0 || seen != expected {
            return Ok(false);
        }
        if n == PREFACE.len() {
            return Ok(true);
        }
        sleep(PREFACE_POLL).await;
    }
}
