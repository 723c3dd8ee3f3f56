//! The ledger on a real, private Postgres; one database for each test.

mod bench;
mod chain;
mod erase;
mod model;
mod pay;
mod rebuild;
mod releases;
mod sales;
mod settle_batches;
mod settle_table;
mod shards;
