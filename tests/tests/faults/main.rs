//! What a real day brings: stores that die, forget, fill up or fall silent, processes that die half way, clocks that
//! jump. Each test breaks one thing on a running shop and ends with the auditor. `docs/FAILURES.md` has a row for each.

mod broker;
mod clocks;
mod crash;
mod custody;
mod cuttable;
mod database;
mod degraded;
mod disks;
mod edges;
mod gate;
mod ledger;
mod money;
mod processes;
mod publishing;
mod replay;
mod rotation;
mod settling;
mod stores;
mod topologies;
