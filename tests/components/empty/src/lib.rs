//! The smallest HTTP component: 200 and an empty body, whatever is asked. Benchmarks measure the
//! gate against it, so that the figures show the gate's own cost and not the runtime's.

use spin_sdk::{
    http::{IntoResponse, Request, StatusCode},
    http_service,
};

#[http_service]
async fn answer(_request: Request) -> impl IntoResponse {
    StatusCode::OK
}
