//! The crowd: many buyers, few connections.
//!
//! A buyer is a small record in a table and an entry in a heap of (when, buyer); only a request in
//! flight has a task and a connection. At most [`MAX_CONNECTIONS`] are in flight; what is due and
//! finds none free waits here, and that wait is measured apart from the answer time. The load is
//! open: when a click is due does not depend on how fast others are answered.

use super::{
    buyer::{Act, Answer, Buyer, End, Next, Role, World},
    net::{Edge, address_of},
    tally::Tally,
};
use crate::values::Share;
use anyhow::{Context, Result};
use bytes::Bytes;
use flashgate_shared::{
    SaleId, UnixMs,
    wire::{ClaimRequest, EnterRequest, IDEMPOTENCY_KEY_HEADER},
};
use http::{Method, Request, header};
use http_body_util::Full;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Most connections that the buyers share.
pub const MAX_CONNECTIONS: usize = 512;
/// All buyers click within this time after the opening, in milliseconds.
pub const CLICK_SPREAD_MS: i64 = 250;
/// How often progress is told at most, in milliseconds.
const PROGRESS_MS: u64 = 200;

/// What the crowd is to do.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The sale.
    pub sale: SaleId,
    /// When it opens, in shop time.
    pub opens_at_ms: UnixMs,
    /// How long a hold outlasts `pay_by`, in milliseconds.
    pub grace_ms: i64,
    /// Buyers.
    pub buyers: u32,
    /// The buyers enter spread over this time, from now, in milliseconds.
    pub entry_ms: u64,
    /// Share of the winners that never pays.
    pub lapse: Share,
    /// Share of the winners whose money comes too late.
    pub late: Share,
    /// Shop time minus this machine's, in milliseconds.
    pub clock_offset_ms: i64,
    /// When buyers without an answer are given up.
    pub deadline: Instant,
}

/// Where things stand, for a progress bar.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Buyers.
    pub buyers: u64,
    /// Buyers who have entered.
    pub entered: u64,
    /// Buyers with a final answer.
    pub answered: u64,
    /// Buyers who were told RESERVED.
    pub winners: u64,
    /// Milliseconds to the opening; negative after it.
    pub opens_in_ms: i64,
}

/// What came out: the buyers as they ended, and the counts.
#[derive(Debug)]
pub struct Outcome {
    /// Every buyer.
    pub buyers: Vec<Buyer>,
    /// The counts.
    pub tally: Tally,
    /// When the first entered.
    pub began: Instant,
    /// When the last final answer came, or the crowd was given up.
    pub ended: Instant,
}

/// One answer on its way back from its task.
struct Heard {
    buyer: u32,
    answer: Answer,
    due: Instant,
    begun: Instant,
    done: Instant,
}

struct Crowd<'a> {
    orders: &'a Orders,
    edges: &'a [Arc<Edge>],
    buyers: Vec<Buyer>,
    /// Due requests: of buyers who may hold a unit, and of all others. The generator's own narrowness
    /// must not make a winner late to pay.
    due: [BinaryHeap<Reverse<(Instant, u32)>>; 2],
    shop: Shop,
    tally: Tally,
    in_flight: usize,
    answered: u64,
    winners: u64,
}

/// The world as buyers see it.
struct Shop {
    opens_at_ms: UnixMs,
    grace_ms: i64,
    clock_offset_ms: i64,
    rng: SmallRng,
    roles: Roles,
}

/// Deals out roles so that after every winner the shares are as exact as whole people allow.
#[derive(Debug)]
struct Roles {
    lapse: Share,
    late: Share,
    winners: u64,
    lapsing: u64,
    paying_late: u64,
}

impl Roles {
    fn next(&mut self) -> Role {
        self.winners += 1;
        if self.lapsing < self.lapse.of(self.winners) {
            self.lapsing += 1;
            Role::Lapses
        } else if self.paying_late < self.late.of(self.winners) {
            self.paying_late += 1;
            Role::PaysLate
        } else {
            Role::Pays
        }
    }
}

