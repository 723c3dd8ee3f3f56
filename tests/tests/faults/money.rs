//! Payments that come, fail, come twice, come late, are wrong or forged; reservations that end.

use anyhow::{Context, Result, bail, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    order::{DriftKind, OrderStatus},
    sale::SaleConfig,
    wire::{ClaimStatus, NoticeKind, PaymentNotice},
};
use flashgate_tests::{Buyer, EXPIRED, PAID, PATIENCE, RESERVED, Shop, faults, shop};
use reqwest::{Method, StatusCode};
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP};

/// A buyer with a reservation in a new sale.
async fn reserved(shop: &Shop, config: &SaleConfig) -> Result<(Buyer, ClaimStatus)> {
    let sale = shop.create(config).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.enter().await?;
    let accepted = buyer.claim("k", 1).await?.accepted()?;
    let status = buyer.settled(&accepted.status_url).await?;
    ensure!(status.status == RESERVED, "{status:?}");
    Ok((buyer, status))
}

/// Waits until the buyer's status is as wanted.
async fn status_where(buyer: &Buyer, url: &str, wanted: impl Fn(&ClaimStatus) -> bool) -> Result<()> {
    until("the status is as wanted", PATIENCE, || async {
        let status = buyer.status(url).await?;
        ensure!(wanted(&status), "{status:?}");
        Ok(true)
    })
    .await
}

