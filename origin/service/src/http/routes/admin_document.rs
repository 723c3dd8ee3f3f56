//! `GET /v1/admin/sales/{sale}/document`: the sale document, and tickets for the edges' route.

use crate::{
    App,
    http::{
        extract::Operator,
        problem::Refusal,
        routes::{admin_sales, edge_sale::edge_sale},
    },
};
use axum::{
    Json,
    extract::{Path, State},
};
use flashgate_shared::{
    Clock,
    document::{DOCUMENT_TYPE, Scope, TICKET_TYPE, Ticket},
    problem::ProblemKind,
    wire::DocumentAnswer,
};
use std::sync::Arc;

/// Why there is no document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentError {
    /// This origin has no document key.
    NoKey,
}

impl From<DocumentError> for Refusal {
    fn from(error: DocumentError) -> Self {
        match error {
            DocumentError::NoKey => Refusal::new(ProblemKind::NotFound)
                .detail("this origin signs no sale documents: set secrets.document_key_file"),
        }
    }
}

/// Signs what the sale is now.
pub async fn handler(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<DocumentAnswer>, Refusal> {
    let row = admin_sales::row(&app, &id).await?;
    let now_ms = app.clock.now_ms();
    let ticket = |scope| Ticket::new(row.config.id.clone(), scope, now_ms);
    let sign = |scope| app.secrets.sign_document(TICKET_TYPE, &ticket(scope)).ok_or(DocumentError::NoKey);
    let document = app.secrets.sign_document(DOCUMENT_TYPE, &edge_sale(&app, &row)).ok_or(DocumentError::NoKey)?;
    Ok(Json(DocumentAnswer {
        version: row.config.version,
        document,
        publish_ticket: sign(Scope::Publish)?,
        read_ticket: sign(Scope::Read)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_key_the_way_out_is_named() {
        let refusal = Refusal::from(DocumentError::NoKey);
        assert_eq!(refusal.0.status, 404);
        assert!(refusal.0.detail.is_some_and(|detail| detail.contains("document_key_file")));
    }
}
