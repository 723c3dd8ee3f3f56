//! The end-to-end harness: a real shop on private servers, buyers over real HTTP through the real Wasm
//! gate, and an auditor who trusts nobody.
//!
//! A test binary shares one set of servers and one shop ([`shop`]); each test has a sale of its own,
//! and its buyers have loopback addresses of their own. A test that kills a process starts a shop of
//! its own ([`Shop::start`]). Every end-to-end test ends with [`Shop::audit`].

mod auditor;
mod browser;
mod buyer;
pub mod faults;
mod origin;
mod shop;
mod tokens;

pub use auditor::Books;
pub use browser::Browser;
pub use buyer::{Answer, Buyer, Claimed};
pub use flashgate_ops::workerd::{KilledWorkerd, Workerd, WorkerdConfig};
pub use origin::Direct;
pub use shop::{OwnStores, Shop, shop};
pub use tokens::{entry_claims, key_id, sign, signed_by};

use flashgate_shared::{order::OrderStatus, wire::ClaimState};
use std::time::Duration;

/// What a status says of an order that waits to be paid.
pub const RESERVED: ClaimState = ClaimState::Ledger(OrderStatus::Reserved);
/// What it says of one that was paid.
pub const PAID: ClaimState = ClaimState::Ledger(OrderStatus::Paid);
/// What it says of one whose time was over.
pub const EXPIRED: ClaimState = ClaimState::Ledger(OrderStatus::Expired);

/// How long a test waits for a condition before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);
