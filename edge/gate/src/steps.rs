//! The single checks of the order in design §5, each with the refusal that it says.

use crate::{
    address::{AddressTable, Class},
    entry,
    gate::{Gate, Request},
    host::Host,
    lease::LeaseBook,
    limits,
    refresh::{SaleRef, Waiting},
    refuse::Refusal,
};
use flashgate_shared::{
    UnixMs,
    admission::Permit,
    problem::ProblemKind,
    sale::{AddressLimits, BucketLimit, SalePhase},
    token::{self, EntryClaims, Lifetime, TokenError},
    wire::LeaseKind,
};
use std::hash::Hash;

impl Gate {
    /// Step 2: refuses unless the sale sells now.
    pub(crate) fn check_phase<H: Host>(&self, rq: &Request<'_, H>, sale: &SaleRef) -> Result<(), Refusal> {
        let sale = sale.borrow();
        match sale.phase(self.now_ms(rq)) {
            SalePhase::Open => Ok(()),
            phase => Err(self.phase_refusal(rq, phase, sale.doc.sale.opens_at_ms)),
        }
    }

    pub(crate) fn phase_refusal<H: Host>(&self, rq: &Request<'_, H>, phase: SalePhase, opens_at_ms: UnixMs) -> Refusal {
        let now_ms = self.now_ms(rq);
        let (kind, retry_after_ms) = match phase {
            SalePhase::Scheduled => {
                let wait_ms = opens_at_ms.saturating_sub(now_ms).max(0).unsigned_abs();
                let spread_ms = rq.host.random_u64() % limits::OPENING_SPREAD_MS;
                let ms = wait_ms.min(limits::OPENING_RETRY_MAX_MS) + spread_ms;
                (ProblemKind::NotOpen, Some(ms))
            }
            SalePhase::SoldOut => (ProblemKind::SoldOut, Some(rq.jitter(limits::SOLD_OUT_RETRY_MS))),
            // The end is the end: nobody is asked to come back.
            SalePhase::Closed => (ProblemKind::Closed, None),
            SalePhase::Paused | SalePhase::Open => (ProblemKind::Paused, Some(rq.jitter(limits::PAUSED_RETRY_MS))),
        };
        let mut refusal = Refusal::new(kind);
        refusal.retry_after_ms = retry_after_ms;
        refusal.now_ms = Some(now_ms);
        refusal.opens_at_ms = (kind == ProblemKind::NotOpen).then_some(opens_at_ms);
        refusal
    }

    /// Step 4: counts the demand, and refuses when there is no permit to be had.
    pub(crate) async fn check_admission<H: Host>(
        &self,
        rq: &Request<'_, H>,
        sale: &SaleRef,
        kind: LeaseKind,
    ) -> Result<(), Refusal> {
        sale.borrow_mut().book(kind).arrive();
        self.permit(rq, sale, kind, |book, now_ms| book.has_permit(now_ms).then_some(())).await
    }

    /// Step 6: takes the permit that step 4 saw, or another one when it was taken meanwhile.
    pub(crate) async fn spend<H: Host>(
        &self,
        rq: &Request<'_, H>,
        sale: &SaleRef,
        kind: LeaseKind,
    ) -> Result<Permit, Refusal> {
        rq.tick();
        self.permit(rq, sale, kind, LeaseBook::spend).await
    }

