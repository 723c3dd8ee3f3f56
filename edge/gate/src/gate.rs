//! The gate itself: one request from its first check to its answer, in the order of design §5.

use crate::{
    address::{AddressKey, AddressTable, Class},
    authority::AuthorityClock,
    entry, forward,
    host::{Body, BodyError, Host, RequestBody, Terms},
    limits, page,
    refresh::{NoSale, SaleRef},
    refuse::{self, Asker, Refusal},
    route::{self, Miss, Route},
    sales::Sales,
    view,
};
use bytes::Bytes;
use flashgate_shared::{
    UnixMs,
    admission::Permit,
    limits::{BUYER_BODY_BYTES, COLD_LEASE_WAIT_MS, DOCUMENT_BYTES, ORIGIN_ANSWER_BYTES, TARGET_BYTES},
    problem::{PROBLEM_JSON, Problem, ProblemKind},
    sale::{AddressLimits, BucketLimit, SalePhase},
    token::KeySet,
    trace::TraceId,
    wire::{LeaseKind, TRACEPARENT_HEADER},
};
use http::{
    HeaderMap, HeaderValue, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
};

/// What the gate is told once.
#[derive(Clone)]
pub struct GateConfig {
    /// The edge's credential towards the origin.
    pub edge_key: String,
    /// The JWK set of the origin's document keys, as JSON; empty: no documents are taken or used.
    pub document_keys: String,
}

impl GateConfig {
    /// The credential as a header. A key that cannot be one admits nobody.
    pub(crate) fn edge_key_header(self) -> HeaderValue {
        let mut key = HeaderValue::try_from(self.edge_key).unwrap_or(HeaderValue::from_static(""));
        key.set_sensitive(true);
        key
    }
}

/// The decision of an edge instance, with all that it remembers. Single-threaded; requests of one
/// instance take turns at their awaits, and no borrow is held across one.
pub struct Gate {
    pub(crate) edge_key: HeaderValue,
    /// Verify sale documents and tickets; empty: there are none.
    pub(crate) document_keys: KeySet,
    pub(crate) state: RefCell<State>,
    /// Requests that wait for another's question.
    pub(crate) waiting: Cell<usize>,
}

/// The memory of an instance.
pub(crate) struct State {
    pub(crate) clock: AuthorityClock,
    pub(crate) sales: Sales,
    /// Made with the first request, which brings the random seed.
    pub(crate) addresses: Option<AddressTable>,
}

/// One request, while it is decided.
pub(crate) struct Request<'a, H> {
    pub(crate) host: &'a H,
    /// The edge's clock: read when the request comes and after every wait, because the call costs.
    pub(crate) now: Cell<UnixMs>,
    /// The same, when the request came.
    came_ms: UnixMs,
    pub(crate) trace: TraceId,
    pub(crate) client: AddressKey,
}

impl<H: Host> Request<'_, H> {
    /// Reads the edge's clock.
    pub(crate) fn tick(&self) -> UnixMs {
        self.now.set(self.host.now_ms());
        self.now.get()
    }

    /// Whether it may still wait for the authority: all its waits together have one limit.
    pub(crate) fn may_wait(&self) -> bool {
        let waited_ms = self.now.get().saturating_sub(self.came_ms);
        u64::try_from(waited_ms).is_ok_and(|ms| ms < COLD_LEASE_WAIT_MS)
    }

    /// Between `ms` and twice as much, so that a crowd does not come back at once.
    pub(crate) fn jitter(&self, ms: u64) -> u64 {
        ms + self.host.random_u64() % ms.max(1)
    }
}

/// An answer on its way out.
pub type Answer<H> = Response<Body<<H as Host>::Stream>>;

/// What is forwarded, and how.
struct Onward {
    permit: Option<Permit>,
    claim: bool,
    stream: bool,
}

impl Gate {
    /// A gate that knows nothing yet.
    pub fn new(config: GateConfig) -> Self {
        // Keys that cannot be read are none: nobody publishes, and the origin is asked.
        let document_keys = serde_json::from_str(&config.document_keys).ok();
        let document_keys = document_keys.and_then(|json| KeySet::from_json(&json).ok()).unwrap_or_default();
        Self {
            document_keys,
            edge_key: config.edge_key_header(),
            state: RefCell::new(State { clock: AuthorityClock::default(), sales: Sales::default(), addresses: None }),
            waiting: Cell::new(0),
        }
    }

