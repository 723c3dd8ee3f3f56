//! What clients and a misbehaving component cannot do.

mod support;

use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use support::{Answer, get, other_server, raw, send, serve, until, until_closed};
use tokio::{io::AsyncWriteExt, net::TcpStream};

fn assert_problem(answer: &Answer, status: u16) {
    assert_eq!((answer.status, answer.header("content-type")), (status, "application/problem+json"), "{}", answer.text);
    let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(json["status"], status);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_on_the_list_is_not_called() {
    let other = other_server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let server = serve(&["--origin", "http://127.0.0.1:1"]).await;
    let answer = get(&server, &format!("/fetch?url=http://{other}/")).await;
    assert_eq!(answer.status, 502);
    assert!(answer.text.contains("HttpRequestDenied"), "{}", answer.text);
    assert!(server.metrics().text().contains("flashgate_edge_outgoing_denied_total 1\n"));
    let answer = get(&server, "/fetch?url=http://127.0.0.1:1/").await;
    assert!(answer.text.contains("ConnectionRefused"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_host_is_given_up() {
    let other = other_server(b"").await;
    let server = serve(&["--origin", &format!("http://{other}"), "--outgoing-first-byte-timeout-ms", "50"]).await;
    let answer = get(&server, &format!("/fetch?url=http://{other}/")).await;
    assert!(answer.text.contains("HttpResponseTimeout"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_flood_is_refused() {
    let server = serve(&[]).await;
    let many: String = (0..80).map(|n| format!("x-{n}: y\r\n")).collect();
    let huge = format!("x: {}\r\n", "y".repeat(64 << 10));
    for headers in [many, huge] {
        let request = format!("GET /count HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n");
        let answer = raw(&server, request.as_bytes()).await;
        // A reset may overtake the answer to a header that was not read to its end.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    assert_eq!(get(&server, "/count").await.text, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_host_is_refused() {
    let server = serve(&[]).await;
    let answer = raw(&server, b"GET /count HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_is_refused() {
    let server = serve(&["--max-body-bytes", "1000"]).await;
    let post = |bytes: usize| {
        Request::post(format!("http://{}/seen", server.address())).body(Full::from(vec![b'x'; bytes])).unwrap()
    };
    assert_problem(&send(post(1001)).await, 413);
    assert!(send(post(1000)).await.text.contains("body=1000\n"));
    let chunked = format!(
        "POST /seen HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n",
        "x".repeat(1001)
    );
    let answer = raw(&server, chunked.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_is_cut_off() {
    let server = serve(&["--header-read-timeout-ms", "100", "--body-read-timeout-ms", "100"]).await;
    for begin in ["", "P", "GET / HTTP/1.1\r\nhost:", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = raw(&server, begin.as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    let answer = raw(&server, b"POST /seen HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_trap_the_next_request_works() {
    let server = serve(&[]).await;
    let slow: http::Uri = format!("http://{}/never", server.address()).parse().unwrap();
    let slow = tokio::spawn(async move { support::read(support::client().get(slow).await.unwrap()).await });
    until("the request is in flight", || async {
        server.metrics().text().contains("flashgate_edge_requests_open 1\n")
    })
    .await;
    assert_problem(&get(&server, "/trap").await, 503);
    let lost = slow.await.unwrap();
    assert_problem(&lost, 503);
    assert_eq!(lost.header("retry-after"), "1");
    assert_eq!(get(&server, "/count").await.text, "0");
    let metrics = server.metrics().text();
    assert!(metrics.contains("flashgate_edge_traps_total 1\n"), "{metrics}");
    assert!(metrics.contains("flashgate_edge_instances_live 1\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runaway_instance_is_interrupted() {
    let server = serve(&["--max-compute-ms", "200"]).await;
    assert_problem(&get(&server, "/spin-forever").await, 503);
    assert_eq!(get(&server, "/count").await.status, 200);
    assert!(server.metrics().text().contains("flashgate_edge_traps_total 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runaways_do_not_make_many_instances() {
    let server = serve(&["--max-compute-ms", "200", "--max-memory-bytes", "16777216"]).await;
    for answer in join_all((0..50).map(|_| get(&server, "/spin-forever"))).await {
        assert_problem(&answer, 503);
    }
    until("an instance works", || async { get(&server, "/count").await.status == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_is_contained() {
    let server = serve(&["--max-memory-bytes", "67108864"]).await;
    assert_problem(&get(&server, "/big-memory").await, 503);
    assert_eq!(get(&server, "/count").await.text, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_takes_too_long_ends_and_the_next_one_works() {
    let server = serve(&["--request-timeout-ms", "200"]).await;
    assert_problem(&get(&server, "/never").await, 503);
    assert_eq!(get(&server, "/count").await.status, 200);
    until("the instance has ended", || async {
        let metrics = server.metrics().text();
        metrics.contains("flashgate_edge_expirations_total 1\n")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_the_limit_are_refused() {
    let server = serve(&["--max-requests-in-flight", "2"]).await;
    let answers = join_all((0..10).map(|_| get(&server, "/slow"))).await;
    assert!(answers.iter().any(|a| a.status == 200));
    let refused: Vec<_> = answers.iter().filter(|a| a.status != 200).collect();
    assert!(!refused.is_empty());
    for answer in refused {
        assert_problem(answer, 503);
        assert_eq!(answer.header("retry-after"), "1");
    }
    until("the places are free again", || async { get(&server, "/count").await.status == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_than_the_limit_are_refused() {
    let server = serve(&["--max-connections", "2"]).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(b"GET /count HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        held.push(stream);
    }
    let mut third = TcpStream::connect(server.address()).await.unwrap();
    let answer = until_closed(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    drop(held);
    until("a place is free again", || async {
        let uri = format!("http://{}/count", server.address()).parse().unwrap();
        support::client().get(uri).await.is_ok_and(|a| a.status() == 200)
    })
    .await;
}
