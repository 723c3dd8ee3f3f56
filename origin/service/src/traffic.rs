//! Counts what design I6 bounds: claims that passed the permit check, exactly, per sale.

use flashgate_shared::{UnixMs, admission, wire::TrafficReport};
use std::{collections::VecDeque, sync::Mutex};

/// Most times that one window remembers; a window that overflows counts at least this many.
const WINDOW_TIMES_MAX: usize = 1 << 20;

/// When the authority is not asked for longer, in microseconds, nobody wanted permits meanwhile.
const DEMAND_GAP_US: u64 = 1_000_000;

/// The most events that any window of a fixed length has held.
#[derive(Debug)]
struct PeakWindow {
    length_us: u64,
    times_us: VecDeque<u64>,
    peak: u64,
}

impl PeakWindow {
    fn new(length_us: u64) -> Self {
        Self { length_us, times_us: VecDeque::new(), peak: 0 }
    }

    /// `now_us` must not go back.
    fn note(&mut self, now_us: u64) {
        while self.times_us.front().is_some_and(|&t| t + self.length_us <= now_us) {
            self.times_us.pop_front();
        }
        if self.times_us.len() == WINDOW_TIMES_MAX {
            self.times_us.pop_front();
        }
        self.times_us.push_back(now_us);
        self.peak = self.peak.max(self.times_us.len() as u64);
    }
}

#[derive(Debug)]
struct Counts {
    claims: u64,
    second: PeakWindow,
    ten_seconds: PeakWindow,
    stock_max: u32,
    permits_granted: u64,
    permits_grantable: f64,
    asked_us: Option<u64>,
    first_accepted_ms: Option<UnixMs>,
    last_accepted_ms: Option<UnixMs>,
    last_settled_ms: Option<UnixMs>,
}

/// One sale's traffic in this process.
#[derive(Debug)]
pub struct Traffic(Mutex<Counts>);

impl Default for Traffic {
    fn default() -> Self {
        Self(Mutex::new(Counts {
            claims: 0,
            second: PeakWindow::new(1_000_000),
            ten_seconds: PeakWindow::new(10_000_000),
            stock_max: 0,
            permits_granted: 0,
            permits_grantable: 0.0,
            asked_us: None,
            first_accepted_ms: None,
            last_accepted_ms: None,
            last_settled_ms: None,
        }))
    }
}

impl Traffic {
    fn with<T>(&self, f: impl FnOnce(&mut Counts) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// A claim passed the permit check. The time is read under the lock, so that it never goes back.
    pub fn claim(&self, now_us: impl FnOnce() -> u64) {
        self.with(|c| {
            let now_us = now_us();
            c.claims += 1;
            c.second.note(now_us);
            c.ten_seconds.note(now_us);
        });
    }

    /// The authority was asked and granted permits on this stock, at this rate.
    pub fn granted(&self, permits: u32, stock: u32, rate_per_s: f64, now_us: u64) {
        self.with(|c| {
            let since_us = c.asked_us.replace(now_us).map_or(0, |asked_us| now_us.saturating_sub(asked_us));
            if since_us <= DEMAND_GAP_US {
                c.permits_grantable += rate_per_s * since_us as f64 / 1e6;
            }
            c.permits_granted += u64::from(permits);
            c.stock_max = c.stock_max.max(stock);
        });
    }

    /// A 202 was said.
    pub fn accepted(&self, now_ms: UnixMs) {
        self.with(|c| {
            c.first_accepted_ms.get_or_insert(now_ms);
            c.last_accepted_ms = c.last_accepted_ms.max(Some(now_ms));
        });
    }

    /// A settling transaction committed.
    pub fn settled(&self, now_ms: UnixMs) {
        self.with(|c| c.last_settled_ms = c.last_settled_ms.max(Some(now_ms)));
    }

    /// What was counted.
    pub fn report(&self, admit_factor: f64, peak_rss_mib: f64) -> TrafficReport {
        self.with(|c| TrafficReport {
            claims: c.claims,
            claims_peak_1s: c.second.peak,
            claims_peak_10s: c.ten_seconds.peak,
            stock_max: c.stock_max,
            bound_1s: admission::claims_bound(admit_factor, c.stock_max, 1.0),
            permits_granted: c.permits_granted,
            permits_grantable: c.permits_grantable,
            first_accepted_ms: c.first_accepted_ms,
            last_accepted_ms: c.last_accepted_ms,
            last_settled_ms: c.last_settled_ms,
            peak_rss_mib,
        })
    }
}

/// The largest resident set this process has had, in MiB; 0 where the system does not tell.
pub fn peak_rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_fullest_window_wherever_it_begins() {
        let mut window = PeakWindow::new(10);
        for t in [0, 5, 9, 10, 14, 30] {
            window.note(t);
        }
        // 5, 9, 10, 14 lie within [5, 15); 0 and 10 never share a window.
        assert_eq!(window.peak, 4);
    }

    #[test]
    fn a_report_has_the_bound_of_its_stock() {
        let traffic = Traffic::default();
        traffic.granted(10, 100, 500.0, 1_000_000);
        traffic.granted(10, 90, 450.0, 1_100_000);
        traffic.granted(1, 90, 450.0, 3_000_000); // after a silence
        traffic.claim(|| 1);
        let report = traffic.report(5.0, 1.0);
        assert_eq!((report.claims, report.stock_max, report.permits_granted), (1, 100, 21));
        // A tenth of a second at 450 a second; the silence counts for nothing.
        assert_eq!(report.permits_grantable, 45.0);
        assert_eq!(report.bound_1s, 751.0);
    }
}
