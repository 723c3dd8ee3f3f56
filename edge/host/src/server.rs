//! The server: one acceptor, and per instance a thread with its own runtime.
//!
//! A connection goes to the thread that its client's address hashes to and stays there, so a client
//! always meets the same instance, and a request never changes the thread.

use crate::{
    admin,
    component::Compiled,
    config::{Config, ms},
    connection::{self, client_key},
    gauge::{Gauge, Inside},
    instance::Maker,
    metrics::{Metrics, Open, count},
    outgoing::Outgoing,
    request::Desk,
    worker,
};
use anyhow::Context;
use futures_util::future::join_all;
use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Runtime,
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// Connections that the kernel holds for the acceptor.
const BACKLOG: u32 = 4_096;

/// Accepted connections that wait for their thread.
const HANDOVER: usize = 1_024;

/// Rest after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(20);

/// For a connection over the limit.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
retry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\ncontent-length: 54\r\n\r\n\
{\"type\":\"about:blank\",\"title\":\"Too busy\",\"status\":503}";

/// A connection on its way to its thread.
struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    place: Inside,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    metrics: Arc<Metrics>,
    shutdown: DropGuard,
    abort: DropGuard,
    finished: Vec<oneshot::Receiver<()>>,
    grace: Duration,
}

impl Server {
    /// Starts to serve. Dropping the server ends it at once.
    ///
    /// # Errors
    /// The configuration is unusable or an address is taken.
    pub async fn start(config: &Config, compiled: Compiled) -> anyhow::Result<Self> {
        let allowed = config.allowed_hosts()?;
        let variables = Arc::new(config.variables()?);
        let metrics = Arc::new(Metrics::default());
        let tls = tls()?;
        let listener = listen(config.listen).with_context(|| format!("listening on {}", config.listen))?;
        let address = listener.local_addr()?;
        let (shutdown, abort) = (CancellationToken::new(), CancellationToken::new());
        let mut threads = Vec::new();
        let mut finished = Vec::new();
        for n in 0..config.instance_count() {
            let out = Outgoing::new(tls.clone(), allowed.clone(), &config.limits, metrics.clone());
            let maker = Maker {
                compiled: compiled.clone(),
                limits: config.limits.clone(),
                variables: variables.clone(),
                outgoing: out,
                metrics: metrics.clone(),
            };
            let (thread, done) = spawn_thread(n, maker, shutdown.clone(), abort.clone())?;
            threads.push(thread);
            finished.push(done);
        }
        let admin_address = match config.admin_listen {
            Some(at) => {
                let listener = listen(at).with_context(|| format!("listening on {at}"))?;
                let at = listener.local_addr()?;
                tokio::spawn(admin::serve(listener, metrics.clone(), shutdown.clone(), abort.clone()));
                Some(at)
            }
            None => None,
        };
        let places = Gauge::new(config.limits.max_connections);
        tokio::spawn(accept(listener, threads, places, metrics.clone(), shutdown.clone()));
        Ok(Self {
            address,
            admin_address,
            metrics,
            shutdown: shutdown.drop_guard(),
            abort: abort.drop_guard(),
            finished,
            grace: ms(config.shutdown_grace_ms),
        })
    }

    /// Where buyers are served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health and metrics are told.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Takes no more requests, waits for those in flight within the grace time, then ends.
    /// Tells whether all were finished.
    pub async fn stop(self) -> bool {
        self.shutdown.disarm().cancel();
        let finished = timeout(self.grace, join_all(self.finished)).await.is_ok();
        self.abort.disarm().cancel();
        finished
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// TLS for outgoing requests, with the machine's certificates (`SSL_CERT_FILE` replaces them).
fn tls() -> anyhow::Result<ClientConfig> {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
    };
    Ok(match builder()?.with_native_roots() {
        Ok(trusting) => trusting.with_no_client_auth(),
        Err(e) => {
            tracing::warn!(error = %e, "no certificates on this machine: outgoing https will fail");
            builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        }
    })
}

type Thread = mpsc::Sender<Accepted>;

/// Starts the thread of an instance. It ends when its last connection has, or when aborted.
fn spawn_thread(
    n: usize,
    maker: Maker,
    shutdown: CancellationToken,
    abort: CancellationToken,
) -> anyhow::Result<(Thread, oneshot::Receiver<()>)> {
    let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (thread, connections) = mpsc::channel(HANDOVER);
    let (done, finished) = oneshot::channel();
    thread::Builder::new().name(format!("edge-{n}")).spawn(move || {
        runtime.block_on(async {
            let (jobs, queue) = mpsc::unbounded_channel();
            let desk = Desk::new(jobs, maker.limits.clone(), maker.metrics.clone());
            tokio::spawn(worker::keep(maker, queue));
            tokio::select! {
                () = serve(Arc::new(desk), connections, shutdown) => {}
                () = abort.cancelled() => {}
            }
        });
        let _ = done.send(());
        runtime.shutdown_background();
    })?;
    Ok((thread, finished))
}

async fn serve(desk: Arc<Desk>, mut connections: mpsc::Receiver<Accepted>, shutdown: CancellationToken) {
    let builder = Arc::new(connection::builder(&desk));
    let tasks = TaskTracker::new();
    while let Some(Accepted { stream, peer, place }) = connections.recv().await {
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(e) => {
                tracing::error!(error = %e, "a connection was lost");
                continue;
            }
        };
        let (desk, builder, shutdown) = (desk.clone(), builder.clone(), shutdown.clone());
        tasks.spawn(async move {
            let _open = (Open::new(&desk.metrics.connections_open), place);
            connection::serve(desk.clone(), &builder, stream, peer, shutdown).await;
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// Accepts until shutdown, which closes the listener and the ways to the threads.
async fn accept(
    listener: TcpListener,
    threads: Vec<Thread>,
    places: Arc<Gauge>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let hasher = RandomState::new();
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed");
                    sleep(ACCEPT_REST).await;
                    continue;
                }
            },
        };
        count(&metrics.connections);
        let Some(place) = places.enter() else {
            refuse(&stream, &metrics);
            continue;
        };
        let n = hasher.hash_one(client_key(peer.ip())) % (threads.len().max(1) as u64);
        let Some(thread) = usize::try_from(n).ok().and_then(|n| threads.get(n)) else { continue };
        match thread.try_reserve() {
            Ok(slot) => {
                let _ = stream.set_nodelay(true);
                if let Ok(stream) = stream.into_std() {
                    slot.send(Accepted { stream, peer, place });
                }
            }
            Err(_) => refuse(&stream, &metrics),
        }
    }
}

/// One attempt to say why, then the connection is closed.
fn refuse(stream: &TcpStream, metrics: &Metrics) {
    count(&metrics.connections_refused);
    let _ = stream.try_write(BUSY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_answer_is_whole() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len()))
                || head.ends_with(&format!("content-length: {}", body.len()))
        );
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
