//! The gate's own limits, units in the names. Those shared with the origin are in
//! [`flashgate_shared::limits`].

/// Addresses that are remembered, all classes together; 16 bytes each, allocated once.
pub const ADDRESS_SLOTS: usize = 1 << 16;
/// Slots that one address may be kept in; the emptiest is given away when all are taken.
pub const ADDRESS_WAYS: usize = 8;
/// Sales whose settings are kept.
pub const SALES_MAX: usize = 64;
/// Unknown sale ids that are remembered as such.
pub const UNKNOWN_SALES_MAX: usize = 256;
/// How long an unknown sale is remembered as such, in milliseconds.
pub const UNKNOWN_SALE_MS: i64 = 2_000;
/// Questions about sales that this instance does not know, a second.
pub const UNKNOWN_SALE_ASKS_PER_S: f64 = 20.0;
/// Such questions at once.
pub const UNKNOWN_SALE_ASKS_BURST: f64 = 40.0;
/// Deadline of a question about a sale's settings, in milliseconds.
pub const SALE_DEADLINE_MS: u64 = 2_000;
/// Least time between two fetches of the same sale's settings, in milliseconds.
pub const SALE_REFETCH_MS: i64 = 1_000;
/// Least time between two fetches because of a token's unknown key, in milliseconds. Meanwhile such tokens
/// are asked to come again: their key may be new.
pub const KEY_REFETCH_MS: i64 = 1_000;
/// Deadline of a forwarded request, in milliseconds; of an event stream, until its headers.
pub const FORWARD_DEADLINE_MS: u64 = 10_000;
/// Deadline of a question for a lease, in milliseconds. Only the request that asks waits so long: a late
/// answer's permits are dead, but it tells the sale's state.
pub const LEASE_DEADLINE_MS: u64 = 1_000;
/// Largest lease answer, in bytes.
pub const LEASE_ANSWER_BYTES: usize = 4 * 1024;
/// Grants of one lease kind that are held at once.
pub const GRANTS_MAX: usize = 16;
/// Requests that wait for somebody else's question to the origin at once; more are refused.
pub const WAITING_MAX: usize = 256;
/// How often a waiting request looks, in milliseconds.
pub const WAIT_STEP_MS: u64 = 5;
/// A question that has not ended after this time is taken for dead (its request was cancelled), in
/// milliseconds.
pub const FLIGHT_LOST_MS: i64 = 5_000;
/// First pause after the authority did not answer, in milliseconds; doubled each time.
pub const BACKOFF_FIRST_MS: i64 = 250;
/// Longest such pause, in milliseconds.
pub const BACKOFF_MAX_MS: i64 = 2_000;
/// Bounds of an authority's `retry_ms`, in milliseconds: neither a busy loop nor a deaf edge.
pub const RETRY_MIN_MS: i64 = 10;
/// See [`RETRY_MIN_MS`].
pub const RETRY_MAX_MS: i64 = 5_000;
/// How long a desk for sub-leases waits for more questions before it asks the authority, in milliseconds.
pub const GATHER_MS: i64 = 5;
/// Deadline of such a desk's question to the authority, in milliseconds: those who ask the desk give up
/// after [`LEASE_DEADLINE_MS`], and are to hear of the failure before.
pub const ROUND_DEADLINE_MS: u64 = 700;
/// After this much more the question is taken for dead (its request was cancelled), in milliseconds.
pub const FLIGHT_SLACK_MS: i64 = 100;
/// How long a question waits at the desk, in milliseconds.
pub const SUBLEASE_WAIT_MS: i64 = 900;
/// Questions that one round takes.
pub const QUESTIONS_MAX: u32 = 4_096;
/// Time that the desk takes for each question, in milliseconds: a thousand a second.
pub const QUESTION_EACH_MS: i64 = 1;
/// Rounds whose answers are kept for those who have not looked yet.
pub const ROUNDS_KEPT: usize = 8;
/// So many requests at a shortage are no crowd.
pub const NEARLY_ALONE: u32 = 2;
/// Spare permits asked for beyond the demand that was seen.
pub const WANT_SPARE_MAX: u32 = 4;
/// How fast two clocks are assumed to drift apart: one millisecond in this many.
pub const DRIFT_ONE_IN: i64 = 5_000;
/// Cookies of ours that are passed on.
pub const COOKIES_MAX: usize = 16;
/// Longest `Accept` header that is looked at, in bytes.
pub const ACCEPT_BYTES: usize = 512;

/// Shortest wait that a refusal for want of a permit asks for, in milliseconds.
pub const TRY_AGAIN_MIN_MS: u64 = 250;
/// Longest such wait before jitter, in milliseconds.
pub const TRY_AGAIN_MAX_MS: u64 = 2_000;
/// Such wait for each request that met the same shortage, in milliseconds.
pub const TRY_AGAIN_EACH_MS: u64 = 10;
/// Wait after "sold out" before jitter, in milliseconds: units may come back.
pub const SOLD_OUT_RETRY_MS: u64 = 10_000;
/// Wait after the runtime's own shield refused, before jitter, in milliseconds.
pub const SHIELD_RETRY_MS: u64 = 5_000;
/// Before the edge has heard of the authority's clock, its own may be off by so much, in milliseconds.
pub const UNKNOWN_CLOCK_ERROR_MS: i64 = 300_000;
/// Deadline of one call to the edge's store, in milliseconds.
pub const STORE_DEADLINE_MS: u64 = 1_000;
/// Wait while the edge's store does not answer, before jitter, in milliseconds.
pub const DOCUMENT_RETRY_MS: u64 = 2_000;
/// Wait while paused or out of reach, before jitter, in milliseconds.
pub const PAUSED_RETRY_MS: u64 = 2_000;
/// Longest wait that is asked for before an opening, in milliseconds: times may be changed.
pub const OPENING_RETRY_MAX_MS: u64 = 60_000;
/// Spread of those who come back at the opening, in milliseconds.
pub const OPENING_SPREAD_MS: u64 = 1_000;

const _: () = assert!(ADDRESS_SLOTS.is_power_of_two() && ADDRESS_SLOTS.is_multiple_of(ADDRESS_WAYS));
const _: () = assert!(ROUND_DEADLINE_MS + (FLIGHT_SLACK_MS as u64) < SUBLEASE_WAIT_MS as u64);
const _: () = assert!((SUBLEASE_WAIT_MS as u64) < LEASE_DEADLINE_MS);
