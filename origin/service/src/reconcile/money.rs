//! The ledger's money against itself, and against the payment provider's books.

use super::{Wish, drift};
use crate::{App, notices, provider::ProviderError};
use flashgate_ledger::{LedgerError, LedgerPayment, SaleRow};
use flashgate_shared::{
    ClaimId, Clock,
    order::DriftKind,
    wire::{Drift, NoticeKind, PaymentNotice, ProviderPayment},
};
use std::collections::{HashMap, HashSet};

/// Most payments of a sale that are compared with the provider's.
const COMPARED_MAX: usize = 1_000_000;

/// What the ledger alone shows: money that is nowhere, releases and refunds that come to no end.
pub async fn in_the_ledger(app: &App, row: &SaleRow, wish: Wish) -> Result<Vec<Drift>, LedgerError> {
    let sale = &row.config.id;
    let mut drifts = Vec::new();
    for payment in app.ledger.unmatched_payments(sale).await? {
        let cause = format!("payment {} neither paid the order nor goes back", payment.payment_id);
        let claim_id = Some(payment.claim_id);
        drifts.push(Drift { claim_id, ..drift(DriftKind::UnmatchedPayment, 0, cause) });
    }
    for release in app.ledger.stuck_releases(sale, wish.older_than_ms).await? {
        let cause = format!("the gate has not taken back {} in {} tries", release.hold, release.attempts);
        let claim_id = Some(release.claim_id);
        drifts.push(Drift { claim_id, ..drift(DriftKind::StuckRelease, i64::from(release.units), cause) });
    }
    for claim_id in app.ledger.stuck_refunds(sale, wish.older_than_ms).await? {
        let cause = "the provider has not confirmed its refund".to_owned();
        drifts.push(Drift { claim_id: Some(claim_id), ..drift(DriftKind::StuckRefund, 0, cause) });
    }
    Ok(drifts)
}

/// Why the provider's books were not compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The ledger does not answer.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The provider does not, or tells no payments.
    #[error("{0}")]
    Provider(String),
}

impl From<ProviderError> for CompareError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(match error {
            ProviderError::Refused(404) => "the provider tells no payments (GET /v1/payments)".to_owned(),
            other => other.to_string(),
        })
    }
}

/// Both books, payment by payment. What is younger than wished may be on its way.
///
/// The messages of `lost` claims were only just found to be lost: their payments are noted by the next look, when
/// they have orders to pay. Now their money would go back.
pub async fn at_the_provider(
    app: &App,
    row: &SaleRow,
    wish: Wish,
    lost: &HashSet<ClaimId>,
) -> Result<Vec<Drift>, CompareError> {
    let old_ms = app.clock.now_ms().saturating_sub(wish.older_than_ms);
    // The ledger first: what it knows, the provider knew before.
    let ours = app.ledger.payments(&row.config.id).await?;
    let theirs = provider_payments(app, row).await?;
    let mut drifts: Vec<Drift> =
        ours.iter().filter(|own| own.noted_at_ms <= old_ms).filter_map(|own| told_otherwise(own, &theirs)).collect();
    let unnoticed: Vec<&ProviderPayment> = {
        let known: HashMap<&str, ()> = ours.iter().map(|own| (own.payment_id.as_str(), ())).collect();
        let mut new: Vec<_> = theirs
            .values()
            .filter(|p| p.succeeded_at_ms <= old_ms && !known.contains_key(p.payment_id.as_str()))
            .collect();
        new.sort_by(|a, b| (a.succeeded_at_ms, &a.payment_id).cmp(&(b.succeeded_at_ms, &b.payment_id)));
        new
    };
    let ids: Vec<String> = unnoticed.iter().map(|p| p.payment_id.clone()).collect();
    // A notice may have come since.
    let still = app.ledger.unknown_payments(&ids).await?;
    for payment in unnoticed.into_iter().filter(|p| still.contains(&p.payment_id)) {
        let cause = format!("payment {} succeeded, and its notice never came", payment.payment_id);
        let now = wish.repair && !lost.contains(&payment.claim_id);
        let repair = if now { note(app, row, payment).await } else { None };
        let unnoticed = drift(DriftKind::UnnoticedPayment, 0, cause);
        drifts.push(Drift { claim_id: Some(payment.claim_id), repair, ..unnoticed });
    }
    Ok(drifts)
}

