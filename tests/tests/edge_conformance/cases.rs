//! The cases: what is asked of an edge, and what every runtime must answer.

use crate::world::{Feature, Token};
use Feature::{Closed, Ended, Limited, Paused, Scarce, Scheduled, SoldOut};
use std::collections::BTreeSet;

/// A claim that nobody has made.
pub const UNKNOWN_CLAIM: &str = "2a79a811-4c13-5311-a5ad-1529bbabcf28";
/// The largest sale document, in bytes.
const DOCUMENT_BYTES: usize = 32 * 1024;
/// The buyers' largest body, in bytes.
const BODY_BYTES: usize = 8 * 1024;

/// One case. `{sale}` in the target is replaced by the sale with the features.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub method: &'static str,
    pub target: String,
    /// What is the matter with the sale.
    pub sale: BTreeSet<Feature>,
    pub token: Option<Token>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// How often the same is asked first, by the same client.
    pub before: usize,
    pub status: u16,
    /// The problem's word, if it is one.
    pub kind: Option<&'static str>,
    /// Headers that must be there, with a part of their values.
    pub shows: Vec<(&'static str, &'static str)>,
}

impl Case {
    fn new(name: impl Into<String>, method: &'static str, target: impl Into<String>, status: u16) -> Self {
        Self {
            name: name.into(),
            method,
            target: target.into(),
            sale: BTreeSet::new(),
            token: None,
            headers: Vec::new(),
            body: Vec::new(),
            before: 0,
            status,
            kind: None,
            shows: Vec::new(),
        }
    }

    /// A claim that lacks nothing.
    fn claim(name: impl Into<String>, status: u16) -> Self {
        let mut case = Self::new(name, "POST", "/v1/sales/{sale}/claim", status).token(Token::Good);
        case.headers.push(("idempotency-key", "k".into()));
        case
    }

    fn kind(mut self, kind: &'static str) -> Self {
        self.kind = Some(kind);
        self
    }

    fn sale(mut self, features: &[Feature]) -> Self {
        self.sale = features.iter().copied().collect();
        self
    }

    fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    fn no_token(mut self) -> Self {
        self.token = None;
        self
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self
    }

    fn json(self, body: &str) -> Self {
        let mut case = self.header("content-type", "application/json");
        case.body = body.into();
        case
    }

    fn body(mut self, bytes: usize) -> Self {
        self.body = vec![b' '; bytes];
        self
    }

    fn before(mut self, times: usize) -> Self {
        self.before = times;
        self
    }

    fn shows(mut self, name: &'static str, part: &'static str) -> Self {
        self.shows.push((name, part));
        self
    }
}

/// All of them.
pub fn all() -> Vec<Case> {
    [
        methods(),
        paths(),
        order(),
        tokens(),
        bodies(),
        status_routes(),
        enter(),
        reads(),
        documents(),
        people(),
        limits(),
    ]
    .concat()
}

/// Every route with every method that it does not take.
fn methods() -> Vec<Case> {
    let claim = format!("/v1/claims/{UNKNOWN_CLAIM}");
    let routes: [(&str, String, &'static str); 13] = [
        ("page", "/s/{sale}".into(), "GET, HEAD"),
        ("asset", "/assets/sale.css".into(), "GET, HEAD"),
        ("time", "/v1/time".into(), "GET, HEAD"),
        ("health", "/healthz".into(), "GET, HEAD"),
        ("sale", "/v1/sales/{sale}".into(), "GET, HEAD"),
        ("enter", "/v1/sales/{sale}/enter".into(), "POST"),
        ("claim", "/v1/sales/{sale}/claim".into(), "POST"),
        ("my-claim", "/v1/sales/{sale}/my-claim".into(), "GET"),
        ("status", claim.clone(), "GET"),
        ("events", format!("{claim}/events"), "GET"),
        ("release", format!("{claim}/release"), "POST"),
        ("orders", "/v1/orders".into(), "POST"),
        ("document", "/v1/edge/sales/{sale}".into(), "GET, PUT"),
    ];
    let mut cases = Vec::new();
    for (name, target, allow) in routes {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            if !allow.split(", ").any(|allowed| allowed == method) {
                let case = Case::new(format!("method::{name}_does_not_take_{method}"), method, &target, 405);
                let case = if method == "HEAD" { case } else { case.kind("method-not-allowed") };
                cases.push(case.shows("allow", allow));
            }
        }
    }
    cases
}

