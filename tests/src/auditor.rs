//! The auditor: reads the stores itself, adds up by itself, and believes the product's own audit only
//! where both agree.

use crate::Shop;
use anyhow::{Context, Result, ensure};
use flashgate_shared::{SaleId, order::OrderStatus};
use std::collections::BTreeMap;

/// What the auditor found, at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Books {
    /// Units the sale has.
    pub total: i64,
    /// Units in the buckets.
    pub on_offer: i64,
    /// Orders by state.
    pub orders: BTreeMap<OrderStatus, i64>,
    /// Units of live orders.
    pub live_units: i64,
}

impl Books {
    /// Orders in this state.
    pub fn count(&self, status: OrderStatus) -> i64 {
        self.orders.get(&status).copied().unwrap_or(0)
    }
}

impl Shop {
    /// Waits until the sale is quiet, then checks I1 to I4.
    pub async fn audit(&self, sale: &SaleId) -> Result<Books> {
        self.quiet(sale).await?;
        let config = self.stack.admin().show(sale).await?.sale;
        let map = self.stock.stock_map(sale, config.buckets).await?;
        let on_offer = map.buckets.iter().map(|bucket| bucket.stock).sum::<i64>();
        ensure!(map.buckets.iter().all(|bucket| bucket.stock >= 0), "a bucket below zero: {map:?}");
        ensure!(map.outbox() == 0, "claims left in the outbox: {map:?}");
        let depth = self.queue.depth(sale).await?;
        ensure!(depth.ready == 0 && depth.dead == 0, "messages left: {depth:?}");

        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT status, count(*), coalesce(sum(quantity), 0)::bigint FROM orders WHERE sale = $1 GROUP BY status",
        )
        .bind(sale.as_str())
        .fetch_all(&mut self.database().await?)
        .await?;
        let (mut orders, mut live_units) = (BTreeMap::new(), 0);
        for (status, count, units) in rows {
            let status: OrderStatus = status.parse()?;
            orders.insert(status, count);
            live_units += if status.is_live() { units } else { 0 };
        }
        let (total, sold): (i64, i64) =
            sqlx::query_as("SELECT sum(total)::bigint, sum(sold)::bigint FROM stock WHERE sale = $1")
                .bind(sale.as_str())
                .fetch_one(&mut self.database().await?)
                .await?;
        let greedy: Vec<(String,)> = sqlx::query_as(
            "SELECT buyer FROM orders WHERE sale = $1 AND status IN ('RESERVED', 'PAID') GROUP BY buyer HAVING count(*) > 1",
        )
        .bind(sale.as_str())
        .fetch_all(&mut self.database().await?)
        .await?;
        ensure!(greedy.is_empty(), "I2: buyers with two live orders: {greedy:?}");
        ensure!(live_units <= total, "I1: {live_units} units sold of {total}");
        ensure!(sold == live_units, "the stock row says {sold}, the orders say {live_units}");
        ensure!(on_offer + live_units == total, "I4: {on_offer} on offer and {live_units} sold do not make {total}");
        self.check_chain(sale, sold).await?;
        let held = self.stock.held(sale, config.buckets).await?;
        let held_units: i64 = held.iter().map(|held| i64::from(held.receipt.quantity)).sum();
        ensure!(held_units == live_units, "I3: {held_units} units held at the gate, {live_units} sold");

        let report = self.stack.admin().audit(sale).await?;
        ensure!(report.broken.is_empty(), "the product's own audit: {:?}", report.broken);
        ensure!(
            (report.total, report.on_offer, report.live_units, report.oversold, report.stranded, report.double_orders)
                == (total, on_offer, live_units, 0, 0, 0),
            "the product's audit differs: {report:?}"
        );
        self.stack.check().await.context("a process has ended")?;
        Ok(Books { total, on_offer, orders, live_units })
    }

    /// Follows the ledger's chain by the database's own SHA-256, and adds up what it says.
    async fn check_chain(&self, sale: &SaleId, sold: i64) -> Result<()> {
        let (wrong, open, told): (i64, i64, i64) = sqlx::query_as(
            r"SELECT count(*) FILTER (WHERE hash <> expected OR seq <> place),
                     (SELECT count(*) FROM stock WHERE sale = $1) - count(*) FILTER (WHERE hash = chain_head),
                     coalesce(sum(units), 0)::bigint
              FROM (SELECT e.seq, e.hash, e.units, t.chain_head, row_number() OVER w AS place,
                           sha256(coalesce(lag(e.hash) OVER w, decode(repeat('00', 32), 'hex'))
                               || convert_to(concat_ws(E'\n', 'flashgate-ledger-1', e.sale, e.shard, e.seq, e.at_ms, e.kind,
                                  coalesce(e.claim_id::text, '-'), coalesce(e.buyer, '-'), e.quantity, e.units, e.sold,
                                  e.total, coalesce(e.detail, '-'), ''), 'UTF8')) AS expected
                    FROM ledger_entries e JOIN stock t ON t.sale = e.sale AND t.shard = e.shard
                    WHERE e.sale = $1 WINDOW w AS (PARTITION BY e.shard ORDER BY e.seq)) chain",
        )
        .bind(sale.as_str())
        .fetch_one(&mut self.database().await?)
        .await?;
        ensure!(wrong == 0, "{wrong} entries of the chain do not follow the ones before them");
        ensure!(open == 0, "{open} chains do not end at their stock row's head");
        ensure!(told == sold, "the chain adds up to {told} units, the stock row says {sold}");
        Ok(())
    }
}
