//! Requests of the component to other servers: only to hosts on the list, over pooled connections,
//! within time limits. Answers are passed through as they come, so event streams work.

use crate::{
    config::{Limits, ms, uri_host},
    metrics::{Metrics, count},
};
use bytes::Bytes;
use http::{HeaderName, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use std::{
    error::Error as _,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, timeout};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// Idle connections kept per host and thread.
const MAX_IDLE_CONNECTIONS: usize = 256;

/// An idle connection is dropped after this time: before the other side drops it.
const IDLE_CONNECTION_MS: u64 = 4_000;

/// What belongs to one connection and not to the message.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::TE,
    header::UPGRADE,
];

type Work = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Box<dyn Future<Output = Result<(Response<WasiBody>, Work), Error>> + Send>;

/// The way out of the component; clones share the connections.
#[derive(Clone)]
pub(crate) struct Outgoing {
    client: Client<HttpsConnector<HttpConnector>, WasiBody>,
    allowed: Arc<Vec<String>>,
    times: Times,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Copy)]
struct Times {
    first_byte: Duration,
    silence: Duration,
}

impl Outgoing {
    /// A way out with its own connections, which belong to the calling thread's runtime.
    pub(crate) fn new(tls: rustls::ClientConfig, allowed: Vec<String>, limits: &Limits, metrics: Arc<Metrics>) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(ms(limits.outgoing_connect_timeout_ms)));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .pool_idle_timeout(ms(IDLE_CONNECTION_MS))
            .build(connector);
        let times = Times {
            first_byte: ms(limits.outgoing_first_byte_timeout_ms),
            silence: ms(limits.outgoing_silence_timeout_ms),
        };
        Self { client, allowed: Arc::new(allowed), times, metrics }
    }

    fn allows(&self, uri: &Uri) -> bool {
        uri_host(uri).is_some_and(|host| self.allowed.contains(&host))
    }
}

impl WasiHttpHooks for Outgoing {
    fn send_request(&mut self, request: Request<WasiBody>, options: Option<RequestOptions>, _: Work) -> Sent {
        count(&self.metrics.outgoing);
        if !self.allows(request.uri()) {
            count(&self.metrics.outgoing_denied);
            tracing::warn!(uri = %request.uri(), "outgoing request denied");
            return Box::new(std::future::ready(Err(Error::HttpRequestDenied)));
        }
        let mut times = self.times;
        if let Some(options) = options {
            // The component may be stricter, not laxer.
            times.first_byte = options.first_byte_timeout.unwrap_or(times.first_byte).min(times.first_byte);
            times.silence = options.between_bytes_timeout.unwrap_or(times.silence).min(times.silence);
        }
        Box::new(send(self.client.clone(), request, times))
    }
}

async fn send(
    client: Client<HttpsConnector<HttpConnector>, WasiBody>,
    request: Request<WasiBody>,
    times: Times,
) -> Result<(Response<WasiBody>, Work), Error> {
    let answer = match timeout(times.first_byte, client.request(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) => return Err(error(&e)),
        Err(_) => return Err(Error::HttpResponseTimeout),
    };
    let (mut parts, body) = answer.into_parts();
    for name in HOP_BY_HOP {
        parts.headers.remove(name);
    }
    let body = Watched { body, silence: times.silence, timer: None };
    let done: Work = Box::new(std::future::ready(Ok(())));
    Ok((Response::from_parts(parts, body.boxed_unsync()), done))
}

/// Says whether the request surely never left: the component may then try again.
fn error(e: &hyper_util::client::legacy::Error) -> Error {
    if !e.is_connect() {
        return Error::ConnectionTerminated;
    }
    let mut cause = e.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            match io.kind() {
                io::ErrorKind::TimedOut => return Error::ConnectionTimeout,
                io::ErrorKind::ConnectionRefused => return Error::ConnectionRefused,
                _ => {}
            }
        }
        cause = inner.source();
    }
    Error::DestinationUnavailable
}

/// A body that ends with an error when nothing comes for too long.
struct Watched {
    body: Incoming,
    silence: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(timer) = &mut this.timer {
                timer.as_mut().reset(Instant::now() + this.silence);
            }
            return Poll::Ready(frame.map(|f| f.map_err(Error::from)));
        }
        // Most bodies come at once: the timer is made when one does not.
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(this.silence)));
        timer.as_mut().poll(cx).map(|()| Some(Err(Error::ConnectionReadTimeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