    /// Answers one request. `client` is the address that the runtime vouches for.
    pub async fn handle<H: Host, B: RequestBody>(
        &self,
        host: &H,
        client: IpAddr,
        request: http::Request<B>,
    ) -> Answer<H> {
        let came_ms = host.now_ms();
        let rq = Request {
            host,
            now: Cell::new(came_ms),
            came_ms,
            trace: trace_of(host, request.headers()),
            client: client.into(),
        };
        let (parts, body) = request.into_parts();
        let head = http::Request::from_parts(parts, ());
        let mut asker = Asker { trace: rq.trace, html: refuse::prefers_html(head.headers()), sale: None, claim: false };
        let outcome = match find_route(&head) {
            Ok(route) => {
                asker.sale = sale_of(&route);
                asker.claim = matches!(route, Route::Claim(_));
                match check_size(&head, &route) {
                    Ok(()) => self.dispatch(&rq, &head, body, route, &asker).await,
                    Err(refusal) => Err(refusal),
                }
            }
            Err(refusal) => Err(refusal),
        };
        let mut answer = outcome.unwrap_or_else(|refusal| refuse::answer(&refusal, &asker).map(Body::Bytes));
        if head.method() == http::Method::HEAD {
            *answer.body_mut() = Body::Bytes(Bytes::new());
        }
        answer
    }

    /// A refusal that the runtime has decided: it could not read the request, or its own shield in front
    /// of the gate said no.
    pub fn refuse<H: Host, B>(&self, host: &H, request: &http::Request<B>, kind: ProblemKind) -> Answer<H> {
        let route = route::route(request.method(), request.uri().path()).ok();
        let asker = Asker {
            trace: trace_of(host, request.headers()),
            html: refuse::prefers_html(request.headers()),
            sale: route.as_ref().and_then(sale_of),
            claim: matches!(route, Some(Route::Claim(_))),
        };
        let wait_ms = limits::SHIELD_RETRY_MS + host.random_u64() % limits::SHIELD_RETRY_MS;
        refuse::answer(&Refusal::new(kind).retry_after_ms(wait_ms), &asker).map(Body::Bytes)
    }

