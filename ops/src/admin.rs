//! The origin's admin API (`/v1/admin/*`, bearer token), as an operator's tools use it.

use flashgate_shared::{
    SaleId, limits,
    problem::{PROBLEM_JSON, Problem, ProblemKind},
    sale::SaleConfig,
    wire::{
        AdminSale, AuditReport, Check, ClosingReport, DeadLetter, DocumentAnswer, Erasure, ErasureRequest, LedgerPage,
        Rebuild, Reconciliation, Repair, TrafficReport,
    },
};
use reqwest::{Method, StatusCode, header};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long one admin call may take, in seconds. An audit reads every held receipt.
const CALL_TIMEOUT_S: u64 = 30;
/// Largest answer that is read, in bytes. A list of sales is the largest.
const ANSWER_BYTES_MAX: usize = 64 * limits::ADMIN_BODY_BYTES;

/// Why an admin call failed; split by who can do something about it.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No connection, no answer in time, or half an answer.
    #[error("the origin at {url} does not answer: {cause}")]
    Unreachable {
        /// The origin's address.
        url: String,
        /// What the connection said.
        cause: String,
    },
    /// The origin said no.
    #[error("{}", refusal(.0))]
    Refused(Box<Problem>),
    /// The answer is not one of ours: another service, or another version.
    #[error("the origin's answer cannot be read (status {status}): {cause}")]
    Unreadable {
        /// The HTTP status.
        status: u16,
        /// What is wrong with it.
        cause: String,
    },
}

fn refusal(p: &Problem) -> String {
    let detail = p.detail.as_deref().map(|d| format!(": {d}")).unwrap_or_default();
    let trace = p.trace_id.map(|t| format!(" (trace {t})")).unwrap_or_default();
    format!("{}{detail}{trace}", p.title)
}

impl AdminError {
    /// The kind of refusal, when the origin refused with a kind known here.
    pub fn kind(&self) -> Option<ProblemKind> {
        match self {
            Self::Refused(problem) => problem.kind(),
            _ => None,
        }
    }
}

/// A client of the admin API of one origin.
#[derive(Debug, Clone)]
pub struct AdminClient {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl AdminClient {
    /// A client of the origin at `url` (scheme and authority) with the admin token.
    pub fn new(url: impl Into<String>, token: impl Into<String>) -> Self {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(CALL_TIMEOUT_S))
            .no_proxy()
            .build()
            // Building fails only when the TLS backend cannot start; then nothing here works.
            .expect("the HTTP client starts");
        Self { http, url: url.into().trim_end_matches('/').to_owned(), token: token.into() }
    }

    /// The origin's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Creates a sale and loads its gate. The version given is ignored: the origin gives it.
    pub async fn create_sale(&self, sale: &SaleConfig) -> Result<AdminSale, AdminError> {
        self.call(Method::POST, "/v1/admin/sales", Some(written(sale)?)).await
    }

    /// All sales.
    pub async fn list(&self) -> Result<Vec<AdminSale>, AdminError> {
        self.call(Method::GET, "/v1/admin/sales", None).await
    }

