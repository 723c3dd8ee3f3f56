//! Asking the authority: leases and settings, each by one request at a time.
//!
//! Whatever request comes when the last answer is old enough asks, a refused one too: else a sold-out
//! edge would never learn of a reopening. Meanwhile the others use what is known. A request that is
//! cancelled in the middle leaves no question open: the guards below end it.

use crate::{
    address::Class,
    forward,
    gate::{Gate, Request},
    host::{Body, Host, OriginError, Terms},
    limits,
    refuse::Refusal,
    sales::Sale,
};
use bytes::Bytes;
use flashgate_shared::{
    limits::{COLD_LEASE_WAIT_MS, ORIGIN_ANSWER_BYTES},
    problem::ProblemKind,
    sale::BucketLimit,
    wire::{EdgeSale, EdgeSaleAnswer, LeaseAnswer, LeaseKind, LeaseRequest},
};
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Where the authority is asked for leases.
pub(crate) const LEASES_TARGET: &str = "/v1/edge/leases";

pub(crate) type SaleRef = Rc<RefCell<Sale>>;

/// The instance's budget of questions about sales that it does not know.
const UNKNOWN_ASKS: BucketLimit =
    BucketLimit { rate_per_s: limits::UNKNOWN_SALE_ASKS_PER_S, burst: limits::UNKNOWN_SALE_ASKS_BURST };

