//! What a component and its clients get when all is well.

mod support;

use bytes::Bytes;
use flashgate_edge::{Compiled, Server};
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use std::io::Write;
use support::{artifact, config, get, other_server, send, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_component_answers() {
    let server = Server::start(&config(&[]), Compiled::load(&artifact("empty")).unwrap()).await.unwrap();
    assert_eq!(get(&server, "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_answers_without_an_origin() {
    let server = Server::start(&config(&[]), Compiled::load(&artifact("spin")).unwrap()).await.unwrap();
    let answer = get(&server, "/no/such/path").await;
    assert_eq!(answer.status, 404, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_serves_many_requests_at_once() {
    let server = serve(&[]).await;
    let slow = (0..100).map(|_| get(&server, "/slow"));
    for answer in join_all(slow).await {
        assert_eq!((answer.status, answer.text.as_str()), (200, "slow but sure"));
    }
    let mut counts: Vec<u32> =
        join_all((0..50).map(|_| get(&server, "/count"))).await.iter().map(|a| a.text.parse().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (0..50).collect::<Vec<_>>());
    assert!(server.metrics().text().contains("flashgate_edge_instances_total 1\n"), "{}", server.metrics().text());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_component_sees_variables_the_address_and_an_absolute_uri() {
    let mut key = tempfile::NamedTempFile::new().unwrap();
    writeln!(key, "top-secret").unwrap();
    let server =
        serve(&["--origin", "http://origin.example:81", "--edge-key-file", key.path().to_str().unwrap()]).await;
    let request = Request::post(format!("http://{}/seen?a=b", server.address()))
        .header("spin-client-addr", "203.0.113.9:1")
        .header("spin-client-addr", "203.0.113.10:1")
        .body(Full::from("12345"))
        .unwrap();
    let seen = send(request).await.text;
    let line = |name: &str| seen.lines().find_map(|l| l.strip_prefix(name)).unwrap().to_owned();
    assert_eq!(line("uri="), format!("http://{}/seen?a=b", server.address()));
    assert!(line("address=").starts_with("127.0.0.1:") && !line("address=").contains('|'), "{seen}");
    assert_eq!(line("body="), "5");
    assert_eq!(line("origin_url="), "http://origin.example:81");
    assert_eq!(line("edge_key="), "top-secret");
    assert!(line("other=").contains("Undefined"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_without_tls_works() {
    let server = serve(&[]).await;
    let client: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let uri: http::Uri = format!("http://{}/slow", server.address()).parse().unwrap();
    for answer in join_all((0..20).map(|_| client.get(uri.clone()))).await {
        let answer = answer.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    }
    assert!(server.metrics().text().contains("flashgate_edge_connections_total 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_host_is_called() {
    let other = other_server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let server = serve(&["--origin", &format!("http://{other}")]).await;
    for _ in 0..3 {
        let answer = get(&server, &format!("/fetch?url=http://{other}/x")).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, "hi"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_is_passed_through_as_it_comes() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap();
    let server = serve(&["--origin", &format!("http://{other}")]).await;
    let uri = format!("http://{}/fetch?url=http://{other}/", server.address()).parse().unwrap();
    let answering = tokio::spawn(async move { support::client().get(uri).await.unwrap() });
    let (mut stream, _) = listener.accept().await.unwrap();
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
    stream.write_all(head).await.unwrap();
    let mut answer = answering.await.unwrap();
    // The second part is not sent before the first has arrived.
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    stream.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "second");
    assert!(answer.frame().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_have_their_own_address() {
    let server = serve(&["--admin-listen", "127.0.0.1:0"]).await;
    assert_eq!(get(&server, "/slow").await.status, 200);
    let admin = server.admin_address().unwrap();
    let ask = |path: &str| send(Request::get(format!("http://{admin}{path}")).body(Full::default()).unwrap());
    assert_eq!(ask("/healthz").await.status, 200);
    let metrics = ask("/metrics").await.text;
    assert!(metrics.contains("flashgate_edge_requests_total{status=\"2xx\"} 1\n"), "{metrics}");
    assert_eq!(get(&server, "/healthz").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_shutdown_finishes_the_request_in_flight() {
    let server = serve(&[]).await;
    let uri: http::Uri = format!("http://{}/slow", server.address()).parse().unwrap();
    let slow = tokio::spawn(async move { support::read(support::client().get(uri).await.unwrap()).await });
    support::until("the request is in flight", || async {
        server.metrics().text().contains("flashgate_edge_requests_open 1\n")
    })
    .await;
    let address = server.address();
    assert!(server.stop().await);
    assert_eq!(slow.await.unwrap().text, "slow but sure");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_ever() {
    let server = serve(&["--shutdown-grace-ms", "100"]).await;
    let uri: http::Uri = format!("http://{}/never", server.address()).parse().unwrap();
    let never = tokio::spawn(async move { support::client().get(uri).await });
    support::until("the request is in flight", || async {
        server.metrics().text().contains("flashgate_edge_requests_open 1\n")
    })
    .await;
    assert!(!server.stop().await);
    assert!(never.await.unwrap().is_err());
}
