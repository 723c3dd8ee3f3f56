//! The table, and `target/bench/report.json`.

use crate::{CONNECTIONS, ROUNDS, figures::Figure};
use anyhow::{Context, Result};
use flashgate_ops::stack::bin_dir;
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// What the figures were measured with.
#[derive(Debug, Serialize)]
struct Setting {
    rounds: usize,
    connections: usize,
    cores: usize,
    seconds: f64,
}

/// What a ratio should reach. Nothing fails when it does not: machines differ.
#[derive(Debug, Serialize)]
struct Aim {
    #[serde(skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    met: bool,
}

impl Aim {
    /// In words, for the table.
    fn words(&self) -> String {
        let met = if self.met { "met" } else { "not met" };
        match (self.at_least, self.at_most) {
            (Some(least), _) => format!("   aim >= {least}: {met}"),
            (None, Some(most)) => format!("   aim <= {most}: {met}"),
            (None, None) => String::new(),
        }
    }
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    setting: Setting,
    /// Rates: ours and the yardstick's, in pairs.
    figures: Vec<Figure>,
    /// Ours divided by the yardstick's: the median of the rounds.
    ratios: BTreeMap<&'static str, f64>,
    /// The same with the least and the greatest round.
    spread: BTreeMap<&'static str, Figure>,
    aims: BTreeMap<&'static str, Aim>,
    /// Single figures, by what they are of: sizes, times, memory.
    #[serde(flatten)]
    notes: BTreeMap<&'static str, BTreeMap<&'static str, f64>>,
}

impl Report {
    /// An empty one.
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            setting: Setting { rounds: ROUNDS, connections: CONNECTIONS, cores, seconds: 0.0 },
            figures: Vec::new(),
            ratios: BTreeMap::new(),
            spread: BTreeMap::new(),
            aims: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Adds a pair of rates, ours first, measured in alternating rounds, and their ratio.
    pub fn compare(
        &mut self,
        name: &'static str,
        aim: Option<f64>,
        what: [&str; 2],
        ours: Vec<f64>,
        theirs: Vec<f64>,
    ) -> Result<()> {
        let rounds = ours.iter().zip(&theirs).map(|(our, their)| our / their).collect();
        let ratio = Figure::of(name, rounds).context("nothing was measured")?;
        if let Some(at_least) = aim {
            self.aims.insert(name, Aim { at_least: Some(at_least), at_most: None, met: ratio.median >= at_least });
        }
        self.ratios.insert(name, ratio.median);
        self.spread.insert(name, ratio);
        for (what, rates) in what.into_iter().zip([ours, theirs]) {
            self.figures.push(Figure::of(what, rates).context("nothing was measured")?);
        }
        Ok(())
    }

    /// Adds a single figure, and what it should be at most.
    pub fn note(&mut self, group: &'static str, name: &'static str, value: f64, at_most: Option<f64>) {
        if at_most.is_some() {
            self.aims.insert(name, Aim { at_least: None, at_most, met: at_most.is_none_or(|most| value <= most) });
        }
        self.notes.entry(group).or_default().insert(name, value);
    }

    /// Prints the table.
    pub fn print(&mut self, took: Duration) {
        self.setting.seconds = took.as_secs_f64();
        let Setting { rounds, connections, cores, seconds } = self.setting;
        println!(
            "\nMedian of {rounds} (least to greatest); {connections} connections, {cores} cores shared with the load"
        );
        for figure in &self.figures {
            println!("{}", figure.line());
        }
        println!("\nRatios");
        for (name, ratio) in &self.spread {
            let aim = self.aims.get(name).map(Aim::words);
            let Figure { median, min, max, .. } = ratio;
            println!("  {name:<52} {median:>12.2}   ({min:.2} to {max:.2}){}", aim.unwrap_or_default());
        }
        for (group, figures) in &self.notes {
            println!("\n{group}");
            for (name, value) in figures {
                println!("  {name:<52} {value:>12.1}{}", self.aims.get(name).map(Aim::words).unwrap_or_default());
            }
        }
        println!("\n{seconds:.0} s");
    }

    /// Writes the file.
    pub fn write(&self) -> Result<()> {
        let path = bin_dir()?.parent().context("not under target/")?.join("bench/report.json");
        std::fs::create_dir_all(path.parent().context("no directory")?)?;
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(self)?))?;
        println!("written to {}", path.display());
        Ok(())
    }
}
