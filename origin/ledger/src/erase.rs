//! Erasing what leads to a buyer (retention, and the right to be forgotten).
//!
//! A buyer's id stands in orders, in releases and in messages that could not be settled; those get a pseudonym
//! that nobody can lead back, and the messages go. Amounts and payment ids stay: they are the shop's accounts.
//! The chain is not touched. It knows buyers by tags, hashes of their ids and of the sale's salt, and the salt
//! is exchanged: nobody can try ids on old tags any more. What the gate knows of buyers goes with a rebuild,
//! which is ordered in the same transaction.

use crate::{
    Ledger, LedgerError, Result, rebuild,
    rows::word,
    tx::{Rows, TxError, lock_stock, outer, transaction},
};
use flashgate_shared::{
    BuyerId, SaleId,
    order::OrderStatus,
    sale::{RebuildCause, SaleState},
    wire::Erasure,
};
use sqlx::PgConnection;

/// What a pseudonym begins with; a random UUID follows.
const PSEUDONYM: &str = "erased-";

impl Ledger {
    /// Erases one buyer's personal data from a sale, or that of all its buyers, and orders its gate to be
    /// rebuilt. `NotFound` when the ledger knows nothing of that buyer; `Conflict` while the sale may still
    /// change what it would have to remember.
    pub async fn erase(&self, sale: &SaleId, buyer: Option<&BuyerId>) -> Result<Erasure> {
        let name = "erase";
        transaction!(self.settle, name, |tx| erase(tx, name, sale, buyer))
    }

    /// Sales that were closed for so long, and whose buyers are still known.
    pub async fn sales_to_erase(&self, closed_for_ms: i64) -> Result<Vec<SaleId>> {
        let sales = sqlx::query_scalar!(
            "SELECT id FROM sales s
             WHERE state = 'closed'
               AND (SELECT min(made_at_ms) FROM sale_versions v WHERE v.sale = s.id AND v.state = 'closed')
                   <= (SELECT unix_now_ms()) - $1
               AND NOT EXISTS (SELECT FROM erasures e WHERE e.sale = s.id AND e.everybody)
               AND EXISTS (SELECT FROM orders o WHERE o.sale = s.id)
             ORDER BY id",
            closed_for_ms
        )
        .fetch_all(&self.settle)
        .await
        .map_err(outer)?;
        sales.iter().map(|sale| word("id", sale)).collect()
    }
}

async fn erase(
    tx: &mut PgConnection,
    name: &'static str,
    sale: &SaleId,
    buyer: Option<&BuyerId>,
) -> Result<Erasure, TxError> {
    let locked = lock_stock(tx, sale, &Rows::All).await?.ok_or(LedgerError::NotFound)?;
    is_over(tx, sale).await?;
    let buyer = buyer.map(BuyerId::as_str);
    let buyers = sqlx::query_scalar!(
        r#"WITH pseudonyms AS MATERIALIZED (
               SELECT buyer, $3 || gen_random_uuid() AS pseudonym
               FROM (SELECT buyer FROM orders WHERE sale = $1 UNION SELECT buyer FROM gate_releases WHERE sale = $1) known
               WHERE $2::text IS NULL OR buyer = $2),
           of_orders AS (
               UPDATE orders o SET buyer = p.pseudonym, updated_at_ms = $4, updated_by = $5
               FROM pseudonyms p WHERE o.sale = $1 AND o.buyer = p.buyer),
           of_releases AS (
               UPDATE gate_releases r SET buyer = p.pseudonym, updated_at_ms = $4, updated_by = $5
               FROM pseudonyms p WHERE r.sale = $1 AND r.buyer = p.buyer)
           SELECT count(*) AS "buyers!" FROM pseudonyms"#,
        sale.as_str(),
        buyer,
        PSEUDONYM,
        locked.now_ms,
        name
    )
    .fetch_one(&mut *tx)
    .await?;
    let letters = sqlx::query!(
        "DELETE FROM dead_letters
         WHERE sale = $1 AND ($2::text IS NULL OR position(convert_to($2, 'UTF8') IN body) > 0)",
        sale.as_str(),
        buyer
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if buyer.is_some() && buyers == 0 && letters == 0 {
        return Err(LedgerError::NotFound.into());
    }
    sqlx::query!(
        "UPDATE sales SET salt = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) WHERE id = $1",
        sale.as_str()
    )
    .execute(&mut *tx)
    .await?;
    let id = sqlx::query_scalar!(
        "INSERT INTO erasures (sale, everybody, buyers, erased_at_ms, updated_by) VALUES ($1, $2, $3, $4, $5)
         RETURNING id",
        sale.as_str(),
        buyer.is_none(),
        buyers,
        locked.now_ms,
        name
    )
    .fetch_one(&mut *tx)
    .await?;
    rebuild::order(tx, name, sale, RebuildCause::Operator, None).await?;
    Ok(Erasure { id, buyers, at_ms: locked.now_ms })
}

/// Nothing may still need to know who a buyer is: the sale is closed, its reservations are paid or over, and
/// their units went back.
async fn is_over(tx: &mut PgConnection, sale: &SaleId) -> Result<(), TxError> {
    let now = sqlx::query!(
        r#"SELECT state,
                  (SELECT count(*) FROM orders WHERE sale = $1 AND status = $2) AS "reserved!",
                  (SELECT count(*) FROM gate_releases WHERE sale = $1 AND outcome IS NULL) AS "releases!"
           FROM sales WHERE id = $1"#,
        sale.as_str(),
        OrderStatus::Reserved.as_str()
    )
    .fetch_one(tx)
    .await?;
    let state: SaleState = word("state", &now.state)?;
    let why = match (state, now.reserved, now.releases) {
        (SaleState::Closed, 0, 0) => return Ok(()),
        (SaleState::Rebuilding, ..) => "its gate is being rebuilt: try again in a moment".to_owned(),
        (SaleState::Closed, 0, releases) => format!("{releases} releases are under way: try again in a moment"),
        (SaleState::Closed, reserved, _) => {
            format!("{reserved} reservations are neither paid nor over: wait until they are")
        }
        (state, ..) => format!("the sale is {state}: only a closed one forgets its buyers"),
    };
    Err(LedgerError::Conflict(why).into())
}
