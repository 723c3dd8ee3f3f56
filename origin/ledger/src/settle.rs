//! Settling: a batch of queue messages becomes rows (design §7). The judgement is in [`crate::table`];
//! here it is given what the ledger knows under the lock, and written down.

use crate::{
    Ledger, LedgerError, Order, Result, SettleError, Settled,
    chain::{NewEntry, append},
    release::{NewRelease, insert_releases},
    rows::{self, Refusal, word},
    sales::settings,
    table::{Book, Class, Known, Room, Tries},
    tx::{Locked, Rows, TxError, lock_stock, transaction},
};
use flashgate_shared::{
    BuyerId, ClaimId, SaleId,
    envelope::ClaimEnvelope,
    order::{LostReason, OrderStatus, ReleaseMode},
    sale::SaleConfig,
};
use sqlx::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

/// Most messages settled in one transaction: bounds how long the stock stays locked.
const SETTLE_TRANSACTION_MESSAGES: usize = 500;

impl Ledger {
    /// Settles a batch in its order; the answers have the batch's length and order. Repeating it is safe.
    ///
    /// Where the sale's stock is split, each call takes the next row: as many as there are rows settle side by
    /// side.
    ///
    /// A batch that Postgres refuses for its data is halved until the bad row stands alone; that one
    /// becomes `Mismatch`, its neighbours settle. On `Err` a part may have been settled: keep all messages.
    pub async fn settle(&self, sale: &SaleId, batch: &[ClaimEnvelope]) -> Result<Vec<Settled>, SettleError> {
        let mut settled = Vec::with_capacity(batch.len());
        let mut parts: Vec<&[ClaimEnvelope]> = batch.chunks(SETTLE_TRANSACTION_MESSAGES).rev().collect();
        while let Some(part) = parts.pop() {
            match self.settle_part("settle", sale, part, false).await {
                Ok(answers) => settled.extend(answers),
                Err(LedgerError::Invalid(why) | LedgerError::Conflict(why)) if part.len() == 1 => {
                    settled.push(Settled::Mismatch(why));
                }
                Err(LedgerError::Invalid(why) | LedgerError::Conflict(why)) => {
                    tracing::warn!(%sale, messages = part.len(), why, "a batch was refused for its data: halved");
                    let (left, right) = part.split_at(part.len() / 2);
                    parts.extend([right, left]);
                }
                Err(e) => return Err(e),
            }
        }
        settled.iter().for_each(count);
        Ok(settled)
    }

    /// Under the lock of one stock row if it has room, else under that of all rows: nobody is refused for want of
    /// stock before all of it was looked at.
    async fn settle_part(
        &self,
        name: &'static str,
        sale: &SaleId,
        part: &[ClaimEnvelope],
        dead: bool,
    ) -> Result<Vec<Settled>, SettleError> {
        let shard = self.next_shard(sale).await?;
        for lock in [Rows::one(shard), Rows::All] {
            let settled = transaction!(self.settle, name, |tx| settle(tx, name, sale, &lock, shard, part, dead))?;
            if let Some(answers) = settled {
                return Ok(answers);
            }
            metrics::counter!("flashgate_ledger_full_rows_total").increment(1);
        }
        Err(LedgerError::Bug(format!("{sale} has more stock rows than all")))
    }

    /// Passes a dead letter through the same table; only what would be reserved is refused as poison, and
    /// its units go back.
    pub async fn settle_dead(&self, envelope: &ClaimEnvelope) -> Result<Settled, SettleError> {
        let part = std::slice::from_ref(envelope);
        let answers = self.settle_part("settle_dead", &envelope.sale, part, true).await?;
        let answer = answers.into_iter().next().ok_or_else(|| LedgerError::Bug("one message, no answer".into()))?;
        count(&answer);
        Ok(answer)
    }
}