    /// A look at the permits. While the authority gives all it is asked for there are more to be had:
    /// then a request that finds none waits for the next lease instead of being refused. So does a
    /// request that is nearly alone, for one more lease: what it lacks is not taken by a crowd, but has
    /// not gathered yet, as in the first moments of a sale and after every long silence.
    async fn permit<H: Host, T>(
        &self,
        rq: &Request<'_, H>,
        sale: &SaleRef,
        kind: LeaseKind,
        look: impl Fn(&mut LeaseBook, UnixMs) -> Option<T>,
    ) -> Result<T, Refusal> {
        let mut waiting = None;
        let mut asked_alone = false;
        loop {
            let now_ms = rq.now.get();
            let (is_due, short, deaf, crowd) = {
                let mut sale = sale.borrow_mut();
                let book = sale.book(kind);
                if let Some(found) = look(book, now_ms) {
                    return Ok(found);
                }
                let short = book.is_short();
                let hopeless = short && (asked_alone || !book.is_nearly_alone());
                if hopeless || !rq.may_wait() {
                    let (deaf, crowd) = (book.is_deaf(), book.crowd());
                    drop(sale);
                    return Err(self.no_permit(rq, deaf, crowd));
                }
                (book.is_due(now_ms), short, book.is_deaf(), book.crowd())
            };
            if is_due {
                asked_alone = short;
                self.lease(rq, sale, kind).await;
                continue;
            }
            if waiting.is_none() {
                waiting = Waiting::enter(&self.waiting);
            }
            if waiting.is_none() {
                return Err(self.no_permit(rq, deaf, crowd));
            }
            rq.host.pause(limits::WAIT_STEP_MS).await;
            rq.tick();
        }
    }

    /// The larger the crowd, the longer the wait, so that those who come back do not meet again.
    pub(crate) fn no_permit<H: Host>(&self, rq: &Request<'_, H>, deaf: bool, crowd: u32) -> Refusal {
        if deaf {
            return self.out_of_reach(rq);
        }
        let wait_ms =
            (u64::from(crowd) * limits::TRY_AGAIN_EACH_MS).clamp(limits::TRY_AGAIN_MIN_MS, limits::TRY_AGAIN_MAX_MS);
        let mut refusal = Refusal::new(ProblemKind::TryAgain).retry_after_ms(rq.jitter(wait_ms));
        refusal.now_ms = Some(self.now_ms(rq));
        refusal
    }

    /// Step 5: the entry token, by the authority's clock. A key that is not known may be new: the
    /// settings are fetched once more, rarely; until that is possible such a token is neither good nor bad.
    pub(crate) async fn verify<H: Host>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        sale: &SaleRef,
    ) -> Result<EntryClaims, Refusal> {
        let now_ms = self.now_ms(rq);
        let check = || {
            let sale = sale.borrow();
            let id = &sale.doc.sale.id;
            let token = entry::token(head.headers(), Some(id.as_str())).ok_or(TokenError::Missing)?;
            token::verify(token, &sale.keys, &sale.doc.issuer, id, now_ms, Lifetime::Strict)
        };
        let mut found = check();
        if found == Err(TokenError::UnknownKey) {
            let looked_up = self.look_up_key(rq, sale).await;
            found = check();
            if !looked_up && found == Err(TokenError::UnknownKey) {
                let mut refusal = Refusal::new(ProblemKind::Unavailable)
                    .retry_after_ms(rq.jitter(limits::KEY_REFETCH_MS.unsigned_abs()));
                refusal.now_ms = Some(now_ms);
                return Err(refusal.detail("The key of the entry token is not known here yet."));
            }
        }
        found.map_err(|e| {
            let mut refusal = entry::token_refusal(&e);
            refusal.now_ms = Some(now_ms);
            refusal
        })
    }

    /// Takes a token of the client's bucket for things that belong to no sale.
    pub(crate) fn take_default<H: Host>(&self, rq: &Request<'_, H>, class: Class) -> Result<(), Refusal> {
        self.take(rq, (class, rq.client), AddressLimits::default().read)
    }

    /// Takes a token of any bucket.
    pub(crate) fn take<H: Host>(&self, rq: &Request<'_, H>, key: impl Hash, limit: BucketLimit) -> Result<(), Refusal> {
        let mut state = self.state.borrow_mut();
        let table =
            state.addresses.get_or_insert_with(|| AddressTable::new((rq.host.random_u64(), rq.host.random_u64())));
        let taken = table.take(key, limit, rq.now.get());
        drop(state);
        taken.map_err(|wait_ms| {
            let mut refusal = Refusal::new(ProblemKind::SlowDown).retry_after_ms(rq.jitter(wait_ms));
            refusal.now_ms = Some(self.now_ms(rq));
            refusal
        })
    }

    /// The authority's clock, as well as it is known.
    pub(crate) fn now_ms<H: Host>(&self, rq: &Request<'_, H>) -> UnixMs {
        self.state.borrow().clock.now_ms(rq.now.get())
    }
}
