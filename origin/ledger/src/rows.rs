//! Rows to values and back: the only place where the table's words are parsed.

use crate::{LedgerError, Order, Result, tx::TxError};
use flashgate_shared::{BuyerId, ClaimId, HoldId, Money, SaleId, UnixMs, money::Currency, order::LostReason};
use sqlx::{PgConnection, PgExecutor};
use std::{collections::HashMap, fmt::Display, str::FromStr};
use uuid::Uuid;

/// Parses a word that a constraint or the writer vouches for.
pub(crate) fn word<T>(column: &str, text: &str) -> Result<T>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse().map_err(|e: T::Err| LedgerError::Bug(format!("column {column} holds {text:?}: {e}")))
}

/// A non-negative number that fits.
pub(crate) fn number<T, N: TryFrom<T>>(column: &str, value: T) -> Result<N>
where
    T: Copy + Display,
{
    N::try_from(value).map_err(|_| LedgerError::Bug(format!("column {column} holds {value}")))
}

/// Two columns make money.
pub(crate) fn money(amount_minor: i64, currency: String) -> Result<Money> {
    let currency = Currency::try_from(currency).map_err(|e| LedgerError::Bug(format!("column currency: {e}")))?;
    Ok(Money { amount_minor, currency })
}

struct OrderRow {
    claim_id: Uuid,
    sale: String,
    buyer: String,
    quantity: i32,
    status: String,
    reason: Option<String>,
    hold: Option<String>,
    amount_minor: i64,
    currency: String,
    reserved_at_ms: Option<UnixMs>,
    pay_by_ms: Option<UnixMs>,
    hold_until_ms: Option<UnixMs>,
    paying: bool,
    refunded: bool,
    trace_id: String,
    created_at_ms: UnixMs,
}

impl TryFrom<OrderRow> for Order {
    type Error = LedgerError;
    fn try_from(row: OrderRow) -> Result<Self> {
        Ok(Self {
            claim_id: ClaimId(row.claim_id),
            sale: word("sale", &row.sale)?,
            buyer: word("buyer", &row.buyer)?,
            quantity: number("quantity", row.quantity)?,
            status: word("status", &row.status)?,
            reason: row.reason.map(|r| word("reason", &r)).transpose()?,
            hold: row.hold.map(|h| word("hold", &h)).transpose()?,
            amount: money(row.amount_minor, row.currency)?,
            reserved_at_ms: row.reserved_at_ms,
            pay_by_ms: row.pay_by_ms,
            hold_until_ms: row.hold_until_ms,
            paying: row.paying,
            refunded: row.refunded,
            trace_id: word("trace_id", &row.trace_id)?,
            created_at_ms: row.created_at_ms,
        })
    }
}

/// The order of a claim.
pub(crate) async fn order(db: impl PgExecutor<'_>, claim_id: &ClaimId) -> Result<Option<Order>, TxError> {
    let row = sqlx::query_as!(
        OrderRow,
        r#"SELECT claim_id, sale, buyer, quantity, status, reason, hold, amount_minor, currency,
                  reserved_at_ms, pay_by_ms, hold_until_ms, created_at_ms, trace_id,
                  (status = 'RESERVED' AND paying_since_ms IS NOT NULL) AS "paying!",
                  EXISTS (SELECT FROM refunds r WHERE r.claim_id = o.claim_id) AS "refunded!"
           FROM orders o WHERE claim_id = $1"#,
        claim_id.0
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(Order::try_from).transpose()?)
}

/// Where claims are that have a row: their sale, and the stock row they are counted in.
pub(crate) async fn places(
    db: impl PgExecutor<'_>,
    claims: &[Uuid],
) -> Result<HashMap<ClaimId, (SaleId, i16)>, TxError> {
    let rows =
        sqlx::query!("SELECT claim_id, sale, shard FROM orders WHERE claim_id = ANY($1)", claims).fetch_all(db).await?;
    let places = rows.into_iter().map(|row| Ok((ClaimId(row.claim_id), (word("sale", &row.sale)?, row.shard))));
    Ok(places.collect::<Result<_>>()?)
}

/// The orders of these claims.
pub(crate) async fn orders(db: impl PgExecutor<'_>, claims: Vec<Uuid>) -> Result<HashMap<ClaimId, Order>, TxError> {
    let rows = sqlx::query_as!(
        OrderRow,
        r#"SELECT claim_id, sale, buyer, quantity, status, reason, hold, amount_minor, currency,
                  reserved_at_ms, pay_by_ms, hold_until_ms, created_at_ms, trace_id,
                  (status = 'RESERVED' AND paying_since_ms IS NOT NULL) AS "paying!",
                  EXISTS (SELECT FROM refunds r WHERE r.claim_id = o.claim_id) AS "refunded!"
           FROM orders o WHERE claim_id = ANY($1)"#,
        &claims
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| Order::try_from(row).map(|o| (o.claim_id, o))).collect::<Result<_>>()?)
}

