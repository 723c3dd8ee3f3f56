//! Sale documents (design §5): a sale's settings as the origin signs them for edges, and the tickets that
//! open the edge's route for them.
//!
//! Both are JWTs (RFC 7519) by the origin's *document key*, Ed25519, told apart by their `typ`. An edge
//! holds that key's public half only. A document lives as long as no newer one is known; a ticket lives a
//! minute. That policy has its one home here.

use crate::{
    clock::UnixMs,
    ids::SaleId,
    sale::SaleConfigError,
    token::{KeySet, TokenError, verify_signature},
    wire::EdgeSale,
};
use serde::{Deserialize, Serialize};

/// The `typ` of a sale document.
pub const DOCUMENT_TYPE: &str = "flashgate-sale+jwt";
/// The `typ` of a ticket.
pub const TICKET_TYPE: &str = "flashgate-ticket+jwt";
/// The `aud` of a ticket.
pub const TICKET_AUDIENCE: &str = "flashgate-edge";
/// How long a ticket lives, in seconds.
pub const TICKET_LIFE_S: i64 = 60;
/// The media type of a document on its way (RFC 7519 §10.3.1).
pub const DOCUMENT_MEDIA: &str = "application/jwt";

/// What a ticket allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To put a newer document into the edge's store.
    Publish,
    /// To see the one that is there.
    Read,
}

/// The claims of a ticket. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Always [`TICKET_AUDIENCE`].
    pub aud: String,
    /// The sale that it is for.
    pub sub: SaleId,
    /// What it allows.
    pub scope: Scope,
    /// Not valid before, in seconds.
    pub nbf: i64,
    /// Not valid from this second on.
    pub exp: i64,
}

impl Ticket {
    /// One for this sale, from now on.
    pub fn new(sale: SaleId, scope: Scope, now_ms: UnixMs) -> Self {
        let now_s = now_ms.div_euclid(1_000);
        Self { aud: TICKET_AUDIENCE.to_owned(), sub: sale, scope, nbf: now_s, exp: now_s.saturating_add(TICKET_LIFE_S) }
    }

    /// Verifies a ticket for this sale and scope at `now_ms`, which may be off by `error_ms` either way.
    pub fn verify(
        token: &str,
        keys: &KeySet,
        sale: &SaleId,
        scope: Scope,
        now_ms: UnixMs,
        error_ms: i64,
    ) -> Result<(), TokenError> {
        let ticket: Self = verify_signature(token, keys, TICKET_TYPE)?;
        if ticket.aud != TICKET_AUDIENCE || ticket.sub != *sale || ticket.scope != scope {
            return Err(TokenError::Audience);
        }
        if now_ms.saturating_add(error_ms) < ticket.nbf.saturating_mul(1_000) {
            return Err(TokenError::NotYetValid);
        }
        if now_ms.saturating_sub(error_ms) >= ticket.exp.saturating_mul(1_000) {
            return Err(TokenError::Expired);
        }
        Ok(())
    }
}

/// Why a sale document is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not signed by the origin, or no document.
    #[error("it is no sale document of this origin: {0}")]
    Signature(TokenError),
    /// The settings in it break a bound.
    #[error("{0}")]
    Settings(SaleConfigError),
    /// The keys in it cannot be used.
    #[error("its keys of entry tokens cannot be used")]
    Keys,
}

/// The content of a sale document, when the origin signed it and it can be used.
pub fn verify(document: &str, keys: &KeySet) -> Result<EdgeSale, DocumentError> {
    let sale: EdgeSale = verify_signature(document, keys, DOCUMENT_TYPE).map_err(DocumentError::Signature)?;
    sale.sale.validate().map_err(DocumentError::Settings)?;
    KeySet::from_json(&sale.jwks).map_err(|_| DocumentError::Keys)?;
    Ok(sale)
}
