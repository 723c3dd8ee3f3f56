//! Ends reservations that nobody paid (design §8). The ledger's clock decides; when that clock jumps
//! against this process's monotonic clock, the sweeper stops and raises an alarm, for a jump forward
//! would end every reservation at once.

use crate::{
    App,
    roles::{Next, Pace},
};
use flashgate_ledger::LedgerError;
use flashgate_shared::UnixMs;
use std::time::{Duration, Instant};

/// How far the two clocks may part, in milliseconds, before the sweeper stops.
const JUMP_MS: i64 = 5_000;
/// How long it stops; an operator who disagrees with the clock has this long to stop the role.
const STOP_AFTER_JUMP: Duration = Duration::from_secs(60);

/// Watches the ledger's clock.
#[derive(Debug, Default)]
struct ClockWatch {
    base: Option<(i64, UnixMs)>,
}

impl ClockWatch {
    /// How far the ledger's clock has jumped since the base, when that is too far.
    fn jump_ms(&mut self, mono_ms: i64, ledger_ms: UnixMs) -> Option<i64> {
        let (mono_base, ledger_base) = *self.base.get_or_insert((mono_ms, ledger_ms));
        let jump_ms = (ledger_ms - ledger_base) - (mono_ms - mono_base);
        if jump_ms.abs() <= JUMP_MS {
            // Slow drift is no jump.
            self.base = Some((mono_ms, ledger_ms));
            return None;
        }
        Some(jump_ms)
    }
}

/// Sweeps until shutdown.
pub async fn run(app: &App) {
    let period = Duration::from_millis(app.config.sweep.period_ms);
    let start = Instant::now();
    let mut watch = ClockWatch::default();
    let mut pace = Pace::new("sweep", None, &app.shutdown);
    while pace.goes_on() {
        let jump = tick(app, start, &mut watch).await;
        if let Ok(Some(jump_ms)) = jump {
            metrics::counter!("flashgate_clock_jumps_total").increment(1);
            tracing::error!(
                jump_ms,
                stopped_s = STOP_AFTER_JUMP.as_secs(),
                "ALARM: the ledger's clock jumped; nothing is swept for now"
            );
            watch = ClockWatch::default();
        }
        pace.rest(jump.map(|jump| Next::After(if jump.is_some() { STOP_AFTER_JUMP } else { period }))).await;
    }
}

async fn tick(app: &App, start: Instant, watch: &mut ClockWatch) -> Result<Option<i64>, LedgerError> {
    let ledger_ms = app.ledger.now_ms().await?;
    if let Some(jump_ms) = watch.jump_ms(start.elapsed().as_millis() as i64, ledger_ms) {
        return Ok(Some(jump_ms));
    }
    let batch = app.config.sweep.batch_orders;
    for sale in app.ledger.sales_with_due().await? {
        while !app.shutdown.is_cancelled() {
            let expired = app.ledger.sweep(&sale, batch).await?.expired;
            if expired > 0 {
                tracing::info!(%sale, expired, "unpaid reservations ended");
                metrics::counter!("flashgate_expired_total").increment(expired);
                app.releases.notify_one();
            }
            if expired < u64::from(batch) {
                break;
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_no_jump_and_a_jump_is_one_either_way() {
        let mut watch = ClockWatch::default();
        assert_eq!(watch.jump_ms(0, 1_000_000), None);
        assert_eq!(watch.jump_ms(1_000, 1_001_100), None);
        assert_eq!(watch.jump_ms(2_000, 1_062_100), Some(60_000));
        let mut back = ClockWatch::default();
        assert_eq!(back.jump_ms(0, 1_000_000), None);
        assert_eq!(back.jump_ms(1_000, 901_000), Some(-100_000));
    }
}
