//! The protocol: its parts, its steps, and what must hold after each.

use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// What must hold in every state.
pub(crate) const ALWAYS: [&str; 4] = [
    "I1: never oversold",
    "I2: one live order a buyer",
    "I3, I4: at rest every unit is sold or on offer",
    "I7: nobody pays for nothing",
];
/// What must happen in some.
pub(crate) const ALL_PAID: &str = "all units are paid, after a rebuild";
pub(crate) const SOLD_AGAIN: &str = "a unit comes back and is sold again";

pub(crate) type Epoch = u8;
pub(crate) type Bucket = u8;

/// Who claims, with which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(crate) buyer: u8,
    pub(crate) key: u8,
}

/// One OK of the gate (rule R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    epoch: Epoch,
    bucket: Bucket,
    entry: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Note {
    Held,
    Released,
    Void,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Receipt {
    note: Note,
    claim: Claim,
    hold: Hold,
}

/// One bucket in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Redis {
    epoch: Option<Epoch>,
    stock: u8,
    receipts: BTreeMap<u8, Receipt>,
    outbox: BTreeSet<(Claim, Hold)>,
    /// It has lost writes since it was loaded; what the marks of `load.lua` tell.
    broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    Reserved,
    Paid,
    Expired,
    Lost,
}

impl Status {
    fn is_live(self) -> bool {
        matches!(self, Self::Reserved | Self::Paid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Order {
    status: Status,
    hold: Option<Hold>,
}

/// A row of `gate_releases`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Release {
    claim: Claim,
    hold: Hold,
    units: u8,
    spent: bool,
    epoch: Epoch,
}

/// Postgres.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    epoch: Epoch,
    sold: u8,
    rebuilding: bool,
    orders: BTreeMap<Claim, Order>,
    due: BTreeSet<Release>,
    /// Every release that there ever was: the table's unique key.
    known: BTreeSet<(Claim, Hold)>,
    refunds: BTreeSet<Claim>,
}

/// A process between the cut and the opening.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rebuilder {
    epoch: Epoch,
    stock: u8,
    receipts: BTreeMap<u8, Receipt>,
    loaded: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    buckets: Vec<Redis>,
    queue: BTreeSet<(Claim, Hold)>,
    ledger: Ledger,
    /// Money at the provider, by claim, and whether its notice is still to come.
    charges: BTreeMap<Claim, bool>,
    rebuilders: Vec<Rebuilder>,
    /// A copy of a bucket of the past, which a failover may bring back.
    past: Option<(Bucket, Redis)>,
    entries: u8,
    /// What may still go wrong.
    repeats: u8,
    failovers: u8,
    rebuilds: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// `claim.lua`; the process dies right after if `published` is none, else it publishes, and the outbox entry
    /// goes if the confirm came.
    Claim {
        claim: Claim,
        bucket: Bucket,
    },
    /// Origin or relay: publish, with or without a confirm that arrives.
    Publish {
        bucket: Bucket,
        claim: Claim,
        hold: Hold,
        confirmed: bool,
    },
    /// One message, one transaction; without the acknowledgement it comes again.
    Settle {
        claim: Claim,
        hold: Hold,
        acknowledged: bool,
    },
    Charge(Claim),
    Notice(Claim),
    Expire(Claim),
    /// `release.lua`; without the mark it is done again.
    Release {
        release: Release,
        marked: bool,
    },
    DeclareLost(Claim),
    /// A bucket's server remembers this moment only.
    Snapshot(Bucket),
    ForgetSince,
    ForgetAll(Bucket),
    BeginRebuild,
    Cut,
    Load(u8),
    Open(u8),
}

