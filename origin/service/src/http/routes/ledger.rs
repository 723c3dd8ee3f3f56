//! `GET /v1/admin/sales/{sale}/ledger`: the chain, page by page.

use crate::{
    App,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::admin_sales::{AdminError, row},
    },
};
use axum::{
    Json,
    extract::{Path, Query, State},
};
use flashgate_shared::{limits::LEDGER_PAGE_ENTRIES, wire::LedgerPage};
use serde::Deserialize;
use std::sync::Arc;

/// Which page.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Page {
    shard: i16,
    after: i64,
}

/// One page. The heads are read before the entries: the chain reaches at least so far.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<LedgerPage>, Refusal> {
    let sale = row(&app, &id).await?.config.id;
    let heads = app.ledger.heads(&sale).await.map_err(AdminError::from)?;
    let entries = app.ledger.entries(&sale, page.shard, page.after, LEDGER_PAGE_ENTRIES).await;
    Ok(Json(LedgerPage { heads, entries: entries.map_err(AdminError::from)? }))
}
