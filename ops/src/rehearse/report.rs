//! The report of a rehearsal and its verdict: what the buyers were told, held against what the
//! origin's audit and the payment provider's ledger say.

use super::{
    buyer::{Buyer, End},
    crowd::MAX_CONNECTIONS,
    tally::{Millis, Tally},
};
use crate::provider::ProviderLedger;
use flashgate_shared::{
    ClaimId, SaleId, admission,
    wire::{AuditReport, TrafficReport},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// Pass or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything that must hold held.
    Pass,
    /// Something did not; the reasons say what.
    Fail,
}

/// Peak resident memory, in MiB; absent where the process is not on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PeakRss {
    /// Of the largest edge process.
    pub edge: Option<f64>,
    /// Of the largest origin process.
    pub origin: Option<f64>,
}

/// How long the parts of a rehearsal took, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// From the first to the last entry.
    pub entering: f64,
    /// From the opening to the last answer to a click.
    pub selling: f64,
    /// From the opening to the last final answer.
    pub finishing: f64,
    /// From the last final answer until nothing moved any more.
    pub settling: f64,
    /// All together.
    pub total: f64,
}

/// The report. Field names are read by others: add, never rename.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The sale.
    pub sale: SaleId,
    /// Buyers.
    pub buyers: u32,
    /// Units.
    pub stock: u32,
    /// Live orders at the end.
    pub reserved: i64,
    /// Units sold that were not there.
    pub oversold: i64,
    /// Units neither sold nor claimable.
    pub stranded: i64,
    /// Live orders beyond one a buyer.
    pub double_orders: i64,
    /// Buyers without a final answer.
    pub unanswered: u64,
    /// Claims that passed the origin's permit check, most in any one second.
    pub claims_at_origin: u64,
    /// What that may be at most (design I6).
    pub admission_bound: f64,
    /// The same in any ten seconds.
    pub claims_at_origin_10s: u64,
    /// What that may be at most.
    pub admission_bound_10s: f64,
    /// Claims that passed the permit check, as a share of the permits that the authority could have
    /// granted while it was asked; absent where it was never asked for long enough to tell.
    pub admission_used: Option<f64>,
    /// Clicks refused before the origin's permit check.
    pub refused_at_edge: u64,
    /// From opening the connection of a click to the end of its answer.
    pub answer_ms: Millis,
    /// From the last 202 to the last commit that settled a claim.
    pub settled_ms: i64,
    /// Most connections at once.
    pub connections: usize,
    /// Most that the buyers may share.
    pub connections_limit: usize,
    /// Peak resident memory.
    pub peak_rss_mb: PeakRss,
    /// Pass or fail.
    pub verdict: Verdict,
    /// Why it failed; empty when it passed.
    pub reasons: Vec<String>,
    /// Buyers who were told RESERVED, whatever came after.
    pub winners: u64,
    /// Buyers who were told PAID.
    pub paid: u64,
    /// Buyers whose order expired and who had paid nothing.
    pub lapsed: u64,
    /// Buyers whose money came too late.
    pub late: u64,
    /// Of these, given back and told so.
    pub refunded: u64,
    /// Payments that the provider kept although their order is not paid; absent without its ledger.
    #[serde(default)]
    pub charged_but_lost: Option<u64>,
    /// Units on offer at the end.
    pub on_offer: i64,
    /// How long clicks waited in the generator for a free connection: no part of `answer_ms`.
    pub generator_wait_ms: Millis,
    /// Requests made.
    pub requests: u64,
    /// Requests without an answer; each was made again.
    pub requests_lost: u64,
    /// Answers by request and status.
    pub answers: BTreeMap<String, u64>,
    /// Refused clicks by kind.
    pub refusals: BTreeMap<String, u64>,
    /// How long the parts took.
    pub seconds: Seconds,
    /// Peak resident memory of the generator, in MiB.
    pub generator_peak_rss_mb: Option<f64>,
    /// The last audit.
    pub audit: AuditReport,
    /// What the origin counted.
    pub traffic: TrafficReport,
}

