//! A count with a limit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts what is inside and lets no more in than the limit.
#[derive(Debug)]
pub(crate) struct Gauge {
    inside: AtomicUsize,
    limit: usize,
}

impl Gauge {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { inside: AtomicUsize::new(0), limit })
    }

    /// A place inside until the guard is dropped; `None` when all are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Inside> {
        let entered = self.inside.fetch_update(Relaxed, Relaxed, |n| (n < self.limit).then_some(n + 1));
        entered.ok().map(|_| Inside(self.clone()))
    }
}

/// A place inside a [`Gauge`].
#[derive(Debug)]
pub(crate) struct Inside(Arc<Gauge>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_are_inside() {
        let gauge = Gauge::new(2);
        let (a, b) = (gauge.enter(), gauge.enter());
        assert!(a.is_some() && b.is_some() && gauge.enter().is_none());
        drop(a);
        assert!(gauge.enter().is_some());
    }
}
