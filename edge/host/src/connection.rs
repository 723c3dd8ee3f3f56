//! One connection of a client: HTTP/1.1 or HTTP/2, as the client begins.

use crate::{
    access_log::{Entry, shortened},
    answer::AnswerBody,
    config::ms,
    request::Desk,
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use wasmtime_wasi_http::Error;

/// In which the component tells a request's trace.
const TRACE_ID: &str = "flashgate-trace-id";

/// What a connection's watch needs to know.
#[derive(Default)]
struct Activity {
    /// Requests being answered.
    active: AtomicUsize,
    /// Requests begun.
    begun: AtomicU64,
}

/// How HTTP is spoken, the same for all connections.
pub(crate) fn builder(desk: &Desk) -> Builder<TokioExecutor> {
    let limits = &desk.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(ms(limits.header_read_timeout_ms.max(1)))
        .max_buf_size(usize::try_from(limits.max_header_bytes).unwrap_or(usize::MAX));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_h2_streams)
        .max_header_list_size(limits.max_header_bytes);
    builder
}

/// Serves a connection to its end. On shutdown it takes no more requests and ends after the last.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    desk: Arc<Desk>,
    builder: &Builder<TokioExecutor>,
    stream: S,
    peer: SocketAddr,
    scheme: Scheme,
    shutdown: CancellationToken,
) {
    let Ok(client) = HeaderValue::try_from(canonical(peer).to_string()) else { return };
    let activity = Arc::new(Activity::default());
    let service = service_fn({
        let (desk, activity) = (desk.clone(), activity.clone());
        move |request| answer(desk.clone(), activity.clone(), (client.clone(), scheme.clone()), request)
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let first = ms(desk.limits.header_read_timeout_ms);
    let idle = ms(desk.limits.idle_timeout_ms);
    let mut watch = pin!(sleep(first));
    let (mut seen, mut ending) = (0, false);
    loop {
        tokio::select! {
            biased;
            end = connection.as_mut() => {
                if let Err(e) = end {
                    tracing::debug!(error = %e, %peer, "connection ended");
                }
                return;
            }
            () = shutdown.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = watch.as_mut() => {
                let begun = activity.begun.load(Relaxed);
                // The first look is for the first request; later ones for any request since the last look.
                if activity.active.load(Relaxed) == 0 && begun == seen {
                    return;
                }
                seen = begun;
                watch.as_mut().reset(Instant::now() + idle);
            }
        }
    }
}

async fn answer(
    desk: Arc<Desk>,
    activity: Arc<Activity>,
    (client, scheme): (HeaderValue, Scheme),
    request: Request<Incoming>,
) -> Result<Response<Answered>, Infallible> {
    activity.begun.fetch_add(1, Relaxed);
    activity.active.fetch_add(1, Relaxed);
    let active = Active(activity);
    let began = desk.access_log.is_some().then(|| {
        let text = client.to_str().unwrap_or_default().to_owned();
        (Instant::now(), text, request.method().clone(), shortened(request.uri().path()), request.version())
    });
    let response = desk.answer(client, scheme, request).await;
    let wanted = desk.access_log.as_ref().filter(|log| log.wants(response.status()));
    let entry = wanted.zip(began).map(|(log, (began, client, method, path, version))| Entry {
        log: log.clone(),
        began: began.into_std(),
        client,
        method,
        path,
        version,
        status: response.status(),
        trace: response.headers().get(TRACE_ID).and_then(|id| id.to_str().ok()).map(str::to_owned),
    });
    Ok(response.map(|body| Answered { body, bytes: 0, entry, _active: active }))
}

/// A request being answered.
struct Active(Arc<Activity>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

/// The body of an answer: until its end the connection is in use.
struct Answered {
    body: AnswerBody,
    bytes: u64,
    /// What the access log is told at its end.
    entry: Option<Entry>,
    _active: Active,
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.end(self.bytes);
        }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An IPv4 address that came mapped into IPv6 is written as IPv4.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// What of an address stands for one client: IPv4 whole, IPv6 its /64.
pub(crate) fn client_key(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_client_have_one_key() {
        let key = |text: &str| client_key(text.parse().unwrap());
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    }
}