/// Addresses that do not exist: the origin's own routes among them.
fn paths() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        "/",
        "/s",
        "/s/",
        "/s/A",
        "/s/a/",
        "/s/a/b",
        "/S/a",
        "/v1",
        "/v1/",
        "/v1/sales",
        "/v1/sales/",
        "/v1/sales//claim",
        "/v1/sales/a/claims",
        "/v1/sales/a%2fb",
        "/v1/sales/a/claim/x",
        "/v1/claims/",
        "/v1/claims/1",
        "/v1/orders/1",
        "/v1/time/",
        "/v1/admin/sales",
        "/v1/edge/leases",
        "/v1/edge/sales/A",
        "/v1/edge/sales",
        "/v1/payments/notices",
        "/metrics",
        "/readyz",
        "/healthz/x",
        "/assets",
        "/assets/",
        "/assets/nothing.js",
        "/favicon.ico",
        "/v1/time%00",
    ]
    .into_iter()
    .map(|path| Case::new(format!("path::{path}_is_not_there"), "GET", path, 404).kind("not-found"))
    .collect();
    let long = format!("/v1/time?{}", "x".repeat(2048));
    cases.push(Case::new("path::too_long", "GET", long, 414).kind("target-too-long"));
    cases.push(Case::new("path::an_unknown_sale", "GET", "/v1/sales/nobody-sells-this", 404).kind("not-found"));
    cases.push(Case::new("path::a_page_is_served_for_any_sale", "GET", "/s/nobody-sells-this", 200));
    cases
}

/// What can be the matter with a claim, in the order of the checks (design §5), and what is then said.
const REASONS: [(&str, &str, u16); 10] = [
    ("size", "body-too-large", 413),
    ("key", "unprocessable", 422),
    ("sale", "not-found", 404),
    ("closed", "closed", 410),
    ("paused", "paused", 503),
    ("not_open", "not-open", 425),
    ("sold_out", "sold-out", 410),
    ("address", "slow-down", 429),
    ("permit", "try-again", 503),
    ("token", "token-missing", 401),
];

/// Every reason alone, and every two that can hold at once: the earlier check answers.
fn order() -> Vec<Case> {
    let mut cases = vec![Case::claim("order::nothing_is_the_matter", 202)];
    for (i, first) in REASONS.iter().enumerate() {
        cases.push(refused(&[first.0], &format!("order::{}", first.0), *first));
        for second in &REASONS[i + 1..] {
            // A sale that has not opened has sold nothing.
            if (first.0, second.0) != ("not_open", "sold_out") {
                cases.push(refused(&[first.0, second.0], &format!("order::{}_before_{}", first.0, second.0), *first));
            }
        }
    }
    cases
}

