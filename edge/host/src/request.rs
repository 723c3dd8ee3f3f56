//! One request: checked, read, given to the instance, answered.

use crate::{
    access_log::AccessLog,
    answer::{AnswerBody, Problem},
    config::{Limits, ms},
    gauge::{Gauge, Inside},
    metrics::{Metrics, Open, count},
    worker::Job,
};
use bytes::Bytes;
use futures_channel::oneshot;
use http::{
    HeaderName, HeaderValue, Request, Response, Uri, header,
    request::Parts,
    uri::{Authority, Scheme},
};
use http_body::Body;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::mpsc, time::timeout};
use wasmtime_wasi_http::{WasiBody, p3::bindings::http::types::ErrorCode};

/// The header in which the component finds the client's address, as under Spin.
const CLIENT_ADDRESS: HeaderName = HeaderName::from_static("spin-client-addr");

/// Given to a request beyond the instance's own time, in which the instance can say that it expired.
const ANSWER_SLACK_MS: u64 = 1_000;

/// An answer that says to have at most this many bytes is gathered and sent in one piece.
const WHOLE_ANSWER_BYTES: u64 = 64 << 10;

/// What the requests of one thread share.
pub(crate) struct Desk {
    worker: mpsc::UnboundedSender<Job>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    /// Requests whose bodies are being read.
    bodies: Arc<Gauge>,
    in_flight: Arc<Gauge>,
    open_answers: Arc<Gauge>,
    pub(crate) access_log: Option<AccessLog>,
}

impl Desk {
    /// The sender is unbounded: `max_requests_in_flight` bounds what is sent.
    pub(crate) fn new(
        worker: mpsc::UnboundedSender<Job>,
        limits: Limits,
        metrics: Arc<Metrics>,
        access_log: Option<AccessLog>,
    ) -> Self {
        Self {
            worker,
            metrics,
            access_log,
            bodies: Gauge::new(limits.max_requests_in_flight),
            in_flight: Gauge::new(limits.max_requests_in_flight),
            open_answers: Gauge::new(limits.max_open_answers),
            limits,
        }
    }

    /// Answers a request from the client with this address.
    pub(crate) async fn answer(
        &self,
        client: HeaderValue,
        scheme: Scheme,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let _open = Open::new(&self.metrics.requests_open);
        let response = self.try_answer(client, scheme, request).await.unwrap_or_else(|problem| {
            if problem == Problem::Overloaded {
                count(&self.metrics.overloads);
            }
            problem.answer()
        });
        self.metrics.answered(response.status());
        response
    }

    async fn try_answer(
        &self,
        client: HeaderValue,
        scheme: Scheme,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Problem> {
        let (mut parts, body) = request.into_parts();
        if parts.headers.len() > self.limits.max_headers {
            return Err(Problem::Headers);
        }
        parts.uri = absolute(&parts, scheme).ok_or(Problem::NoAuthority)?;
        parts.headers.insert(CLIENT_ADDRESS, client);
        let body = self.read(body).await?;
        let open = self.open_answers.enter().ok_or(Problem::Overloaded)?;
        let place = self.in_flight.enter().ok_or(Problem::Overloaded)?;
        let request = Request::from_parts(parts, body);
        let time = ms(self.limits.request_timeout_ms.saturating_add(ANSWER_SLACK_MS));
        let (answer, answered) = oneshot::channel();
        self.worker.send(Job { request, answer, place }).map_err(|_| Problem::Interrupted)?;
        let whole = async {
            match answered.await {
                Ok(Ok(response)) => gather(response, open).await,
                Ok(Err(e)) if e.is::<ErrorCode>() => {
                    tracing::error!(error = format!("{e:#}"), "the component gave an error");
                    Err(Problem::Component)
                }
                // A trap, here or in another request of the instance.
                Ok(Err(_)) | Err(_) => Err(Problem::Interrupted),
            }
        };
        timeout(time, whole).await.unwrap_or(Err(Problem::Interrupted))
    }

    /// The whole body: a slow client costs the instance nothing.
    async fn read(&self, body: Incoming) -> Result<WasiBody, Problem> {
        if body.is_end_stream() {
            return Ok(boxed(Bytes::new()));
        }
        let limit = self.limits.max_body_bytes;
        if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(Problem::BodyTooLarge);
        }
        let _place = self.bodies.enter().ok_or(Problem::Overloaded)?;
        match timeout(ms(self.limits.body_read_timeout_ms), Limited::new(body, limit).collect()).await {
            Ok(Ok(collected)) => Ok(boxed(collected.to_bytes())),
            Ok(Err(e)) if e.is::<LengthLimitError>() => Err(Problem::BodyTooLarge),
            Ok(Err(_)) => Err(Problem::BodyBroken),
            Err(_) => Err(Problem::BodyTooSlow),
        }
    }
}

/// A small answer goes out whole: head and body in one write, and never only half of it. A large one,
/// or one of unknown length as an event stream is, goes out as it comes.
async fn gather(response: Response<WasiBody>, open: Inside) -> Result<Response<AnswerBody>, Problem> {
    let length = response.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_none_or(|bytes| bytes > WHOLE_ANSWER_BYTES) {
        return Ok(response.map(|body| AnswerBody::Component { body, _open: open }));
    }
    let (parts, body) = response.into_parts();
    // The host allows a body no more bytes than were announced.
    let body = body.collect().await.map_err(|_| Problem::Interrupted)?.to_bytes();
    Ok(Response::from_parts(parts, AnswerBody::Whole(Full::new(body))))
}

fn boxed(bytes: Bytes) -> WasiBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The request's URI with the connection's scheme and an authority, the latter from `Host` if it must be.
fn absolute(parts: &Parts, scheme: Scheme) -> Option<Uri> {
    let authority = match parts.uri.authority() {
        Some(authority) => authority.clone(),
        None => {
            Authority::from_maybe_shared(Bytes::copy_from_slice(parts.headers.get(header::HOST)?.as_bytes())).ok()?
        }
    };
    let mut uri = parts.uri.clone().into_parts();
    // What a client claims in its request line is not how it came.
    uri.scheme = Some(scheme);
    uri.authority = Some(authority);
    if uri.path_and_query.is_none() {
        uri.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    Uri::from_parts(uri).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_absolute(uri: &str, host: Option<&str>) -> Option<String> {
        let mut request = Request::get(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        absolute(&request.body(()).unwrap().into_parts().0, Scheme::HTTP).map(|u| u.to_string())
    }

    #[test]
    fn a_uri_becomes_absolute() {
        assert_eq!(made_absolute("/a?b=c", Some("shop.example:81")).unwrap(), "http://shop.example:81/a?b=c");
        assert_eq!(made_absolute("https://x/y", Some("z")).unwrap(), "http://x/y", "it came without TLS");
        assert_eq!(made_absolute("*", Some("z")).unwrap(), "http://z*");
    }

    #[test]
    fn without_a_usable_host_there_is_none() {
        assert_eq!(made_absolute("/", None), None);
        assert_eq!(made_absolute("/", Some("a b")), None);
        assert_eq!(made_absolute("/", Some("")), None);
    }
}
