//! A TCP proxy before a server that loses, withholds and refuses connections as it is told.

use anyhow::Result;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// Bytes that one direction of a connection holds.
const BUFFER_BYTES: usize = 64 * 1024;

/// What becomes of connections and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// They pass.
    Open,
    /// Bytes are kept back: read from neither side, and the connections stay.
    Silent,
    /// What clients send arrives; what the server answers is kept back.
    Unanswered,
    /// What the server sends arrives; what clients say is kept back.
    Unheard,
    /// Everything arrives so much later.
    Late(Duration),
    /// New connections are closed at once.
    Closed,
    /// Whatever asks hears this instead of the server, and is then closed.
    Says(Arc<str>),
}

/// Forwards bytes between its own port and a server's on 127.0.0.1, until told otherwise.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    server: Arc<AtomicU16>,
    mode: watch::Sender<Mode>,
    /// The pumps of standing connections.
    pumps: Arc<Mutex<Vec<AbortHandle>>>,
    listening: AbortHandle,
}

impl Proxy {
    /// Before the server on this port.
    pub async fn before(server: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let server = Arc::new(AtomicU16::new(server));
        let (mode, modes) = watch::channel(Mode::Open);
        let pumps = Arc::new(Mutex::new(Vec::new()));
        let (standing, to) = (Arc::clone(&pumps), Arc::clone(&server));
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let pump = tokio::spawn(pump(client, to.load(Ordering::Relaxed), modes.clone()));
                let mut standing = standing.lock().unwrap_or_else(PoisonError::into_inner);
                standing.retain(|pump: &AbortHandle| !pump.is_finished());
                standing.push(pump.abort_handle());
            }
        });
        Ok(Self { port, server, mode, pumps, listening: listening.abort_handle() })
    }

    /// Leads new connections to the server on this port.
    pub fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::Relaxed);
    }

    /// Its own port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same URL by way of the proxy; `None` when it is not one of this server's.
    pub fn through(&self, url: &str, server: u16) -> Option<String> {
        let direct = format!(":{server}/");
        url.contains(&direct).then(|| url.replace(&direct, &format!(":{}/", self.port)))
    }

    /// Drops both sockets of every standing connection; new ones are welcome. How many there were.
    pub fn cut(&self) -> usize {
        let standing = std::mem::take(&mut *self.pumps.lock().unwrap_or_else(PoisonError::into_inner));
        standing.iter().filter(|pump| !pump.is_finished()).map(AbortHandle::abort).count()
    }

    /// From now on nothing passes, though connections stand and new ones are taken.
    pub fn fall_silent(&self) {
        self.mode.send_replace(Mode::Silent);
    }

    /// From now on nothing comes back from the server, which hears everything.
    pub fn withhold_answers(&self) {
        self.mode.send_replace(Mode::Unanswered);
    }

    /// From now on the server hears nothing, and what it sends arrives.
    pub fn withhold_questions(&self) {
        self.mode.send_replace(Mode::Unheard);
    }

    /// From now on everything arrives so much later, each way.
    pub fn be_late(&self, by: Duration) {
        self.mode.send_replace(Mode::Late(by));
    }

    /// Everything passes again, what was kept back too.
    pub fn speak(&self) {
        self.mode.send_replace(Mode::Open);
    }

    /// Cuts all connections, and closes new ones at once.
    pub fn close(&self) {
        self.mode.send_replace(Mode::Closed);
        self.cut();
    }

    /// Cuts all connections; who asks from now on hears this and not the server.
    pub fn say(&self, answer: &str) {
        self.mode.send_replace(Mode::Says(answer.into()));
        self.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

async fn pump(mut client: TcpStream, server: u16, mut modes: watch::Receiver<Mode>) {
    let mode = modes.borrow_and_update().clone();
    match mode {
        Mode::Closed => return,
        Mode::Says(answer) => {
            let mut question = vec![0; BUFFER_BYTES];
            // Whoever closes early hears nothing.
            if client.read(&mut question).await.is_ok() && client.write_all(answer.as_bytes()).await.is_ok() {
                let _ = client.shutdown().await;
            }
            return;
        }
        Mode::Open | Mode::Silent | Mode::Unanswered | Mode::Unheard | Mode::Late(_) => {}
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // Either side's end ends both, so that none is left half open.
    tokio::select! {
        () = forward(&client, &server, modes.clone(), Mode::Unheard) => {}
        () = forward(&server, &client, modes, Mode::Unanswered) => {}
    }
}

/// Forwards one direction, except while everything is kept back or this direction is.
async fn forward(from: &TcpStream, to: &TcpStream, mut modes: watch::Receiver<Mode>, kept_back: Mode) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let passes = |mode: &Mode| *mode != Mode::Silent && *mode != kept_back;
        if from.readable().await.is_err() || modes.wait_for(passes).await.is_err() {
            return;
        }
        let mut bytes = match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => &buffer[..count],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let late = match *modes.borrow() {
            Mode::Late(by) => by,
            _ => Duration::ZERO,
        };
        tokio::time::sleep(late).await;
        while !bytes.is_empty() {
            if to.writable().await.is_err() {
                return;
            }
            match to.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}
