//! The server: one acceptor, and per instance a thread with its own runtime.
//!
//! A connection goes to the thread that its client's address hashes to and stays there, so a client
//! always meets the same instance, and a request never changes the thread.

use crate::{
    access_log::AccessLog,
    admin,
    component::Compiled,
    config::{Config, ms},
    connection::{self, client_key},
    gauge::{Gauge, Inside},
    instance::Maker,
    key_value::KeyValue,
    metrics::{Metrics, Open, count},
    outgoing::Outgoing,
    request::Desk,
    tls::Tls,
    worker,
};
use anyhow::Context;
use futures_util::future::join_all;
use http::uri::Scheme;
use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Runtime,
    sync::{mpsc, oneshot, watch},
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
    component_path: PathBuf,
    component: watch::Sender<Compiled>,
    tls: Option<Arc<Tls>>,
    access_log: Option<AccessLog>,
    /// For trying a component before it takes over.
    trial: Maker,
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
        let outgoing_tls = outgoing_tls()?;
        let tls = config.tls_files().map(|files| Tls::new(files, &config.limits)).transpose()?;
        let tls = tls.map(Arc::new);
        let access_log = config.access_log.as_deref();
        let access_log = access_log
            .map(|path| AccessLog::open(path, config.access_log_refusals_every, metrics.clone()))
            .transpose()?;
        let key_value = Arc::new(KeyValue::open(config.key_value.as_deref())?);
        let (component, current) = watch::channel(compiled);
        let maker = || Maker {
            component: current.clone(),
            limits: config.limits.clone(),
            variables: variables.clone(),
            key_value: key_value.clone(),
            outgoing: Outgoing::new(outgoing_tls.clone(), allowed.clone(), &config.limits, metrics.clone()),
            metrics: metrics.clone(),
        };
        let listener = listen(config.listen).with_context(|| format!("listening on {}", config.listen))?;
        let address = listener.local_addr()?;
        let (shutdown, abort) = (CancellationToken::new(), CancellationToken::new());
        let mut threads = Vec::new();
        let mut finished = Vec::new();
        for n in 0..config.instance_count() {
            let shared = Shared { tls: tls.clone(), access_log: access_log.clone() };
            let (thread, done) = spawn_thread(n, maker(), shared, shutdown.clone(), abort.clone())?;
            threads.push(thread);
            finished.push(done);
        }
        let trial = maker();
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
        let busy = if tls.is_none() { BUSY } else { b"" };
        tokio::spawn(accept(listener, threads, places, busy, metrics.clone(), shutdown.clone()));
        Ok(Self {
            address,
            admin_address,
            metrics,
            shutdown: shutdown.drop_guard(),
            abort: abort.drop_guard(),
            finished,
            grace: ms(config.shutdown_grace_ms),
            component_path: config.component.clone(),
            component,
            tls,
            access_log,
            trial,
        })
    }

    /// Reads component and certificates again and lets them take over, both or neither: new requests go to new
    /// instances, new connections get the new certificate, and what is under way is finished as it began. The
    /// access log is opened anew.
    ///
    /// # Errors
    /// A file is missing or unusable: everything stays as it was.
    pub async fn reload(&self) -> anyhow::Result<()> {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
        let outcome = self.try_reload().await;
        count(if outcome.is_ok() { &self.metrics.reloads } else { &self.metrics.reload_failures });
        outcome
    }

    async fn try_reload(&self) -> anyhow::Result<()> {
        let certificates = self.tls.as_ref().map(|tls| tls.read_again()).transpose()?;
        let path = self.component_path.clone();
        // Compiling takes its time, on another thread.
        let compiled = tokio::task::spawn_blocking(move || Compiled::load_aside(&path)).await??;
        let tried = self.trial.instantiate(&compiled, &Arc::default()).await;
        tried.map_err(|e| anyhow::anyhow!("no instance of {}: {e:#}", self.component_path.display()))?;
        if let Some((tls, certificates)) = self.tls.as_ref().zip(certificates) {
            tls.put(certificates);
        }
        self.component.send_replace(compiled);
        Ok(())
    }

    /// Whether buyers are served with TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
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
        if let Some(log) = self.access_log {
            let _ = tokio::task::spawn_blocking(move || log.flush()).await;
        }
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
fn outgoing_tls() -> anyhow::Result<ClientConfig> {
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

/// What all threads use.
struct Shared {
    tls: Option<Arc<Tls>>,
    access_log: Option<AccessLog>,
}

/// Starts the thread of an instance. It ends when its last connection has, or when aborted.
fn spawn_thread(
    n: usize,
    maker: Maker,
    shared: Shared,
    shutdown: CancellationToken,
    abort: CancellationToken,
) -> anyhow::Result<(Thread, oneshot::Receiver<()>)> {
    let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (thread, connections) = mpsc::channel(HANDOVER);
    let (done, finished) = oneshot::channel();
    thread::Builder::new().name(format!("edge-{n}")).spawn(move || {
        runtime.block_on(async {
            let (jobs, queue) = mpsc::unbounded_channel();
            let desk = Desk::new(jobs, maker.limits.clone(), maker.metrics.clone(), shared.access_log);
            tokio::spawn(worker::keep(maker, queue));
            tokio::select! {
                () = serve(Arc::new(desk), shared.tls, connections, shutdown) => {}
                () = abort.cancelled() => {}
            }
        });
        let _ = done.send(());
        runtime.shutdown_background();
    })?;
    Ok((thread, finished))
}

async fn serve(
    desk: Arc<Desk>,
    tls: Option<Arc<Tls>>,
    mut connections: mpsc::Receiver<Accepted>,
    shutdown: CancellationToken,
) {
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
        let (desk, tls, builder, shutdown) = (desk.clone(), tls.clone(), builder.clone(), shutdown.clone());
        tasks.spawn(async move {
            let _open = (Open::new(&desk.metrics.connections_open), place);
            let Some(tls) = tls else {
                return connection::serve(desk.clone(), &builder, stream, peer, Scheme::HTTP, shutdown).await;
            };
            match tls.accept(stream).await {
                Some(stream) => {
                    connection::serve(desk.clone(), &builder, stream, peer, Scheme::HTTPS, shutdown).await;
                }
                None => count(&desk.metrics.tls_failures),
            }
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
    busy: &'static [u8],
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
            refuse(&stream, busy, &metrics);
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
            Err(_) => refuse(&stream, busy, &metrics),
        }
    }
}

/// One attempt to say why, where that can be said without a handshake; then the connection is closed.
fn refuse(stream: &TcpStream, busy: &[u8], metrics: &Metrics) {
    count(&metrics.connections_refused);
    let _ = stream.try_write(busy);
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