/// The independent model: what the buyers, taken together, were told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// No final answer.
    pub unanswered: u64,
    /// Told RESERVED or PAID at least once.
    pub winners: u64,
    /// Ended PAID.
    pub paid: u64,
    /// Ended EXPIRED, nothing paid.
    pub lapsed: u64,
    /// Ended EXPIRED after a payment was accepted.
    pub late: u64,
    /// Of these, told "refunded".
    pub refunded: u64,
    /// Ended LOST.
    pub lost: u64,
    /// Heard 202 and then "sold out", with no row that says why.
    pub forgotten: u64,
    /// Told something that no buyer should hear, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Buyers who share their claim with another.
    pub shared_claims: u64,
}

impl Told {
    /// Adds the buyers up.
    pub fn by(buyers: &[Buyer]) -> Self {
        let mut told = Self::default();
        let mut claims: HashSet<ClaimId> = HashSet::new();
        for buyer in buyers {
            told.winners += u64::from(buyer.won);
            if let Some(claim) = &buyer.claim {
                told.shared_claims += u64::from(!claims.insert(claim.id));
            }
            match buyer.end {
                None => told.unanswered += 1,
                Some(End::Paid) => told.paid += 1,
                Some(End::Expired { refunded }) => {
                    let paying = buyer.claim.as_ref().is_some_and(|c| c.paying);
                    told.lapsed += u64::from(!paying);
                    told.late += u64::from(paying);
                    told.refunded += u64::from(paying && refunded);
                }
                Some(End::Lost(_)) => told.lost += 1,
                Some(End::SoldOut | End::Closed) => told.forgotten += u64::from(buyer.accepted > 0),
                Some(End::Refused(status)) => *told.refused.entry(status).or_default() += 1,
            }
        }
        told
    }
}

/// Everything a verdict is made of.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Buyers.
    pub buyers: u32,
    /// Units.
    pub stock: u32,
    /// Design I6's factor.
    pub admit_factor: f64,
    /// Every winner meant to pay in time.
    pub all_pay: bool,
    /// What the buyers were told.
    pub told: &'a Told,
    /// What the generator counted.
    pub tally: &'a Tally,
    /// The last audit.
    pub audit: AuditReport,
    /// What the origin counted.
    pub traffic: TrafficReport,
    /// The provider's ledger, when it can be read.
    pub money: Option<&'a ProviderLedger>,
    /// Peak memory.
    pub peak_rss_mb: PeakRss,
    /// Durations.
    pub seconds: Seconds,
    /// Peak memory of the generator, in MiB.
    pub generator_peak_rss_mb: Option<f64>,
}

