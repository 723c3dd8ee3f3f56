//! The component: a [`Job`] comes as the body of a request, the nanoseconds go back as text.

use crate::{Job, run};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use spin_sdk::{
    http::{IntoResponse, Request, Response, StatusCode},
    http_service,
};

#[http_service]
async fn answer(request: Request) -> impl IntoResponse {
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let outcome = serde_json::from_slice::<Job>(&body).map_err(|e| e.to_string()).and_then(|job| run(&job));
    let (status, text) = match outcome {
        Ok(ns) => (StatusCode::OK, ns.to_string()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
