//! Counters of the host, and their Prometheus text.

use http::StatusCode;
use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counters since the start; `*_open` and `*_live` are gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections open.
    pub connections_open: AtomicU64,
    /// Connections refused because of the limit.
    pub connections_refused: AtomicU64,
    /// Connections that ended in the TLS handshake.
    pub tls_failures: AtomicU64,
    /// Requests whose answer has not begun.
    pub requests_open: AtomicU64,
    /// Answers by class of status, 1xx to 5xx.
    pub requests: [AtomicU64; 5],
    /// Requests refused because an instance had enough.
    pub overloads: AtomicU64,
    /// Instances made.
    pub instances: AtomicU64,
    /// Instances alive.
    pub instances_live: AtomicU64,
    /// Instances that ended in a trap (abort, memory, interruption).
    pub traps: AtomicU64,
    /// Instances that ended because a request took too long.
    pub expirations: AtomicU64,
    /// Outgoing requests.
    pub outgoing: AtomicU64,
    /// Outgoing requests to a host that is not allowed.
    pub outgoing_denied: AtomicU64,
    /// Reloads of component and certificates.
    pub reloads: AtomicU64,
    /// Reloads that left everything as it was.
    pub reload_failures: AtomicU64,
    /// Lines that the access log could not take.
    pub access_log_dropped: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Counts one more in a gauge until it is dropped.
pub(crate) struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    pub(crate) fn new(gauge: &'a AtomicU64) -> Self {
        count(gauge);
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Metrics {
    pub(crate) fn answered(&self, status: StatusCode) {
        if let Some(class) = self.requests.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            count(class);
        }
    }

    /// The Prometheus text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(2048);
        let counters = [
            ("connections_total", "counter", "Connections accepted", &self.connections),
            ("connections_open", "gauge", "Connections open", &self.connections_open),
            ("connections_refused_total", "counter", "Connections over the limit", &self.connections_refused),
            ("tls_failures_total", "counter", "Connections that ended in the TLS handshake", &self.tls_failures),
            ("requests_open", "gauge", "Requests whose answer has not begun", &self.requests_open),
            ("overloads_total", "counter", "Requests over an instance's limit", &self.overloads),
            ("instances_total", "counter", "Instances made", &self.instances),
            ("instances_live", "gauge", "Instances alive", &self.instances_live),
            ("traps_total", "counter", "Instances ended by a trap", &self.traps),
            ("expirations_total", "counter", "Instances ended by a time-out", &self.expirations),
            ("outgoing_total", "counter", "Outgoing requests", &self.outgoing),
            ("outgoing_denied_total", "counter", "Outgoing requests denied", &self.outgoing_denied),
            ("reloads_total", "counter", "Reloads of component and certificates", &self.reloads),
            ("reload_failures_total", "counter", "Reloads that left everything as it was", &self.reload_failures),
            ("access_log_dropped_total", "counter", "Lines dropped by the access log", &self.access_log_dropped),
        ];
        for (name, kind, help, value) in counters {
            describe(&mut out, name, kind, help);
            let _ = writeln!(out, "flashgate_edge_{name} {}", value.load(Relaxed));
        }
        describe(&mut out, "requests_total", "counter", "Answers by class of status");
        for (value, class) in self.requests.iter().zip(1..) {
            let _ = writeln!(out, "flashgate_edge_requests_total{{status=\"{class}xx\"}} {}", value.load(Relaxed));
        }
        if let Some(bytes) = peak_memory_bytes() {
            describe(&mut out, "peak_memory_bytes", "gauge", "Peak resident memory of the process");
            let _ = writeln!(out, "flashgate_edge_peak_memory_bytes {bytes}");
        }
        out
    }
}

fn describe(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP flashgate_edge_{name} {help}.\n# TYPE flashgate_edge_{name} {kind}\n");
}

/// `VmHWM` of Linux; nothing elsewhere.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_tells_classes_and_peak_memory() {
        let metrics = Metrics::default();
        metrics.answered(StatusCode::OK);
        metrics.answered(StatusCode::SERVICE_UNAVAILABLE);
        let text = metrics.text();
        assert!(text.contains("requests_total{status=\"2xx\"} 1\n"), "{text}");
        assert!(text.contains("requests_total{status=\"5xx\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE flashgate_edge_connections_open gauge\n"), "{text}");
        #[cfg(target_os = "linux")]
        assert!(text.contains("peak_memory_bytes "), "{text}");
    }
}
