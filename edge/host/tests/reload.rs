//! TLS, reloads and the access log, on a real server with real components and certificates.

mod support;

use bytes::Bytes;
use flashgate_edge::{Compiled, Server};
use http::Request;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName},
};
use std::{fs, path::Path, sync::Arc, sync::atomic::Ordering::Relaxed};
use support::{Answer, DEADLINE, artifact, config, get, misbehave, read, until};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

const NAME: &str = "shop.test";

/// Writes a new certificate and its key.
fn new_certificate(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

async fn tls_server(dir: &Path) -> Server {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let mut config = config(&arguments);
    config.component = artifact("misbehave");
    Server::start(&config, misbehave()).await.unwrap()
}

/// A connection that trusts this certificate alone.
async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    let stream = TcpStream::connect(server.address()).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
}

fn seen(version: http::Version) -> Request<Full<Bytes>> {
    let target = if version == http::Version::HTTP_2 { format!("https://{NAME}/seen") } else { "/seen".to_owned() };
    Request::get(target).version(version).header("host", NAME).body(Full::default()).unwrap()
}

async fn over_http1(stream: TlsStream<TcpStream>) -> Answer {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    read(sender.send_request(seen(http::Version::HTTP_11)).await.unwrap()).await
}

async fn over_http2(stream: TlsStream<TcpStream>) -> Answer {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    read(sender.send_request(seen(http::Version::HTTP_2)).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_are_spoken_with_tls_and_the_component_sees_https() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = new_certificate(dir.path());
    let server = tls_server(dir.path()).await;
    let stream = connect(&server, &certificate, &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let answer = over_http2(stream).await;
    assert!(answer.text.starts_with(&format!("uri=https://{NAME}/seen\n")), "{}", answer.text);
    let stream = connect(&server, &certificate, &[b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = over_http1(stream).await;
    assert!(answer.text.starts_with(&format!("uri=https://{NAME}/seen\n")), "{}", answer.text);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_no_tls_is_closed_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    new_certificate(dir.path());
    let server = tls_server(dir.path()).await;
    let heard = support::raw(&server, b"GET / HTTP/1.1\r\nhost: shop.test\r\n\r\n").await;
    assert!(!heard.contains("HTTP/1.1 200"), "{heard}");
    until("it is counted", async || server.metrics().tls_failures.load(Relaxed) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_takes_over_and_the_old_connections_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let old = new_certificate(dir.path());
    let server = tls_server(dir.path()).await;
    let standing = connect(&server, &old, &[b"http/1.1"]).await.unwrap();
    let new = new_certificate(dir.path());
    server.reload().await.unwrap();
    assert_eq!(over_http1(standing).await.status, 200);
    assert!(connect(&server, &old, &[b"http/1.1"]).await.is_err(), "the old certificate is not shown any more");
    assert_eq!(over_http1(connect(&server, &new, &[b"http/1.1"]).await.unwrap()).await.status, 200);
    // A key that does not fit leaves everything as it was.
    fs::write(dir.path().join("key.pem"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = format!("{:#}", server.reload().await.unwrap_err());
    assert!(error.contains("cert.pem"), "{error}");
    assert_eq!(over_http1(connect(&server, &new, &[b"http/1.1"]).await.unwrap()).await.status, 200);
    assert_eq!(server.metrics().reload_failures.load(Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_component_takes_over_while_the_old_one_finishes_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("gate.wasm");
    fs::copy(artifact("misbehave"), &component).unwrap();
    let mut config = config(&[]);
    config.component.clone_from(&component);
    let server = Server::start(&config, Compiled::load(&component).unwrap()).await.unwrap();
    let slow = tokio::spawn({
        let url = format!("http://{}/slow", server.address());
        support::send(Request::get(url).body(Full::default()).unwrap())
    });
    until("the request is under way", async || server.metrics().requests_open.load(Relaxed) == 1).await;
    fs::copy(artifact("empty"), &component).unwrap();
    server.reload().await.unwrap();
    // The smallest component answers everything; the other one knows no such path.
    until("the new component answers", async || get(&server, "/whatever").await.status == 200).await;
    let slow = tokio::time::timeout(DEADLINE, slow).await.unwrap().unwrap();
    assert_eq!((slow.status, slow.text.as_str()), (200, "slow but sure"));
    until("the old instance has ended", async || server.metrics().instances_live.load(Relaxed) == 1).await;
    // Again and again, idle instances too: none is left behind.
    for _ in 0..6 {
        server.reload().await.unwrap();
        until("one instance lives", async || {
            get(&server, "/").await.status == 200 && server.metrics().instances_live.load(Relaxed) == 1
        })
        .await;
    }
    assert_eq!(server.metrics().reloads.load(Relaxed), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_none_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("gate.wasm");
    fs::copy(artifact("misbehave"), &component).unwrap();
    let mut config = config(&[]);
    config.component.clone_from(&component);
    let server = Server::start(&config, misbehave()).await.unwrap();
    assert_eq!(get(&server, "/count").await.text, "0");
    fs::write(&component, b"no component").unwrap();
    let error = format!("{:#}", server.reload().await.unwrap_err());
    assert!(error.contains("gate.wasm"), "{error}");
    fs::remove_file(&component).unwrap();
    assert!(server.reload().await.is_err());
    assert_eq!(get(&server, "/count").await.text, "1", "the same instance");
    assert_eq!(server.metrics().reload_failures.load(Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_tells_each_answer_and_no_secret_and_survives_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let mut config = config(&["--access-log", path.to_str().unwrap(), "--access-log-refusals-every", "3"]);
    config.component = artifact("misbehave");
    let server = Server::start(&config, misbehave()).await.unwrap();
    assert_eq!(get(&server, "/seen?token=secret").await.status, 200);
    let lines = |path: &Path| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    until("the line is there", async || lines(&path).len() == 1).await;
    let line = &lines(&path)[0];
    assert_eq!(
        (&line["method"], &line["path"], &line["status"], &line["http"]),
        (&"GET".into(), &"/seen".into(), &200.into(), &"1.1".into())
    );
    assert!(line["bytes"].as_u64().unwrap() > 0 && line["ms"].is_number() && line["client"].is_string());
    assert!(!fs::read_to_string(&path).unwrap().contains("secret"));
    // Of seven refusals the first, the fourth and the seventh.
    for _ in 0..7 {
        assert_eq!(get(&server, "/nothing").await.status, 404);
    }
    until("three refusals are there", async || lines(&path).len() == 4).await;
    let rotated = dir.path().join("access.log.1");
    fs::rename(&path, &rotated).unwrap();
    server.reload().await.unwrap();
    assert_eq!(get(&server, "/seen").await.status, 200);
    until("the new file has the new line", async || lines(&path).len() == 1).await;
    assert_eq!(lines(&rotated).len(), 4);
    assert_eq!(server.metrics().access_log_dropped.load(Relaxed), 0);
}
