//! A closed-loop HTTP/1.1 load generator that costs as little as it can: prepared request bytes,
//! kept-alive connections, answers read only as far as needed to find their end and their status.
//!
//! It shares the machine with what it measures, so its figures mean something only as ratios of
//! loads of the same kind, taken in the same run.

use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

/// Longest head of an answer, in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Longest a whole load may take.
const LOAD_DEADLINE: Duration = Duration::from_secs(120);

/// What one load did.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Answers a second.
    pub per_s: f64,
    /// Answers by status.
    pub statuses: Statuses,
}

/// How many answers had a status, and the beginning of the first of them.
pub type Statuses = BTreeMap<u16, (u64, String)>;

impl Outcome {
    /// Fails unless every answer had this status: a benchmark of the wrong answer measures nothing.
    pub fn all(self, status: u16, what: &str) -> Result<f64> {
        if let Some((other, (_, answer))) = self.statuses.iter().find(|(s, _)| **s != status) {
            let counts: BTreeMap<_, _> = self.statuses.iter().map(|(s, (n, _))| (s, n)).collect();
            bail!("{what}: expected only {status}, got {counts:?}; the first {other} was:\n{answer}");
        }
        Ok(self.per_s)
    }
}

/// Sends `count` requests over `connections`; request number `n` is what `make(n)` writes.
pub async fn run(
    target: SocketAddr,
    connections: usize,
    count: u64,
    make: impl Fn(u64, &mut Vec<u8>) + Send + Sync + 'static,
) -> Result<Outcome> {
    let (make, next) = (Arc::new(make), Arc::new(AtomicU64::new(0)));
    let mut streams = Vec::new();
    for client in 0..connections {
        streams.push(connect(client, target).await?);
    }
    let started = Instant::now();
    let workers: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(client, stream)| {
            let (make, next) = (Arc::clone(&make), Arc::clone(&next));
            tokio::spawn(worker(stream, client, target, count, make, next))
        })
        .collect();
    let mut statuses = Statuses::new();
    let all = async {
        for worker in workers {
            for (status, (n, answer)) in worker.await?? {
                statuses.entry(status).or_insert((0, answer)).0 += n;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LOAD_DEADLINE, all).await.context("the load did not end in time")??;
    Ok(Outcome { per_s: count as f64 / started.elapsed().as_secs_f64(), statuses })
}

/// A connection of this client. Each has an address of its own, as in a crowd: the edge gives every
/// address to one of its instances, and all of them shall work.
async fn connect(client: usize, target: SocketAddr) -> Result<TcpStream> {
    let failed = || format!("connect to {target}");
    let [high, low] = u16::try_from(client + 1)?.to_be_bytes();
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 1, high, low), 0).into())?;
    let stream = socket.connect(target).await.with_context(failed)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn worker<F: Fn(u64, &mut Vec<u8>)>(
    mut stream: TcpStream,
    client: usize,
    target: SocketAddr,
    count: u64,
    make: Arc<F>,
    next: Arc<AtomicU64>,
) -> Result<Statuses> {
    let mut statuses = Statuses::new();
    let (mut request, mut buffer) = (Vec::with_capacity(2048), vec![0; HEAD_BYTES]);
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= count {
            return Ok(statuses);
        }
        request.clear();
        make(n, &mut request);
        stream.write_all(&request).await?;
        let (status, close, bytes) = read_answer(&mut stream, &mut buffer).await?;
        let first = || String::from_utf8_lossy(&buffer[..bytes]).into_owned();
        statuses.entry(status).or_insert_with(|| (0, first())).0 += 1;
        if close {
            stream = connect(client, target).await?;
        }
    }
}

/// Reads one answer; its status, whether the server closes the connection after it, and how many
/// bytes of its beginning are in the buffer.
async fn read_answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(u16, bool, usize)> {
    let mut filled = 0;
    let head_end = loop {
        let n = stream.read(&mut buffer[filled..]).await?;
        if n == 0 {
            bail!("the server closed the connection in the middle of an answer");
        }
        let from = filled.saturating_sub(3);
        filled += n;
        if let Some(at) = buffer[from..filled].windows(4).position(|w| w == b"\r\n\r\n") {
            break from + at + 4;
        }
        if filled == buffer.len() {
            bail!("the head of an answer is longer than {HEAD_BYTES} bytes");
        }
    };
    let head = std::str::from_utf8(&buffer[..head_end])?;
    let status: u16 = head.get(9..12).context("no status line")?.parse()?;
    let (mut length, mut close, mut chunked) = (0_usize, false, false);
    for line in head.split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse()?;
        } else if name.eq_ignore_ascii_case("connection") {
            close = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = true;
        }
    }
    if chunked {
        while !buffer[head_end..filled].ends_with(b"0\r\n\r\n") {
            let n = stream.read(&mut buffer[filled..]).await?;
            if n == 0 {
                bail!("the server closed the connection in the middle of a body");
            }
            filled += n;
        }
        return Ok((status, close, filled));
    }
    let mut missing = length.saturating_sub(filled - head_end);
    while missing > 0 {
        if filled == buffer.len() {
            filled = head_end;
        }
        let most = missing.min(buffer.len() - filled);
        let n = stream.read(&mut buffer[filled..filled + most]).await?;
        if n == 0 {
            bail!("the server closed the connection in the middle of a body");
        }
        missing -= n;
        filled += n;
    }
    Ok((status, close, filled))
}