fn count(answer: &Settled) {
    let class = match answer {
        Settled::Reserved(_) => "reserved",
        Settled::Repeat => "repeat",
        Settled::Lost(reason) => reason.as_str(),
        Settled::SecondHold => "second_hold",
        Settled::Mismatch(_) => "mismatch",
    };
    metrics::counter!("flashgate_ledger_settled_total", "class" => class).increment(1);
}

/// The body: lock, read, judge, write. Orders are counted in `shard` while it has room. `None`, and nothing written, when the locked rows have no room for a
/// message and others may have.
#[allow(clippy::too_many_arguments)]
async fn settle(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    lock: &Rows,
    shard: i16,
    part: &[ClaimEnvelope],
    dead: bool,
) -> Result<Option<Vec<Settled>>, TxError> {
    let Some(mut locked) = lock_stock(tx, sale, lock).await? else {
        let unknown = |_: &ClaimEnvelope| Settled::Mismatch(format!("the ledger has no sale {sale}"));
        return Ok(Some(part.iter().map(unknown).collect()));
    };
    let (config, _) = settings(tx, sale).await?;
    let all_locked = locked.shards.len() >= usize::from(config.shards);
    let mut book = open_book(tx, &config, &locked, shard, part, dead).await?;
    let mut drafts = Drafts::default();
    let mut answers = Vec::with_capacity(part.len());
    for message in part {
        let class = book.judge(message);
        if !all_locked && matches!(class, Class::Lost { reason: LostReason::GateLeaked, .. }) {
            return Ok(None);
        }
        answers.push(drafts.add(&config, &locked, shard, message, class)?);
    }
    drafts.write(tx, name, sale, &mut locked).await?;
    Ok(Some(answers))
}