fn refused(reasons: &[&str], name: &str, (_, kind, status): (&str, &'static str, u16)) -> Case {
    let has = |reason: &str| reasons.contains(&reason);
    let mut case = Case::claim(name, status).kind(kind);
    for (reason, feature) in [("not_open", Scheduled), ("sold_out", SoldOut), ("address", Limited), ("permit", Scarce)]
    {
        if has(reason) {
            case.sale.insert(feature);
        }
    }
    match (has("closed"), has("paused")) {
        // An operator's close takes the place of his pause; the end of the window does not.
        (true, true) => case.sale.extend([Ended, Paused]),
        (true, false) => _ = case.sale.insert(Closed),
        (false, true) => _ = case.sale.insert(Paused),
        (false, false) => {}
    }
    if has("address") {
        case = case.before(1);
    }
    if has("size") {
        case = case.body(BODY_BYTES + 1);
    }
    if has("key") {
        case = case.without("idempotency-key");
    }
    if has("sale") {
        case.target = "/v1/sales/ghosts/claim".into();
    }
    if has("token") {
        case = case.no_token();
    }
    if [425, 429, 503].contains(&status) { case.shows("retry-after", "") } else { case }
}

/// Entry tokens that are none.
fn tokens() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        (Token::Expired, 401, "token-expired"),
        (Token::NotYetValid, 403, "token-not-yet-valid"),
        (Token::OtherSale, 403, "forbidden"),
        (Token::OtherIssuer, 401, "token-invalid"),
        (Token::OtherKey, 401, "token-invalid"),
        (Token::UnknownKid, 401, "token-invalid"),
        (Token::AlgNone, 401, "token-invalid"),
        (Token::AlgConfusion, 401, "token-invalid"),
        (Token::Truncated, 401, "token-invalid"),
        (Token::Long, 401, "token-invalid"),
        (Token::NoJwt, 401, "token-invalid"),
        (Token::Empty, 401, "token-missing"),
        (Token::Basic, 401, "token-missing"),
    ]
    .into_iter()
    .map(|(token, status, kind)| Case::claim(format!("token::{token:?}"), status).kind(kind).token(token))
    .collect();
    cases.push(
        Case::claim("token::cookie_from_our_page", 202).token(Token::Cookie).header("origin", "http://shop.test"),
    );
    cases.push(
        Case::claim("token::cookie_from_elsewhere", 403)
            .kind("forbidden")
            .token(Token::Cookie)
            .header("origin", "http://evil.test"),
    );
    cases.push(Case::claim("token::cookie_from_nowhere", 403).kind("forbidden").token(Token::Cookie));
    cases.push(
        Case::claim("token::cookie_said_same_origin", 202).token(Token::Cookie).header("sec-fetch-site", "same-origin"),
    );
    cases
}

