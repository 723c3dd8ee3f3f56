//! Every secret is exchanged in mid-sale, as docs/DEPLOY.md says; nobody is shut out: not those who entered before,
//! not those who hold a claim, not the operators, on either runtime.

use anyhow::{Context, Result, ensure};
use aws_lc_rs::{rand::SystemRandom, signature::Ed25519KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD};
use flashgate_ops::{admin::AdminClient, provider::NOTICES_PATH};
use flashgate_shared::{
    order::OrderStatus,
    problem::ProblemKind,
    wire::{ClaimState, DocumentAnswer},
};
use flashgate_tests::{Buyer, Shop, Workerd, WorkerdConfig, key_id};
use serde_json::Value;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook};
use std::{
    fs,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

const NEW_SECRET: &str = "a-new-secret-of-thirty-two-bytes";
const NEW_WEBHOOK_SECRET: &str = "whsec_YS1uZXctc2VjcmV0LW9mLXRoaXJ0eS10d28tYnl0ZXM=";

/// A new Ed25519 key, PKCS #8 PEM, as `openssl genpkey -algorithm ed25519` writes it.
fn new_key() -> Result<String> {
    let document = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new())?;
    Ok(format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(document.as_ref())))
}

/// Puts a new secret before the ones in the file: the first is used, the others are still taken.
fn put_first(file: &Path, secret: &str) -> Result<()> {
    let others = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(fs::write(file, format!("{secret}\n{others}"))?)
}

/// Leaves only the first secret in the file.
fn keep_first(file: &Path) -> Result<()> {
    let all = fs::read_to_string(file)?;
    Ok(fs::write(file, all.lines().next().context("no secret")?)?)
}

/// What `flashgate-origin <what>` prints, with this file in its settings.
fn printed(shop: &Shop, what: &str, setting: &str, file: &Path) -> Result<Vec<u8>> {
    let name = format!("FLASHGATE_SECRETS__{setting}");
    let printed = Command::new(shop.stack.origin_program()).arg(what).env(name, file).output()?;
    ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    Ok(printed.stdout)
}

async fn restart(shop: &Shop) -> Result<()> {
    shop.stack.term_origin(0).await?;
    shop.stack.start_origin(0).await
}