impl Evidence<'_> {
    /// The bound of design I6 for one second.
    pub fn bound(&self) -> f64 {
        self.bound_of(1.0)
    }

    fn bound_of(&self, seconds: f64) -> f64 {
        admission::claims_bound(self.admit_factor, self.traffic.stock_max.max(1), seconds)
    }

    /// Every reason why the rehearsal failed, for a person.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut must = |holds: bool, reason: String| {
            if !holds {
                reasons.push(reason);
            }
        };
        let (audit, told) = (&self.audit, self.told);
        must(audit.oversold == 0, format!("{} units oversold", audit.oversold));
        must(audit.stranded == 0, format!("{} units stranded", audit.stranded));
        must(audit.double_orders == 0, format!("{} live orders beyond one a buyer", audit.double_orders));
        for broken in &audit.broken {
            must(false, format!("audit: {broken}"));
        }
        must(audit.quiet, "the sale did not come to rest".into());
        must(audit.dead_letters == 0, format!("{} dead letters", audit.dead_letters));
        must(told.unanswered == 0, format!("{} buyers without a final answer", told.unanswered));
        must(
            self.traffic.claims_peak_1s as f64 <= self.bound(),
            format!(
                "{} claims in a second at the origin, at most {} are allowed",
                self.traffic.claims_peak_1s,
                self.bound()
            ),
        );
        must(
            self.traffic.claims_peak_10s as f64 <= self.bound_of(10.0),
            format!(
                "{} claims in ten seconds at the origin, at most {} are allowed",
                self.traffic.claims_peak_10s,
                self.bound_of(10.0)
            ),
        );
        // What buyers were told, against the ledger.
        let same = |what: &str, buyers: u64, ledger: i64| {
            let fits = i64::try_from(buyers) == Ok(ledger);
            (fits, format!("{buyers} buyers {what}, the ledger has {ledger}"))
        };
        for (fits, reason) in [
            same("hold a live order", told.paid, audit.live_orders),
            same("were told PAID", told.paid, audit.paid_orders),
            same("were told EXPIRED", told.lapsed + told.late, audit.expired_orders),
            same("were told LOST", told.lost, audit.lost_claims),
        ] {
            must(fits, reason);
        }
        must(told.forgotten == 0, format!("{} buyers were accepted and then told sold out", told.forgotten));
        must(told.shared_claims == 0, format!("{} buyers share a claim", told.shared_claims));
        for (status, count) in &told.refused {
            must(false, format!("{count} buyers ended with an answer that none should get (status {status})"));
        }
        let failures = self.tally.with_status(500);
        must(failures == 0, format!("{failures} answers had status 500"));
        let possible = u64::from(self.stock.min(self.buyers));
        must(told.winners >= possible, format!("{} buyers won, {possible} could have", told.winners));
        must(
            !self.all_pay || u64::try_from(audit.live_orders) == Ok(possible),
            format!("{} units sold although every winner meant to pay; {possible} could have been", audit.live_orders),
        );
        must(told.refunded == told.late, format!("{} of {} late payments were given back", told.refunded, told.late));
        if let Some(ledger) = self.money {
            let kept: Vec<_> = ledger.kept(&audit.sale).map(|p| p.claim_id).collect();
            let claims: HashSet<_> = kept.iter().collect();
            must(
                i64::try_from(kept.len()) == Ok(audit.paid_orders) && claims.len() == kept.len(),
                format!(
                    "the provider kept {} payments for {} claims, {} orders are paid",
                    kept.len(),
                    claims.len(),
                    audit.paid_orders
                ),
            );
        }
        reasons
    }

    /// The report.
    pub fn report(self) -> Report {
        let reasons = self.reasons();
        let (told, tally) = (self.told, self.tally);
        // A click with a stale permit did reach the origin, yet not past its permit check.
        let refused_permits = tally.refusals.get("permit-refused").copied().unwrap_or(0);
        let beyond_edge = self.traffic.claims + refused_permits;
        let settled_ms = match (self.traffic.last_accepted_ms, self.traffic.last_settled_ms) {
            (Some(accepted), Some(settled)) => (settled - accepted).max(0),
            _ => 0,
        };
        Report {
            sale: self.audit.sale.clone(),
            buyers: self.buyers,
            stock: self.stock,
            reserved: self.audit.live_orders,
            oversold: self.audit.oversold,
            stranded: self.audit.stranded,
            double_orders: self.audit.double_orders,
            unanswered: told.unanswered,
            claims_at_origin: self.traffic.claims_peak_1s,
            admission_bound: self.bound(),
            claims_at_origin_10s: self.traffic.claims_peak_10s,
            admission_bound_10s: self.bound_of(10.0),
            admission_used: (self.traffic.permits_grantable >= 1.0)
                .then(|| self.traffic.claims as f64 / self.traffic.permits_grantable),
            refused_at_edge: tally.clicks_answered.saturating_sub(beyond_edge),
            answer_ms: tally.answer.millis(),
            settled_ms,
            connections: tally.connections,
            connections_limit: MAX_CONNECTIONS,
            peak_rss_mb: self.peak_rss_mb,
            verdict: if reasons.is_empty() { Verdict::Pass } else { Verdict::Fail },
            reasons,
            winners: told.winners,
            paid: told.paid,
            lapsed: told.lapsed,
            late: told.late,
            refunded: told.refunded,
            charged_but_lost: self.money.map(|ledger| {
                let paid = u64::try_from(self.audit.paid_orders).unwrap_or(0);
                (ledger.kept(&self.audit.sale).count() as u64).saturating_sub(paid)
            }),
            on_offer: self.audit.on_offer,
            generator_wait_ms: tally.queued.millis(),
            requests: tally.requests,
            requests_lost: tally.lost,
            answers: tally.named_answers(),
            refusals: tally.refusals.clone(),
            seconds: self.seconds,
            generator_peak_rss_mb: self.generator_peak_rss_mb,
            audit: self.audit,
            traffic: self.traffic,
        }
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
