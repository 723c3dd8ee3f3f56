//! A ledger of one's own, and the checks that must hold whatever a test did.

use flashgate_ledger::{Ledger, LedgerConfig, Order, Settled};
use flashgate_shared::{
    BuyerId, ClaimId, Epoch, HoldId, Money, SaleId,
    chain::{Checker, Sum},
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    order::{LostReason, OrderStatus},
    sale::SaleConfig,
    trace::TraceId,
    wire::{NoticeKind, PaymentNotice},
};
use sqlx::PgPool;
use std::sync::atomic::{AtomicU32, Ordering};

static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A ledger with one sale in a database of its own.
pub struct Bench {
    pub ledger: Ledger,
    config: LedgerConfig,
    pub sql: PgPool,
    pub sale: SaleId,
}

pub fn money(amount_minor: i64, currency: &str) -> Money {
    Money { amount_minor, currency: currency.to_owned().try_into().unwrap() }
}

/// A sale of `total` units at 50.00 EUR, four buckets.
pub fn sale(id: &str, total: u32) -> SaleConfig {
    SaleConfig {
        id: id.parse().unwrap(),
        version: 1,
        title: "Half-price phones".into(),
        description: String::new(),
        price: money(5_000, "EUR"),
        total,
        per_buyer_limit: total.min(5),
        opens_at_ms: 0,
        closes_at_ms: i64::MAX,
        buckets: 4,
        shards: 1,
        admit_factor: 5.0,
        enter_rate_per_s: 1_000.0,
        pay_window_ms: 600_000,
        grace_ms: 30_000,
        second_try: false,
        anonymous_entry: true,
        backlog_limit: 100,
        address_limits: Default::default(),
    }
}

pub fn buyer(name: &str) -> BuyerId {
    name.parse().unwrap()
}

/// The claim of `name` in the bench's sale with this key.
pub fn claim_id(name: &str, key: &str) -> ClaimId {
    ClaimId::derive(&"phones".parse().unwrap(), &buyer(name), &key.parse().unwrap())
}

/// One unit for `name` under `key`, with the hold `epoch.0.1-<hold>`.
pub fn message(name: &str, key: &str, epoch: Epoch, hold: u32) -> ClaimEnvelope {
    ClaimEnvelope {
        v: ENVELOPE_VERSION,
        sale: "phones".parse().unwrap(),
        claim_id: claim_id(name, key),
        buyer: buyer(name),
        quantity: 1,
        hold: HoldId::new(epoch, 0, &format!("1-{hold}")).unwrap(),
        claimed_at_ms: 1,
        trace_id: TraceId::from_random(u128::from(hold) + 1),
    }
}

/// `message` for several units.
pub fn message_of(quantity: u32, name: &str, key: &str, hold: u32) -> ClaimEnvelope {
    ClaimEnvelope { quantity, ..message(name, key, 1, hold) }
}

pub fn notice(kind: NoticeKind, payment_id: &str, claim_id: ClaimId, amount: Money) -> PaymentNotice {
    PaymentNotice { kind, payment_id: payment_id.into(), claim_id, sale: "phones".parse().unwrap(), amount, at_ms: 1 }
}

/// What a release row says: claim, hold, units, mode, epoch.
pub type Release = (ClaimId, String, i32, String, i64);

impl Bench {
    pub async fn new(total: u32) -> Self {
        Self::with(sale("phones", total)).await
    }

    pub async fn with(sale: SaleConfig) -> Self {
        let postgres = flashgate_servers::shared().await.unwrap().postgres();
        let name = format!("ledger_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let url = postgres.create_database(&name).await.unwrap();
        let config = LedgerConfig {
            url: url.clone(),
            pool_settle: 4,
            pool_read: 4,
            statement_timeout_ms: 30_000,
            idle_in_transaction_timeout_ms: 30_000,
            acquire_timeout_ms: 30_000,
            ..Default::default()
        };
        let ledger = Ledger::connect(&config).await.unwrap();
        ledger.migrate().await.unwrap();
        ledger.migrate().await.unwrap();
        ledger.create_sale(&sale).await.unwrap();
        Self { ledger, config, sql: PgPool::connect_lazy(&url).unwrap(), sale: sale.id }
    }

    /// Another handle on the ledger, of a process of its own.
    pub async fn worker(&self) -> Ledger {
        Ledger::connect(&self.config).await.unwrap()
    }

    /// Rows of orders that were read so far. The handle's connections are ended first: only then does Postgres
    /// have their counts.
    pub async fn order_rows_read(&self, worker: Ledger) -> i64 {
        drop(worker);
        flashgate_servers::until("its connections have ended", std::time::Duration::from_secs(60), || async {
            let open: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'flashgate-ledger'",
            )
            .fetch_one(&self.sql)
            .await?;
            Ok(open <= i64::from(self.ledger.open_connections()))
        })
        .await
        .unwrap();
        sqlx::query_scalar(
            "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'orders'",
        )
        .fetch_one(&self.sql)
        .await
        .unwrap()
    }

