//! One request of one buyer over a connection of its own, from the buyer's own address.

use super::buyer::Answer;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    time::Duration,
};
use tokio::{net::TcpSocket, time::timeout};

/// How long one request may take, connecting included, in seconds; then it counts as lost.
const REQUEST_TIMEOUT_S: u64 = 20;
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// In which Cloudflare tells a Worker the client's address.
const CLOUDFLARE_ADDRESS: &str = "cf-connecting-ip";
/// Most buyers that have an address of their own in 127.0.0.0/8, and most in a rehearsal.
pub const BUYERS_MAX: u32 = 1_000_000;

/// The address of buyer `i`: 127.1.0.1 and up, never one that ends in 0 or 255.
pub fn address_of(buyer: u32) -> Ipv4Addr {
    let (rest, d) = (buyer / 254, buyer % 254 + 1);
    let (b, c) = (rest / 256 + 1, rest % 256);
    // `b` stays below 17 for BUYERS_MAX buyers.
    Ipv4Addr::new(127, b as u8, c as u8, d as u8)
}

/// Where an edge listens.
#[derive(Debug, Clone)]
pub struct Edge {
    address: SocketAddr,
    host: String,
}

impl Edge {
    /// Resolves `http://host:port`.
    pub async fn resolve(url: &str) -> Result<Self> {
        let uri: http::Uri = url.parse().with_context(|| format!("{url:?} is not an address"))?;
        ensure!(
            uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none(),
            "{url:?} must be http://host:port"
        );
        let authority = uri.authority().context("an address needs a host")?;
        let port = authority.port_u16().unwrap_or(80);
        let found = tokio::net::lookup_host((authority.host(), port)).await;
        let mut found = found.with_context(|| format!("{} is not known", authority.host()))?;
        // IPv4 first: that is where buyers have addresses of their own.
        let any = found.next();
        let address = found.chain(any).find(SocketAddr::is_ipv4).or(any);
        Ok(Self {
            address: address.with_context(|| format!("{} has no address", authority.host()))?,
            host: authority.as_str().to_owned(),
        })
    }

    /// Whether buyers can have addresses of their own here.
    pub fn is_loopback(&self) -> bool {
        matches!(self.address.ip(), IpAddr::V4(ip) if ip.is_loopback())
    }

    /// A request to this edge; the connection ends with its answer.
    pub fn request(&self, method: http::Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
    }

    /// Sends it from this address (when loopback allows that) and reads the answer.
    pub async fn send(&self, from: Ipv4Addr, mut request: Request<Full<Bytes>>) -> Answer {
        if self.is_loopback() {
            // Under workerd nobody else tells the Worker; every other edge looks at the connection.
            if let Ok(from) = HeaderValue::try_from(from.to_string()) {
                request.headers_mut().insert(CLOUDFLARE_ADDRESS, from);
            }
        }
        match timeout(Duration::from_secs(REQUEST_TIMEOUT_S), self.exchange(from, request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::debug!(error = format!("{error:#}"), "a request was lost");
                Answer::Lost
            }
            Err(_) => Answer::Lost,
        }
    }

    async fn exchange(&self, from: Ipv4Addr, request: Request<Full<Bytes>>) -> Result<Answer> {
        let socket = match self.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if self.is_loopback() {
            // The port is chosen when connecting, for this address alone: no search through the
            // ports of all the others.
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind((from, 0).into())?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut exchange = pin!(async move {
            let answer = sender.send_request(request).await?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| anyhow::anyhow!(e))?.to_bytes();
            anyhow::Ok((parts, body))
        });
        let (parts, body) = tokio::select! {
            biased;
            done = &mut exchange => done?,
            // The server closed: what it sent before is read to the end.
            closed = connection => {
                closed?;
                exchange.await?
            }
        };
        Ok(Answer::Http {
            status: parts.status.as_u16(),
            retry_after_ms: retry_after_ms(parts.status, &parts.headers),
            body,
        })
    }
}

fn retry_after_ms(status: StatusCode, headers: &http::HeaderMap) -> Option<u64> {
    if status.is_success() {
        return None;
    }
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn every_buyer_has_an_address_of_his_own() {
        let all: HashSet<_> = (0..BUYERS_MAX).map(address_of).collect();
        assert_eq!(all.len(), BUYERS_MAX as usize);
        assert!(all.iter().all(|a| a.is_loopback() && !matches!(a.octets(), [_, 0, ..] | [.., 0 | 255])));
        assert_eq!(address_of(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(address_of(254), Ipv4Addr::new(127, 1, 1, 1));
    }

    #[tokio::test]
    async fn a_request_comes_from_the_buyers_address_and_a_cut_answer_is_lost() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let edge = Edge::resolve(&format!("http://{}", server.local_addr().unwrap())).await.unwrap();
        let serve = tokio::spawn(async move {
            for answer in [
                "HTTP/1.1 503 x\r\nretry-after: 2\r\ncontent-length: 2\r\n\r\nno",
                "HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\nhalf",
            ] {
                let (mut socket, peer) = server.accept().await.unwrap();
                assert_eq!(peer.ip(), address_of(300));
                let mut seen = [0; 1024];
                assert!(socket.read(&mut seen).await.unwrap() > 0);
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let get = || edge.request(http::Method::GET, "/x").body(Full::default()).unwrap();
        match edge.send(address_of(300), get()).await {
            Answer::Http { status: 503, retry_after_ms: Some(2_000), body } => assert_eq!(body, "no"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(edge.send(address_of(300), get()).await, Answer::Lost));
        serve.await.unwrap();
    }

    #[tokio::test]
    async fn an_edge_is_named_by_scheme_and_authority_alone() {
        for bad in ["", "127.0.0.1:80", "https://127.0.0.1", "http://127.0.0.1/x", "http://127.0.0.1/?q"] {
            assert!(Edge::resolve(bad).await.is_err(), "{bad}");
        }
    }
}