/// What is taken away from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// `release.lua` does not compare the receipt.
    NoReceiptCompare,
    /// Settling takes no look at what is free.
    NoConditionalUpdate,
    /// The gate appends no outbox entry; the process publishes by itself, if it lives.
    NoOutbox,
    /// Neither the table's class 4 nor the unique index.
    NoUniqueLiveOrder,
    /// A message of an older epoch is settled like any other.
    NoEpochInSettle,
    /// A second hold of a claim is a repeat.
    NoSecondHold,
    /// Money that cannot buy is kept.
    NoRefund,
}

/// A sale, how much of it is visited, and which guard is taken away.
pub(crate) struct Protocol {
    pub(crate) total: u8,
    pub(crate) buckets: Bucket,
    pub(crate) claims: Vec<Claim>,
    /// Most OKs of the gate: a sale ends.
    pub(crate) entries: u8,
    pub(crate) repeats: u8,
    pub(crate) failovers: u8,
    pub(crate) rebuilds: u8,
    pub(crate) bug: Bug,
}

impl Protocol {
    fn spread(&self, units: u8) -> Vec<u8> {
        (0..self.buckets).map(|b| units / self.buckets + u8::from(b < units % self.buckets)).collect()
    }

    fn home(&self, buyer: u8) -> Bucket {
        buyer % self.buckets
    }

    fn claim(&self, world: &mut World, claim: Claim, bucket: Bucket) -> Option<()> {
        let next = world.entries;
        if next >= self.entries {
            return None;
        }
        let redis = &mut world.buckets[usize::from(bucket)];
        let epoch = redis.epoch?;
        match redis.receipts.get(&claim.buyer) {
            Some(receipt) if receipt.claim == claim => return None,
            Some(receipt) if receipt.note != Note::Void => return None,
            _ => {}
        }
        redis.stock = redis.stock.checked_sub(1)?;
        let hold = Hold { epoch, bucket, entry: next };
        redis.receipts.insert(claim.buyer, Receipt { note: Note::Held, claim, hold });
        if self.bug != Bug::NoOutbox {
            redis.outbox.insert((claim, hold));
        }
        world.entries += 1;
        Some(())
    }

    /// The table of design §7; one message is a batch.
    fn settle(&self, world: &mut World, claim: Claim, hold: Hold) {
        let ledger = &mut world.ledger;
        let row = ledger.orders.get(&claim).cloned();
        let lost = Order { status: Status::Lost, hold: Some(hold) };
        match row {
            Some(order) if order.hold == Some(hold) => return,
            row if hold.epoch < ledger.epoch && self.bug != Bug::NoEpochInSettle => {
                if row.is_none() {
                    ledger.orders.insert(claim, lost);
                }
                return;
            }
            Some(_) => {
                if self.bug != Bug::NoSecondHold {
                    give_back(ledger, claim, hold, 1, false);
                }
                return;
            }
            None => {}
        }
        let of_buyer = |live: bool| {
            ledger.orders.iter().any(|(c, o)| {
                c.buyer == claim.buyer && if live { o.status.is_live() } else { o.status == Status::Expired }
            })
        };
        let refused = (of_buyer(true) && self.bug != Bug::NoUniqueLiveOrder) || of_buyer(false);
        let free = self.total.saturating_sub(ledger.sold);
        if refused {
            ledger.orders.insert(claim, lost);
            give_back(ledger, claim, hold, 1, false);
        } else if free == 0 && self.bug != Bug::NoConditionalUpdate {
            ledger.orders.insert(claim, lost);
            give_back(ledger, claim, hold, free, false);
        } else {
            ledger.orders.insert(claim, Order { status: Status::Reserved, hold: Some(hold) });
            ledger.sold += 1;
        }
    }

    fn expire(&self, ledger: &mut Ledger, claim: Claim) -> Option<()> {
        let order = ledger.orders.get_mut(&claim).filter(|order| order.status == Status::Reserved)?;
        order.status = Status::Expired;
        let hold = order.hold?;
        ledger.sold -= 1;
        give_back(ledger, claim, hold, 1, true);
        Some(())
    }

