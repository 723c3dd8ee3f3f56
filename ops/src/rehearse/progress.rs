//! How far the crowd is: a bar on a terminal, otherwise a line every few seconds.

use super::crowd::Standing;
use crate::steps::{Steps, colour};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// How often a line is written where there is no terminal, in seconds.
const LINE_EVERY_S: u64 = 5;

/// Tells how far the crowd is, on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    last: Option<Instant>,
}

impl Progress {
    /// A bar, lines, or nothing when the steps are not told either.
    pub fn start(steps: Steps) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (steps.is_verbose() && terminal).then(|| {
            let template = match colour(true) {
                true => "  {bar:32.cyan/blue} {msg}",
                false => "  {bar:32} {msg}",
            };
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { lines: steps.is_verbose() && !terminal, bar, last: None }
    }

    /// Takes note of where things stand.
    pub fn show(&mut self, now: Standing) {
        if let Some(bar) = &self.bar {
            bar.set_length(now.buyers);
            bar.set_position(if now.opens_in_ms > 0 { now.entered } else { now.answered });
            bar.set_message(words(&now));
        } else if self.lines && self.last.is_none_or(|at| at.elapsed() >= Duration::from_secs(LINE_EVERY_S)) {
            self.last = Some(Instant::now());
            let _ = writeln!(std::io::stderr(), "        {}", words(&now));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn words(now: &Standing) -> String {
    if now.opens_in_ms > 0 {
        let seconds = now.opens_in_ms / 1000 + 1;
        return format!("{} of {} have entered, opens in {seconds} s", now.entered, now.buyers);
    }
    format!("{} of {} have a final answer, {} reserved", now.answered, now.buyers, now.winners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_awaited() {
        let mut now = Standing { buyers: 100, entered: 40, answered: 0, winners: 0, opens_in_ms: 1_500 };
        assert_eq!(words(&now), "40 of 100 have entered, opens in 2 s");
        (now.opens_in_ms, now.answered, now.winners) = (-1, 90, 10);
        assert_eq!(words(&now), "90 of 100 have a final answer, 10 reserved");
    }
}
