//! Random numbers for runtimes where each draw from the system costs: jitter, trace ids, the address
//! table's seed.

use std::{
    cell::Cell,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A keyed hash (SipHash) of a counter: the numbers that clients see tell nothing of others.
#[derive(Debug)]
pub struct Draws {
    seed: [u64; 2],
    drawn: Cell<u64>,
}

impl Draws {
    /// From two random numbers of the system's.
    pub const fn new(seed: [u64; 2]) -> Self {
        Self { seed, drawn: Cell::new(0) }
    }

    /// The next one.
    pub fn next(&self) -> u64 {
        let n = self.drawn.get().wrapping_add(1);
        self.drawn.set(n);
        let mut hasher = DefaultHasher::new();
        (self.seed, n).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_from_each_other_and_from_seed_to_seed() {
        let [a, b] = [Draws::new([1, 2]), Draws::new([1, 3])];
        let mut all: Vec<u64> = (0..1_000).flat_map(|_| [a.next(), b.next()]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2_000);
    }
}