impl World for Shop {
    fn now_ms(&self) -> UnixMs {
        jiff::Timestamp::now().as_millisecond() + self.clock_offset_ms
    }

    fn opens_at_ms(&self) -> UnixMs {
        self.opens_at_ms
    }

    fn grace_ms(&self) -> i64 {
        self.grace_ms
    }

    fn jitter_ms(&mut self, around_ms: u64) -> u64 {
        self.rng.random_range(around_ms / 2..=around_ms * 3 / 2)
    }

    fn click_at_ms(&mut self) -> UnixMs {
        self.opens_at_ms + self.rng.random_range(0..CLICK_SPREAD_MS)
    }

    fn next_role(&mut self) -> Role {
        self.roles.next()
    }
}

/// Lets the crowd at the edges and waits until each buyer has a final answer, or the deadline.
pub async fn run(orders: &Orders, edges: &[Arc<Edge>], mut progress: impl FnMut(Standing)) -> Outcome {
    let began = Instant::now();
    let mut crowd = Crowd::new(orders, edges, began);
    // Never more than MAX_CONNECTIONS answers are on their way: the channel is bounded by that.
    let (tell, mut hear) = mpsc::channel::<Heard>(MAX_CONNECTIONS);
    let mut told = began;
    while crowd.answered < u64::from(orders.buyers) {
        crowd.start_due(&tell);
        let free = crowd.in_flight < MAX_CONNECTIONS;
        let wake = crowd.next_due().filter(|_| free).unwrap_or(orders.deadline).min(orders.deadline);
        tokio::select! {
            biased;
            Some(heard) = hear.recv() => {
                crowd.hear(heard);
                while let Ok(heard) = hear.try_recv() {
                    crowd.hear(heard);
                }
            }
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        let now = Instant::now();
        if now >= orders.deadline {
            break;
        }
        if now.duration_since(told) >= Duration::from_millis(PROGRESS_MS) {
            told = now;
            progress(crowd.standing());
        }
    }
    progress(crowd.standing());
    Outcome { buyers: crowd.buyers, tally: crowd.tally, began, ended: Instant::now() }
}

impl<'a> Crowd<'a> {
    fn new(orders: &'a Orders, edges: &'a [Arc<Edge>], began: Instant) -> Self {
        let mut buyers = Vec::new();
        buyers.resize_with(orders.buyers as usize, Buyer::default);
        let entry = Duration::from_millis(orders.entry_ms);
        let entries = (0..orders.buyers).map(|i| Reverse((began + entry * i / orders.buyers.max(1), i)));
        Self {
            orders,
            edges,
            buyers,
            due: [BinaryHeap::new(), entries.collect()],
            shop: Shop {
                opens_at_ms: orders.opens_at_ms,
                grace_ms: orders.grace_ms,
                clock_offset_ms: orders.clock_offset_ms,
                rng: SmallRng::from_os_rng(),
                roles: Roles { lapse: orders.lapse, late: orders.late, winners: 0, lapsing: 0, paying_late: 0 },
            },
            tally: Tally::default(),
            in_flight: 0,
            answered: 0,
            winners: 0,
        }
    }

    /// Starts requests that are due, as long as a connection is free.
    fn start_due(&mut self, tell: &mpsc::Sender<Heard>) {
        let now = Instant::now();
        while self.in_flight < MAX_CONNECTIONS {
            let Some((due, buyer)) = self.pop_due(now) else {
                return;
            };
            let edge = self.edges[buyer as usize % self.edges.len()].clone();
            match self.request(&edge, buyer) {
                Ok(request) => self.start(edge, request, due, buyer, tell.clone()),
                Err(error) => {
                    // An address or token from an answer that no header or path can carry.
                    tracing::warn!(buyer, error = format!("{error:#}"), "the answer cannot be followed");
                    self.buyers[buyer as usize].end = Some(End::Refused(0));
                    self.answered += 1;
                }
            }
        }
    }

    fn start(
        &mut self,
        edge: Arc<Edge>,
        request: Request<Full<Bytes>>,
        due: Instant,
        buyer: u32,
        tell: mpsc::Sender<Heard>,
    ) {
        self.in_flight += 1;
        self.tally.requests += 1;
        self.tally.connections = self.tally.connections.max(self.in_flight);
        tokio::spawn(async move {
            let begun = Instant::now();
            let answer = edge.send(address_of(buyer), request).await;
            let done = Instant::now();
            let heard = Heard { buyer, answer, due, begun, done };
            // Nobody listens any more once the crowd was given up.
            let _ = tell.send(heard).await;
        });
    }

    fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        let heap = self.due.iter_mut().find(|heap| heap.peek().is_some_and(|Reverse((due, _))| *due <= now))?;
        heap.pop().map(|Reverse(entry)| entry)
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.iter().filter_map(|heap| heap.peek().map(|Reverse((due, _))| *due)).min()
    }

    fn hear(&mut self, heard: Heard) {
        self.in_flight -= 1;
        let buyer = &mut self.buyers[heard.buyer as usize];
        self.tally.count(buyer.act, &heard.answer, heard.due, heard.begun, heard.done);
        let had_won = buyer.won;
        let next = buyer.hear(&heard.answer, &mut self.shop);
        self.winners += u64::from(buyer.won && !had_won);
        match next {
            Next::In(ms) => {
                let lane = usize::from(!buyer.is_through());
                self.due[lane].push(Reverse((heard.done + Duration::from_millis(ms), heard.buyer)));
            }
            Next::Done => self.answered += 1,
        }
    }

    fn request(&self, edge: &Edge, index: u32) -> Result<Request<Full<Bytes>>> {
        let buyer = &self.buyers[index as usize];
        let sale = &self.orders.sale;
        let post = |path: &str| edge.request(Method::POST, path).header(header::CONTENT_TYPE, "application/json");
        let bearer = format!("Bearer {}", buyer.token.as_deref().unwrap_or_default());
        let (builder, body) = match buyer.act {
            Act::Enter => (post(&format!("/v1/sales/{sale}/enter")), serde_json::to_vec(&EnterRequest::default())?),
            Act::Claim => (
                post(&format!("/v1/sales/{sale}/claim"))
                    .header(header::AUTHORIZATION, bearer)
                    .header(IDEMPOTENCY_KEY_HEADER, format!("key-{}", buyer.key)),
                serde_json::to_vec(&ClaimRequest { quantity: 1 })?,
            ),
            Act::MyClaim => (
                edge.request(Method::GET, &format!("/v1/sales/{sale}/my-claim")).header(header::AUTHORIZATION, bearer),
                Vec::new(),
            ),
            Act::Status => {
                let claim = buyer.claim.as_deref().context("a buyer polls without a claim")?;
                let get = edge.request(Method::GET, &claim.status_url);
                (get.header(header::AUTHORIZATION, bearer), Vec::new())
            }
            Act::Pay => {
                let payment = buyer.payment(sale, &self.shop).context("a buyer pays without a claim")?;
                let post = post("/v1/orders").header(header::AUTHORIZATION, bearer);
                (post, serde_json::to_vec(&payment)?)
            }
        };
        Ok(builder.body(Full::new(body.into()))?)
    }

    fn standing(&self) -> Standing {
        Standing {
            buyers: u64::from(self.orders.buyers),
            entered: self.tally.entered,
            answered: self.answered,
            winners: self.winners,
            opens_in_ms: self.orders.opens_at_ms - self.shop.now_ms(),
        }
    }
}

#[cfg(test)]
#[path = "crowd_tests.rs"]
mod tests;
