use super::*;
use flashgate_shared::{ClaimId, Money, wire::PaymentNotice};
use standardwebhooks::Webhook;
use std::time::Duration;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// A receiver that checks signatures and refuses the first `refusals` notices.
async fn receiver(refusals: u32) -> (String, tokio::sync::mpsc::UnboundedReceiver<PaymentNotice>) {
    let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
    let refusals = Arc::new(AtomicU32::new(refusals));
    let app = Router::new().route(
        "/n",
        post(move |headers: HeaderMap, body: bytes::Bytes| {
            let (tell, refusals) = (tell.clone(), refusals.clone());
            async move {
                Webhook::new(SECRET).unwrap().verify(&body, &headers).expect("a signature that fits");
                if take_one(&refusals) {
                    return StatusCode::SERVICE_UNAVAILABLE;
                }
                tell.send(serde_json::from_slice(&body).unwrap()).unwrap();
                StatusCode::NO_CONTENT
            }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/n", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, heard)
}

async fn provider(notify_url: Option<String>) -> Provider {
    Provider::start(ProviderConfig { listen: ([127, 0, 0, 1], 0).into(), secret: SECRET.into(), notify_url })
        .await
        .unwrap()
}

fn money(amount_minor: i64) -> Money {
    Money { amount_minor, currency: "EUR".to_owned().try_into().unwrap() }
}

fn charge_request(payment: &str) -> ChargeRequest {
    let sale = "s".parse().unwrap();
    ChargeRequest {
        amount: money(19_900),
        claim_id: ClaimId::derive(&sale, &"b".parse().unwrap(), &"k".parse().unwrap()),
        sale,
        payment: payment.into(),
    }
}

async fn post_json(url: String, key: &str, body: &impl serde::Serialize) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.post(url).header("idempotency-key", key).json(body).send().await.unwrap()
}

async fn charge_ok(p: &Provider, key: &str, payment: &str) -> String {
    let answer = post_json(format!("{}/v1/charges", p.url()), key, &charge_request(payment)).await;
    assert_eq!(answer.status(), 200);
    answer.json::<ChargeAnswer>().await.unwrap().payment_id
}

async fn heard(from: &mut tokio::sync::mpsc::UnboundedReceiver<PaymentNotice>) -> PaymentNotice {
    tokio::time::timeout(Duration::from_secs(20), from.recv()).await.expect("a notice in time").unwrap()
}

#[tokio::test]
async fn a_notice_is_signed_and_repeated_until_it_is_taken() {
    let (url, mut notices) = receiver(2).await;
    let p = provider(Some(url)).await;
    let id = charge_ok(&p, "k1", "ok").await;
    let notice = heard(&mut notices).await;
    assert_eq!((notice.payment_id, notice.amount), (id, money(19_900)));
    assert_eq!(p.ledger().payments[0].state, PaymentState::Succeeded);
}

#[tokio::test]
async fn each_behaviour_is_told_as_it_is() {
    use flashgate_shared::wire::NoticeKind;
    let (url, mut notices) = receiver(0).await;
    let p = provider(Some(url)).await;
    charge_ok(&p, "k1", "declined").await;
    assert_eq!(heard(&mut notices).await.kind, NoticeKind::Failed);
    charge_ok(&p, "k2", "wrong-amount").await;
    assert_eq!(heard(&mut notices).await.amount, money(19_901));
    charge_ok(&p, "k3", "silent").await;
    let twice = charge_ok(&p, "k4", "twice").await;
    assert_eq!(heard(&mut notices).await.payment_id, twice);
    assert_eq!(heard(&mut notices).await.payment_id, twice);
    charge_ok(&p, "k5", "late:20").await;
    assert_eq!(heard(&mut notices).await.kind, NoticeKind::Succeeded);
    for bad in ["", "late:", "late:-1", "late:999999999", "cash"] {
        let answer = post_json(format!("{}/v1/charges", p.url()), "k6", &charge_request(bad)).await;
        assert_eq!(answer.status(), 422, "{bad}");
    }
}

#[tokio::test]
async fn keys_make_charges_and_refunds_happen_once() {
    let (url, mut notices) = receiver(0).await;
    let p = provider(Some(url)).await;
    let id = charge_ok(&p, "k1", "ok").await;
    assert_eq!(charge_ok(&p, "k1", "ok").await, id);
    let changed = post_json(format!("{}/v1/charges", p.url()), "k1", &charge_request("silent")).await;
    assert_eq!(changed.status(), 422);
    heard(&mut notices).await;

    let refunds = format!("{}/v1/refunds", p.url());
    let all = RefundRequest { payment_id: id.clone(), amount: money(19_900) };
    p.fail_refunds(1);
    assert_eq!(post_json(refunds.clone(), "r1", &all).await.status(), 503);
    assert_eq!(reqwest::get(format!("{refunds}/r1")).await.unwrap().status(), 404);
    p.silence_refunds(1);
    assert_eq!(post_json(refunds.clone(), "r1", &all).await.status(), 503);
    assert_eq!(reqwest::get(format!("{refunds}/r1")).await.unwrap().status(), 200);
    assert_eq!(post_json(refunds.clone(), "r1", &all).await.status(), 200);
    // The money is back: nothing is left for another key.
    assert_eq!(post_json(refunds.clone(), "r2", &all).await.status(), 422);
    let ledger = p.ledger();
    assert_eq!((ledger.refunds.len(), ledger.refunded_minor(&id)), (1, 19_900));
    assert_eq!(ledger.kept(&"s".parse().unwrap()).count(), 0);
    p.stop().await;
}
