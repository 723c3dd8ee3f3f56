//! Problem documents (RFC 9457): every "no" that edge and origin can say, with its status.
//!
//! `type` is a relative reference, `/problems/<word>`; the same word is the metric label.

pub use crate::order::UnknownWord;
use crate::{clock::UnixMs, ids::ClaimId, order::words, trace::TraceId};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

words! {
    /// The kinds of refusal.
    ProblemKind {
        /// No such route, sale or claim (also: not yours).
        NotFound = "not-found",
        /// The route exists, the method does not.
        MethodNotAllowed = "method-not-allowed",
        /// The request cannot be read.
        BadRequest = "bad-request",
        /// The body is larger than the limit.
        BodyTooLarge = "body-too-large",
        /// The request target is longer than the limit.
        TargetTooLong = "target-too-long",
        /// The body is not JSON by its content type.
        UnsupportedMedia = "unsupported-media",
        /// No, or no usable, `Idempotency-Key` or body field.
        Unprocessable = "unprocessable",
        /// The same idempotency key with another body.
        Changed = "changed",
        /// No entry token.
        TokenMissing = "token-missing",
        /// The token is not ours, broken, or signed otherwise.
        TokenInvalid = "token-invalid",
        /// The token's time is over.
        TokenExpired = "token-expired",
        /// The token's time has not come.
        TokenNotYetValid = "token-not-yet-valid",
        /// The token is for another sale, or a post came from another site.
        Forbidden = "forbidden",
        /// The internal credential (edge, admin, provider) is missing or wrong.
        Unauthorized = "unauthorized",
        /// Before the opening.
        NotOpen = "not-open",
        /// Paused, or being rebuilt.
        Paused = "paused",
        /// After the end.
        Closed = "closed",
        /// Nothing left.
        SoldOut = "sold-out",
        /// Fewer left than asked for.
        NotEnoughLeft = "not-enough-left",
        /// Over this address's limit.
        SlowDown = "slow-down",
        /// No permit at this moment: try again.
        TryAgain = "try-again",
        /// The buyer holds another claim.
        AlreadyClaimed = "already-claimed",
        /// The buyer had his try.
        AlreadyHad = "already-had",
        /// The backlog is full; nothing was taken.
        BacklogFull = "backlog-full",
        /// The permit of the edge is stale or of another epoch.
        PermitRefused = "permit-refused",
        /// The outcome is unknown: ask my-claim, or repeat with the same key.
        Unknown = "unknown-outcome",
        /// A newer or another version of the document is there.
        Outdated = "outdated",
        /// The order is in no state for this (not reserved, too late to pay).
        WrongState = "wrong-state",
        /// Something we depend on does not answer.
        Unavailable = "unavailable",
        /// Overloaded: too many requests in flight.
        Overloaded = "overloaded",
        /// Our fault.
        Internal = "internal",
    }
}

impl ProblemKind {
    /// The HTTP status.
    pub const fn status(self) -> u16 {
        use ProblemKind::*;
        match self {
            BadRequest => 400,
            TokenMissing | TokenInvalid | TokenExpired | Unauthorized => 401,
            TokenNotYetValid | Forbidden => 403,
            NotFound => 404,
            MethodNotAllowed => 405,
            AlreadyClaimed | AlreadyHad | WrongState | NotEnoughLeft | Outdated => 409,
            SoldOut | Closed => 410,
            BodyTooLarge => 413,
            TargetTooLong => 414,
            UnsupportedMedia => 415,
            Unprocessable | Changed => 422,
            NotOpen => 425,
            SlowDown => 429,
            Internal => 500,
            Paused | TryAgain | BacklogFull | PermitRefused | Unknown | Unavailable | Overloaded => 503,
        }
    }

    /// The short human title; the same for every problem of the kind.
    pub const fn title(self) -> &'static str {
        use ProblemKind::*;
        match self {
            NotFound => "There is nothing here",
            MethodNotAllowed => "This address does not take that method",
            BadRequest => "The request cannot be read",
            BodyTooLarge => "The request body is too large",
            TargetTooLong => "The request address is too long",
            UnsupportedMedia => "The request body must be JSON",
            Unprocessable => "The request is incomplete",
            Changed => "This idempotency key was used with another body",
            TokenMissing => "An entry token is needed",
            TokenInvalid => "The entry token is not valid",
            TokenExpired => "The entry token has expired",
            TokenNotYetValid => "The entry token is not valid yet",
            Forbidden => "This is not allowed",
            Unauthorized => "The credential is missing or wrong",
            NotOpen => "The sale has not opened",
            Paused => "The sale is paused, please wait",
            Closed => "The sale has ended",
            SoldOut => "Sold out",
            NotEnoughLeft => "Fewer are left than you asked for",
            SlowDown => "Too many requests from your address",
            TryAgain => "Very many people are here, please try again",
            AlreadyClaimed => "You already have a claim in this sale",
            AlreadyHad => "You had your try in this sale",
            BacklogFull => "Orders are being worked off, please try again",
            PermitRefused => "The permit came too late, please try again",
            Unknown => "The outcome is not known yet",
            Outdated => "Another version is there",
            WrongState => "The order is not in a state for this",
            Unavailable => "A part of the shop does not answer, please try again",
            Overloaded => "Too many requests at once, please try again",
            Internal => "Something went wrong on our side",
        }
    }

    /// Whether the same request may succeed a little later.
    pub const fn retryable(self) -> bool {
        matches!(self.status(), 425 | 429 | 503)
    }
}

/// An RFC 9457 problem document with our extension members; absent members are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// `/problems/<kind>`.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The kind's title.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The request's trace id, to quote to support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceId>,
    /// Wait this long before the next try, in milliseconds (jittered).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Server time, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now_ms: Option<UnixMs>,
    /// When the sale opens (kind `not-open`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_at_ms: Option<UnixMs>,
    /// How many are left (kind `not-enough-left`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u32>,
    /// The buyer's own claim (kinds `already-claimed`, `already-had`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<ClaimId>,
    /// Where a buyer whose answer was lost finds his claim; on every refusal of a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub my_claim: Option<String>,
}

impl Problem {
    /// A problem of this kind, without the optional members.
    pub fn new(kind: ProblemKind) -> Self {
        Self {
            type_uri: format!("/problems/{kind}"),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: None,
            trace_id: None,
            retry_after_ms: None,
            now_ms: None,
            opens_at_ms: None,
            left: None,
            claim_id: None,
            my_claim: None,
        }
    }

    /// The kind, when this version knows it.
    pub fn kind(&self) -> Option<ProblemKind> {
        self.type_uri.strip_prefix("/problems/")?.parse().ok()
    }

    /// With a sentence about this occurrence.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_round_trips_and_has_an_error_status() {
        for &kind in ProblemKind::ALL {
            assert_eq!(Problem::new(kind).kind(), Some(kind));
            assert!((400..=599).contains(&kind.status()), "{kind}");
        }
    }

    #[test]
    fn absent_members_are_left_out() {
        let json = serde_json::to_value(Problem::new(ProblemKind::SoldOut)).unwrap();
        assert_eq!(json, serde_json::json!({"type": "/problems/sold-out", "title": "Sold out", "status": 410}));
    }
}
