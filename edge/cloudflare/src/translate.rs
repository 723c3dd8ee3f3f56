//! Between the runtime's messages and those of the `http` crate. Most of what a refusal costs is spent here, in
//! calls across the boundary to JavaScript: there are as few as can be.

use bytes::Bytes;
use flashgate_gate::{Answer, Body, BodyError, OriginError, RequestBody, Terms};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header::CONTENT_ENCODING};
use worker::{
    ByteStream, Headers, Request, RequestInit, RequestRedirect, Response, ResponseBody, ResponseBuilder,
    js_sys::{Reflect, Uint8Array},
    wasm_bindgen::{self, prelude::wasm_bindgen},
    web_sys::{self, ReadableStream},
};

use crate::Runtime;

#[wasm_bindgen(module = "/src/glue.mjs")]
extern "C" {
    /// Fields as `name LF value LF …`.
    fn flattened(headers: &web_sys::Headers) -> String;

    /// A request's head as `method LF url LF name LF value LF …`.
    fn described(message: &web_sys::Request) -> String;

    /// An answer with such fields. `encoded`: the body is, as its fields say.
    fn responded(status: u16, fields: &str, body: &[u8], encoded: bool) -> web_sys::Response;
}

/// The request whose body it is: not even asked for until it is read, because that costs as much as a check.
pub(crate) struct Incoming(web_sys::Request);

impl RequestBody for Incoming {
    async fn read(self, max_bytes: usize) -> Result<Bytes, BodyError> {
        collect(self.0.body(), max_bytes).await
    }
}

/// The whole body, if it has no more than so many bytes.
async fn collect(body: Option<ReadableStream>, max_bytes: usize) -> Result<Bytes, BodyError> {
    let mut whole = Vec::new();
    let Some(body) = body else {
        return Ok(whole.into());
    };
    let mut chunks = ByteStream::from(body);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| BodyError::Broken)?;
        if whole.len() + chunk.len() > max_bytes {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.into())
}

/// A request as the gate reads it; `None` when it is not one of HTTP's.
pub(crate) fn request(raw: web_sys::Request) -> Option<http::Request<Incoming>> {
    let text = described(&raw);
    let mut parts = text.split('\n');
    let (method, url) = (parts.next()?, parts.next()?);
    let mut request = http::Request::new(Incoming(raw));
    *request.method_mut() = Method::from_bytes(method.as_bytes()).ok()?;
    *request.uri_mut() = Uri::try_from(url).ok()?;
    *request.headers_mut() = header_map(parts)?;
    Some(request)
}

/// Fields from names and values in turn.
fn header_map<'t>(mut parts: impl Iterator<Item = &'t str>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.try_append(name, HeaderValue::from_str(value).ok()?).ok()?;
    }
    Some(headers)
}

/// The runtime's headers. A value that is no text is left out: the runtime knows only text.
fn fields(headers: &HeaderMap) -> worker::Result<Headers> {
    let fields = Headers::new();
    for (name, value) in headers {
        if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
            fields.append(name.as_str(), text)?;
        }
    }
    Ok(fields)
}

/// The data centre that a request came to, in three letters; `local` where there is none.
pub(crate) fn colo(message: &web_sys::Request) -> String {
    // The library's own reader panics where the runtime tells less than Cloudflare does.
    let member = |of: &worker::wasm_bindgen::JsValue, name: &str| Reflect::get(of, &name.into()).ok();
    let colo = member(message, "cf").and_then(|cf| member(&cf, "colo")).and_then(|colo| colo.as_string());
    colo.unwrap_or_else(|| "local".to_owned())
}

/// A request of the gate as the runtime sends it to the origin.
pub(crate) fn outgoing(origin: &str, request: http::Request<Bytes>) -> Option<Request> {
    let (parts, body) = request.into_parts();
    let mut init = RequestInit::new();
    init.with_method(parts.method.as_str().to_owned().into());
    init.with_headers(fields(&parts.headers).ok()?);
    // What the origin answers is the client's to follow.
    init.with_redirect(RequestRedirect::Manual);
    if !body.is_empty() {
        // A fixed body: its length is told.
        init.with_body(Some(Uint8Array::from(&*body).into()));
    }
    Request::new_with_init(&format!("{origin}{}", parts.uri), &init).ok()
}

/// The origin's answer as the gate reads it.
pub(crate) async fn incoming(
    answer: Response,
    terms: Terms,
) -> Result<http::Response<Body<ReadableStream>>, OriginError> {
    let status = StatusCode::from_u16(answer.status_code()).map_err(|_| OriginError::NoAnswer)?;
    if let Some(error) = no_answer(status) {
        return Err(error);
    }
    let mut response = http::Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = header_map(flattened(&answer.headers().0).split('\n')).ok_or(OriginError::NoAnswer)?;
    let stream = match answer.body() {
        ResponseBody::Stream(stream) => Some(stream.clone()),
        ResponseBody::Empty | ResponseBody::Body(_) => None,
    };
    let body = match stream {
        Some(stream) if terms.stream && status.is_success() => Body::Stream(stream),
        stream => Body::Bytes(collect(stream, terms.max_bytes).await.map_err(|e| match e {
            BodyError::TooLarge => OriginError::TooLarge,
            BodyError::Broken => OriginError::NoAnswer,
        })?),
    };
    Ok(response.map(|()| body))
}

/// Cloudflare's own statuses for an origin that did not answer. Where no connection was made, the
/// request surely had no effect.
fn no_answer(status: StatusCode) -> Option<OriginError> {
    match status.as_u16() {
        521 | 523 | 525 | 526 => Some(OriginError::Unreachable),
        520..=530 => Some(OriginError::NoAnswer),
        _ => None,
    }
}

/// The gate's answer as the runtime sends it: what is there as a whole goes with its length.
pub(crate) fn response(answer: Answer<Runtime>) -> worker::Result<web_sys::Response> {
    let (parts, body) = answer.into_parts();
    let bytes = match body {
        Body::Bytes(bytes) => bytes,
        Body::Stream(stream) => {
            let builder = ResponseBuilder::new().with_status(parts.status.as_u16());
            return Ok(builder.with_headers(fields(&parts.headers)?).stream(stream).into());
        }
    };
    let mut text = String::with_capacity(512);
    for (name, value) in &parts.headers {
        // A value that is no text is left out: the runtime knows only text.
        if let Ok(value) = std::str::from_utf8(value.as_bytes()) {
            text.extend([name.as_str(), "\n", value, "\n"]);
        }
    }
    // What the gate has encoded the runtime must not encode again.
    let encoded = parts.headers.contains_key(CONTENT_ENCODING);
    Ok(responded(parts.status.as_u16(), &text, &bytes, encoded))
}