async fn entered(shop: &Shop, edge: &str, sale: &flashgate_shared::SaleId) -> Result<Buyer> {
    let mut buyer = shop.buyer_at(edge, sale);
    buyer.enter().await?;
    Ok(buyer)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secrets_of_edges_and_buyers_are_exchanged_in_mid_sale_and_nobody_is_shut_out() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let previous = dir.path().join("previous.json");
    fs::write(&previous, r#"{"keys":[]}"#)?;
    let shop = Shop::start(|config| {
        let set = [
            ("FLASHGATE_SECRETS__ENTRY_KID", String::new()),
            ("FLASHGATE_SECRETS__ENTRY_PREVIOUS_JWKS_FILE", previous.display().to_string()),
        ];
        config.origin_env.extend(set.map(|(name, value)| (name.to_owned(), value)));
    })
    .await?;
    let worker = Workerd::start(&shop.stack.worker_config()).await?;
    let edges = [shop.stack.edge_url(0), worker.url()];
    let sale = shop.create(&shop.sale("rotation", 8)).await?;
    // At each edge: one who holds a claim, one who has entered, one who will come back too late.
    let (mut winners, mut waiting, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for edge in edges {
        let winner = entered(&shop, edge, &sale).await?;
        let accepted = winner.claim_at_last("k", 1).await?.accepted()?;
        winners.push((winner, accepted));
        waiting.push(entered(&shop, edge, &sale).await?);
        late.push(entered(&shop, edge, &sale).await?);
    }
    let old_kid = key_id(waiting[0].token.as_deref().context("a token")?)?;

    // 1. The public keys of today are kept, a new private one takes over, new shared secrets come first.
    let file = |name: &str| shop.stack.data_dir().join(name);
    let today = printed(&shop, "jwks", "ENTRY_SIGNING_KEY_FILE", &file("entry-signing-key.pem"))?;
    fs::write(&previous, today)?;
    fs::write(file("entry-signing-key.pem"), new_key()?)?;
    for name in ["edge-key", "status-mac-key"] {
        put_first(&file(name), NEW_SECRET)?;
    }
    restart(&shop).await?;
    for (edge, buyer) in edges.iter().zip(&waiting) {
        buyer.claim_at_last("k", 1).await?.accepted().with_context(|| format!("an old token at {edge}"))?;
        let newcomer = entered(&shop, edge, &sale).await?;
        ensure!(key_id(newcomer.token.as_deref().context("a token")?)? != old_kid, "still the old key");
        newcomer.claim_at_last("k", 1).await?.accepted().with_context(|| format!("a new token at {edge}"))?;
    }
    // The old links still count, and so do the edges' old keys.
    for (winner, accepted) in &winners {
        let status = winner.settled(&accepted.status_url).await?;
        assert_eq!(status.status, ClaimState::Ledger(OrderStatus::Reserved));
    }

    // 2. The edges get the new key, one after the other; then the old secrets are taken away.
    shop.stack.term_edge(0).await?;
    shop.stack.start_edge(0).await?;
    worker.stop().await?;
    let worker =
        Workerd::start(&WorkerdConfig { edge_key: NEW_SECRET.to_owned(), ..shop.stack.worker_config() }).await?;
    for name in ["edge-key", "status-mac-key"] {
        keep_first(&file(name))?;
    }
    fs::write(&previous, r#"{"keys":[]}"#)?;
    restart(&shop).await?;
    for (edge, buyer) in [shop.stack.edge_url(0), worker.url()].into_iter().zip(&mut late) {
        let mut again = shop.buyer_at(edge, &sale);
        again.token = buyer.token.take();
        assert_eq!(again.claim_at_last("k", 1).await?.refused()?, ProblemKind::TokenInvalid, "{edge}");
        again.token = None;
        again.enter().await?;
        again.claim_at_last("k", 1).await?.accepted().with_context(|| format!("entered again at {edge}"))?;
    }
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Reserved), books.on_offer), (8, 0));
    worker.stop().await?;
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secrets_of_operators_and_provider_are_exchanged_in_mid_sale_and_nobody_is_shut_out() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let file = |name: &str| shop.stack.data_dir().join(name);
    let sale = shop.create(&shop.sale("rotation-money", 3)).await?;
    let mut buyers = Vec::new();
    for _ in 0..3 {
        let buyer = entered(&shop, shop.stack.edge_url(0), &sale).await?;
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        buyers.push((buyer, status));
    }
    let paid = async |i: usize| -> Result<()> {
        let (buyer, status) = &buyers[i];
        let status = buyer.pay_and_wait(status, "ok").await?;
        ensure!(status.status == ClaimState::Ledger(OrderStatus::Paid), "{status:?}");
        Ok(())
    };
    let (old, new) = (shop.stack.admin(), AdminClient::new(shop.stack.origin_url(), NEW_SECRET));

    // 1. The new ones come first: the old ones are still taken.
    put_first(&file("admin-token"), NEW_SECRET)?;
    put_first(&file("webhook-secret"), NEW_WEBHOOK_SECRET)?;
    restart(&shop).await?;
    old.show(&sale).await?;
    new.show(&sale).await?;
    paid(0).await?;
    // 2. The provider switches.
    shop.stack.provider().set_secret(NEW_WEBHOOK_SECRET)?;
    paid(1).await?;
    // 3. The old ones go.
    keep_first(&file("webhook-secret"))?;
    restart(&shop).await?;
    paid(2).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.on_offer), (3, 0));
    keep_first(&file("admin-token"))?;
    restart(&shop).await?;
    new.show(&sale).await?;
    let refused = old.show(&sale).await.err().context("the old token still counts")?;
    assert_eq!(refused.kind(), Some(ProblemKind::Unauthorized));
    let notices = format!("{}{NOTICES_PATH}", shop.stack.origin_url());
    let (body, now_s) = ("{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    let signature = Webhook::new(shop.stack.webhook_secret())?.sign("msg-old", now_s.try_into()?, body.as_bytes())?;
    let notice = shop.http.post(notices).header(HEADER_WEBHOOK_ID, "msg-old").body(body);
    let notice = notice.header(HEADER_WEBHOOK_TIMESTAMP, now_s).header(HEADER_WEBHOOK_SIGNATURE, signature);
    assert_eq!(notice.send().await?.status(), 401, "signed with the old secret");
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_key_is_exchanged_and_edges_take_documents_all_the_time() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let (key, edge_keys) =
        (shop.stack.data_dir().join("document-key.pem"), shop.stack.data_dir().join("document-keys.json"));
    let public = || -> Result<Value> {
        Ok(serde_json::from_slice(&printed(&shop, "document-jwks", "DOCUMENT_KEY_FILE", &key)?)?)
    };
    let sale = shop.create(&shop.sale("rotation-documents", 1)).await?;
    let published = async |worker: &Workerd, document: &DocumentAnswer| -> Result<[u16; 2]> {
        let mut statuses = [0; 2];
        for (edge, status) in [shop.stack.edge_url(0), worker.url()].into_iter().zip(&mut statuses) {
            let put = shop.http.put(format!("{edge}/v1/edge/sales/{sale}")).bearer_auth(&document.publish_ticket);
            *status = put.body(document.document.clone()).send().await?.status().as_u16();
        }
        Ok(statuses)
    };
    let with_keys = async |keys: &Value| -> Result<Workerd> {
        fs::write(&edge_keys, keys.to_string())?;
        shop.stack.term_edge(0).await?;
        shop.stack.start_edge(0).await?;
        Workerd::start(&WorkerdConfig { document_keys: keys.to_string(), ..shop.stack.worker_config() }).await
    };
    // 1. The edges get both public halves.
    let (old_pem, new_pem) = (fs::read_to_string(&key)?, new_key()?);
    let old = public()?;
    fs::write(&key, &new_pem)?;
    let new = public()?;
    fs::write(&key, old_pem)?;
    ensure!(old != new);
    let worker = with_keys(&serde_json::json!({ "keys": [old["keys"][0], new["keys"][0]] })).await?;
    let by_old = shop.stack.admin().document(&sale).await?;
    assert_eq!(published(&worker, &by_old).await?, [200; 2]);
    // 2. The origin signs with the new one.
    fs::write(&key, new_pem)?;
    restart(&shop).await?;
    let by_new = shop.stack.admin().document(&sale).await?;
    assert_eq!(published(&worker, &by_new).await?, [200; 2]);
    worker.stop().await?;
    // 3. The old one is taken away. An edge whose store is empty knows the sale all the same.
    let worker = with_keys(&new).await?;
    assert_eq!(published(&worker, &by_old).await?, [401; 2], "the old key's ticket");
    let forged = DocumentAnswer { publish_ticket: by_new.publish_ticket.clone(), ..by_old };
    assert_eq!(published(&worker, &forged).await?, [422; 2], "the old key's document");
    let again = shop.stack.admin().document(&sale).await?;
    assert_eq!(published(&worker, &again).await?, [200; 2]);
    worker.stop().await?;
    shop.stack.stop().await
}
