//! Median, spread, and the table.

use serde::Serialize;

/// Five measurements of one thing.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured, with its unit.
    pub what: String,
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Figure {
    /// From any odd number of measurements; `None` when there is none.
    pub fn of(what: &str, mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            what: what.to_owned(),
            median: *values.get(values.len() / 2)?,
            min: *values.first()?,
            max: *values.last()?,
        })
    }

    /// One line of the table.
    pub fn line(&self) -> String {
        format!("  {:<52} {:>12.0}   ({:.0} to {:.0})", self.what, self.median, self.min, self.max)
    }
}