    /// `lua/release.lua`; whether the row is done.
    fn release(&self, world: &mut World, release: &Release) -> bool {
        let bucket =
            if release.hold.epoch == release.epoch { release.hold.bucket } else { self.home(release.claim.buyer) };
        let redis = &mut world.buckets[usize::from(bucket)];
        match redis.epoch {
            Some(epoch) if epoch > release.epoch => return true,
            Some(epoch) if epoch == release.epoch => {}
            _ => return false,
        }
        let held = redis
            .receipts
            .get_mut(&release.claim.buyer)
            .filter(|receipt| receipt.note == Note::Held && receipt.hold == release.hold);
        match held {
            Some(receipt) => {
                receipt.note = if release.spent { Note::Released } else { Note::Void };
                redis.stock += release.units;
            }
            None if self.bug == Bug::NoReceiptCompare => redis.stock += release.units,
            None => {}
        }
        true
    }

    fn cut(&self, world: &mut World) -> Rebuilder {
        let ledger = &mut world.ledger;
        let gates = world.buckets.iter().filter_map(|redis| redis.epoch).max().unwrap_or(0);
        ledger.epoch = ledger.epoch.max(gates) + 1;
        // They are counted in what is free.
        ledger.due.clear();
        let mut receipts: BTreeMap<u8, Receipt> = BTreeMap::new();
        for (claim, order) in &ledger.orders {
            let note = match order.status {
                Status::Reserved | Status::Paid => Note::Held,
                Status::Expired => Note::Released,
                Status::Lost => Note::Void,
            };
            let hold =
                order.hold.unwrap_or(Hold { epoch: ledger.epoch, bucket: self.home(claim.buyer), entry: u8::MAX });
            let better = receipts.get(&claim.buyer).is_none_or(|known| note < known.note);
            if better {
                receipts.insert(claim.buyer, Receipt { note, claim: *claim, hold });
            }
        }
        Rebuilder { epoch: ledger.epoch, stock: self.total.saturating_sub(ledger.sold), receipts, loaded: 0 }
    }

    /// `lua/load.lua` for the rebuilder's next bucket; `false` when it is refused.
    fn load(&self, world: &mut World, rebuilder: &mut Rebuilder) -> bool {
        let bucket = rebuilder.loaded;
        let redis = &mut world.buckets[usize::from(bucket)];
        if redis.epoch.is_some_and(|epoch| epoch >= rebuilder.epoch) {
            return false;
        }
        redis.epoch = Some(rebuilder.epoch);
        redis.stock = self.spread(rebuilder.stock)[usize::from(bucket)];
        redis.receipts = rebuilder
            .receipts
            .iter()
            .filter(|(buyer, _)| self.home(**buyer) == bucket)
            .map(|(b, r)| (*b, *r))
            .collect();
        redis.broken = false;
        rebuilder.loaded += 1;
        true
    }

    fn is_whole(&self, world: &World) -> bool {
        world.buckets.iter().all(|redis| redis.epoch == Some(world.ledger.epoch) && !redis.broken)
    }

    /// Nothing is on its way.
    fn is_at_rest(&self, world: &World) -> bool {
        world.buckets.iter().all(|redis| redis.outbox.is_empty())
            && world.queue.is_empty()
            && world.ledger.due.is_empty()
            && !world.ledger.rebuilding
            && self.is_whole(world)
    }
}