    /// One sale.
    pub async fn show(&self, sale: &SaleId) -> Result<AdminSale, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}"), None).await
    }

    /// Stops a sale for now.
    pub async fn pause(&self, sale: &SaleId) -> Result<AdminSale, AdminError> {
        self.act(sale, "pause").await
    }

    /// Goes on with a paused sale.
    pub async fn resume(&self, sale: &SaleId) -> Result<AdminSale, AdminError> {
        self.act(sale, "resume").await
    }

    /// Ends a sale for good.
    pub async fn close(&self, sale: &SaleId) -> Result<AdminSale, AdminError> {
        self.act(sale, "close").await
    }

    /// Orders the gate to be rebuilt from the ledger.
    pub async fn rebuild(&self, sale: &SaleId) -> Result<AdminSale, AdminError> {
        self.act(sale, "rebuild").await
    }

    /// The sale's rebuilds, the newest first.
    pub async fn rebuilds(&self, sale: &SaleId) -> Result<Vec<Rebuild>, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/rebuilds"), None).await
    }

    /// Compares the sale's stores; mends what can be mended, if that is wished.
    pub async fn reconcile(
        &self,
        sale: &SaleId,
        repair: bool,
        older_than_ms: u32,
    ) -> Result<Reconciliation, AdminError> {
        let path = format!("/v1/admin/sales/{sale}/reconcile?repair={repair}&older_than_ms={older_than_ms}");
        self.call(Method::POST, &path, None).await
    }

    /// What reconciling has mended of the sale, the newest first.
    pub async fn repairs(&self, sale: &SaleId) -> Result<Vec<Repair>, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/repairs"), None).await
    }

    /// Messages of the sale that could not be settled, the newest first.
    pub async fn dead_letters(&self, sale: &SaleId) -> Result<Vec<DeadLetter>, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/dead-letters"), None).await
    }

    /// Sends one of them again.
    pub async fn replay(&self, sale: &SaleId, letter: i64) -> Result<DeadLetter, AdminError> {
        self.call(Method::POST, &format!("/v1/admin/sales/{sale}/dead-letters/{letter}/replay"), None).await
    }

    /// Whether everything behind the edges is ready for the sale.
    pub async fn check(&self, sale: &SaleId) -> Result<Vec<Check>, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/check"), None).await
    }

    /// Erases a buyer's personal data from a sale, or everybody's.
    pub async fn erase(&self, sale: &SaleId, whose: &ErasureRequest) -> Result<Erasure, AdminError> {
        let body = serde_json::to_value(whose);
        let body = body.map_err(|e| AdminError::Unreadable { status: 0, cause: e.to_string() })?;
        self.call(Method::POST, &format!("/v1/admin/sales/{sale}/erasures"), Some(body)).await
    }

    /// What became of a sale.
    pub async fn report(&self, sale: &SaleId) -> Result<ClosingReport, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/report"), None).await
    }

    /// A page of a shard's chain, after entry number `after`.
    pub async fn ledger(&self, sale: &SaleId, shard: i16, after: i64) -> Result<LedgerPage, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/ledger?shard={shard}&after={after}"), None).await
    }

    /// Gives a sale other settings; the version in them must be the sale's.
    pub async fn change(&self, sale: &SaleConfig) -> Result<AdminSale, AdminError> {
        self.call(Method::PUT, &format!("/v1/admin/sales/{}", sale.id), Some(written(sale)?)).await
    }

    /// The settings that a sale had in a version.
    pub async fn version(&self, sale: &SaleId, version: i64) -> Result<SaleConfig, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/versions/{version}"), None).await
    }

    /// The sale's document for edges, and tickets for their route.
    pub async fn document(&self, sale: &SaleId) -> Result<DocumentAnswer, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/document"), None).await
    }

    /// Design I1 to I4 as the origin finds them now.
    pub async fn audit(&self, sale: &SaleId) -> Result<AuditReport, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/audit"), None).await
    }

    /// What this origin process counted of the sale.
    pub async fn traffic(&self, sale: &SaleId) -> Result<TrafficReport, AdminError> {
        self.call(Method::GET, &format!("/v1/admin/sales/{sale}/traffic"), None).await
    }

    async fn act(&self, sale: &SaleId, verb: &str) -> Result<AdminSale, AdminError> {
        self.call(Method::POST, &format!("/v1/admin/sales/{sale}/{verb}"), None).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<T, AdminError> {
        let unreachable = |e: reqwest::Error| AdminError::Unreachable { url: self.url.clone(), cause: innermost(&e) };
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let is_problem = answer
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|t| t.as_bytes().starts_with(PROBLEM_JSON.as_bytes()));
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(unreadable(status, format!("more than {ANSWER_BYTES_MAX} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| unreadable(status, e.to_string()));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) if is_problem => Err(AdminError::Refused(Box::new(problem))),
            _ => Err(unreadable(status, "no problem document".into())),
        }
    }
}

fn written(sale: &SaleConfig) -> Result<serde_json::Value, AdminError> {
    serde_json::to_value(sale).map_err(|e| AdminError::Unreadable { status: 0, cause: e.to_string() })
}

fn unreadable(status: StatusCode, cause: String) -> AdminError {
    AdminError::Unreadable { status: status.as_u16(), cause }
}

/// The last cause in an error's chain: for a refused connection the only one that helps.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_one_line_with_its_trace() {
        let mut problem = Problem::new(ProblemKind::Unprocessable).detail("total: must be 1 to 10000000");
        problem.trace_id = Some(flashgate_shared::trace::TraceId::from_random(10));
        let error = AdminError::Refused(Box::new(problem));
        assert_eq!(
            error.to_string(),
            "The request is incomplete: total: must be 1 to 10000000 (trace 0000000000000000000000000000000a)"
        );
        assert_eq!(error.kind(), Some(ProblemKind::Unprocessable));
    }

    #[tokio::test]
    async fn an_origin_that_is_not_there_is_named() {
        // Port 1 of loopback: nobody listens there.
        let client = AdminClient::new("http://127.0.0.1:1/", "t");
        let error = client.list().await.unwrap_err();
        assert!(error.to_string().starts_with("the origin at http://127.0.0.1:1 does not answer"), "{error}");
        assert_eq!(error.kind(), None);
    }
}
