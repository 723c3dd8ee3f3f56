//! A buyer: what a person's browser does, told in steps.

use crate::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use flashgate_shared::{
    SaleId,
    problem::{Problem, ProblemKind},
    wire::{ClaimAccepted, ClaimState, ClaimStatus, EnterAnswer, MyClaim, PayAccepted, PayRequest},
};
use reqwest::{Method, StatusCode, header::HeaderMap};
use std::{net::IpAddr, time::Duration};
use tokio::time::Instant;

/// One buyer.
pub struct Buyer {
    edge: String,
    sale: SaleId,
    address: IpAddr,
    http: reqwest::Client,
    /// The entry token, once entered.
    pub token: Option<String>,
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
}

/// What a claim heard.
#[derive(Debug)]
pub enum Claimed {
    /// 202.
    Accepted(ClaimAccepted),
    /// Anything else.
    Refused(Problem),
}

impl Claimed {
    /// The 202, or an error with what was heard instead.
    pub fn accepted(self) -> Result<ClaimAccepted> {
        match self {
            Self::Accepted(accepted) => Ok(accepted),
            Self::Refused(problem) => bail!("not accepted: {problem:?}"),
        }
    }

    /// The refusal's kind, or an error when it was accepted.
    pub fn refused(self) -> Result<ProblemKind> {
        match self {
            Self::Accepted(accepted) => bail!("accepted: {accepted:?}"),
            Self::Refused(problem) => problem.kind().with_context(|| format!("an unknown kind: {problem:?}")),
        }
    }
}

impl Answer {
    /// The body as JSON.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// The body as a problem document; fails when it is none, or disagrees with the status.
    pub fn problem(&self) -> Result<Problem> {
        let media = self.headers.get("content-type").map(|value| value.to_str().unwrap_or_default());
        ensure!(media == Some("application/problem+json"), "{}: content type {media:?}", self.status);
        let problem: Problem = self.json()?;
        ensure!(problem.status == self.status.as_u16(), "status {} and document {problem:?}", self.status);
        // The host, in front of the gate, refuses without knowing of traces.
        let by_host = problem.type_uri == "about:blank";
        ensure!(by_host || problem.trace_id.is_some(), "no trace: {problem:?}");
        Ok(problem)
    }
}

impl Buyer {
    /// A buyer at this edge, with this address.
    pub fn new(edge: &str, sale: &SaleId, address: IpAddr) -> Self {
        let http = reqwest::Client::builder().no_proxy().local_address(address).timeout(Duration::from_secs(20));
        Self { edge: edge.to_owned(), sale: sale.clone(), address, http: http.build().expect("a client"), token: None }
    }

