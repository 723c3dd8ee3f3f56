//! A real server on a free port, with a real component.

#![allow(dead_code, reason = "each test binary uses a part")]

use bytes::Bytes;
use clap::Parser;
use flashgate_edge::{Compiled, Config, Server};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A test that waits longer has failed.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The path of a built component.
pub fn artifact(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/wasm/wasm32-wasip2/release")
        .join(format!("flashgate_{name}.wasm"));
    assert!(path.is_file(), "{} is missing: run make wasm", path.display());
    path
}

/// The misbehaving component, compiled once.
pub fn misbehave() -> Compiled {
    static COMPILED: OnceLock<Compiled> = OnceLock::new();
    COMPILED.get_or_init(|| Compiled::load(&artifact("misbehave")).unwrap()).clone()
}

pub fn config(arguments: &[&str]) -> Config {
    let fixed = ["flashgate-edge", "--component", "unused", "--listen", "127.0.0.1:0", "--instances", "1"];
    Config::parse_from(fixed.iter().chain(arguments))
}

/// Serves the misbehaving component with one instance.
pub async fn serve(arguments: &[&str]) -> Server {
    Server::start(&config(arguments), misbehave()).await.unwrap()
}

pub type Http = Client<HttpConnector, Full<Bytes>>;

pub fn client() -> Http {
    Client::builder(TokioExecutor::new()).build(HttpConnector::new())
}

/// An answer read to its end.
pub struct Answer {
    pub status: u16,
    pub head: Response<()>,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.head.headers().get(name).map_or("", |v| v.to_str().unwrap())
    }
}

pub async fn read<B: http_body::Body>(response: Response<B>) -> Answer
where
    B::Error: std::fmt::Debug,
{
    let (head, body) = response.into_parts();
    let bytes = tokio::time::timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
    Answer {
        status: head.status.as_u16(),
        head: Response::from_parts(head, ()),
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub async fn get(server: &Server, path: &str) -> Answer {
    send(Request::get(format!("http://{}{path}", server.address())).body(Full::default()).unwrap()).await
}

pub async fn send(request: Request<Full<Bytes>>) -> Answer {
    read(tokio::time::timeout(DEADLINE, client().request(request)).await.unwrap().unwrap()).await
}

/// Sends bytes as they are and reads until the server closes.
pub async fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    until_closed(&mut stream).await
}

/// What the server sends until it closes; a reset counts as closing.
pub async fn until_closed(stream: &mut TcpStream) -> String {
    let mut out = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            out.extend_from_slice(&buffer[..n]);
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("the server closes the connection");
    String::from_utf8_lossy(&out).into_owned()
}

/// Waits for a condition.
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let end = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A server that gives every request the same answer.
pub async fn other_server(answer: &'static [u8]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = stream.read(&mut buffer).await {
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    address
}