/// Idempotency keys and bodies of a claim; what the gate lets pass, the origin judges.
fn bodies() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, key) in [("empty", String::new()), ("long", "k".repeat(129)), ("spaced", "a b".into())] {
        let case = Case::claim(format!("key::{name}"), 422).kind("unprocessable");
        cases.push(case.header("idempotency-key", key));
    }
    cases.push(Case::claim("key::as_long_as_it_may_be", 202).header("idempotency-key", "k".repeat(128)));
    for (name, body, status, kind) in [
        ("one", r#"{"quantity":1}"#, 202, None),
        ("none_of_it", "{}", 202, None),
        ("zero", r#"{"quantity":0}"#, 422, Some("unprocessable")),
        ("negative", r#"{"quantity":-1}"#, 422, Some("unprocessable")),
        ("too_many", r#"{"quantity":2}"#, 422, Some("unprocessable")),
        ("huge", r#"{"quantity":4294967296}"#, 422, Some("unprocessable")),
        ("no_number", r#"{"quantity":"1"}"#, 422, Some("unprocessable")),
        ("no_json", "{quantity", 400, Some("bad-request")),
    ] {
        let mut case = Case::claim(format!("body::{name}"), status).json(body);
        case.kind = kind;
        cases.push(case);
    }
    let text = Case::claim("body::no_json_by_its_type", 415).kind("unsupported-media");
    let mut text = text.header("content-type", "text/plain");
    text.body = r#"{"quantity":1}"#.into();
    cases.push(text);
    cases
}

/// What a winner asks for: outside admission, but not without a token.
fn status_routes() -> Vec<Case> {
    let claim = format!("/v1/claims/{UNKNOWN_CLAIM}");
    let routes = [
        ("my_claim", "GET", "/v1/sales/{sale}/my-claim".to_owned()),
        ("status", "GET", format!("{claim}?sale={{sale}}")),
        ("events", "GET", format!("{claim}/events?sale={{sale}}")),
        ("release", "POST", format!("{claim}/release?sale={{sale}}")),
        ("orders", "POST", "/v1/orders?sale={sale}".to_owned()),
    ];
    let order = format!(r#"{{"claim_id":"{UNKNOWN_CLAIM}","sale":"{{sale}}","payment":"ok"}}"#);
    let mut cases = Vec::new();
    for (name, method, target) in routes {
        let new = |what: &str, status| {
            let case = Case::new(format!("status::{name}_{what}"), method, &target, status);
            if name == "orders" { case.json(&order) } else { case }
        };
        cases.push(new("without_a_token", 401).kind("token-missing"));
        cases.push(new("with_no_jwt", 401).kind("token-invalid").token(Token::NoJwt));
        cases.push(new("with_anothers_key", 401).kind("token-invalid").token(Token::OtherKey));
        let nobody = new("of_nobody", if name == "my_claim" { 200 } else { 404 }).token(Token::Good);
        cases.push(if name == "my_claim" { nobody } else { nobody.kind("not-found") });
        // A winner is never shut out by the state of the sale or by those who still try.
        for feature in [Paused, SoldOut, Scarce, Closed] {
            let mut case = new(&format!("in_a_sale_that_is_{feature:?}"), if name == "my_claim" { 200 } else { 404 });
            case.kind = (name != "my_claim").then_some("not-found");
            cases.push(case.sale(&[feature]).token(Token::Good));
        }
        if method == "POST" {
            let elsewhere = new("with_a_cookie_from_elsewhere", 403).kind("forbidden").token(Token::Cookie);
            cases.push(elsewhere.header("origin", "http://evil.test"));
        }
    }
    cases.push(
        Case::new("status::orders_no_json", "POST", "/v1/orders", 400).kind("bad-request").token(Token::Good).json("{"),
    );
    cases.push(
        Case::new("status::orders_too_large", "POST", "/v1/orders", 413)
            .kind("body-too-large")
            .token(Token::Good)
            .body(BODY_BYTES + 1),
    );
    cases
}

fn enter() -> Vec<Case> {
    let new =
        |name: &str, status| Case::new(format!("enter::{name}"), "POST", "/v1/sales/{sale}/enter", status).json("{}");
    vec![
        new("an_open_sale", 200).shows("set-cookie", "fg-entry-"),
        new("before_the_opening", 200).sale(&[Scheduled]),
        new("while_paused", 200).sale(&[Paused]),
        new("when_sold_out", 200).sale(&[SoldOut]),
        new("after_the_end", 410).kind("closed").sale(&[Closed]),
        new("an_unknown_sale", 404).kind("not-found").target("/v1/sales/ghosts/enter"),
        new("too_often", 429).kind("slow-down").sale(&[Limited]).before(1).shows("retry-after", ""),
        new("too_large", 413).kind("body-too-large").body(BODY_BYTES + 1),
        new("no_json", 400).kind("bad-request").json("{"),
    ]
}

impl Case {
    fn target(mut self, target: &str) -> Self {
        self.target = target.into();
        self
    }
}

/// What anybody may read.
fn reads() -> Vec<Case> {
    let mut cases = vec![
        Case::new("read::time", "GET", "/v1/time", 200).shows("cache-control", "no-store"),
        Case::new("read::time_head", "HEAD", "/v1/time", 200).shows("cache-control", "no-store"),
        Case::new("read::health", "GET", "/healthz", 200),
        Case::new("read::page", "GET", "/s/{sale}", 200)
            .shows("content-type", "text/html")
            .shows("content-security-policy", "default-src 'none'")
            .shows("x-content-type-options", "nosniff")
            .shows("x-frame-options", "DENY")
            .shows("referrer-policy", "same-origin")
            .shows("cache-control", "no-cache")
            .shows("etag", "\""),
        Case::new("read::page_head", "HEAD", "/s/{sale}", 200).shows("etag", "\""),
        Case::new("read::page_unchanged", "GET", "/s/{sale}", 304).header("if-none-match", "{page etag}"),
        Case::new("read::page_unchanged_weakly", "GET", "/s/{sale}", 304)
            .header("if-none-match", "\"x\", W/{page etag}"),
        Case::new("read::page_changed", "GET", "/s/{sale}", 200).header("if-none-match", "\"x\""),
        Case::new("read::script", "GET", "{script}", 200)
            .shows("content-type", "text/javascript")
            .shows("cache-control", "immutable"),
        Case::new("read::style", "GET", "{style}", 200)
            .shows("content-type", "text/css")
            .shows("cache-control", "immutable"),
        Case::new("read::page_in_gzip", "GET", "/s/{sale}", 200)
            .header("accept-encoding", "gzip, br")
            .shows("content-encoding", "gzip")
            .shows("vary", "accept-encoding")
            .shows("etag", "-gzip\""),
        Case::new("read::page_head_in_gzip", "HEAD", "/s/{sale}", 200)
            .header("accept-encoding", "gzip")
            .shows("content-encoding", "gzip"),
        Case::new("read::page_without_gzip", "GET", "/s/{sale}", 200)
            .header("accept-encoding", "br, gzip;q=0")
            .shows("vary", "accept-encoding"),
        Case::new("read::page_unchanged_in_gzip", "GET", "/s/{sale}", 304)
            .header("accept-encoding", "gzip")
            .header("if-none-match", "{page etag}"),
        Case::new("read::script_in_gzip", "GET", "{script}", 200)
            .header("accept-encoding", "gzip")
            .shows("content-encoding", "gzip"),
        Case::new("read::refusal_is_never_compressed", "GET", "/nothing", 404)
            .kind("not-found")
            .header("accept-encoding", "gzip"),
        Case::new("read::sale_too_often", "GET", "/v1/sales/{sale}", 429).kind("slow-down").sale(&[Limited]).before(1),
    ];
    let phases: [&[Feature]; 6] = [&[], &[Scheduled], &[Paused], &[Closed], &[Ended], &[SoldOut]];
    for features in phases {
        let name = format!("read::sale_{features:?}");
        cases.push(Case::new(name, "GET", "/v1/sales/{sale}", 200).sale(features).shows("cache-control", "no-store"));
    }
    cases
}

/// The same refusals in words, for browsers.
fn people() -> Vec<Case> {
    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let mut cases: Vec<Case> =
        order().into_iter().filter(|case| case.status != 202 && !case.name.contains("_before_")).collect();
    for case in &mut cases {
        case.name = case.name.replace("order::", "words::");
        case.kind = None;
        case.headers.push(("accept", BROWSER.into()));
        case.shows.extend([("content-type", "text/html"), ("content-security-policy", "default-src 'none'")]);
    }
    let nothing = Case::new("words::nothing_there", "GET", "/nothing", 404).header("accept", BROWSER);
    cases.push(nothing.shows("content-type", "text/html"));
    let json = Case::new("words::but_json_where_it_is_preferred", "GET", "/nothing", 404).kind("not-found");
    cases.push(json.header("accept", "application/json, text/html;q=0.9"));
    cases
}

/// The operators' route, for those who are none; `tests/publishing.rs` has those who are.
fn documents() -> Vec<Case> {
    const DOCUMENT: &str = "/v1/edge/sales/{sale}";
    let new = |name: &str, method, status| Case::new(format!("document::{name}"), method, DOCUMENT, status);
    vec![
        new("read_without_a_ticket", "GET", 401).kind("unauthorized"),
        new("put_without_a_ticket", "PUT", 401).kind("unauthorized").body(100),
        new("read_with_an_entry_token", "GET", 401).kind("unauthorized").token(Token::Good),
        new("put_with_an_entry_token", "PUT", 401).kind("unauthorized").token(Token::Good).body(100),
        new("put_too_large", "PUT", 413).kind("body-too-large").body(DOCUMENT_BYTES + 1),
        new("put_within_its_own_limit", "PUT", 401).kind("unauthorized").body(DOCUMENT_BYTES),
    ]
}

/// Trace ids: a good one is kept, a bad one replaced.
fn limits() -> Vec<Case> {
    let new = |name: &str, value: &str| {
        Case::new(format!("trace::{name}"), "GET", "/v1/time", 200).header("traceparent", value)
    };
    vec![
        new("kept", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .shows("flashgate-trace-id", "4bf92f3577b34da6a3ce929d0e0e4736"),
        new("of_zeros_replaced", "00-00000000000000000000000000000000-00f067aa0ba902b7-01")
            .shows("flashgate-trace-id", ""),
        new("garbage_replaced", "hello").shows("flashgate-trace-id", ""),
    ]
}
