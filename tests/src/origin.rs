//! A caller behind the gate: it has the edge's key and writes its own permits, so that what the origin
//! does can be tested without admission in between.

use crate::{Answer, Claimed, Shop, entry_claims, sign};
use anyhow::Result;
use flashgate_shared::{
    SaleId,
    admission::Permit,
    wire::{EDGE_KEY_HEADER, PERMIT_HEADER},
};
use reqwest::{Method, StatusCode};
use serde_json::json;

/// The caller.
pub struct Direct<'s> {
    shop: &'s Shop,
    sale: SaleId,
}

impl<'s> Direct<'s> {
    pub(crate) fn new(shop: &'s Shop, sale: SaleId) -> Self {
        Self { shop, sale }
    }

    /// A good token for a buyer of this name.
    pub fn token(&self, buyer: &str) -> Result<String> {
        let stack = &self.shop.stack;
        let claims = entry_claims(stack.issuer(), self.sale.as_str(), buyer, crate::shop::wall_clock_ms());
        sign(stack.entry_signing_pem(), &json!({"alg": "EdDSA", "kid": stack.entry_kid()}), &claims)
    }

    /// One request to the origin with the edge's key and a fresh permit.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let permit =
            Permit { granted_at_ms: self.shop.stock.now_ms().await?, epoch: self.shop.epoch(&self.sale).await? };
        let mut request = self
            .shop
            .http
            .request(method, format!("{}{path}", self.shop.stack.origin_url()))
            .header(EDGE_KEY_HEADER, self.shop.stack.edge_key());
        if !headers.iter().any(|(name, _)| *name == PERMIT_HEADER) {
            request = request.header(PERMIT_HEADER, permit.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.body(body.unwrap_or_default()).send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        Ok(Answer { status, headers, body: answer.bytes().await?.to_vec() })
    }

    /// A claim of this buyer.
    pub async fn claim(&self, buyer: &str, key: &str, quantity: i64) -> Result<Claimed> {
        let authorization = format!("Bearer {}", self.token(buyer)?);
        let headers =
            [("authorization", authorization.as_str()), ("idempotency-key", key), ("content-type", "application/json")];
        let body = format!("{{\"quantity\":{quantity}}}").into_bytes();
        let answer = self.ask(Method::POST, &format!("/v1/sales/{}/claim", self.sale), &headers, Some(body)).await?;
        if answer.status == StatusCode::ACCEPTED {
            Ok(Claimed::Accepted(answer.json()?))
        } else {
            Ok(Claimed::Refused(answer.problem()?))
        }
    }
}
