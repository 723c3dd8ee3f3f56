//! Refusals: what most buyers hear, so they are written by hand into one buffer.
//!
//! A program gets problem+json, a person whose browser prefers HTML gets the same in words. There is
//! one writer for every refusal of the edge; its documents are those of
//! [`flashgate_shared::problem::Problem`] (a test compares the two for every kind).

use crate::{limits::ACCEPT_BYTES, page};
use bytes::Bytes;
use flashgate_shared::{
    UnixMs,
    problem::{PROBLEM_JSON, Problem, ProblemKind},
    trace::TraceId,
    wire::TRACE_ID_HEADER,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};

/// The header that carries the trace id, on every answer.
pub(crate) static TRACE_ID: HeaderName = HeaderName::from_static(TRACE_ID_HEADER);
pub(crate) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const PROBLEM_TYPE: HeaderValue = HeaderValue::from_static(PROBLEM_JSON);
/// Room for a refusal's document: the longest has about 450 bytes.
const DOCUMENT_BYTES: usize = 512;

/// One refusal, before it is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) kind: ProblemKind,
    pub(crate) detail: Option<&'static str>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) now_ms: Option<UnixMs>,
    pub(crate) opens_at_ms: Option<UnixMs>,
    /// The value of `Allow`, when the method is wrong.
    pub(crate) allow: Option<&'static str>,
}

impl Refusal {
    pub(crate) const fn new(kind: ProblemKind) -> Self {
        Self { kind, detail: None, retry_after_ms: None, now_ms: None, opens_at_ms: None, allow: None }
    }

    pub(crate) const fn detail(mut self, detail: &'static str) -> Self {
        self.detail = Some(detail);
        self
    }

    pub(crate) const fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

/// To whom a refusal is said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) trace: TraceId,
    /// Whether the browser prefers HTML.
    pub(crate) html: bool,
    /// The sale of the request's path: the way back for a person.
    pub(crate) sale: Option<&'a str>,
    /// Whether the refused request was a claim: then `my-claim` is named.
    pub(crate) claim: bool,
}

/// Writes a refusal as an answer.
pub(crate) fn answer(refusal: &Refusal, asker: &Asker<'_>) -> Response<Bytes> {
    let mut response = if asker.html {
        html(&problem(refusal, asker), asker.sale)
    } else {
        let mut response = Response::new(Bytes::from(document(refusal, asker)));
        response.headers_mut().reserve(6);
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_TYPE);
        response
    };
    *response.status_mut() = status(refusal.kind);
    let headers = response.headers_mut();
    common_headers(headers, asker.trace);
    if let Some(ms) = refusal.retry_after_ms
        && refusal.kind.retryable()
    {
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
    }
    if let Some(allow) = refusal.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// A problem in words for a person; status and common headers are the caller's.
pub(crate) fn html(problem: &Problem, sale: Option<&str>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(flashgate_page::refusal_page(problem, sale)));
    page::html_headers(response.headers_mut());
    response
}

/// What every answer of the API carries.
pub(crate) fn common_headers(headers: &mut HeaderMap, trace: TraceId) {
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    insert_trace(headers, trace);
}

pub(crate) fn insert_trace(headers: &mut HeaderMap, trace: TraceId) {
    if let Ok(value) = HeaderValue::from_str(trace.hex().as_str()) {
        headers.insert(TRACE_ID.clone(), value);
    }
}

