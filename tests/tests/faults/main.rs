//! What a real day brings: stores that die, forget or fall silent, processes that die half way. Each test
//! breaks one thing on a running shop and ends with the auditor. `docs/FAILURES.md` has a row for each.

mod gate;
mod ledger;
mod processes;
mod stores;
mod topologies;
