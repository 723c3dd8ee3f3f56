//! The host's own answers, and the body of all answers.

use crate::gauge::Inside;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use wasmtime_wasi_http::{Error, WasiBody};

/// After a refusal because of load, clients are asked to wait this long.
const RETRY_AFTER_S: &str = "1";

/// The body of an answer.
pub(crate) enum AnswerBody {
    /// All of it is there: the host's own, or a small one of the component.
    Whole(Full<Bytes>),
    /// One of the component that is still coming, with its place among the open answers.
    Component { body: WasiBody, _open: Inside },
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Component { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Component { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Component { body, .. } => body.size_hint(),
        }
    }
}

/// Why the host answers itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Problem {
    /// Neither the request line nor `Host` says for whom the request is.
    NoAuthority,
    /// Too many header fields.
    Headers,
    /// The body is too large.
    BodyTooLarge,
    /// The body did not come in time.
    BodyTooSlow,
    /// The body broke off.
    BodyBroken,
    /// The instance has enough to do.
    Overloaded,
    /// The instance ended, or did not answer in time; the request may have been carried out.
    Interrupted,
    /// The component gave an error in place of an answer.
    Component,
}

impl Problem {
    const fn terms(self) -> (StatusCode, &'static [u8]) {
        match self {
            Self::NoAuthority => (
                StatusCode::BAD_REQUEST,
                br#"{"type":"about:blank","title":"Bad request","status":400,"detail":"The Host header is missing or unusable."}"#,
            ),
            Self::Headers => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                br#"{"type":"about:blank","title":"Too many header fields","status":431}"#,
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                br#"{"type":"about:blank","title":"The body is too large","status":413}"#,
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                br#"{"type":"about:blank","title":"The body did not come in time","status":408}"#,
            ),
            Self::BodyBroken => (
                StatusCode::BAD_REQUEST,
                br#"{"type":"about:blank","title":"Bad request","status":400,"detail":"The body broke off."}"#,
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                br#"{"type":"about:blank","title":"Busy","status":503,"detail":"Nothing was done. Try again in a moment."}"#,
            ),
            Self::Interrupted => (
                StatusCode::SERVICE_UNAVAILABLE,
                br#"{"type":"about:blank","title":"Interrupted","status":503,"detail":"Whether the request was carried out is unknown. Repeat it as it is."}"#,
            ),
            Self::Component => (
                StatusCode::INTERNAL_SERVER_ERROR,
                br#"{"type":"about:blank","title":"Internal error","status":500}"#,
            ),
        }
    }

    /// The answer.
    pub(crate) fn answer(self) -> Response<AnswerBody> {
        let (status, body) = self.terms();
        let mut response = Response::new(AnswerBody::Whole(Full::new(Bytes::from_static(body))));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        if matches!(self, Self::BodyTooLarge | Self::BodyTooSlow) {
            // What is left of the body is not read.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problems_text_repeats_its_status() {
        use Problem::*;
        for p in [NoAuthority, Headers, BodyTooLarge, BodyTooSlow, BodyBroken, Overloaded, Interrupted, Component] {
            let (status, body) = p.terms();
            let json: serde_json::Value = serde_json::from_slice(body).unwrap();
            assert_eq!(json["status"], status.as_u16(), "{p:?}");
        }
    }
}
