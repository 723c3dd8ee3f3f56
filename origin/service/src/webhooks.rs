//! Payment notices as Standard Webhooks 1.0 signs them, by the authority's clock and not by this machine's: an
//! origin whose own clock is wrong must not refuse money.

use crate::secrets::is_one_of;
use anyhow::Context;
use flashgate_shared::UnixMs;
use http::HeaderMap;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook};

/// How old a notice may be, and how far ahead, in seconds: what the libraries of Standard Webhooks take.
const AGE_MAX_S: u64 = 300;
/// Most signatures of one notice that are compared.
const SIGNATURES_MAX: usize = 8;

/// The provider's secrets: the current one, and those that still count during a rotation.
pub struct Webhooks(Vec<Webhook>);

impl Webhooks {
    /// Of secrets of the form `whsec_<base64>`.
    pub fn new(secrets: &[Vec<u8>]) -> anyhow::Result<Self> {
        let webhook = |secret: &Vec<u8>| {
            let text = std::str::from_utf8(secret).context("the webhook secret is no text")?;
            Webhook::new(text).map_err(|_| anyhow::anyhow!("the webhook secret is not of the form whsec_<base64>"))
        };
        secrets.iter().map(webhook).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Whether one of the notice's signatures is by one of the secrets, and it is of now.
    pub fn signed(&self, body: &[u8], headers: &HeaderMap, now_ms: UnixMs) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(id), Some(at), Some(given)) =
            (text(HEADER_WEBHOOK_ID), text(HEADER_WEBHOOK_TIMESTAMP), text(HEADER_WEBHOOK_SIGNATURE))
        else {
            return false;
        };
        let Ok(at_s) = at.parse::<i64>() else { return false };
        if (now_ms / 1_000).abs_diff(at_s) > AGE_MAX_S {
            return false;
        }
        let good: Vec<Vec<u8>> =
            self.0.iter().filter_map(|secret| Some(secret.sign(id, at_s, body).ok()?.into_bytes())).collect();
        given.split(' ').take(SIGNATURES_MAX).any(|signature| is_one_of(&good, signature.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_notice_is_the_providers_by_its_signature_and_the_authoritys_time() {
        // The example of Standard Webhooks 1.0; openssl makes the same of it: HMAC-SHA-256 over id.timestamp.body.
        let (body, at_ms) = (&br#"{"test": 2432232314}"#[..], 1_614_265_330_000);
        let headers = |signature: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER_WEBHOOK_ID, HeaderValue::from_static("msg_p5jXN8AQM9LWM0D4loKWxJek"));
            headers.insert(HEADER_WEBHOOK_TIMESTAMP, HeaderValue::from_static("1614265330"));
            headers.insert(HEADER_WEBHOOK_SIGNATURE, signature.parse().unwrap());
            headers
        };
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let secrets = ["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
        let webhooks = Webhooks::new(&secrets.map(|secret| secret.as_bytes().to_vec())).unwrap();
        assert!(webhooks.signed(body, &headers(good), at_ms));
        assert!(webhooks.signed(body, &headers(&format!("v1,bm90aGluZw== {good}")), at_ms + 299_000));
        for (what, body, signature, now_ms) in [
            ("another body", &b"{}"[..], good, at_ms),
            ("another signature", body, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF=", at_ms),
            ("another version", body, "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", at_ms),
            ("none", body, "", at_ms),
            ("too old", body, good, at_ms + 302_000),
            ("of the future", body, good, at_ms - 302_000),
        ] {
            assert!(!webhooks.signed(body, &headers(signature), now_ms), "{what}");
        }
        assert!(!webhooks.signed(body, &HeaderMap::new(), at_ms));
        assert!(Webhooks::new(&[b"no secret of that form".to_vec()]).is_err());
    }
}
