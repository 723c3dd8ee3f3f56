//! HTTP/1.1 as written by hand, so that a case says exactly what goes over the wire.

use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    time::timeout,
};

/// The longest that one exchange may take.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(30);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// One request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: &'static str,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What came back. Header names are in lower case; of several with one name the values are joined.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

/// Sends a request from a client's address and reads the answer to its end.
pub async fn exchange(server: SocketAddr, client: Ipv4Addr, ask: &Ask) -> Result<Reply> {
    let work = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((client, 0).into())?;
        let mut stream = socket.connect(server).await?;
        let mut head = format!("{} {} HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n", ask.method, ask.target);
        // Under workerd nobody else tells the Worker; the host looks at the connection.
        head += &format!("cf-connecting-ip: {client}\r\n");
        for (name, value) in &ask.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !ask.body.is_empty() || ["POST", "PUT"].contains(&ask.method) {
            head += &format!("content-length: {}\r\n", ask.body.len());
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        stream.write_all(&ask.body).await?;
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 16 << 10];
        loop {
            let n = stream.read(&mut chunk).await?;
            bytes.extend_from_slice(&chunk[..n]);
            ensure!(bytes.len() <= ANSWER_BYTES, "the answer has more than {ANSWER_BYTES} bytes");
            if n == 0 {
                return parse(&bytes, ask.method == "HEAD");
            }
        }
    };
    timeout(EXCHANGE_WITHIN, work).await.context("no answer in time")?
}

fn parse(bytes: &[u8], head_only: bool) -> Result<Reply> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").context("no end of the head")?;
    let head = std::str::from_utf8(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.get(9..12)).context("no status line")?.parse()?;
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
        let values = headers.entry(name.to_ascii_lowercase()).or_default();
        if !values.is_empty() {
            values.push_str(", ");
        }
        values.push_str(value.trim());
    }
    let rest = &bytes[end + 4..];
    let body = if head_only || status == 304 {
        ensure!(rest.is_empty(), "an answer without a body has {} bytes of it", rest.len());
        Vec::new()
    } else if headers.get("transfer-encoding").is_some_and(|v| v == "chunked") {
        dechunked(rest)?
    } else {
        if let Some(length) = headers.get("content-length") {
            ensure!(length.parse() == Ok(rest.len()), "{length} bytes were announced, {} came", rest.len());
        }
        rest.to_vec()
    };
    Ok(Reply { status, headers, body })
}

fn dechunked(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").context("no end of a chunk's size")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?.trim(), 16)?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        if rest.len() < size + 2 {
            bail!("the answer ends within a chunk");
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}
