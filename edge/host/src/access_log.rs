//! The access log: a line of JSON for each answer, written by a thread of its own.
//!
//! It never holds up a request: when the thread cannot keep up (a slow or full disk), lines are dropped
//! and counted. It tells no query, no cookie and no token.

use crate::metrics::{Metrics, count};
use anyhow::Context;
use http::{Method, StatusCode, Version};
use serde_json::json;
use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

/// Lines that wait for the thread; further ones are dropped.
const WAITING_MAX: usize = 8_192;

/// How long the end of the server waits for the last lines.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Of a path so many characters are written.
const PATH_CHARS_MAX: usize = 256;

enum Message {
    Line(String),
    /// The file was moved away: open it anew.
    Reopen,
    /// Tell when all before this is written.
    Flush(SyncSender<()>),
}

/// The way to the thread. It ends, with all that waits written, when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct AccessLog {
    lines: SyncSender<Message>,
    /// Of refusals only one in so many is written.
    refusals_every: u64,
    refusals: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
}

/// The beginning of a path: what waits for the disk is bounded in bytes, too.
pub(crate) fn shortened(path: &str) -> String {
    path.chars().take(PATH_CHARS_MAX).collect()
}

/// What is known of a request when its answer begins.
pub(crate) struct Entry {
    pub(crate) log: AccessLog,
    pub(crate) began: Instant,
    pub(crate) client: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) status: StatusCode,
    pub(crate) trace: Option<String>,
}

impl AccessLog {
    /// Opens the file to append to it.
    pub(crate) fn open(path: &Path, refusals_every: u64, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let file = append(path)?;
        let (lines, receiver) = sync_channel(WAITING_MAX);
        let path = path.to_owned();
        let counted = metrics.clone();
        let writer = move || write(file, &path, &receiver, &counted);
        thread::Builder::new().name("edge-access-log".to_owned()).spawn(writer)?;
        Ok(Self { lines, refusals_every: refusals_every.max(1), refusals: Arc::default(), metrics })
    }

    /// Opens the file anew, as after a rotation.
    pub(crate) fn reopen(&self) {
        // Dropped when the thread is that far behind; the next rotation asks again.
        if self.lines.try_send(Message::Reopen).is_err() {
            count(&self.metrics.access_log_dropped);
        }
    }

    /// Waits until all lines so far are written, within [`FLUSH_WITHIN`].
    pub(crate) fn flush(&self) {
        let (tell, told) = sync_channel(1);
        if self.lines.try_send(Message::Flush(tell)).is_ok() {
            let _ = told.recv_timeout(FLUSH_WITHIN);
        }
    }

    /// Whether this answer is written: all but most of the refusals.
    pub(crate) fn wants(&self, status: StatusCode) -> bool {
        let refusal = status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE;
        !refusal || self.refusals.fetch_add(1, Relaxed).is_multiple_of(self.refusals_every)
    }
}

impl Entry {
    /// The answer has ended, or the client has gone.
    pub(crate) fn end(self, bytes: u64) {
        let mut time = String::new();
        // A clock that cannot be written leaves it empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let line = json!({
            "time": time,
            "client": self.client,
            "method": self.method.as_str(),
            "path": self.path,
            "http": version(self.version),
            "status": self.status.as_u16(),
            "bytes": bytes,
            "ms": self.began.elapsed().as_micros() as f64 / 1000.0,
            "trace_id": self.trace,
        });
        if self.log.lines.try_send(Message::Line(line.to_string())).is_err() {
            count(&self.log.metrics.access_log_dropped);
        }
    }
}

const fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

fn append(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    Ok(BufWriter::new(file.with_context(|| format!("access log {}", path.display()))?))
}

/// Writes lines until nobody sends any more; flushes whenever there is a pause.
fn write(mut file: BufWriter<File>, path: &Path, messages: &Receiver<Message>, metrics: &Metrics) {
    let mut failed = false;
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Empty) => {
                let _ = file.flush();
                match messages.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
            Err(TryRecvError::Disconnected) => return,
        };
        let outcome = match message {
            Message::Line(line) => writeln!(file, "{line}").map_err(|error| {
                count(&metrics.access_log_dropped);
                anyhow::Error::from(error)
            }),
            Message::Flush(tell) => {
                let flushed = file.flush().map_err(anyhow::Error::from);
                // Whoever asked may have gone.
                let _ = tell.try_send(());
                flushed
            }
            Message::Reopen => append(path).map(|new| {
                let _ = file.flush();
                file = new;
            }),
        };
        // Told once, not for every line.
        if let (Err(e), false) = (&outcome, failed) {
            tracing::error!(error = format!("{e:#}"), "the access log cannot be written");
        }
        failed = outcome.is_err();
    }
}
