//! Requests that no browser sends: a 4xx, a problem document wherever our code is reached, never a 5xx,
//! never a dead process.

use anyhow::{Context, Result, ensure};
use flashgate_tests::{Shop, shop};
use reqwest::Method;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Sends raw bytes and reads the status of the answer; `None` when the connection was just closed.
async fn raw(url: &str, bytes: &[u8]) -> Result<Option<u16>> {
    let address = url.strip_prefix("http://").context("an http URL")?;
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // A server that has heard enough may close before all is sent.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while let Ok(n) = stream.read(&mut part).await {
            answer.extend_from_slice(&part[..n]);
            if n == 0 || answer.len() > 64 {
                break;
            }
        }
        let line = String::from_utf8_lossy(&answer).into_owned();
        anyhow::Ok(line.split(' ').nth(1).and_then(|status| status.parse().ok()))
    };
    tokio::time::timeout(Duration::from_secs(30), exchange).await.context("the server neither answers nor closes")?
}

fn is_refused(status: Option<u16>) -> bool {
    status.is_none_or(|status| (400..500).contains(&status))
}

/// Each hostile request to a listener.
fn requests(sale: &str) -> Vec<(&'static str, Vec<u8>)> {
    let claim = format!("POST /v1/sales/{sale}/claim HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n");
    let with = |rest: &str| format!("{claim}{rest}").into_bytes();
    let flood: String = (0..2_000).map(|n| format!("X-Flood-{n}: {n}\r\n")).collect();
    vec![
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("a header flood", with(&format!("{flood}\r\n"))),
        ("a header of 100 kB", with(&format!("X-Long: {}\r\n\r\n", "x".repeat(100_000)))),
        ("a target of 10 kB", format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(10_000)).into_bytes()),
        ("a body of 1 MB", with(&format!("Content-Length: 1000000\r\n\r\n{}", "x".repeat(1_000_000)))),
        ("two lengths", with("Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}")),
        ("a negative length", with("Content-Length: -1\r\n\r\n")),
        ("length and chunks", with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")),
        ("a bad chunk", with("Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")),
        ("a header with a null", with("X-Null: a\0b\r\n\r\n")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_nonsense_is_refused_by_edge_and_origin_and_both_live_on() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("hostile-raw", 2)).await?;
    for url in [shop.stack.edge_url(0), shop.stack.origin_url()] {
        for (what, bytes) in requests(sale.as_str()) {
            let status = raw(url, &bytes).await.with_context(|| what.to_owned())?;
            ensure!(is_refused(status), "{url}, {what}: {status:?}");
        }
    }
    lives(shop, &sale).await
}

async fn lives(shop: &Shop, sale: &flashgate_shared::SaleId) -> Result<()> {
    shop.stack.check().await?;
    let mut buyer = shop.buyer(sale);
    buyer.enter().await?;
    buyer.claim("k", 1).await?.accepted()?;
    shop.audit(sale).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_problem_document_and_never_a_5xx() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("hostile-bad", 2)).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let claim = format!("/v1/sales/{sale}/claim");
    let enter = format!("/v1/sales/{sale}/enter");
    let json = ("content-type", "application/json");
    let key = ("idempotency-key", "k");
    let long_key = "k".repeat(200);
    // Over the gate's limit and under the host's, which reads it to its end: a server that hangs up on a
    // larger one may reset the connection before its answer is read (that one is among the raw requests).
    let big = vec![b'x'; 20_000];
    type Case<'a> = (&'a str, Method, &'a str, Vec<(&'a str, &'a str)>, Option<Vec<u8>>, &'a [u16]);
    let cases: Vec<Case<'_>> = vec![
        ("a large body", Method::POST, &claim, vec![json, key], Some(big.clone()), &[413]),
        ("a large body to enter", Method::POST, &enter, vec![json], Some(big), &[413]),
        ("no JSON", Method::POST, &claim, vec![json, key], Some(b"{nope".to_vec()), &[400, 422]),
        (
            "a string for a number",
            Method::POST,
            &claim,
            vec![json, key],
            Some(b"{\"quantity\":\"1\"}".to_vec()),
            &[400, 422],
        ),
        ("an unknown field", Method::POST, &claim, vec![json, key], Some(b"{\"qty\":1}".to_vec()), &[400, 422]),
        ("a fraction", Method::POST, &claim, vec![json, key], Some(b"{\"quantity\":1.5}".to_vec()), &[400, 422]),
        (
            "another media type",
            Method::POST,
            &claim,
            vec![("content-type", "text/xml"), key],
            Some(b"<a/>".to_vec()),
            &[415],
        ),
        ("no key", Method::POST, &claim, vec![json], Some(b"{}".to_vec()), &[422]),
        ("a key of 200 characters", Method::POST, &claim, vec![json, ("idempotency-key", &long_key)], None, &[422]),
        ("a wrong method", Method::GET, &claim, vec![], None, &[405]),
        ("another wrong method", Method::DELETE, "/v1/time", vec![], None, &[405]),
        ("no such route", Method::GET, "/v1/nothing", vec![], None, &[404]),
        ("no such sale", Method::POST, "/v1/sales/nothing-here/claim", vec![json, key], None, &[404]),
        ("no sale id", Method::GET, "/v1/sales/Not%20A%20Slug", vec![], None, &[404]),
        ("a path upwards", Method::GET, "/v1/sales/..%2f..%2fv1%2fadmin%2fsales", vec![], None, &[404]),
        ("the admin's route", Method::GET, "/v1/admin/sales", vec![], None, &[404]),
        ("the edges' route", Method::POST, "/v1/edge/leases", vec![json], Some(b"{}".to_vec()), &[404]),
        ("no claim id", Method::GET, "/v1/claims/nope?sale=x&q=1&t=1&m=x", vec![], None, &[404]),
        (
            "a claim without its MAC",
            Method::GET,
            "/v1/claims/6b0f2d0e-9d3c-5a55-8f61-35c05a1e7f10",
            vec![],
            None,
            &[400, 404],
        ),
    ];
    for (what, method, path, headers, body, expected) in cases {
        let asking = buyer.retrying(|| buyer.ask(method.clone(), path, &headers, body.clone()));
        let answer = asking.await.with_context(|| what.to_owned())?;
        let status = answer.status.as_u16();
        ensure!(expected.contains(&status), "{what}: {status} {}", String::from_utf8_lossy(&answer.body));
        answer.problem().with_context(|| what.to_owned())?;
    }
    lives(shop, &sale).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_gives_nothing_without_its_credentials() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("hostile-credentials", 2)).await?;
    for (method, path) in [
        (Method::POST, format!("/v1/sales/{sale}/enter")),
        (Method::POST, format!("/v1/sales/{sale}/claim")),
        (Method::GET, format!("/v1/sales/{sale}/my-claim")),
        (Method::GET, format!("/v1/edge/sales/{sale}")),
        (Method::POST, "/v1/edge/leases".to_owned()),
        (Method::GET, "/v1/admin/sales".to_owned()),
        (Method::POST, "/v1/admin/sales".to_owned()),
        (Method::GET, format!("/v1/admin/sales/{sale}")),
        (Method::PUT, format!("/v1/admin/sales/{sale}")),
        (Method::GET, format!("/v1/admin/sales/{sale}/versions/1")),
        (Method::POST, format!("/v1/admin/sales/{sale}/pause")),
        (Method::POST, format!("/v1/admin/sales/{sale}/resume")),
        (Method::POST, format!("/v1/admin/sales/{sale}/close")),
        (Method::POST, format!("/v1/admin/sales/{sale}/rebuild")),
        (Method::GET, format!("/v1/admin/sales/{sale}/rebuilds")),
        (Method::POST, format!("/v1/admin/sales/{sale}/reconcile")),
        (Method::GET, format!("/v1/admin/sales/{sale}/report")),
        (Method::GET, format!("/v1/admin/sales/{sale}/check")),
        (Method::GET, format!("/v1/admin/sales/{sale}/dead-letters")),
        (Method::POST, format!("/v1/admin/sales/{sale}/dead-letters/1/replay")),
        (Method::GET, format!("/v1/admin/sales/{sale}/ledger")),
        (Method::GET, format!("/v1/admin/sales/{sale}/document")),
        (Method::GET, format!("/v1/admin/sales/{sale}/audit")),
        (Method::GET, format!("/v1/admin/sales/{sale}/traffic")),
    ] {
        for credential in [None, Some("wrong")] {
            let mut request = shop.http.request(method.clone(), format!("{}{path}", shop.stack.origin_url()));
            if let Some(wrong) = credential {
                request = request.bearer_auth(wrong).header("flashgate-edge-key", wrong);
            }
            let answer = request.send().await?;
            assert_eq!(answer.status(), 401, "{method} {path} with {credential:?}");
        }
    }
    // What a client puts into internal headers does not get past the edge.
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let smuggled = [("flashgate-edge-key", "guess"), ("flashgate-permit", "1.1"), ("x-forwarded-for", "10.0.0.1")];
    let answer = buyer.ask(Method::GET, &format!("/v1/sales/{sale}/my-claim"), &smuggled, None).await?;
    assert_eq!(answer.status, 200);
    lives(shop, &sale).await
}