    /// One request to the edge; `path` starts with `/`.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let mut request = self.http.request(method, format!("{}{path}", self.edge));
        // The address of the connection; under workerd nobody else tells it. Other edges do not look.
        request = request.header("cf-connecting-ip", self.address.to_string());
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = request.send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        Ok(Answer { status, headers, body: answer.bytes().await?.to_vec() })
    }

    /// Enters, trying again as told.
    pub async fn enter(&mut self) -> Result<EnterAnswer> {
        let path = format!("/v1/sales/{}/enter", self.sale);
        let json = [("content-type", "application/json")];
        let entered: EnterAnswer = self
            .retrying(|| self.ask(Method::POST, &path, &json, Some(b"{}".to_vec())))
            .await?
            .json()
            .context("enter")?;
        self.token = Some(entered.token.clone());
        Ok(entered)
    }

    /// One claim, once.
    pub async fn claim_once(&self, key: &str, quantity: i64) -> Result<Claimed> {
        let answer = self.claim_answer(key, quantity).await?;
        claimed(&answer)
    }

    async fn claim_answer(&self, key: &str, quantity: i64) -> Result<Answer> {
        let path = format!("/v1/sales/{}/claim", self.sale);
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let body = format!("{{\"quantity\":{quantity}}}").into_bytes();
        self.ask(Method::POST, &path, &headers, Some(body)).await
    }

    /// A claim, tried again with the same key as often as the gate says "try again".
    pub async fn claim(&self, key: &str, quantity: i64) -> Result<Claimed> {
        claimed(&self.retrying(|| self.claim_answer(key, quantity)).await?)
    }

    /// The same, tried again also while the shop is out of reach or paused, or the outcome is unknown.
    pub async fn claim_at_last(&self, key: &str, quantity: i64) -> Result<Claimed> {
        const NOT_YET: [ProblemKind; 4] =
            [ProblemKind::TryAgain, ProblemKind::Unavailable, ProblemKind::Unknown, ProblemKind::Paused];
        claimed(&self.retrying_while(&NOT_YET, || self.claim_answer(key, quantity)).await?)
    }

    /// The sale he wants to buy in.
    pub fn sale(&self) -> &SaleId {
        &self.sale
    }

    /// Repeats a request while it hears "try again", waiting as told.
    pub async fn retrying<F: Future<Output = Result<Answer>>>(&self, ask: impl Fn() -> F) -> Result<Answer> {
        self.retrying_while(&[ProblemKind::TryAgain], ask).await
    }

    async fn retrying_while<F: Future<Output = Result<Answer>>>(
        &self,
        kinds: &[ProblemKind],
        ask: impl Fn() -> F,
    ) -> Result<Answer> {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = ask().await?;
            let problem = if answer.status.is_success() { None } else { answer.problem().ok() };
            let wait = match &problem {
                Some(problem) if problem.kind().is_some_and(|kind| kinds.contains(&kind)) => problem.retry_after_ms,
                _ => return Ok(answer),
            };
            ensure!(Instant::now() < end, "told to try again for {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(wait.context("told to wait and not how long")?)).await;
        }
    }

    /// The status, once.
    pub async fn status(&self, status_url: &str) -> Result<ClaimStatus> {
        let answer = self.ask(Method::GET, status_url, &[], None).await?;
        ensure!(answer.status == StatusCode::OK, "{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
        answer.json()
    }

    /// The status, once it is past this state and not `PENDING`.
    pub async fn status_after(&self, status_url: &str, past: ClaimState) -> Result<ClaimStatus> {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status(status_url).await?;
            if status.status != past && status.status != ClaimState::Pending {
                return Ok(status);
            }
            ensure!(Instant::now() < end, "still {status:?}");
            tokio::time::sleep(Duration::from_millis(status.poll_after_ms.unwrap_or(100))).await;
        }
    }

    /// Waits for the ledger's first word.
    pub async fn settled(&self, status_url: &str) -> Result<ClaimStatus> {
        self.status_after(status_url, ClaimState::Pending).await
    }

    /// What the shop knows of this buyer.
    pub async fn my_claim(&self) -> Result<Option<ClaimStatus>> {
        let answer = self.ask(Method::GET, &format!("/v1/sales/{}/my-claim", self.sale), &[], None).await?;
        ensure!(answer.status == StatusCode::OK, "{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
        Ok(answer.json::<MyClaim>()?.claim)
    }

    /// Starts to pay, with one of the simulator's means.
    pub async fn pay(&self, status: &ClaimStatus, payment: &str) -> Result<Answer> {
        let request = PayRequest { claim_id: status.claim_id, sale: self.sale.clone(), payment: payment.to_owned() };
        let json = [("content-type", "application/json")];
        self.ask(Method::POST, "/v1/orders", &json, Some(serde_json::to_vec(&request)?)).await
    }

    /// Pays and waits for the state after `RESERVED`.
    pub async fn pay_and_wait(&self, status: &ClaimStatus, payment: &str) -> Result<ClaimStatus> {
        let answer = self.pay(status, payment).await?;
        ensure!(answer.status == StatusCode::ACCEPTED, "{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
        let accepted: PayAccepted = answer.json()?;
        self.status_after(&accepted.status_url, status.status).await
    }
}

fn claimed(answer: &Answer) -> Result<Claimed> {
    if answer.status == StatusCode::ACCEPTED {
        return Ok(Claimed::Accepted(answer.json()?));
    }
    let problem = answer.problem()?;
    ensure!(problem.my_claim.is_some(), "a refusal of a claim that does not name my-claim: {problem:?}");
    Ok(Claimed::Refused(problem))
}
