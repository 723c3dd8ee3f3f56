//! `GET /v1/edge/sales/{sale}`: what an edge needs to decide.

use crate::{
    App,
    http::{
        extract::{self, Edge},
        problem::Refusal,
    },
};
use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use flashgate_ledger::SaleRow;
use flashgate_shared::{
    Clock,
    document::DOCUMENT_TYPE,
    wire::{EdgeSale, EdgeSaleAnswer},
};
use http::{HeaderMap, HeaderName, StatusCode, header};
use std::sync::Arc;

/// The sale's settings and the public keys of entry tokens; `ETag` is the version.
pub async fn handler(
    _: Edge,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let sale = extract::sale(&app, &id)?;
    let etag = format!("\"{}\"", sale.row.config.version);
    let tag: [(HeaderName, String); 1] = [(header::ETAG, etag.clone())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes()) {
        return Ok((StatusCode::NOT_MODIFIED, tag).into_response());
    }
    let says = edge_sale(&app, &sale.row);
    let document = app.secrets.sign_document(DOCUMENT_TYPE, &says);
    Ok((tag, Json(EdgeSaleAnswer { sale: says, document })).into_response())
}

/// What edges are told of a sale.
pub fn edge_sale(app: &App, row: &SaleRow) -> EdgeSale {
    EdgeSale {
        sale: row.config.clone(),
        state: row.state,
        jwks: app.secrets.jwks.clone(),
        issuer: app.config.token.issuer.clone(),
        now_ms: app.clock.now_ms(),
    }
}
