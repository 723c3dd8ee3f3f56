//! Bad entry tokens, at the edge and behind it.

use anyhow::Result;
use aws_lc_rs::{hmac, signature::Ed25519KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use flashgate_shared::problem::ProblemKind;
use flashgate_tests::{Claimed, Shop, entry_claims, shop, sign, signed_by};
use serde_json::{Value, json};

/// Each bad token, and the refusal it must meet.
fn bad_tokens(shop: &Shop, sale: &str, now_ms: i64) -> Result<Vec<(&'static str, String, ProblemKind)>> {
    let (pem, kid) = (shop.stack.entry_signing_pem(), shop.stack.entry_kid());
    let header = json!({"alg": "EdDSA", "kid": kid});
    let good = entry_claims(shop.stack.issuer(), sale, "somebody", now_ms);
    let with = |field: &str, value: Value| {
        let mut claims = good.clone();
        claims[field] = value;
        sign(pem, &header, &claims)
    };
    let now_s = now_ms / 1000;
    let unsigned = |header: &Value| {
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(good.to_string()))
    };
    let confused = unsigned(&json!({"alg": "HS256", "kid": kid}));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, pem.as_bytes()), confused.as_bytes());
    let genuine = sign(pem, &header, &good)?;
    let foreign = Ed25519KeyPair::generate()?;
    Ok(vec![
        ("expired", with("exp", json!(now_s - 10))?, ProblemKind::TokenExpired),
        ("not yet valid", with("nbf", json!(now_s + 300))?, ProblemKind::TokenNotYetValid),
        ("for another sale", with("aud", json!("another-sale"))?, ProblemKind::Forbidden),
        ("of another issuer", with("iss", json!("somebody-else"))?, ProblemKind::TokenInvalid),
        ("by another key", signed_by(&foreign, &header, &good), ProblemKind::TokenInvalid),
        ("by an unknown kid", sign(pem, &json!({"alg": "EdDSA", "kid": "nobody"}), &good)?, ProblemKind::TokenInvalid),
        ("alg none", format!("{}.", unsigned(&json!({"alg": "none", "kid": kid}))), ProblemKind::TokenInvalid),
        ("alg confusion", format!("{confused}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref())), ProblemKind::TokenInvalid),
        ("truncated", genuine[..genuine.len() - 20].to_owned(), ProblemKind::TokenInvalid),
        ("10 kB", "x".repeat(10_000), ProblemKind::TokenInvalid),
        ("no JWT", "hello".to_owned(), ProblemKind::TokenInvalid),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_refuses_each_bad_token_with_its_reason() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("tokens-edge", 5)).await?;
    for (what, token, kind) in bad_tokens(shop, sale.as_str(), shop.stock.now_ms().await?)? {
        let mut buyer = shop.buyer(&sale);
        buyer.token = Some(token);
        let Claimed::Refused(problem) = buyer.claim("k", 1).await? else { panic!("{what}: a unit") };
        assert_eq!(problem.kind(), Some(kind), "{what}: {problem:?}");
        assert!(matches!(problem.status, 401 | 403), "{what}: {problem:?}");
    }
    assert_eq!(shop.buyer(&sale).claim("k", 1).await?.refused()?, ProblemKind::TokenMissing);
    assert_eq!(shop.audit(&sale).await?.on_offer, 5, "no bad token took a unit");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_checks_the_token_again() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("tokens-origin", 5)).await?;
    let direct = shop.direct(&sale);
    for (what, token, kind) in bad_tokens(shop, sale.as_str(), shop.stock.now_ms().await?)? {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str()), ("idempotency-key", "k")];
        let answer = direct.ask(reqwest::Method::POST, &format!("/v1/sales/{sale}/claim"), &headers, None).await?;
        assert_eq!(answer.problem()?.kind(), Some(kind), "{what}");
    }
    assert_eq!(shop.audit(&sale).await?.on_offer, 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_buyers_claim_is_not_found() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("tokens-others", 5)).await?;
    let (mut owner, mut other) = (shop.buyer(&sale), shop.buyer(&sale));
    owner.enter().await?;
    other.enter().await?;
    let accepted = owner.claim("k", 1).await?.accepted()?;
    let status = owner.settled(&accepted.status_url).await?;
    let (path, query) = status.status_url.split_once('?').unwrap();
    for (method, target) in [
        (reqwest::Method::GET, status.status_url.clone()),
        (reqwest::Method::GET, format!("{path}/events?{query}")),
        (reqwest::Method::POST, format!("{path}/release?{query}")),
    ] {
        let answer = other.ask(method, &target, &[], None).await?;
        assert_eq!(answer.problem()?.kind(), Some(ProblemKind::NotFound), "{target}");
    }
    let answer = other.pay(&status, "ok").await?;
    assert_eq!(answer.problem()?.kind(), Some(ProblemKind::NotFound), "paying for somebody else's claim");
    assert_eq!(other.my_claim().await?, None);
    shop.audit(&sale).await?;
    Ok(())
}
