//! Saying what is being done, a line per step with its duration, on standard error.

use std::{
    future::Future,
    io::{IsTerminal, Write},
    time::Instant,
};

/// Whether and how steps are told. Standard output stays free for results.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    verbose: bool,
    terminal: bool,
    colour: bool,
}

impl Steps {
    /// Tells steps when `verbose`; in colour on a terminal, unless `NO_COLOR` is set.
    pub fn new(verbose: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { verbose, terminal, colour: colour(terminal) }
    }

    /// Whether steps are told.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Runs one step and tells what it was and how long it took; on a terminal also what is being
    /// waited for.
    pub async fn run<T, E>(&self, what: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let from = Instant::now();
        if self.verbose && self.terminal {
            let _ = write!(std::io::stderr(), "  {}  {what}", paint(self.colour, "2", "wait"));
        }
        let done = work.await;
        let seconds = from.elapsed().as_secs_f64();
        match &done {
            Ok(_) => self.line("32", "done", what, &format!("{seconds:.1} s")),
            Err(_) => self.line("31", "FAIL", what, &format!("after {seconds:.1} s")),
        }
        done
    }

    /// Tells a fact.
    pub fn note(&self, what: &str) {
        self.line("33", "note", what, "");
    }

    fn line(&self, code: &str, word: &str, what: &str, how_long: &str) {
        if !self.verbose {
            return;
        }
        let word = paint(self.colour, code, word);
        let end = if how_long.is_empty() { "" } else { " " };
        // On a terminal, over what was waited for.
        let over = if self.terminal { "\r\x1b[K" } else { "" };
        // A closed standard error must not end the work.
        let _ = writeln!(std::io::stderr(), "{over}  {word}  {what}{end}{how_long}");
    }
}

/// Whether to use colour on a stream that is a terminal or not (<https://no-color.org>).
pub fn colour(is_terminal: bool) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    is_terminal && !forbidden && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// The text in this ANSI colour, when colour is wanted.
pub fn paint(colour: bool, code: &str, text: &str) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
