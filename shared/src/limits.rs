//! Named limits, units in the names. What a limit protects is said beside it.

/// Longest sale id, in bytes.
pub const SALE_ID_BYTES: usize = 64;
/// Longest buyer id, in bytes.
pub const BUYER_ID_BYTES: usize = 128;
/// Longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES: usize = 128;
/// Longest entry token that is looked at, in bytes; longer ones are refused before parsing.
pub const TOKEN_BYTES: usize = 4096;
/// Largest sale document, in bytes.
pub const DOCUMENT_BYTES: usize = 32 * 1024;
/// Largest request body that the edge or the origin reads from a buyer, in bytes.
pub const BUYER_BODY_BYTES: usize = 8 * 1024;
/// Largest answer that the edge reads from the origin (event streams excepted), in bytes.
pub const ORIGIN_ANSWER_BYTES: usize = 256 * 1024;
/// Largest admin or provider body that the origin reads, in bytes.
pub const ADMIN_BODY_BYTES: usize = 64 * 1024;
/// Most entries of the ledger's chain in one answer.
pub const LEDGER_PAGE_ENTRIES: u32 = 2_000;
/// Most payments in one answer of the payment provider.
pub const PAYMENTS_PAGE: usize = 500;
/// Most keys in a JWK set.
pub const JWK_SET_KEYS: usize = 8;
/// Longest request target (path and query), in bytes.
pub const TARGET_BYTES: usize = 2048;
/// Longest `traceparent` looked at, in bytes (version 00 has 55).
pub const TRACEPARENT_BYTES: usize = 55;
/// Most buckets in a sale: one claim may have to look into all of them.
pub const BUCKETS_MAX: u16 = 256;
/// Most stock rows that a sale's stock is split over: a cut locks all of them.
pub const SHARDS_MAX: u16 = 32;
/// Largest stock of a sale, in units.
pub const TOTAL_MAX: u32 = 10_000_000;
/// Largest `per_buyer_limit`, in units.
pub const PER_BUYER_MAX: u32 = 100;
/// Most permits that one lease grants.
pub const LEASE_WANT_MAX: u32 = 100_000;
/// How long a lease lives, counted from the authority's grant time, in milliseconds (design §5).
pub const LEASE_LIFE_MS: i64 = 250;
/// How much older than a lease's life a permit may arrive at the origin, in milliseconds.
pub const PERMIT_TRANSIT_MS: i64 = 150;
/// The admission bucket's depth, in milliseconds of its refill (design §5; at least one permit).
pub const LEASE_BURST_MS: i64 = 100;
/// How long an edge instance without a lease waits for the authority, in milliseconds.
pub const COLD_LEASE_WAIT_MS: u64 = 200;
/// Longest title and description of a sale, in bytes.
pub const SALE_TEXT_BYTES: usize = 500;
/// How long after a claim an absent one may be declared lost, in milliseconds (design §7).
pub const LOST_AFTER_MS: i64 = 30_000;
/// How long a claim stays in the outbox before the relay publishes it again, in milliseconds.
pub const RELAY_AFTER_MS: i64 = 2_000;
/// How long after the close a token still reads status and pays, in milliseconds (design §4).
pub const TOKEN_AFTERLIFE_MS: i64 = 86_400_000;

// Design I6: burst + life + transit is the half second in the bound `admit_factor × S × (T + 0.5) + 1`.
const _: () = assert!(LEASE_BURST_MS + LEASE_LIFE_MS + PERMIT_TRANSIT_MS == 500);
