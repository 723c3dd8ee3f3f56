//! Key names; the table is in the crate's documentation.

use flashgate_shared::{BucketIndex, SaleId, wire::LeaseKind};

/// The keys of one bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketKeys {
    pub stock: String,
    pub buyers: String,
    pub claims: String,
    pub epoch: String,
    pub loading: String,
    pub server: String,
}

impl BucketKeys {
    pub(crate) fn new(prefix: &str, sale: &SaleId, bucket: BucketIndex) -> Self {
        let key = |part: &str| format!("{{{prefix}:{sale}:{bucket}}}:{part}");
        Self {
            stock: key("stock"),
            buyers: key("buyers"),
            claims: key("claims"),
            epoch: key("epoch"),
            loading: key("loading"),
            server: key("server"),
        }
    }
}

/// The key of a lease bucket.
pub(crate) fn lease(prefix: &str, sale: &SaleId, kind: LeaseKind) -> String {
    let kind = match kind {
        LeaseKind::Claim => "claim",
        LeaseKind::Enter => "enter",
    };
    format!("{{{prefix}:{sale}}}:lease:{kind}")
}