/// What the ledger knows of the batch's claims and buyers.
async fn open_book<'a>(
    tx: &mut PgConnection,
    sale: &'a SaleConfig,
    locked: &Locked,
    shard: i16,
    part: &[ClaimEnvelope],
    dead: bool,
) -> Result<Book<'a>, TxError> {
    let claim_ids: Vec<Uuid> = part.iter().map(|m| m.claim_id.0).collect();
    let buyer_ids: Vec<String> = part.iter().map(|m| m.buyer.to_string()).collect();
    let mut claims = HashMap::with_capacity(part.len());
    // Row by row on purpose, here and below: a plan made for a sale that seems to be empty reads all of it.
    let known = sqlx::query!(
        "SELECT o.claim_id, o.sale, o.buyer, o.quantity, o.hold FROM UNNEST($1::uuid[]) AS d (claim_id)
         CROSS JOIN LATERAL (SELECT * FROM orders WHERE orders.claim_id = d.claim_id LIMIT 1) o",
        &claim_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    for row in known {
        claims.insert(
            ClaimId(row.claim_id),
            Known {
                sale: word("sale", &row.sale)?,
                buyer: word("buyer", &row.buyer)?,
                quantity: rows::number("quantity", row.quantity)?,
                hold: row.hold.map(|h| word("hold", &h)).transpose()?,
            },
        );
    }
    let tried = sqlx::query!(
        r#"SELECT d.buyer AS "buyer!", o.live AS "live!", o.ended AS "ended!" FROM UNNEST($2::text[]) AS d (buyer)
           CROSS JOIN LATERAL (
               SELECT bool_or(status IN ('RESERVED', 'PAID')) AS live, bool_or(status = 'EXPIRED') AS ended
               FROM orders WHERE orders.sale = $1 AND orders.buyer = d.buyer) o
           WHERE o.live IS NOT NULL"#,
        sale.id.as_str(),
        &buyer_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut buyers: HashMap<BuyerId, Tries> = HashMap::with_capacity(part.len());
    for row in tried {
        buyers.insert(word("buyer", &row.buyer)?, Tries { live: row.live, ended: row.ended });
    }
    let room = locked.shards.iter().map(|s| Room { shard: s.shard, free: s.total - s.sold });
    Ok(Book { sale, epoch: locked.epoch, claims, buyers, room: room.collect(), first: shard, dead })
}

/// What a batch is about to write.
#[derive(Default)]
struct Drafts {
    orders: Vec<(i16, Order)>,
    entries: Vec<NewEntry>,
    releases: Vec<NewRelease>,
}

impl Drafts {
    fn add(
        &mut self,
        config: &SaleConfig,
        locked: &Locked,
        shard: i16,
        message: &ClaimEnvelope,
        class: Class,
    ) -> Result<Settled, TxError> {
        Ok(match class {
            Class::Mismatch(why) => Settled::Mismatch(why),
            Class::Repeat => Settled::Repeat,
            Class::SecondHold => {
                self.release(message, message.quantity);
                Settled::SecondHold
            }
            Class::Lost { reason, release } => {
                let refusal = Refusal {
                    sale: &message.sale,
                    claim_id: message.claim_id,
                    buyer: &message.buyer,
                    quantity: message.quantity,
                    reason,
                    hold: Some(message.hold.clone()),
                    amount: amount(config, message.quantity)?,
                    trace_id: message.trace_id,
                    now_ms: locked.now_ms,
                };
                self.order(shard, refusal.into_order());
                if let Some(units) = release {
                    self.release(message, units);
                }
                Settled::Lost(reason)
            }
            Class::Reserve { shard, moves } => {
                let order = reserve(config, locked, message)?;
                self.entries.extend(moves.into_iter().flat_map(|(from, units)| NewEntry::moved(from, shard, units)));
                self.order(shard, order.clone());
                Settled::Reserved(order)
            }
        })
    }

    fn order(&mut self, shard: i16, order: Order) {
        self.entries.push(NewEntry::of(shard, &order));
        self.orders.push((shard, order));
    }

    fn release(&mut self, message: &ClaimEnvelope, units: u32) {
        self.releases.push(NewRelease {
            claim_id: message.claim_id,
            hold: message.hold.clone(),
            buyer: message.buyer.clone(),
            units,
            mode: ReleaseMode::Void,
            trace_id: message.trace_id,
        });
    }

    /// Inserts the orders, counts what was really inserted, moves `sold` by that, records the releases.
    async fn write(
        self,
        tx: &mut PgConnection,
        name: &'static str,
        sale: &SaleId,
        locked: &mut Locked,
    ) -> Result<(), TxError> {
        if !self.orders.is_empty() {
            let inserted = rows::insert_orders(tx, name, &self.orders).await?;
            if inserted != self.orders.len() {
                let missing = self.orders.len() - inserted;
                return Err(TxError::Again(format!("{missing} orders met a row that was not there before")));
            }
            append(tx, name, sale, locked, self.entries).await?;
        }
        insert_releases(tx, name, sale, locked.epoch, locked.now_ms, &self.releases).await
    }
}

/// The pay window starts now, when the ledger reserves, not when the claim queued.
fn reserve(config: &SaleConfig, locked: &Locked, message: &ClaimEnvelope) -> Result<Order, TxError> {
    let pay_by_ms = locked.now_ms + config.pay_window_ms;
    Ok(Order {
        claim_id: message.claim_id,
        sale: message.sale.clone(),
        buyer: message.buyer.clone(),
        quantity: message.quantity,
        status: OrderStatus::Reserved,
        reason: None,
        hold: Some(message.hold.clone()),
        amount: amount(config, message.quantity)?,
        reserved_at_ms: Some(locked.now_ms),
        pay_by_ms: Some(pay_by_ms),
        hold_until_ms: Some(pay_by_ms + config.grace_ms),
        paying: false,
        refunded: false,
        trace_id: message.trace_id,
        created_at_ms: locked.now_ms,
    })
}

fn amount(config: &SaleConfig, quantity: u32) -> Result<flashgate_shared::Money, LedgerError> {
    let whole = config.price.times(quantity);
    whole.ok_or_else(|| LedgerError::Invalid(format!("the price of {quantity} units does not fit")))
}