/// Runs its closure when dropped: also when the request is cancelled in the middle of an await.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Counts a waiting request while it lives; `None` when too many wait.
pub(crate) struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    pub(crate) fn enter(count: &'a Cell<usize>) -> Option<Self> {
        (count.get() < limits::WAITING_MAX).then(|| {
            count.set(count.get() + 1);
            Self(count)
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Why a sale could not be found.
pub(crate) enum NoSale {
    /// There is none.
    Unknown,
    /// Refused: this address asks too much, or the origin does not answer.
    Refused(Refusal),
}

impl Gate {
    /// The sale with this id; asked of the origin when it is not known.
    pub(crate) async fn sale<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Result<SaleRef, NoSale> {
        if let Some(sale) = self.state.borrow().sales.get(id, rq.now.get()) {
            return Ok(sale);
        }
        if self.state.borrow().sales.is_unknown(id, rq.now.get()) {
            return Err(NoSale::Unknown);
        }
        // Ids nobody knows are the one way to make an edge work for nothing: they cost the asker.
        self.take_default(rq, Class::Read).map_err(NoSale::Refused)?;
        if self.state.borrow().sales.is_asking(id, rq.now.get()) {
            self.wait(rq, limits::SALE_DEADLINE_MS, |gate, now_ms| gate.state.borrow().sales.is_asking(id, now_ms))
                .await;
        } else {
            self.discover(rq, id).await.map_err(NoSale::Refused)?;
        }
        let state = self.state.borrow();
        match state.sales.get(id, rq.now.get()) {
            Some(sale) => Ok(sale),
            None if state.sales.is_unknown(id, rq.tick()) => Err(NoSale::Unknown),
            None => Err(NoSale::Refused(self.out_of_reach(rq))),
        }
    }

    /// Asks the origin about an id that this instance does not know.
    async fn discover<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Result<(), Refusal> {
        self.take(rq, (Class::Unknown, 0u8), UNKNOWN_ASKS)?;
        self.state.borrow_mut().sales.begin(id, rq.now.get());
        let _end = OnDrop(|| self.state.borrow_mut().sales.end(id));
        // What is in the store is good until the authority says otherwise; without one, the origin is asked.
        let found = match self.stored(rq, id).await {
            Some(doc) => Some(Ok(doc)),
            None => self.fetch(rq, id).await,
        };
        let mut state = self.state.borrow_mut();
        match found {
            Some(Ok(doc)) => {
                if let Some(sale) =
                    Some(doc).filter(|d| d.sale.id.as_str() == id).and_then(|d| Sale::new(d, rq.now.get()))
                {
                    state.sales.insert(id, sale);
                }
            }
            Some(Err(StatusCode::NOT_FOUND)) => state.sales.insert_unknown(id, rq.tick()),
            Some(Err(_)) | None => {}
        }
        Ok(())
    }

    /// Fetches a sale's settings and learns the authority's clock from them.
    async fn fetch<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Option<Result<EdgeSale, StatusCode>> {
        let target = format!("/v1/edge/sales/{id}");
        let terms = Terms { deadline_ms: limits::SALE_DEADLINE_MS, max_bytes: ORIGIN_ANSWER_BYTES, stream: false };
        let sent_ms = rq.tick();
        let found: Result<EdgeSaleAnswer, StatusCode> = self.ask(rq, Method::GET, &target, Bytes::new(), terms).await?;
        if let Ok(answer) = &found {
            let received_ms = rq.tick();
            self.state.borrow_mut().clock.learn(sent_ms, received_ms, answer.sale.now_ms);
            if let Some(document) = &answer.document {
                self.keep(rq, id, document).await;
            }
        }
        Some(found.map(|answer| answer.sale))
    }

    /// A question of the edge's own: `None` without a usable answer.
    async fn ask<H: Host, T: DeserializeOwned>(
        &self,
        rq: &Request<'_, H>,
        method: Method,
        target: &str,
        body: Bytes,
        terms: Terms,
    ) -> Option<Result<T, StatusCode>> {
        let span = rq.host.random_u64();
        let request = forward::own(method, target, body, &self.edge_key, rq.trace, span)?;
        let answer = rq.host.origin(request, terms).await;
        let Ok(answer) = answer else {
            return None;
        };
        if answer.status() != StatusCode::OK {
            return Some(Err(answer.status()));
        }
        match answer.into_body() {
            Body::Bytes(bytes) => serde_json::from_slice(&bytes).ok().map(Ok),
            Body::Stream(_) => None,
        }
    }

    /// Brings what is known of a sale up to date, if it is time and nobody else does. An instance
    /// without a living lease waits for the one that asks, for up to [`COLD_LEASE_WAIT_MS`].
    pub(crate) async fn freshen<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef, kind: LeaseKind) {
        let (due, wait) = {
            let mut sale = sale.borrow_mut();
            let book = sale.book(kind);
            (book.is_due(rq.now.get()), book.is_cold(rq.now.get()) && book.is_asking(rq.now.get()))
        };
        if due {
            self.lease(rq, sale, kind).await;
            self.update(rq, sale).await;
        } else if wait {
            self.wait(rq, COLD_LEASE_WAIT_MS, |_, now_ms| sale.borrow_mut().book(kind).is_asking(now_ms)).await;
        }
    }

    /// Asks the authority for permits and for the sale's state.
    pub(crate) async fn lease<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef, kind: LeaseKind) {
        let sent_ms = rq.tick();
        let ask = {
            let mut sale = sale.borrow_mut();
            LeaseRequest { sale: sale.doc.sale.id.clone(), kind, want: sale.book(kind).begin(sent_ms) }
        };
        let _end = OnDrop(|| sale.borrow_mut().book(kind).end());
        let terms =
            Terms { deadline_ms: limits::LEASE_DEADLINE_MS, max_bytes: limits::LEASE_ANSWER_BYTES, stream: false };
        let body = Bytes::from(serde_json::to_vec(&ask).unwrap_or_default());
        let answer = self.ask(rq, Method::POST, LEASES_TARGET, body, terms).await;
        let received_ms = rq.tick();
        let mut sale = sale.borrow_mut();
        match answer {
            Some(Ok::<LeaseAnswer, _>(answer)) => {
                self.state.borrow_mut().clock.learn(sent_ms, received_ms, answer.now_ms);
                sale.hear(&answer);
                sale.book(kind).granted(ask.want, &answer, sent_ms, received_ms);
            }
            _ => sale.book(kind).failed(),
        }
    }

    /// Fetches the settings again, if they are outdated and nobody else does.
    async fn update<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef) {
        if sale.borrow().is_outdated(rq.tick()) {
            self.refetch(rq, sale).await;
        }
    }

    /// Fetches the settings because a token names a key that is not in them. Whether it could be looked up:
    /// not when that was done a moment ago, nor without the origin.
    pub(crate) async fn look_up_key<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef) -> bool {
        let now_ms = rq.tick();
        if !sale.borrow().may_ask_for_key(now_ms) {
            return false;
        }
        sale.borrow_mut().ask_for_key(now_ms);
        self.refetch(rq, sale).await
    }

    /// Whether the origin answered.
    async fn refetch<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef) -> bool {
        sale.borrow_mut().begin_fetch(rq.tick());
        let _end = OnDrop(|| sale.borrow_mut().end_fetch());
        let id = sale.borrow().doc.sale.id.clone();
        let Some(Ok(doc)) = self.fetch(rq, id.as_str()).await else {
            return false;
        };
        sale.borrow_mut().replace(doc);
        true
    }

    /// Waits while `busy`, at most `most_ms`; not at all when too many wait already.
    async fn wait<H: Host>(&self, rq: &Request<'_, H>, most_ms: u64, busy: impl Fn(&Self, i64) -> bool) {
        let Some(_waiting) = Waiting::enter(&self.waiting) else {
            return;
        };
        for _ in 0..most_ms.div_ceil(limits::WAIT_STEP_MS) {
            if !busy(self, rq.tick()) {
                return;
            }
            rq.host.pause(limits::WAIT_STEP_MS).await;
        }
        rq.tick();
    }

    /// "Please wait": the origin does not answer.
    pub(crate) fn out_of_reach<H: Host>(&self, rq: &Request<'_, H>) -> Refusal {
        let mut refusal = Refusal::new(ProblemKind::Unavailable).retry_after_ms(rq.jitter(limits::PAUSED_RETRY_MS));
        refusal.now_ms = Some(self.now_ms(rq));
        refusal
    }

    /// How a forwarded request without an answer is refused: what surely had no effect may be
    /// repeated; a claim whose outcome is unknown is pointed to `my-claim`.
    pub(crate) fn no_answer<H: Host>(&self, rq: &Request<'_, H>, error: OriginError, claim: bool) -> Refusal {
        let mut refusal = self.out_of_reach(rq);
        if claim && error != OriginError::Unreachable {
            refusal.kind = ProblemKind::Unknown;
            refusal.detail = Some("Ask my-claim, or repeat the request with the same Idempotency-Key.");
        }
        refusal
    }
}
