//! The payment provider, over HTTP. Every call carries the idempotency key under which it may be
//! repeated; an answer that did not come is *unknown*, never "no".

use flashgate_shared::{
    SaleId,
    wire::{ChargeAnswer, ChargeRequest, PaymentsPage, RefundAnswer, RefundRequest},
};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use std::time::Duration;
use uuid::Uuid;

/// Why a call has no answer that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The connection was never made: nothing happened.
    #[error("the provider cannot be reached")]
    Unreachable,
    /// It may or may not have happened; the same call again finds out.
    #[error("the provider's answer did not come: {0}")]
    Unknown(String),
    /// The provider said no.
    #[error("the provider refused with status {0}")]
    Refused(u16),
}

/// A client of the provider; cheap to clone.
#[derive(Debug, Clone)]
pub struct Provider {
    client: Client,
    base: String,
}

impl Provider {
    /// A client for the provider at `base`.
    pub fn new(base: &str, timeout: Duration) -> anyhow::Result<Self> {
        let client = Client::builder().timeout(timeout).connect_timeout(timeout).build()?;
        Ok(Self { client, base: base.trim_end_matches('/').to_owned() })
    }

    /// Asks for a charge. The notice, not this answer, says whether the money came.
    pub async fn charge(&self, key: &str, charge: &ChargeRequest) -> Result<ChargeAnswer, ProviderError> {
        let request = self.client.post(format!("{}/v1/charges", self.base));
        send(request.header("idempotency-key", key).json(charge)).await
    }

    /// Asks for a refund under the row's id.
    pub async fn refund(&self, id: Uuid, refund: &RefundRequest) -> Result<RefundAnswer, ProviderError> {
        let request = self.client.post(format!("{}/v1/refunds", self.base));
        send(request.header("idempotency-key", id.to_string()).json(refund)).await
    }

    /// Payments of a sale that succeeded, after this one.
    pub async fn payments(&self, sale: &SaleId, after: Option<&str>) -> Result<PaymentsPage, ProviderError> {
        let after = after.map(|id| [("after", id)]);
        let request = self.client.get(format!("{}/v1/payments", self.base)).query(&[("sale", sale.as_str())]);
        send(request.query(after.as_ref().map_or(&[][..], |pair| pair))).await
    }

    /// Whether the refund under this id was done before.
    pub async fn refund_known(&self, id: Uuid) -> Result<Option<RefundAnswer>, ProviderError> {
        match send(self.client.get(format!("{}/v1/refunds/{id}", self.base))).await {
            Ok(answer) => Ok(Some(answer)),
            Err(ProviderError::Refused(404)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn send<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, ProviderError> {
    let answer = request.send().await.map_err(|e| {
        if e.is_connect() { ProviderError::Unreachable } else { ProviderError::Unknown(e.without_url().to_string()) }
    })?;
    let status = answer.status();
    if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT && status != StatusCode::TOO_MANY_REQUESTS {
        return Err(ProviderError::Refused(status.as_u16()));
    }
    if !status.is_success() {
        return Err(ProviderError::Unknown(format!("status {status}")));
    }
    answer.json().await.map_err(|e| ProviderError::Unknown(e.without_url().to_string()))
}