/// What the provider still keeps of a sale's payments.
fn kept(shop: &Shop, config: &SaleConfig) -> usize {
    shop.stack.provider().ledger().kept(&config.id).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_unit_comes_back_once_and_the_next_buyer_gets_it() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-expiry", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    faults::expire_now(shop, status.claim_id).await?;
    assert_eq!(buyer.status_after(&status.status_url, RESERVED).await?.status, EXPIRED);
    shop.quiet(&config.id).await?;
    let direct = shop.direct(&config.id);
    until("the unit is on offer", PATIENCE, || async { Ok(direct.claim("next", "k", 1).await?.accepted().is_ok()) })
        .await?;
    let releases: (i64,) = sqlx::query_as("SELECT count(*) FROM gate_releases WHERE claim_id = $1")
        .bind(status.claim_id.0)
        .fetch_one(&mut shop.database().await?)
        .await?;
    assert_eq!(releases.0, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_notice_leaves_a_good_order_alone() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-twice", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    assert_eq!(buyer.pay_and_wait(&status, "twice").await?.status, PAID);
    until("both notices are taken", PATIENCE, || async {
        let ledger = shop.stack.provider().ledger();
        Ok(ledger.payments.iter().filter(|p| p.sale == config.id).all(|p| p.notices_taken >= 2))
    })
    .await?;
    let books = shop.audit(&config.id).await?;
    assert_eq!((books.count(OrderStatus::Paid), kept(shop, &config)), (1, 1));
    assert!(!buyer.status(&status.status_url).await?.refunded);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_comes_after_the_hold_ended_goes_back() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-late", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    assert_eq!(buyer.pay(&status, "late:5000").await?.status, StatusCode::ACCEPTED);
    faults::expire_now(shop, status.claim_id).await?;
    assert_eq!(buyer.status_after(&status.status_url, RESERVED).await?.status, EXPIRED);
    status_where(&buyer, &status.status_url, |s| s.refunded).await?;
    let books = shop.audit(&config.id).await?;
    assert_eq!((books.count(OrderStatus::Expired), books.on_offer), (1, 1));
    until("the money is back", PATIENCE, || async { Ok(kept(shop, &config) == 0) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_card_leaves_the_hold_and_another_card_pays() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-declined", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    assert_eq!(buyer.pay(&status, "declined").await?.status, StatusCode::ACCEPTED);
    status_where(&buyer, &status.status_url, |s| s.status == RESERVED && !s.paying).await?;
    assert_eq!(buyer.pay_and_wait(&status, "ok").await?.status, PAID);
    shop.audit(&config.id).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_amount_buys_nothing_and_goes_back() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-amount", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    assert_eq!(buyer.pay(&status, "wrong-amount").await?.status, StatusCode::ACCEPTED);
    status_where(&buyer, &status.status_url, |s| s.refunded && s.status == RESERVED).await?;
    until("the money is back", PATIENCE, || async { Ok(kept(shop, &config) == 0) }).await?;
    shop.audit(&config.id).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_failed_or_went_unanswered_is_made_once() -> Result<()> {
    // The provider's faults are the whole shop's: a shop of its own.
    let shop = Shop::start(|_| {}).await?;
    let config = shop.sale("money-refund", 1);
    let (buyer, status) = reserved(&shop, &config).await?;
    shop.stack.provider().fail_refunds(1);
    shop.stack.provider().silence_refunds(1);
    assert_eq!(buyer.pay(&status, "wrong-amount").await?.status, StatusCode::ACCEPTED);
    until("the refund is made", PATIENCE, || async { Ok(!shop.stack.provider().ledger().refunds.is_empty()) }).await?;
    assert_eq!(kept(&shop, &config), 0);
    shop.audit(&config.id).await?;
    let refunds = shop.stack.provider().ledger().refunds.len();
    assert_eq!(refunds, 1, "the provider was asked again and refunded once");
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_notice_is_refused() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-forged", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    let notice = serde_json::json!({
        "type": "payment.succeeded", "payment_id": "forged", "claim_id": status.claim_id,
        "sale": config.id, "amount": config.price, "at_ms": status.now_ms,
    });
    let body = notice.to_string();
    let now_s = status.now_ms / 1000;
    let forger = standardwebhooks::Webhook::new("whsec_Zm9yZ2VkIHNlY3JldCBvZiBzb21lYm9keQ==")?;
    let genuine = standardwebhooks::Webhook::new(shop.stack.webhook_secret())?;
    let old_s = now_s - 3_600;
    for (what, id, at_s, signature) in [
        ("by another key", "msg-1", now_s, forger.sign("msg-1", now_s, body.as_bytes())?),
        ("of another message", "msg-2", now_s, genuine.sign("msg-1", now_s, body.as_bytes())?),
        ("an hour old", "msg-3", old_s, genuine.sign("msg-3", old_s, body.as_bytes())?),
        ("without a signature", "msg-4", now_s, String::new()),
    ] {
        let url = format!("{}/v1/payments/notices", shop.stack.origin_url());
        let request = shop.http.post(url).header("webhook-id", id).header("webhook-timestamp", at_s.to_string());
        let answer = request.header("webhook-signature", signature).body(body.clone()).send().await?;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{what}");
    }
    assert_eq!(buyer.status(&status.status_url).await?.status, RESERVED);
    // Not reachable through the edge at all.
    let answer = buyer.ask(Method::POST, "/v1/payments/notices", &[], Some(body.into_bytes())).await?;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_after_the_pay_window_is_not_started() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-window", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    faults::end_pay_window(shop, status.claim_id).await?;
    let answer = buyer.pay(&status, "ok").await?;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(buyer.status(&status.status_url).await?.status, RESERVED, "the grace still runs");
    shop.audit(&config.id).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_of_failure_that_comes_after_success_changes_nothing() -> Result<()> {
    let shop = shop().await?;
    let config = shop.sale("money-order", 1);
    let (buyer, status) = reserved(shop, &config).await?;
    let paid = buyer.pay_and_wait(&status, "ok").await?;
    ensure!(paid.status == PAID, "{paid:?}");
    let payments = shop.stack.provider().ledger();
    let payment = payments.payments.iter().find(|p| p.claim_id == status.claim_id).context("no payment")?;
    let notice = PaymentNotice {
        kind: NoticeKind::Failed,
        payment_id: payment.payment_id.clone(),
        claim_id: status.claim_id,
        sale: config.id.clone(),
        amount: payment.amount.clone(),
        at_ms: payment.charged_at_ms,
    };
    let body = serde_json::to_vec(&notice)?;
    let signer = standardwebhooks::Webhook::new(shop.stack.webhook_secret()).map_err(|e| anyhow::anyhow!("{e:?}"))?;
    let at_s = shop.stock.now_ms().await? / 1_000;
    let answer = shop
        .http
        .post(format!("{}/v1/payments/notices", shop.stack.origin_url()))
        .header(HEADER_WEBHOOK_ID, "msg-late")
        .header(HEADER_WEBHOOK_TIMESTAMP, at_s)
        .header(HEADER_WEBHOOK_SIGNATURE, signer.sign("msg-late", at_s, &body)?)
        .body(body)
        .send()
        .await?;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT, "heard, and known better");
    assert_eq!(buyer.status(&status.status_url).await?.status, PAID);
    assert_eq!(kept(shop, &config), 1);
    assert_eq!(shop.audit(&config.id).await?.count(OrderStatus::Paid), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_that_never_comes_is_found_in_the_providers_books() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let config = shop.sale("money-unnoticed", 2);
    let (buyer, status) = reserved(&shop, &config).await?;
    shop.stack.provider().lose_notices(1);
    ensure!(buyer.pay(&status, "ok").await?.status.is_success());
    until("the money has moved", PATIENCE, || async { Ok(kept(&shop, &config) == 1) }).await?;
    assert_eq!(buyer.status(&status.status_url).await?.status, RESERVED, "nobody told the shop");
    let admin = shop.stack.admin();
    let young = admin.reconcile(&config.id, true, 600_000).await?;
    assert_eq!(young.drifts, [], "its notice may be on its way");
    let told = admin.reconcile(&config.id, true, 0).await?;
    let [drift] = &told.drifts[..] else { bail!("{told:?}") };
    assert_eq!((drift.kind, drift.claim_id), (DriftKind::UnnoticedPayment, Some(status.claim_id)));
    ensure!(drift.repair.is_some(), "{drift:?}");
    status_where(&buyer, &status.status_url, |status| status.status == PAID).await?;
    assert_eq!(admin.reconcile(&config.id, true, 0).await?.drifts, []);
    // A payment in the ledger that the provider does not know cannot be mended: it is told.
    let invented =
        "INSERT INTO payments (provider_payment_id, claim_id, sale, amount_minor, currency, paid_at_ms, updated_by)
                    SELECT 'pay-invented', claim_id, sale, 0, currency, 1, 'test' FROM orders WHERE claim_id = $1";
    sqlx::query(invented).bind(status.claim_id.0).execute(&mut shop.database().await?).await?;
    let told = admin.reconcile(&config.id, true, 0).await?;
    let [drift] = &told.drifts[..] else { bail!("{told:?}") };
    assert_eq!((drift.kind, drift.repair.is_none()), (DriftKind::UnknownPayment, true), "{drift:?}");
    let books = shop.audit(&config.id).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.on_offer), (1, 1));
    shop.stack.stop().await
}