/// A row of `gate_releases`, at the ledger's epoch; one for each claim and hold.
fn give_back(ledger: &mut Ledger, claim: Claim, hold: Hold, units: u8, spent: bool) {
    if ledger.known.insert((claim, hold)) {
        ledger.due.insert(Release { claim, hold, units, spent, epoch: ledger.epoch });
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let stocks = self.spread(self.total);
        let redis = |stock| Redis { epoch: Some(1), stock, ..Redis::default() };
        vec![World {
            buckets: stocks.into_iter().map(redis).collect(),
            queue: BTreeSet::new(),
            ledger: Ledger {
                epoch: 1,
                sold: 0,
                rebuilding: false,
                orders: BTreeMap::new(),
                due: BTreeSet::new(),
                known: BTreeSet::new(),
                refunds: BTreeSet::new(),
            },
            charges: BTreeMap::new(),
            rebuilders: Vec::new(),
            past: None,
            entries: 0,
            repeats: self.repeats,
            failovers: self.failovers,
            rebuilds: self.rebuilds,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for &claim in &self.claims {
            steps.extend((0..self.buckets).map(|bucket| Step::Claim { claim, bucket }));
            match world.ledger.orders.get(&claim).map(|order| order.status) {
                Some(Status::Reserved) => {
                    steps.push(Step::Expire(claim));
                    if !world.charges.contains_key(&claim) {
                        steps.push(Step::Charge(claim));
                    }
                }
                None => steps.push(Step::DeclareLost(claim)),
                _ => {}
            }
            if world.charges.get(&claim) == Some(&true) {
                steps.push(Step::Notice(claim));
            }
        }
        for (bucket, redis) in (0..).zip(&world.buckets) {
            for &(claim, hold) in &redis.outbox {
                steps.push(Step::Publish { bucket, claim, hold, confirmed: true });
                if world.repeats > 0 {
                    steps.push(Step::Publish { bucket, claim, hold, confirmed: false });
                }
            }
            if world.failovers > 0 {
                steps.push(Step::ForgetAll(bucket));
                if world.past.is_none() {
                    steps.push(Step::Snapshot(bucket));
                }
            }
        }
        if world.past.is_some() {
            steps.push(Step::ForgetSince);
        }
        for &(claim, hold) in &world.queue {
            steps.push(Step::Settle { claim, hold, acknowledged: true });
            if world.repeats > 0 {
                steps.push(Step::Settle { claim, hold, acknowledged: false });
            }
        }
        for &release in &world.ledger.due {
            steps.push(Step::Release { release, marked: true });
            if world.repeats > 0 {
                steps.push(Step::Release { release, marked: false });
            }
        }
        if world.rebuilds > 0 && !world.ledger.rebuilding {
            steps.push(Step::BeginRebuild);
        }
        if world.rebuilds > 0 && world.ledger.rebuilding {
            steps.push(Step::Cut);
        }
        for (i, rebuilder) in (0..).zip(&world.rebuilders) {
            steps.push(if rebuilder.loaded < self.buckets { Step::Load(i) } else { Step::Open(i) });
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Claim { claim, bucket } => {
                self.claim(&mut world, claim, bucket)?;
                if self.bug == Bug::NoOutbox && world.repeats > 0 {
                    // It publishes by itself: here it dies before.
                    world.repeats -= 1;
                } else if self.bug == Bug::NoOutbox {
                    let receipt = world.buckets[usize::from(bucket)].receipts[&claim.buyer];
                    world.queue.insert((claim, receipt.hold));
                }
            }
            Step::Publish { bucket, claim, hold, confirmed } => {
                world.queue.insert((claim, hold));
                if confirmed {
                    world.buckets[usize::from(bucket)].outbox.remove(&(claim, hold));
                } else {
                    world.repeats -= 1;
                }
            }
            Step::Settle { claim, hold, acknowledged } => {
                self.settle(&mut world, claim, hold);
                if acknowledged {
                    world.queue.remove(&(claim, hold));
                } else {
                    world.repeats -= 1;
                }
            }
            Step::Charge(claim) => {
                world.charges.insert(claim, true);
            }
            Step::Notice(claim) => {
                world.charges.insert(claim, false);
                match world.ledger.orders.get_mut(&claim) {
                    Some(order) if order.status == Status::Reserved => order.status = Status::Paid,
                    _ if self.bug == Bug::NoRefund => {}
                    _ => {
                        world.ledger.refunds.insert(claim);
                    }
                }
            }
            Step::Expire(claim) => self.expire(&mut world.ledger, claim)?,
            Step::Release { release, marked } => {
                if !self.release(&mut world, &release) {
                    return None;
                }
                if marked {
                    world.ledger.due.remove(&release);
                } else {
                    world.repeats -= 1;
                }
            }
            Step::DeclareLost(claim) => {
                let holds = |redis: &Redis| {
                    redis.receipts.get(&claim.buyer).is_some_and(|r| r.claim == claim && r.note == Note::Held)
                };
                // Every bucket has answered at the ledger's epoch, and no rebuild runs. Only accepted claims
                // have a link to ask with.
                let answered = world.buckets.iter().all(|redis| redis.epoch == Some(world.ledger.epoch));
                if !answered || world.ledger.rebuilding || world.buckets.iter().any(holds) || world.entries == 0 {
                    return None;
                }
                world.ledger.orders.insert(claim, Order { status: Status::Lost, hold: None });
            }
            Step::Snapshot(bucket) => world.past = Some((bucket, world.buckets[usize::from(bucket)].clone())),
            Step::ForgetSince => {
                let (bucket, past) = world.past.take()?;
                world.buckets[usize::from(bucket)] = Redis { broken: true, ..past };
                world.failovers -= 1;
            }
            Step::ForgetAll(bucket) => {
                world.buckets[usize::from(bucket)] = Redis { broken: true, ..Redis::default() };
                world.past = None;
                world.failovers -= 1;
            }
            Step::BeginRebuild => world.ledger.rebuilding = true,
            Step::Cut => {
                let rebuilder = self.cut(&mut world);
                world.rebuilders.push(rebuilder);
                world.rebuilds -= 1;
            }
            Step::Load(i) => {
                let mut rebuilder = world.rebuilders.remove(usize::from(i));
                // Refused: it gives up.
                if self.load(&mut world, &mut rebuilder) {
                    world.rebuilders.insert(usize::from(i), rebuilder);
                }
            }
            Step::Open(i) => {
                let rebuilder = world.rebuilders.remove(usize::from(i));
                if rebuilder.epoch == world.ledger.epoch {
                    world.ledger.rebuilding = false;
                }
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(ALWAYS[0], |model, world| {
                let live = world.ledger.orders.values().filter(|order| order.status.is_live()).count();
                world.ledger.sold <= model.total && usize::from(world.ledger.sold) == live
            }),
            Property::<Self>::always(ALWAYS[1], |_, world| {
                let live = world.ledger.orders.iter().filter(|(_, order)| order.status.is_live());
                let buyers: Vec<u8> = live.map(|(claim, _)| claim.buyer).collect();
                buyers.iter().collect::<BTreeSet<_>>().len() == buyers.len()
            }),
            Property::<Self>::always(ALWAYS[2], |model, world| {
                let on_offer: u8 = world.buckets.iter().map(|redis| redis.stock).sum();
                !model.is_at_rest(world) || on_offer + world.ledger.sold == model.total
            }),
            Property::<Self>::always(ALWAYS[3], |_, world| {
                world.charges.iter().all(|(claim, pending)| {
                    let paid = world.ledger.orders.get(claim).is_some_and(|order| order.status == Status::Paid);
                    *pending || paid != world.ledger.refunds.contains(claim)
                })
            }),
            // The model is not silent because nothing happens in it.
            Property::<Self>::sometimes(ALL_PAID, |model, world| {
                let paid = world.ledger.orders.values().filter(|order| order.status == Status::Paid).count();
                paid == usize::from(model.total) && world.ledger.epoch > 1 && model.is_at_rest(world)
            }),
            Property::<Self>::sometimes(SOLD_AGAIN, |model, world| {
                let ended = world.ledger.orders.values().any(|order| order.status == Status::Expired);
                ended && world.ledger.sold == model.total
            }),
        ]
    }
}