/// The buyer's live order in a sale, else the newest.
pub(crate) async fn newest_order(
    db: impl PgExecutor<'_>,
    sale: &SaleId,
    buyer: &BuyerId,
) -> Result<Option<Order>, TxError> {
    let row = sqlx::query_as!(
        OrderRow,
        r#"SELECT claim_id, sale, buyer, quantity, status, reason, hold, amount_minor, currency,
                  reserved_at_ms, pay_by_ms, hold_until_ms, created_at_ms, trace_id,
                  (status = 'RESERVED' AND paying_since_ms IS NOT NULL) AS "paying!",
                  EXISTS (SELECT FROM refunds r WHERE r.claim_id = o.claim_id) AS "refunded!"
           FROM orders o WHERE sale = $1 AND buyer = $2
           ORDER BY (status IN ('RESERVED', 'PAID')) DESC, created_at_ms DESC, claim_id LIMIT 1"#,
        sale.as_str(),
        buyer.as_str()
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(Order::try_from).transpose()?)
}

/// Inserts order rows that are `RESERVED` or `LOST`, by buyer (rule R3), and leaves out those that meet
/// a row. Returns how many were really inserted.
pub(crate) async fn insert_orders(
    tx: &mut PgConnection,
    name: &'static str,
    orders: &[(i16, Order)],
) -> Result<usize, TxError> {
    let column = |f: &dyn Fn(&Order) -> String| orders.iter().map(|(_, o)| f(o)).collect::<Vec<_>>();
    let times = |f: &dyn Fn(&Order) -> Option<UnixMs>| orders.iter().map(|(_, o)| f(o)).collect::<Vec<_>>();
    let claims: Vec<Uuid> = orders.iter().map(|(_, o)| o.claim_id.0).collect();
    let shards: Vec<i16> = orders.iter().map(|(shard, _)| *shard).collect();
    let quantities = orders.iter().map(|(_, o)| number("quantity", o.quantity)).collect::<Result<Vec<i32>>>()?;
    let reasons: Vec<Option<String>> = orders.iter().map(|(_, o)| o.reason.map(|r| r.to_string())).collect();
    let holds: Vec<Option<String>> = orders.iter().map(|(_, o)| o.hold.as_ref().map(HoldId::to_string)).collect();
    let amounts: Vec<i64> = orders.iter().map(|(_, o)| o.amount.amount_minor).collect();
    let created: Vec<i64> = orders.iter().map(|(_, o)| o.created_at_ms).collect();
    let rows = sqlx::query!(
        r#"INSERT INTO orders (claim_id, sale, shard, buyer, quantity, status, reason, hold, amount_minor, currency,
               reserved_at_ms, pay_by_ms, hold_until_ms, trace_id, created_at_ms, updated_at_ms, updated_by)
           SELECT claim_id, sale, shard, buyer, quantity, status, reason, hold, amount_minor, currency,
               reserved_at_ms, pay_by_ms, hold_until_ms, trace_id, created_at_ms, created_at_ms, $1
           FROM UNNEST($2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::integer[], $7::text[], $8::text[],
               $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
               $16::bigint[])
             AS d (claim_id, sale, shard, buyer, quantity, status, reason, hold, amount_minor, currency,
               reserved_at_ms, pay_by_ms, hold_until_ms, trace_id, created_at_ms)
           ORDER BY buyer COLLATE "C", claim_id
           ON CONFLICT DO NOTHING"#,
        name,
        &claims,
        &column(&|o| o.sale.to_string()),
        &shards,
        &column(&|o| o.buyer.to_string()),
        &quantities,
        &column(&|o| o.status.to_string()),
        &reasons as &[Option<String>],
        &holds as &[Option<String>],
        &amounts,
        &column(&|o| o.amount.currency.as_str().to_owned()),
        &times(&|o| o.reserved_at_ms) as &[Option<i64>],
        &times(&|o| o.pay_by_ms) as &[Option<i64>],
        &times(&|o| o.hold_until_ms) as &[Option<i64>],
        &column(&|o| o.trace_id.to_string()),
        &created
    )
    .execute(tx)
    .await?
    .rows_affected();
    Ok(number("rows", rows)?)
}

/// A claim that is refused, as the row that says so.
pub(crate) struct Refusal<'a> {
    pub sale: &'a SaleId,
    pub claim_id: ClaimId,
    pub buyer: &'a BuyerId,
    pub quantity: u32,
    pub reason: LostReason,
    pub hold: Option<HoldId>,
    pub amount: Money,
    pub trace_id: flashgate_shared::trace::TraceId,
    pub now_ms: UnixMs,
}

impl Refusal<'_> {
    /// The row.
    pub fn into_order(self) -> Order {
        Order {
            claim_id: self.claim_id,
            sale: self.sale.clone(),
            buyer: self.buyer.clone(),
            quantity: self.quantity,
            status: flashgate_shared::order::OrderStatus::Lost,
            reason: Some(self.reason),
            hold: self.hold,
            amount: self.amount,
            reserved_at_ms: None,
            pay_by_ms: None,
            hold_until_ms: None,
            paying: false,
            refunded: false,
            trace_id: self.trace_id,
            created_at_ms: self.now_ms,
        }
    }
}
