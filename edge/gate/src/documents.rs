//! Sale documents in the edge's store: taken from operators, shown to them, used by instances that know
//! nothing yet (design §5). The store is the runtime's, shared by its instances and there after a restart.
//!
//! A document is only ever replaced by a newer one that the origin signed: whatever happens, the edge
//! keeps the last good one.

use crate::{
    address::Class,
    gate::{Gate, Request},
    host::{Host, RequestBody},
    limits::DOCUMENT_RETRY_MS,
    refuse::Refusal,
    view,
};
use bytes::Bytes;
use flashgate_shared::{
    SaleId,
    document::{self, DOCUMENT_MEDIA, DocumentError, Scope, Ticket},
    limits::DOCUMENT_BYTES,
    problem::ProblemKind,
    token::{self, TokenError},
    wire::{EdgeSale, PublishedAnswer},
};
use http::{
    HeaderValue, Response,
    header::{AUTHORIZATION, CONTENT_TYPE},
};

const JWT: HeaderValue = HeaderValue::from_static(DOCUMENT_MEDIA);

/// Where a sale's document is in the store.
fn key(id: &str) -> String {
    format!("sale/{id}")
}

impl Gate {
    /// `PUT /v1/edge/sales/{sale}`: takes a newer document.
    pub(crate) async fn publish<H: Host, B: RequestBody>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: B,
        id: &str,
    ) -> Result<Response<Bytes>, Refusal> {
        let sale = self.admit_operator(rq, head, id, Scope::Publish)?;
        let body = body.read(DOCUMENT_BYTES).await.map_err(|_| Refusal::new(ProblemKind::BodyTooLarge))?;
        let text = std::str::from_utf8(&body).map_err(|_| Refusal::new(ProblemKind::BadRequest))?.trim();
        let doc = document::verify(text, &self.document_keys).map_err(|e| unusable(&e))?;
        if doc.sale.id != sale {
            return Err(Refusal::new(ProblemKind::Unprocessable).detail("The document is for another sale."));
        }
        let no_store = || {
            Refusal::new(ProblemKind::Unavailable)
                .retry_after_ms(rq.jitter(DOCUMENT_RETRY_MS))
                .detail("The edge's store does not answer.")
        };
        let before = rq.host.kv_get(&key(id)).await.map_err(|_| no_store())?;
        let before = before.and_then(|bytes| self.read(id, &bytes));
        if let Some(before) = &before {
            let (there, comes) = (before.sale.version, doc.sale.version);
            if comes < there {
                return Err(Refusal::new(ProblemKind::Outdated).detail("A newer version is in the edge's store."));
            }
            if comes == there && !same(before, &doc) {
                return Err(Refusal::new(ProblemKind::Outdated)
                    .detail("Another document of the same version is in the edge's store."));
            }
        }
        rq.host.kv_put(&key(id), text.as_bytes()).await.map_err(|_| no_store())?;
        let answer =
            PublishedAnswer { version: doc.sale.version, before: before.as_ref().map(|before| before.sale.version) };
        self.adopt(rq, id, doc);
        Ok(view::json(&answer, rq.trace))
    }

    /// `GET /v1/edge/sales/{sale}`: the document that is in the store.
    pub(crate) async fn show_document<H: Host>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        id: &str,
    ) -> Result<Response<Bytes>, Refusal> {
        self.admit_operator(rq, head, id, Scope::Read)?;
        match rq.host.kv_get(&key(id)).await {
            Ok(Some(bytes)) => {
                let mut response = Response::new(Bytes::from(bytes));
                response.headers_mut().insert(CONTENT_TYPE, JWT);
                crate::refuse::common_headers(response.headers_mut(), rq.trace);
                Ok(response)
            }
            Ok(None) => Err(Refusal::new(ProblemKind::NotFound).detail("No document of this sale was published here.")),
            Err(_) => Err(Refusal::new(ProblemKind::Unavailable)
                .retry_after_ms(rq.jitter(DOCUMENT_RETRY_MS))
                .detail("The edge's store does not answer.")),
        }
    }

    /// Whoever brings a ticket of the origin's, and not too often: the signature is only looked at then. An
    /// edge without document keys has no such route.
    fn admit_operator<H: Host>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        id: &str,
        scope: Scope,
    ) -> Result<SaleId, Refusal> {
        if self.document_keys.is_empty() {
            return Err(Refusal::new(ProblemKind::NotFound));
        }
        self.take_default(rq, Class::Read)?;
        let sale: SaleId = id.parse().map_err(|_| Refusal::new(ProblemKind::NotFound))?;
        let header = head.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let ticket = header.and_then(token::bearer).unwrap_or_default();
        let clock = self.state.borrow().clock;
        let error_ms = clock.error_ms(rq.now.get()).unwrap_or(UNKNOWN_CLOCK_ERROR_MS);
        match Ticket::verify(ticket, &self.document_keys, &sale, scope, clock.now_ms(rq.now.get()), error_ms) {
            Ok(()) => Ok(sale),
            Err(TokenError::Audience) => {
                Err(Refusal::new(ProblemKind::Forbidden).detail("The ticket is for something else."))
            }
            Err(TokenError::Expired | TokenError::NotYetValid) => {
                Err(Refusal::new(ProblemKind::Unauthorized).detail("The ticket's minute is over, or has not come."))
            }
            Err(_) => Err(Refusal::new(ProblemKind::Unauthorized).detail("A ticket of the origin's is needed.")),
        }
    }

    /// The sale as the store knows it, for an instance that does not.
    pub(crate) async fn stored<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Option<EdgeSale> {
        if self.document_keys.is_empty() {
            return None;
        }
        let bytes = rq.host.kv_get(&key(id)).await.ok()??;
        self.read(id, &bytes)
    }

    /// Keeps what the origin said, if it is newer than what is there. When that fails there is still the
    /// origin.
    pub(crate) async fn keep<H: Host>(&self, rq: &Request<'_, H>, id: &str, text: &str) {
        let Some(doc) = document::verify(text, &self.document_keys).ok().filter(|doc| doc.sale.id.as_str() == id)
        else {
            return;
        };
        let Ok(before) = rq.host.kv_get(&key(id)).await else {
            return;
        };
        let newer =
            before.and_then(|bytes| self.read(id, &bytes)).is_none_or(|before| before.sale.version < doc.sale.version);
        if newer {
            // Nobody waits for it to work.
            let _ = rq.host.kv_put(&key(id), text.as_bytes()).await;
        }
    }

    /// A document of the store, unless somebody else wrote it.
    fn read(&self, id: &str, bytes: &[u8]) -> Option<EdgeSale> {
        let text = std::str::from_utf8(bytes).ok()?;
        document::verify(text, &self.document_keys).ok().filter(|doc| doc.sale.id.as_str() == id)
    }

    /// Uses a new document at once, where the sale is known already.
    fn adopt<H: Host>(&self, rq: &Request<'_, H>, id: &str, doc: EdgeSale) {
        let known = self.state.borrow().sales.get(id, rq.now.get());
        if let Some(sale) = known {
            sale.borrow_mut().replace(doc);
        }
    }
}

/// Before the edge has heard of the authority's clock, its own may be off by so much, in milliseconds.
const UNKNOWN_CLOCK_ERROR_MS: i64 = 300_000;

/// Whether two documents say the same; when they were signed does not matter.
fn same(a: &EdgeSale, b: &EdgeSale) -> bool {
    EdgeSale { now_ms: b.now_ms, ..a.clone() } == *b
}

fn unusable(error: &DocumentError) -> Refusal {
    let detail = match error {
        DocumentError::Signature(_) => "The origin has not signed this document.",
        DocumentError::Settings(_) => "The settings in the document break a bound.",
        DocumentError::Keys => "The keys of entry tokens in the document cannot be used.",
    };
    Refusal::new(ProblemKind::Unprocessable).detail(detail)
}