/// All that succeeded in the sale, by id.
async fn provider_payments(app: &App, row: &SaleRow) -> Result<HashMap<String, ProviderPayment>, CompareError> {
    let mut all = HashMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = app.provider.payments(&row.config.id, after.as_deref()).await?.payments;
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(last.payment_id.clone());
        let before = all.len();
        all.extend(page.into_iter().map(|payment| (payment.payment_id.clone(), payment)));
        if all.len() == before {
            return Err(CompareError::Provider("the provider tells the same payments again and again".into()));
        }
        if all.len() > COMPARED_MAX {
            return Err(CompareError::Provider(format!("more than {COMPARED_MAX} payments")));
        }
    }
}

/// Where the provider knows a payment of the ledger otherwise.
fn told_otherwise(own: &LedgerPayment, theirs: &HashMap<String, ProviderPayment>) -> Option<Drift> {
    let id = &own.payment_id;
    let cause = match theirs.get(id) {
        None => format!("payment {id} is in the ledger, and the provider does not know it"),
        Some(their) if their.amount != own.amount => {
            format!("payment {id} is {} in the ledger and {} at the provider", own.amount, their.amount)
        }
        Some(their) if own.refunded && their.refunded_minor < their.amount.amount_minor => {
            format!("payment {id} went back by the ledger, and the provider gave back {} only", their.refunded_minor)
        }
        Some(their) if !own.refund_ordered && their.refunded_minor > 0 => {
            format!(
                "the provider gave back {} of payment {id}, and the ledger did not ask for it",
                their.refunded_minor
            )
        }
        Some(_) => return None,
    };
    Some(Drift { claim_id: Some(own.claim_id), ..drift(DriftKind::UnknownPayment, 0, cause) })
}

/// What the lost notice would have done; repeating it does nothing more.
async fn note(app: &App, row: &SaleRow, payment: &ProviderPayment) -> Option<String> {
    let notice = PaymentNotice {
        kind: NoticeKind::Succeeded,
        payment_id: payment.payment_id.clone(),
        claim_id: payment.claim_id,
        sale: row.config.id.clone(),
        amount: payment.amount.clone(),
        at_ms: payment.succeeded_at_ms,
    };
    match app.notices.apply(notice.clone()).await {
        Ok(outcome) => {
            notices::record(app, &notice, &outcome);
            Some("noted as its notice would have been".to_owned())
        }
        Err(error) => {
            tracing::warn!(%error, payment = payment.payment_id, "an unnoticed payment could not be noted");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::Money;

    fn money(amount_minor: i64) -> Money {
        Money { amount_minor, currency: "EUR".to_owned().try_into().unwrap() }
    }

    #[test]
    fn where_the_books_differ_is_told() {
        let own = LedgerPayment {
            payment_id: "p".into(),
            claim_id: ClaimId(uuid::Uuid::nil()),
            amount: money(5),
            noted_at_ms: 1,
            refund_ordered: false,
            refunded: false,
        };
        let their = ProviderPayment {
            payment_id: "p".into(),
            claim_id: own.claim_id,
            amount: money(5),
            refunded_minor: 0,
            succeeded_at_ms: 1,
        };
        let told = |own: &LedgerPayment, their: Option<&ProviderPayment>| {
            let theirs = their.map(|p| (p.payment_id.clone(), p.clone())).into_iter().collect();
            told_otherwise(own, &theirs).map(|drift| drift.cause)
        };
        assert_eq!(told(&own, Some(&their)), None);
        assert!(told(&own, None).unwrap().contains("does not know"));
        assert!(
            told(&own, Some(&ProviderPayment { amount: money(6), ..their.clone() }))
                .unwrap()
                .contains("at the provider")
        );
        let back = ProviderPayment { refunded_minor: 5, ..their.clone() };
        assert!(told(&own, Some(&back)).unwrap().contains("did not ask"));
        let ordered = LedgerPayment { refund_ordered: true, ..own.clone() };
        assert_eq!(
            (told(&ordered, Some(&their)), told(&ordered, Some(&back))),
            (None, None),
            "on its way, or just done"
        );
        let refunded = LedgerPayment { refunded: true, ..ordered };
        assert_eq!(told(&refunded, Some(&back)), None);
        assert!(told(&refunded, Some(&their)).unwrap().contains("gave back 0 only"));
    }
}
