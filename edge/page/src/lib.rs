//! The sale page and its ES module client, embedded, so that an edge serves them with no look-up.
//!
//! Nothing here decides anything: the page asks the gate, and says in words what it hears. Linked
//! assets carry their content's hash in their name and never change; the page itself is revalidated.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use flashgate_shared::problem::Problem;

/// One embedded file.
#[derive(Debug)]
pub struct Asset {
    /// The path it is served under; for the page, the prefix of its paths.
    pub path: &'static str,
    /// The media type.
    pub content_type: &'static str,
    /// The bytes.
    pub body: &'static [u8],
    /// The same in gzip (RFC 1952).
    pub gzip: &'static [u8],
    /// A strong entity tag, quotes included (RFC 9110 §8.8.3).
    pub etag: &'static str,
    /// That of the compressed bytes: a strong tag names bytes, not meaning.
    pub gzip_etag: &'static str,
    /// Whether the name changes with the content, so that it may be cached for ever.
    pub immutable: bool,
}

impl Asset {
    /// The headers it is served with, whoever serves it; without the tag, which names an encoding.
    pub fn headers(&self) -> Vec<(&'static str, &'static str)> {
        let cache = if self.immutable { "public, max-age=31536000, immutable" } else { "no-cache" };
        let mut headers = vec![
            ("content-type", self.content_type),
            ("cache-control", cache),
            ("x-content-type-options", "nosniff"),
            ("vary", "accept-encoding"),
        ];
        headers.extend(DOCUMENT_HEADERS);
        headers
    }
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

static REFUSAL: &str = include_str!(concat!(env!("OUT_DIR"), "/refusal.html"));

/// What the page may load and where it may send: only its own origin, nothing inline.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of every document for people, and of what it links.
pub const DOCUMENT_HEADERS: [(&str, &str); 3] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    // Not `no-referrer`: with it a form's post says `Origin: null`, and the origin check could not tell it
    // from another site's.
    ("referrer-policy", "same-origin"),
    // For browsers older than `frame-ancestors`.
    ("x-frame-options", "DENY"),
];

/// The asset served under this path.
pub fn asset(path: &str) -> Option<&'static Asset> {
    LINKED.iter().find(|asset| asset.path == path)
}

/// The paths of all linked assets.
pub fn asset_paths() -> impl Iterator<Item = &'static str> {
    LINKED.iter().map(|asset| asset.path)
}

/// The page of a sale; it reads the sale's id from its own address, `/s/{sale}`.
pub fn sale_page() -> &'static Asset {
    &PAGE
}

/// A refusal for people: the problem in words, and a way back to the sale.
pub fn refusal_page(problem: &Problem, sale: Option<&str>) -> String {
    let way_back = sale.map_or_else(String::new, |sale| {
        format!("<p><a class=\"button\" href=\"/s/{}\">Back to the sale</a></p>", escape(sale))
    });
    let wait = problem
        .retry_after_ms
        .map_or_else(String::new, |ms| format!("<p>Please try again in about {} s.</p>", ms.div_ceil(1000)));
    let trace = problem.trace_id.map_or_else(String::new, |id| format!("<p class=\"trace\">Reference {id}</p>"));
    REFUSAL
        .replace("{title}", &escape(&problem.title))
        .replace("{detail}", &problem.detail.as_deref().map_or_else(String::new, |d| format!("<p>{}</p>", escape(d))))
        .replace("{wait}", &wait)
        .replace("{back}", &way_back)
        .replace("{trace}", &trace)
}

/// HTML text with the five significant characters escaped.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashgate_shared::problem::ProblemKind;

    #[test]
    fn every_asset_that_the_page_links_is_served() {
        let page = std::str::from_utf8(sale_page().body).unwrap();
        assert_eq!(asset_paths().count(), 2);
        for path in asset_paths() {
            assert!(page.contains(path), "{path}");
            assert!(!asset(path).unwrap().body.is_empty());
        }
        let links = page.matches("/assets/").count();
        assert_eq!(links, 2, "a link in the page that no asset answers");
    }

    #[test]
    fn the_compressed_bytes_are_those_of_the_asset() {
        use std::io::Read;
        for asset in LINKED.iter().chain([sale_page()]) {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(asset.gzip).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, asset.body, "{}", asset.path);
            assert!(asset.gzip.len() < asset.body.len(), "{}", asset.path);
            assert_ne!(asset.etag, asset.gzip_etag);
        }
    }

    #[test]
    fn nothing_in_the_page_needs_inline_rights() {
        let page = std::str::from_utf8(sale_page().body).unwrap();
        for banned in ["<style", "style=", "onclick", "javascript:", "<script>"] {
            assert!(!page.contains(banned), "{banned}");
        }
    }

    #[test]
    fn refusals_escape_what_they_quote() {
        let problem = Problem::new(ProblemKind::TryAgain).detail("<script>alert('x')</script>");
        let html = refusal_page(&problem, Some("a\"><b>"));
        assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)"));
        assert!(html.contains("/s/a&quot;&gt;&lt;b&gt;"));
        assert!(!html.contains("{title}") && !html.contains("{trace}"));
    }
}
