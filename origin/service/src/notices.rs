//! The notice desk: payment notices that come together go to the ledger together.
//!
//! Every notice takes the lock of its sale (design R3). One transaction for each would queue the
//! winners' payments behind one another and behind settling, each with a connection in hand; here those
//! that arrive while a transaction runs make up the next one. A notice is answered after its commit.

use crate::App;
use flashgate_ledger::{Ledger, LedgerError, NoticeOutcome};
use flashgate_shared::wire::PaymentNotice;
use tokio::sync::{mpsc, oneshot};

/// Notices that wait at the desk; more are refused, and the provider sends them again.
const WAITING_MAX: usize = 1_024;
/// Most notices taken to the ledger at once.
const BATCH_MAX: usize = 200;

type Outcome = Result<NoticeOutcome, LedgerError>;

struct Job {
    notice: PaymentNotice,
    answer: oneshot::Sender<Outcome>,
}

/// Where requests hand their notices in.
#[derive(Clone, Debug)]
pub struct NoticeDesk {
    jobs: mpsc::Sender<Job>,
}

impl NoticeDesk {
    /// Opens the desk: its task ends when the last handle is dropped.
    pub fn open(ledger: Ledger) -> Self {
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        tokio::spawn(attend(ledger, waiting));
        Self { jobs }
    }

    /// Applies a notice. When the caller is gone before the answer, the notice is applied all the same.
    pub async fn apply(&self, notice: PaymentNotice) -> Outcome {
        let (answer, answered) = oneshot::channel();
        let full = |_| LedgerError::Unavailable("too many payment notices wait".into());
        self.jobs.try_send(Job { notice, answer }).map_err(full)?;
        answered.await.unwrap_or_else(|_| Err(LedgerError::Unavailable("the notice desk has closed".into())))
    }
}

async fn attend(ledger: Ledger, mut waiting: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (notices, answers): (Vec<_>, Vec<_>) = batch.drain(..).map(|job| (job.notice, job.answer)).unzip();
        metrics::histogram!("flashgate_notice_batch_size").record(notices.len() as f64);
        for (answer, outcome) in answers.into_iter().zip(ledger.apply_notices(&notices).await) {
            // A provider that hung up sends the notice again.
            let _ = answer.send(outcome);
        }
    }
}

/// Tells what became of a notice: the log, the metrics, and whoever waits for news of the claim.
pub fn record(app: &App, notice: &PaymentNotice, outcome: &NoticeOutcome) {
    let (payment, claim) = (&notice.payment_id, &notice.claim_id);
    let word = match outcome {
        NoticeOutcome::Paid => "paid",
        NoticeOutcome::Repeat => "repeat",
        NoticeOutcome::FailedNoted => "failed",
        NoticeOutcome::Refunding { reason } => {
            tracing::warn!(%payment, %claim, reason = reason.as_str(), "money that came too late goes back");
            "refunding"
        }
        NoticeOutcome::Mismatch { expected, paid } => {
            tracing::error!(%payment, %claim, %expected, %paid, "a wrong amount was paid; it goes back");
            "mismatch"
        }
        NoticeOutcome::UnknownClaim => {
            tracing::error!(%payment, %claim, "a payment for a claim that is not known here");
            "unknown_claim"
        }
    };
    metrics::counter!("flashgate_payment_notices_total", "outcome" => word).increment(1);
    app.watchers.news(claim);
    // Some of these end an order or owe money; both workers look for themselves.
    app.releases.notify_one();
    app.refunds.notify_one();
}