    async fn dispatch<H: Host, B: RequestBody>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: B,
        route: Route<'_>,
        asker: &Asker<'_>,
    ) -> Result<Answer<H>, Refusal> {
        let plain = |response: Response<Bytes>| Ok(response.map(Body::Bytes));
        match route {
            Route::Health => plain(view::health(rq.trace)),
            Route::Asset(path) => {
                let asset = flashgate_page::asset(path).ok_or(Refusal::new(ProblemKind::NotFound))?;
                plain(page::serve(asset, head.method(), head.headers(), rq.trace))
            }
            Route::Page => {
                self.take_default(rq, Class::Read)?;
                let page = flashgate_page::sale_page();
                plain(page::serve(page, head.method(), head.headers(), rq.trace))
            }
            Route::Time => {
                self.take_default(rq, Class::Read)?;
                let error_ms = self.state.borrow().clock.error_ms(rq.now.get());
                plain(view::time(self.now_ms(rq), error_ms, rq.trace))
            }
            Route::Sale(id) => plain(self.view(rq, id).await?),
            Route::Document(id) => plain(self.show_document(rq, head, id).await?),
            Route::Publish(id) => plain(self.publish(rq, head, body, id).await?),
            Route::Claim(id) => self.claim(rq, head, body, id, asker).await,
            Route::Enter(id) => self.enter(rq, head, body, id, asker).await,
            Route::MyClaim(id) => {
                let sale = self.known(rq, id).await?;
                let limit = sale.borrow().doc.sale.address_limits.status;
                self.status(rq, head, body, Some(id), limit, asker).await
            }
            Route::Status | Route::Events | Route::Release | Route::Orders => {
                let id = route::query(head.uri().query(), "sale");
                let known = id.and_then(|id| self.state.borrow().sales.get(id, rq.now.get()));
                let limit =
                    known.map_or(AddressLimits::default().status, |s| s.borrow().doc.sale.address_limits.status);
                self.status(rq, head, body, id, limit, asker).await
            }
        }
    }

    /// `GET /v1/sales/{sale}`.
    async fn view<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Result<Response<Bytes>, Refusal> {
        let sale = self.known(rq, id).await?;
        let limit = sale.borrow().doc.sale.address_limits.read;
        self.take(rq, (Class::Read, rq.client, id), limit)?;
        self.freshen(rq, &sale, LeaseKind::Claim).await;
        Ok(view::sale(&sale.borrow(), self.now_ms(rq), rq.host.random_u64(), rq.trace))
    }

    /// `POST /v1/sales/{sale}/claim`: the whole order of design §5.
    async fn claim<H: Host, B: RequestBody>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: B,
        id: &str,
        asker: &Asker<'_>,
    ) -> Result<Answer<H>, Refusal> {
        // 1: the request itself, an unknown sale.
        entry::idempotency_key(head.headers())?;
        let sale = self.known(rq, id).await?;
        // Whatever comes next asks, refusals included.
        self.freshen(rq, &sale, LeaseKind::Claim).await;
        // 2: state and window.
        self.check_phase(rq, &sale)?;
        // 3: the address.
        let limit = sale.borrow().doc.sale.address_limits.claim;
        self.take(rq, (Class::Claim, rq.client, id), limit)?;
        // 4: admission.
        self.check_admission(rq, &sale, LeaseKind::Claim).await?;
        // 5: who it is. The first signature is verified here.
        entry::same_origin(head)?;
        let entry = self.verify(rq, head, &sale).await?;
        self.take(rq, (Class::Account, id, entry.sub), limit)?;
        if let Some(device) = entry.did {
            self.take(rq, (Class::Device, id, device), limit)?;
        }
        let body = read(body, BUYER_BODY_BYTES).await?;
        // 6: spend and forward.
        let permit = self.spend(rq, &sale, LeaseKind::Claim).await?;
        let onward = Onward { permit: Some(permit), claim: true, stream: false };
        self.forward(rq, head, body, onward, asker, Some(&sale)).await
    }

    /// `POST /v1/sales/{sale}/enter`: before the opening too, under its own lease.
    async fn enter<H: Host, B: RequestBody>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: B,
        id: &str,
        asker: &Asker<'_>,
    ) -> Result<Answer<H>, Refusal> {
        let sale = self.known(rq, id).await?;
        self.freshen(rq, &sale, LeaseKind::Enter).await;
        if sale.borrow().phase(self.now_ms(rq)) == SalePhase::Closed {
            return Err(self.phase_refusal(rq, SalePhase::Closed, 0));
        }
        let limit = sale.borrow().doc.sale.address_limits.enter;
        self.take(rq, (Class::Enter, rq.client, id), limit)?;
        self.check_admission(rq, &sale, LeaseKind::Enter).await?;
        entry::same_origin(head)?;
        let body = read(body, BUYER_BODY_BYTES).await?;
        self.spend(rq, &sale, LeaseKind::Enter).await?;
        let onward = Onward { permit: None, claim: false, stream: false };
        self.forward(rq, head, body, onward, asker, None).await
    }

    /// Status, my-claim, events, pay, release: outside admission, so that a winner is never shut out
    /// by those who still try. The origin verifies the token.
    async fn status<H: Host, B: RequestBody>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: B,
        sale: Option<&str>,
        limit: BucketLimit,
        asker: &Asker<'_>,
    ) -> Result<Answer<H>, Refusal> {
        self.take(rq, (Class::Status, rq.client), limit)?;
        if head.method() == http::Method::POST {
            entry::same_origin(head)?;
        }
        entry::token_shape(head.headers(), sale)?;
        let onward = Onward { permit: None, claim: false, stream: head.uri().path().ends_with("/events") };
        self.forward(rq, head, read(body, BUYER_BODY_BYTES).await?, onward, asker, None).await
    }

    async fn known<H: Host>(&self, rq: &Request<'_, H>, id: &str) -> Result<SaleRef, Refusal> {
        self.sale(rq, id).await.map_err(|e| match e {
            NoSale::Unknown => Refusal::new(ProblemKind::NotFound).detail("There is no such sale."),
            NoSale::Refused(refusal) => refusal,
        })
    }

    /// Sends the request on, and hands the answer back.
    async fn forward<H: Host>(
        &self,
        rq: &Request<'_, H>,
        head: &http::Request<()>,
        body: Bytes,
        onward: Onward,
        asker: &Asker<'_>,
        sale: Option<&SaleRef>,
    ) -> Result<Answer<H>, Refusal> {
        let span = rq.host.random_u64();
        let mut request = forward::onward(head, &self.edge_key, onward.permit, rq.trace, span)
            .ok_or(Refusal::new(ProblemKind::BadRequest))?;
        *request.body_mut() = body;
        let terms =
            Terms { deadline_ms: limits::FORWARD_DEADLINE_MS, max_bytes: ORIGIN_ANSWER_BYTES, stream: onward.stream };
        let answer = rq.host.origin(request, terms).await;
        let answer = answer.map_err(|e| self.no_answer(rq, e, onward.claim))?;
        let Some(problem) = problem_of(&answer) else {
            return Ok(forward::back(answer, rq.trace));
        };
        match problem.kind() {
            Some(ProblemKind::SoldOut) => {
                if let Some(sale) = sale {
                    sale.borrow_mut().hear_sold_out();
                }
            }
            // The permit was ours, not the buyer's: he just tries again.
            Some(ProblemKind::PermitRefused) => return Err(self.no_permit(rq, false, 0)),
            // So is the edge's key.
            Some(ProblemKind::Unauthorized) => return Err(self.out_of_reach(rq)),
            _ => {}
        }
        if !asker.html {
            return Ok(forward::back(answer, rq.trace));
        }
        let mut response = forward::back(answer, rq.trace);
        let page = refuse::html(&problem, asker.sale);
        for (name, value) in page.headers() {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        *response.body_mut() = Body::Bytes(page.into_body());
        Ok(response)
    }
}