fn status(kind: ProblemKind) -> StatusCode {
    StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

fn problem(refusal: &Refusal, asker: &Asker<'_>) -> Problem {
    let mut problem = Problem::new(refusal.kind);
    problem.detail = refusal.detail.map(str::to_owned);
    problem.trace_id = Some(asker.trace);
    problem.retry_after_ms = refusal.retry_after_ms;
    problem.now_ms = refusal.now_ms;
    problem.opens_at_ms = refusal.opens_at_ms;
    problem.my_claim = asker.sale.filter(|_| asker.claim).map(|sale| format!("/v1/sales/{sale}/my-claim"));
    problem
}

/// The same document as [`problem`], written without a serialiser. Nothing in it needs escaping:
/// titles and details are ours, a sale's id is a slug.
fn document(refusal: &Refusal, asker: &Asker<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(DOCUMENT_BYTES);
    let mut text = |parts: &[&str]| parts.iter().for_each(|p| out.extend_from_slice(p.as_bytes()));
    text(&["{\"type\":\"/problems/", refusal.kind.as_str()]);
    text(&["\",\"title\":\"", refusal.kind.title()]);
    text(&["\",\"status\":", Digits::of(refusal.kind.status().into()).as_str()]);
    if let Some(detail) = refusal.detail {
        text(&[",\"detail\":\"", detail, "\""]);
    }
    text(&[",\"trace_id\":\"", asker.trace.hex().as_str(), "\""]);
    let times = [(",\"now_ms\":", refusal.now_ms), (",\"opens_at_ms\":", refusal.opens_at_ms)];
    if let Some(ms) = refusal.retry_after_ms {
        text(&[",\"retry_after_ms\":", Digits::of(ms).as_str()]);
    }
    for (name, time) in times {
        if let Some(ms) = time {
            let sign = if ms < 0 { "-" } else { "" };
            text(&[name, sign, Digits::of(ms.unsigned_abs()).as_str()]);
        }
    }
    if let (true, Some(sale)) = (asker.claim, asker.sale) {
        text(&[",\"my_claim\":\"/v1/sales/", sale, "/my-claim\""]);
    }
    text(&["}"]);
    out
}

/// A number's decimal digits, on the stack.
struct Digits {
    bytes: [u8; 20],
    from: usize,
}

impl Digits {
    fn of(mut n: u64) -> Self {
        let mut bytes = [b'0'; 20];
        let mut from = bytes.len();
        for (i, place) in bytes.iter_mut().enumerate().rev() {
            *place = b'0' + (n % 10) as u8;
            from = i;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        Self { bytes, from }
    }

    fn as_str(&self) -> &str {
        let digits = self.bytes.get(self.from..).unwrap_or_default();
        std::str::from_utf8(digits).unwrap_or_default()
    }
}

/// Whether `Accept` (RFC 9110 §12.5.1) prefers HTML to JSON: a browser's navigation does.
pub(crate) fn prefers_html(headers: &HeaderMap) -> bool {
    let Some(accept) = headers.get(ACCEPT).and_then(|v| v.to_str().ok()) else {
        return false;
    };
    if accept.len() > ACCEPT_BYTES || !accept.contains("text/html") {
        return false;
    }
    let (mut html, mut json) = (0.0f32, 0.0f32);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let q = parts.find_map(|p| p.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
        match media {
            "text/html" => html = html.max(q),
            "application/json" | "application/problem+json" | "application/*" => json = json.max(q),
            _ => {}
        }
    }
    html > json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(claim: bool) -> Asker<'static> {
        Asker { trace: TraceId::from_random(0xabc), html: false, sale: Some("phones-1"), claim }
    }

    #[test]
    fn documents_are_problems_for_every_kind_and_member() {
        for &kind in ProblemKind::ALL {
            for claim in [false, true] {
                for full in [false, true] {
                    let mut refusal = Refusal::new(kind);
                    if full {
                        refusal = refusal.detail("Some words.").retry_after_ms(1_234);
                        refusal.now_ms = Some(1_700_000_000_123);
                        refusal.opens_at_ms = Some(-5);
                    }
                    let bytes = document(&refusal, &asker(claim));
                    assert!(bytes.len() <= DOCUMENT_BYTES);
                    let read: Problem = serde_json::from_slice(&bytes).unwrap();
                    assert_eq!(read, problem(&refusal, &asker(claim)), "{kind}");
                }
            }
        }
    }

    #[test]
    fn digits_are_digits() {
        for n in [0, 9, 10, 1_700_000_000_123, u64::MAX] {
            assert_eq!(Digits::of(n).as_str(), n.to_string());
        }
    }

    #[test]
    fn retry_after_is_in_whole_seconds_and_only_where_a_retry_helps() {
        let header = |kind, ms| {
            let answer = answer(&Refusal::new(kind).retry_after_ms(ms), &asker(false));
            answer.headers().get(RETRY_AFTER).map(|v| v.to_str().unwrap().to_owned())
        };
        assert_eq!(header(ProblemKind::TryAgain, 0).as_deref(), Some("1"));
        assert_eq!(header(ProblemKind::SlowDown, 1001).as_deref(), Some("2"));
        assert_eq!(header(ProblemKind::NotOpen, 60_000).as_deref(), Some("60"));
        assert_eq!(header(ProblemKind::SoldOut, 10_000), None);
    }

    #[test]
    fn browsers_get_words_and_programs_documents() {
        let prefers = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            prefers_html(&headers)
        };
        assert!(prefers("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(prefers("application/json;q=0.5, text/html"));
        assert!(!prefers("application/json, text/html;q=0.9"));
        assert!(!prefers("text/html, application/json"));
        assert!(!prefers("*/*"));
        assert!(!prefers_html(&HeaderMap::new()));
        let mut who = asker(true);
        who.html = true;
        let page = answer(&Refusal::new(ProblemKind::TryAgain).retry_after_ms(900), &who);
        assert_eq!(page.status(), 503);
        assert!(page.headers()[CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
        assert!(page.headers().contains_key("content-security-policy"));
        assert!(std::str::from_utf8(page.body()).unwrap().contains("/s/phones-1"));
    }
}