    pub async fn run(&self, statement: &'static str) {
        sqlx::raw_sql(statement).execute(&self.sql).await.unwrap();
    }

    pub async fn settle(&self, batch: &[ClaimEnvelope]) -> Vec<Settled> {
        self.ledger.settle(&self.sale, batch).await.unwrap()
    }

    pub async fn settle_one(&self, message: &ClaimEnvelope) -> Settled {
        self.settle(std::slice::from_ref(message)).await.remove(0)
    }

    /// Reserves `message`, which must succeed.
    pub async fn reserve(&self, message: &ClaimEnvelope) -> Order {
        match self.settle_one(message).await {
            Settled::Reserved(order) => order,
            other => panic!("{other:?}"),
        }
    }

    pub async fn order(&self, claim_id: ClaimId) -> Order {
        self.ledger.order(&claim_id).await.unwrap().unwrap()
    }

    pub async fn status(&self, claim_id: ClaimId) -> (OrderStatus, Option<LostReason>) {
        let order = self.order(claim_id).await;
        (order.status, order.reason)
    }

    /// Moves a claim's times `ms` into the past, as if so much time had gone by.
    pub async fn age(&self, claim_id: ClaimId, ms: i64) {
        sqlx::query(
            "UPDATE orders SET reserved_at_ms = reserved_at_ms - $2, pay_by_ms = pay_by_ms - $2,
                    hold_until_ms = hold_until_ms - $2 WHERE claim_id = $1",
        )
        .bind(claim_id.0)
        .bind(ms)
        .execute(&self.sql)
        .await
        .unwrap();
    }

    pub async fn set_epoch(&self, epoch: Epoch) {
        sqlx::query("UPDATE stock SET epoch = $1").bind(epoch).execute(&self.sql).await.unwrap();
    }

    pub async fn sold(&self) -> i64 {
        self.ledger.sale(&self.sale).await.unwrap().unwrap().sold
    }

    pub async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.sql).await.unwrap()
    }

    /// All release rows, by hold.
    pub async fn releases(&self) -> Vec<Release> {
        let rows: Vec<(uuid::Uuid, String, i32, String, i64)> =
            sqlx::query_as("SELECT claim_id, hold, units, mode, epoch FROM gate_releases ORDER BY id")
                .fetch_all(&self.sql)
                .await
                .unwrap();
        rows.into_iter().map(|(c, h, u, m, e)| (ClaimId(c), h, u, m, e)).collect()
    }

    /// What design I1 and I2 say, and that no unit is on two ways at once.
    pub async fn sound(&self) {
        let audit = self.ledger.audit(&self.sale).await.unwrap();
        assert_eq!(audit.sold, audit.live_units);
        assert!(audit.live_units <= audit.total, "{audit:?}");
        assert_eq!(audit.double_orders, 0);
        let live = self.ledger.live_orders(&self.sale).await.unwrap();
        assert_eq!(live.len() as i64, audit.live_orders);
        let both: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM orders o JOIN gate_releases r ON r.claim_id = o.claim_id AND r.hold = o.hold
             WHERE o.status IN ('RESERVED', 'PAID')",
        )
        .fetch_one(&self.sql)
        .await
        .unwrap();
        assert_eq!(both, 0, "a live order's hold is on its way back");
        let sum = self.chain().await;
        assert_eq!((sum.sold, sum.total), (audit.sold, audit.total), "the chain tells another story");
    }

    /// Units and units sold of each stock row.
    pub async fn rows(&self) -> Vec<(i64, i64)> {
        sqlx::query_as("SELECT total, sold FROM stock ORDER BY shard").fetch_all(&self.sql).await.unwrap()
    }

    /// Follows the chain to its head.
    pub async fn chain(&self) -> Sum {
        let mut checker = Checker::new(self.sale.clone());
        for head in self.ledger.heads(&self.sale).await.unwrap() {
            for entry in self.ledger.entries(&self.sale, head.shard, 0, u32::MAX).await.unwrap() {
                checker.check(&entry).unwrap();
            }
        }
        let sum = checker.finish().unwrap();
        assert_eq!(sum.heads, self.ledger.heads(&self.sale).await.unwrap());
        sum
    }
}
