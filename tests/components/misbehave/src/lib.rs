//! A component that does what a component must never do, so that the host's tests can show that
//! the host survives it: `/trap`, `/spin-forever`, `/big-memory`, `/slow`. The other paths tell
//! what the component sees: `/seen`, `/count`, `/fetch?url=`.

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Empty, Full};
use spin_sdk::{
    http::{IntoResponse, Request, Response, StatusCode, send},
    http_service, variables,
    wasip3::{clocks::monotonic_clock, http_compat::IncomingResponseBody},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocation step of `/big-memory`.
const STEP_BYTES: usize = 4 << 20;

/// `/slow` answers after this time.
const SLOW_NS: u64 = 500_000_000;

static COUNT: AtomicU64 = AtomicU64::new(0);

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

#[http_service]
async fn answer(request: Request) -> impl IntoResponse {
    let uri = request.uri().clone();
    let response = match uri.path() {
        "/trap" => std::process::abort(),
        "/spin-forever" => loop {
            std::hint::spin_loop();
        },
        "/big-memory" => text(StatusCode::OK, hoard().to_string()),
        "/slow" => {
            monotonic_clock::wait_for(SLOW_NS).await;
            text(StatusCode::OK, "slow but sure")
        }
        "/never" => {
            monotonic_clock::wait_for(u64::MAX / 2).await;
            text(StatusCode::OK, "")
        }
        "/count" => text(StatusCode::OK, COUNT.fetch_add(1, Ordering::Relaxed).to_string()),
        "/seen" => text(StatusCode::OK, seen(request).await),
        "/fetch" => return fetch(uri.query().and_then(|q| q.strip_prefix("url=")).unwrap_or_default()).await,
        _ => text(StatusCode::NOT_FOUND, "no such path"),
    };
    response.map(Either::Left)
}

/// Takes memory until there is no more.
fn hoard() -> usize {
    let mut held = Vec::new();
    loop {
        held.push(vec![1_u8; STEP_BYTES]);
        std::hint::black_box(&held);
    }
}

/// The request as the component sees it.
async fn seen(request: Request) -> String {
    let header = |name: &str| {
        let values: Vec<_> = request.headers().get_all(name).iter().map(|v| v.to_str().unwrap_or("?")).collect();
        values.join(" | ")
    };
    let (uri, address) = (request.uri().to_string(), header("spin-client-addr"));
    let body = request.into_body().collect().await.map(|b| b.to_bytes().len()).unwrap_or_default();
    let variable = |name: &'static str| async move { variables::get(name).await.unwrap_or_else(|e| format!("{e:?}")) };
    let (origin, key, other) = (variable("origin_url").await, variable("edge_key").await, variable("other").await);
    eprintln!("seen {uri}");
    format!("uri={uri}\naddress={address}\nbody={body}\norigin_url={origin}\nedge_key={key}\nother={other}\n")
}

/// The answer of another server, passed through as it comes.
async fn fetch(url: &str) -> Response<Either<Full<Bytes>, IncomingResponseBody>> {
    let Ok(request) = http::Request::get(url).body(Empty::<Bytes>::new()) else {
        return text(StatusCode::BAD_REQUEST, "not a URL").map(Either::Left);
    };
    match send(request).await {
        Ok(response) => Response::new(Either::Right(response.into_body())),
        Err(error) => text(StatusCode::BAD_GATEWAY, format!("{error:?}")).map(Either::Left),
    }
}
