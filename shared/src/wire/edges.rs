//! What edges ask the origin.

use crate::{
    clock::UnixMs,
    ids::{Epoch, SaleId},
    sale::{SaleConfig, SaleState},
};
use serde::{Deserialize, Serialize};

/// What an edge needs to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeSale {
    /// The settings; `sale.version` is the document's version.
    pub sale: SaleConfig,
    /// The operator's state.
    pub state: SaleState,
    /// Public keys of entry tokens (RFC 7517).
    pub jwks: serde_json::Value,
    /// The `iss` of entry tokens.
    pub issuer: String,
    /// The authority's clock.
    pub now_ms: UnixMs,
}

/// The answer of `GET /v1/edge/sales/{sale}` (edge key).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeSaleAnswer {
    /// What it says now.
    #[serde(flatten)]
    pub sale: EdgeSale,
    /// The same, signed, for the edge's store; absent where the origin has no document key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
}

/// `GET /v1/admin/sales/{sale}/document`: what `flashgate sale publish` takes to the edges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentAnswer {
    /// The version of the document.
    pub version: i64,
    /// The sale document, signed.
    pub document: String,
    /// Lets it be put into an edge's store.
    pub publish_ticket: String,
    /// Lets it be read there.
    pub read_ticket: String,
}

/// The answer of an edge to a document that it took: `PUT /v1/edge/sales/{sale}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedAnswer {
    /// The version that is there now.
    pub version: i64,
    /// The version that was there before, if any.
    pub before: Option<i64>,
}

/// What a lease admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// Claims: `admit_factor × stock` a second.
    Claim,
    /// Entries: `enter_rate_per_s`.
    Enter,
}

/// `POST /v1/edge/leases` (edge key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The sale.
    pub sale: SaleId,
    /// What for.
    pub kind: LeaseKind,
    /// Permits wanted: the demand of one period.
    pub want: u32,
}

/// 200 of a lease request. `granted` may be 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Permits granted, at most `want`.
    pub granted: u32,
    /// When, by the authority's clock; goes into every permit.
    pub granted_at_ms: UnixMs,
    /// How long the permits may be spent, from `granted_at_ms`.
    pub ttl_ms: i64,
    /// When to ask again at the earliest; also the age at which the state below is old.
    pub retry_ms: i64,
    /// The authority's clock when it answered.
    pub now_ms: UnixMs,
    /// The operator's state.
    pub state: SaleState,
    /// Every bucket is known to hold zero.
    pub sold_out: bool,
    /// The gate's epoch.
    pub epoch: Epoch,
    /// The sale config's version: when it differs, fetch the document again.
    pub config_version: i64,
    /// Names of the keys that may have signed an entry, in order: when they differ, fetch the document
    /// again. Absent from an origin that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ids: Option<Vec<String>>,
}
