//! Edge key, key of status links and entry key are exchanged in mid-sale, as docs/DEPLOY.md says; nobody is shut out:
//! not those who entered before, not those who hold a claim, on either runtime.

use anyhow::{Context, Result, ensure};
use aws_lc_rs::{rand::SystemRandom, signature::Ed25519KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD};
use flashgate_shared::{order::OrderStatus, problem::ProblemKind, wire::ClaimState};
use flashgate_tests::{Buyer, Shop, Workerd, WorkerdConfig, key_id};
use std::{fs, path::Path, process::Command};

const NEW_SECRET: &str = "a-new-secret-of-thirty-two-bytes";

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
    let printed = Command::new(shop.stack.origin_program())
        .arg("jwks")
        .env("FLASHGATE_SECRETS__ENTRY_SIGNING_KEY_FILE", file("entry-signing-key.pem"))
        .output()?;
    ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    fs::write(&previous, &printed.stdout)?;
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
