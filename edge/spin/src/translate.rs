//! Between the runtime's messages and those of the `http` crate.
//!
//! `spin-sdk` does the same in general; here it is done with as few calls across the boundary as the
//! gate needs, because most of what a refusal costs is spent there and not in deciding it.

use bytes::Bytes;
use flashgate_gate::{Body, BodyError, RequestBody};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri,
    header::CONTENT_LENGTH,
    uri::{Parts, PathAndQuery, Scheme},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use spin_sdk::wasip3::{
    http::types::{self, ErrorCode, Fields},
    http_compat::{
        BodyWriter, IncomingBody, IncomingMessage, IncomingRequestBody, IncomingResponseBody, http_into_wasi_response,
    },
    spawn,
};

/// A body of the client: it stays with the runtime until it is read.
pub(crate) struct Incoming(types::Request);

impl RequestBody for Incoming {
    async fn read(self, max_bytes: usize) -> Result<Bytes, BodyError> {
        let body = IncomingRequestBody::new(self.0).map_err(|_| BodyError::Broken)?;
        collect(body, max_bytes).await
    }
}

/// The whole body, if it has no more than so many bytes.
pub(crate) async fn collect<T: IncomingMessage>(body: IncomingBody<T>, max_bytes: usize) -> Result<Bytes, BodyError> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Err(_) => Err(BodyError::Broken),
    }
}

/// A request as the gate reads it.
pub(crate) fn request(message: types::Request) -> Result<http::Request<Incoming>, ErrorCode> {
    let method = Method::try_from(message.get_method()).map_err(|_| ErrorCode::HttpRequestMethodInvalid)?;
    let uri = uri(&message).ok_or(ErrorCode::HttpRequestUriInvalid)?;
    let headers = header_map(message.get_headers().copy_all()).ok_or(ErrorCode::HttpProtocolError)?;
    let mut request = http::Request::new(Incoming(message));
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

fn uri(message: &types::Request) -> Option<Uri> {
    let mut parts = Parts::default();
    let target = message.get_path_with_query().unwrap_or_else(|| "/".to_owned());
    parts.path_and_query = Some(PathAndQuery::from_maybe_shared(Bytes::from(target)).ok()?);
    if let Some(authority) = message.get_authority() {
        parts.authority = Some(authority.parse().ok()?);
        let https = matches!(message.get_scheme(), Some(types::Scheme::Https));
        parts.scheme = Some(if https { Scheme::HTTPS } else { Scheme::HTTP });
    }
    Uri::from_parts(parts).ok()
}

fn header_map(fields: Vec<(String, Vec<u8>)>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::try_with_capacity(fields.len()).ok()?;
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(Bytes::from(value)).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

/// The gate's answer as the runtime sends it. Its length is told where it is known, so that the
/// runtime can send head and body in one piece.
pub(crate) fn response(answer: Response<Body<IncomingResponseBody>>) -> Result<types::Response, ErrorCode> {
    let (parts, body) = answer.into_parts();
    let bytes = match body {
        Body::Bytes(bytes) => bytes,
        Body::Stream(stream) => return http_into_wasi_response(Response::from_parts(parts, stream)),
    };
    let mut fields = Vec::with_capacity(parts.headers.len() + 1);
    fields.extend(parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())));
    // An empty one may be the answer to HEAD, or a status that has no body: nothing is said of its length.
    if !bytes.is_empty() {
        fields.push((CONTENT_LENGTH.as_str().to_owned(), bytes.len().to_string().into_bytes()));
    }
    let fields = Fields::from_list(&fields).map_err(|e| ErrorCode::InternalError(Some(e.to_string())))?;
    Ok(with_body(fields, parts.status, bytes))
}

fn with_body(fields: Fields, status: StatusCode, bytes: Bytes) -> types::Response {
    let (mut writer, contents, trailers) = BodyWriter::new();
    let contents = (!bytes.is_empty()).then_some(contents);
    let (response, _sent) = types::Response::new(fields, contents, trailers);
    // `http` has checked the number.
    let _ = response.set_status_code(status.as_u16());
    spawn(async move {
        if !bytes.is_empty() {
            // A reader that is gone needs no rest.
            writer.stream_writer.write_all(bytes.into()).await;
        }
        drop(writer.stream_writer);
        let _ = writer.result_writer.write(Ok(None)).await;
    });
    response
}