/// The trace id of the request, or a new one.
pub(crate) fn trace_of<H: Host>(host: &H, headers: &HeaderMap) -> TraceId {
    headers
        .get(TRACEPARENT_HEADER)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| TraceId::from_traceparent(v).ok())
        .unwrap_or_else(|| TraceId::from_random(u128::from(host.random_u64()) << 64 | u128::from(host.random_u64())))
}

/// The sale in a route's path.
fn sale_of<'p>(route: &Route<'p>) -> Option<&'p str> {
    match route {
        Route::Sale(id) | Route::Enter(id) | Route::Claim(id) | Route::MyClaim(id) => Some(id),
        _ => None,
    }
}

/// Step 1: sizes that the headers tell.
fn check_size(head: &http::Request<()>, route: &Route<'_>) -> Result<(), Refusal> {
    let body_bytes = if matches!(route, Route::Publish(_)) { DOCUMENT_BYTES } else { BUYER_BODY_BYTES };
    let target_bytes = head.uri().path_and_query().map_or(0, |t| t.as_str().len());
    if target_bytes > TARGET_BYTES {
        return Err(Refusal::new(ProblemKind::TargetTooLong));
    }
    let Some(length) = head.headers().get(CONTENT_LENGTH) else {
        return Ok(());
    };
    match length.to_str().ok().and_then(|l| l.parse::<u64>().ok()) {
        Some(bytes) if bytes <= body_bytes as u64 => Ok(()),
        Some(_) => Err(Refusal::new(ProblemKind::BodyTooLarge)),
        None => Err(Refusal::new(ProblemKind::BadRequest)),
    }
}

fn find_route(head: &http::Request<()>) -> Result<Route<'_>, Refusal> {
    route::route(head.method(), head.uri().path()).map_err(|miss| match miss {
        Miss::NotFound => Refusal::new(ProblemKind::NotFound),
        Miss::Method(allow) => {
            let mut refusal = Refusal::new(ProblemKind::MethodNotAllowed);
            refusal.allow = Some(allow);
            refusal
        }
    })
}

/// A body to its end, if it has no more than so many bytes.
pub(crate) async fn read<B: RequestBody>(body: B, max_bytes: usize) -> Result<Bytes, Refusal> {
    body.read(max_bytes).await.map_err(|e| match e {
        BodyError::TooLarge => Refusal::new(ProblemKind::BodyTooLarge),
        BodyError::Broken => Refusal::new(ProblemKind::BadRequest).detail("The body broke off."),
    })
}

/// The problem document in an answer, if it is one.
fn problem_of<S>(answer: &Response<Body<S>>) -> Option<Problem> {
    let media = answer.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    match answer.body() {
        Body::Bytes(bytes) if media.starts_with(PROBLEM_JSON) => serde_json::from_slice(bytes).ok(),
        _ => None,
    }
}
