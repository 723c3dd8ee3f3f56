//! The stock: sole owner of Redis and of `lua/` (design §5, §6, §8).
//!
//! Redis decides who is through, fast; it is never trusted with the truth, which is the ledger's.
//! Whatever it forgets or promises twice, the ledger refuses or the release outbox repairs.
//!
//! Keys of bucket *b* of sale *s*, with `p` the deployment's prefix. The hash tag in braces keeps a
//! bucket's keys on one slot of a cluster:
//!
//! | key | type | what |
//! |---|---|---|
//! | `{p:s:b}:stock` | integer | units on offer in this bucket |
//! | `{p:s:b}:buyers` | hash | buyer → receipt `state claim_id hold quantity claimed_at_ms`; a hash and no set, because a late release of an old hold must not remove the receipt of a newer one |
//! | `{p:s:b}:claims` | stream | the outbox: claims that the queue has not confirmed; bounded by the stock |
//! | `{p:s:b}:epoch` | integer | the generation of this gate; absent until it is loaded |
//! | `{p:s:b}:loading` | integer | the epoch that is being loaded, while it is |
//! | `{p:s:b}:server` | text | run id and replication id of the server that it was loaded in |
//! | `{p:s}:lease:claim`, `{p:s}:lease:enter` | number | the admission authority's bucket, see `lua/lease.lua` |
//!
//! A command is sent once. A time-out or a lost connection leaves its outcome *unknown*; the claim
//! id makes asking again safe, here and in no other bucket.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod claim;
mod client;
mod config;
mod error;
mod keys;
mod lease;
mod load;
mod look;
mod map;
mod outbox;
mod receipt;
mod release;
mod script;
mod settings;

pub use claim::{ClaimAttempt, ClaimReply};
pub use client::Stock;
pub use config::StockConfig;
pub use error::StockError;
pub use lease::{LeaseAsk, LeaseGrant};
pub use load::{BucketLoad, LoadReply};
pub use look::Generation;
pub use map::{BucketStock, StockMap};
pub use receipt::{BucketReceipt, HeldReceipt, Receipt};
pub use release::ReleaseReply;
pub use settings::Persistence;
