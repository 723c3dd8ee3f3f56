//! Sale documents in the edge's store: taken from operators, shown to them, used by instances that know
//! nothing yet (design §5). The store is the runtime's, shared by its instances and there after a restart.
//!
//! A document is only replaced by a newer one that the origin signed. Of two that come at the same moment
//! the older may stay in a store that knows no transactions: the authority's word sets that right, as it
//! does for every stale document.

use crate::{
    address::Class,
    gate::{Gate, Request, read},
    host::{Host, KvError, RequestBody},
    limits::{DOCUMENT_RETRY_MS, STORE_DEADLINE_MS, UNKNOWN_CLOCK_ERROR_MS},
    refuse::{Refusal, common_headers},
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
use futures_util::future::{Either, select};
use http::{
    HeaderValue, Response,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use std::pin::{Pin, pin};

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
        let body = read(body, DOCUMENT_BYTES).await?;
        let text = std::str::from_utf8(&body).map_err(|_| Refusal::new(ProblemKind::BadRequest))?.trim();
        let doc = document::verify(text, &self.document_keys).map_err(|e| unusable(&e))?;
        if doc.sale.id != sale {
            return Err(Refusal::new(ProblemKind::Unprocessable).detail("The document is for another sale."));
        }
        let before = self.kv_get(rq, id).await.map_err(|e| no_store(rq, e))?;
        let before = before.and_then(|bytes| self.read(id, &bytes));
        if let Some(before) = &before {
            if doc.sale.version < before.sale.version {
                return Err(Refusal::new(ProblemKind::Outdated).detail("A newer version is in the edge's store."));
            }
            if !is_newer(&doc, before) && !same(before, &doc) {
                return Err(Refusal::new(ProblemKind::Outdated)
                    .detail("Another document of the same version, signed later, is in the edge's store."));
            }
        }
        self.kv_put(rq, id, text.as_bytes()).await.map_err(|e| no_store(rq, e))?;
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
        let Some(bytes) = self.kv_get(rq, id).await.map_err(|e| no_store(rq, e))? else {
            return Err(Refusal::new(ProblemKind::NotFound).detail("No document of this sale was published here."));
        };
        let mut response = Response::new(Bytes::from(bytes));
        response.headers_mut().insert(CONTENT_TYPE, JWT);
        common_headers(response.headers_mut(), rq.trace);
        Ok(response)
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
        let bytes = self.kv_get(rq, id).await.ok()??;
        self.read(id, &bytes)
    }

    /// Keeps what the origin said, if it is newer than what is there. When that fails there is still the
    /// origin.
    pub(crate) async fn keep<H: Host>(&self, rq: &Request<'_, H>, id: &str, text: &str) {
        let Some(doc) = self.read(id, text.as_bytes()) else {
            return;
        };
        let Ok(before) = self.kv_get(rq, id).await else {
            return;
        };
        let before = before.and_then(|bytes| self.read(id, &bytes));
        if before.is_none_or(|before| is_newer(&doc, &before) && !same(&before, &doc)) {
            // Nobody waits for it to work.
            let _ = self.kv_put(rq, id, text.as_bytes()).await;
        }
    }

    /// The store must not hold up a request for longer than the origin would.
    async fn kv_get<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Result<Option<Vec<u8>>, KvError> {
        let key = key(id);
        in_time(rq, pin!(rq.host.kv_get(&key))).await
    }

    async fn kv_put<H: Host>(&self, rq: &Request<'_, H>, id: &str, value: &[u8]) -> Result<(), KvError> {
        let key = key(id);
        in_time(rq, pin!(rq.host.kv_put(&key, value))).await
    }

    /// A document of this sale that the origin signed, whoever hands it over.
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

async fn in_time<H: Host, T>(
    rq: &Request<'_, H>,
    work: Pin<&mut impl Future<Output = Result<T, KvError>>>,
) -> Result<T, KvError> {
    match select(work, pin!(rq.host.pause(STORE_DEADLINE_MS))).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(KvError),
    }
}

/// Whether one document takes the place of another: a newer version, or the same one signed later, because
/// keys of entry tokens change without a new version.
const fn is_newer(doc: &EdgeSale, than: &EdgeSale) -> bool {
    doc.sale.version > than.sale.version || (doc.sale.version == than.sale.version && doc.now_ms > than.now_ms)
}

/// Whether two documents say the same; when they were signed does not matter.
fn same(a: &EdgeSale, b: &EdgeSale) -> bool {
    EdgeSale { now_ms: b.now_ms, ..a.clone() } == *b
}

fn no_store<H: Host>(rq: &Request<'_, H>, _: KvError) -> Refusal {
    let refusal = Refusal::new(ProblemKind::Unavailable).retry_after_ms(rq.jitter(DOCUMENT_RETRY_MS));
    refusal.detail("The edge's store does not answer.")
}

fn unusable(error: &DocumentError) -> Refusal {
    let detail = match error {
        DocumentError::Signature(_) => "The origin has not signed this document.",
        DocumentError::Settings(_) => "The settings in the document break a bound.",
        DocumentError::Keys => "The keys of entry tokens in the document cannot be used.",
    };
    Refusal::new(ProblemKind::Unprocessable).detail(detail)
}
