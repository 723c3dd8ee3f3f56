//! The ledger is busy, and its chain is checked by whoever has an export.

use anyhow::{Context, Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{order::OrderStatus, wire::ClaimState};
use flashgate_tests::{PATIENCE, Shop, faults, shop};
use sqlx::Connection;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_row_is_locked_and_status_questions_are_answered_all_the_same() -> Result<()> {
    let shop = shop().await?;
    let sale = shop.create(&shop.sale("ledger-locked", 20)).await?;
    let mut known = shop.buyer(&sale);
    known.enter().await?;
    let held = known.claim_at_last("k", 1).await?.accepted()?;
    known.settled(&held.status_url).await?;
    // Somebody holds the stock's lock: every settler waits, with every connection of its pool.
    let mut database = shop.database().await?;
    let mut lock = database.begin().await?;
    sqlx::query("SELECT FROM stock WHERE sale = $1 FOR UPDATE").bind(sale.as_str()).execute(&mut *lock).await?;
    let mut waiting = Vec::new();
    for n in 0..8 {
        let claim = faults::claim_and_die(shop, &sale, &format!("buyer-{n}"), "k", 0).await?;
        faults::publish(shop, &claim).await?;
        waiting.push(claim);
    }
    for _ in 0..20 {
        let status = known.status(&held.status_url).await?;
        assert_eq!(status.status, ClaimState::Ledger(OrderStatus::Reserved));
    }
    lock.rollback().await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (9, 11));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settling_is_cut_short_by_the_statement_timeout_and_goes_on() -> Result<()> {
    let shop = Shop::start(|config| {
        config.origin_env.push(("FLASHGATE_POSTGRES__STATEMENT_TIMEOUT_MS".into(), "300".into()));
    })
    .await?;
    let sale = shop.create(&shop.sale("ledger-timeout", 3)).await?;
    let mut database = shop.database().await?;
    let mut lock = database.begin().await?;
    sqlx::query("SELECT FROM stock WHERE sale = $1 FOR UPDATE").bind(sale.as_str()).execute(&mut *lock).await?;
    let claim = faults::claim_and_die(&shop, &sale, "ann", "k", 0).await?;
    faults::publish(&shop, &claim).await?;
    until("a settler was cut short", PATIENCE, || async {
        let text = shop.http.get(format!("{}/metrics", shop.stack.origin_url())).send().await?.text().await?;
        Ok(text.lines().any(|line| {
            line.starts_with("flashgate_ledger_transactions_total")
                && line.contains("name=\"settle\"")
                && line.contains("outcome=\"unavailable\"")
        }))
    })
    .await?;
    lock.rollback().await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer, books.count(OrderStatus::Lost)), (1, 2, 0));
    shop.stack.stop().await
}

/// The command, as an operator runs it.
async fn command(shop: &Shop, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(shop.stack.origin_program().with_file_name("flashgate"));
    command.args(arguments);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_checked_without_the_system_and_whatever_is_done_to_it_is_found() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("ledger-export", 5);
    config.second_try = true;
    let sale = shop.create(&config).await?;
    for (n, payment) in [(0, Some("ok")), (1, None), (2, Some("ok"))] {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        let accepted = buyer.claim_at_last(&format!("k{n}"), 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        match payment {
            Some(payment) => {
                buyer.pay_and_wait(&status, payment).await?;
            }
            None => {
                faults::expire_now(shop, status.claim_id).await?;
                buyer.status_after(&status.status_url, status.status).await?;
            }
        }
    }
    shop.audit(&sale).await?;
    let dir = tempfile::tempdir()?;
    let export = dir.path().join("ledger.jsonl");
    let token = shop.stack.admin_token_file();
    let place = ["--origin", shop.stack.origin_url(), "--admin-token-file", text(&token)?];
    let written =
        command(shop, &[&["sale", "export", sale.as_str(), "--to", text(&export)?], &place[..]].concat()).await?;
    ensure!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let checked = command(shop, &["audit", "--offline", text(&export)?]).await?;
    let told = String::from_utf8(checked.stdout)?;
    ensure!(
        checked.status.success() && told.contains("the ledger is whole") && told.contains("2 of 5 units sold"),
        "{told}"
    );
    // The head that was published binds whoever exports later.
    let head = told.lines().find_map(|line| line.trim().strip_prefix("head ")).context("no head")?;
    let bound = command(shop, &["audit", "--offline", text(&export)?, "--head", head]).await?;
    ensure!(bound.status.success());
    let other = head.replace(":7:", ":6:");
    let bound = command(shop, &["audit", "--offline", text(&export)?, "--head", &other]).await?;
    assert_eq!(bound.status.code(), Some(1), "{other}");
    let good = fs::read_to_string(&export)?;
    let lines: Vec<&str> = good.lines().collect();
    let forged = |what: &str, lines: &[&str]| -> Result<std::path::PathBuf> {
        let path = dir.path().join(what);
        fs::write(&path, lines.join("\n") + "\n")?;
        Ok(path)
    };
    let tampered = good.replace("\"kind\":\"expired\"", "\"kind\":\"paid\"");
    for (what, path) in [
        ("truncated", forged("truncated", &lines[..lines.len() - 1])?),
        ("one left out", forged("left-out", &[&lines[..3], &lines[4..]].concat())?),
        ("reordered", forged("reordered", &[&lines[..3], &[lines[4], lines[3]], &lines[5..]].concat())?),
        ("tampered", forged("tampered", &tampered.lines().collect::<Vec<_>>())?),
    ] {
        let checked = command(shop, &["audit", "--offline", text(&path)?]).await?;
        assert_eq!(checked.status.code(), Some(1), "{what}");
        let why = String::from_utf8(checked.stderr)?;
        ensure!(why.contains("the ledger is broken") && why.contains("line"), "{what}: {why}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_sale_there_is_a_plain_yes_or_no() -> Result<()> {
    let shop = shop().await?;
    let mut config = shop.sale("ledger-check", 5);
    config.opens_at_ms += 600_000;
    let sale = shop.create(&config).await?;
    let token = shop.stack.admin_token_file();
    let edge = shop.stack.edge_url(0);
    let place = ["--origin", shop.stack.origin_url(), "--admin-token-file", text(&token)?, "--edge", edge];
    let check = [&["sale", "check", sale.as_str()], &place[..]].concat();
    let ready = command(shop, &check).await?;
    let told = String::from_utf8(ready.stdout)?;
    ensure!(ready.status.success() && told.contains("ready: yes"), "{told}{}", String::from_utf8_lossy(&ready.stderr));
    for line in ["state: scheduled", "gate: 5 units on offer", "queue: 0 claims", "appendonly yes", "edge http"] {
        ensure!(told.contains(line), "no {line:?} in {told}");
    }
    shop.stack.admin().pause(&sale).await?;
    let ready = command(shop, &check).await?;
    let told = String::from_utf8(ready.stdout)?;
    ensure!(ready.status.code() == Some(1) && told.contains("state: paused") && told.contains("ready: no"), "{told}");
    Ok(())
}

/// One of Postgres's own programs at the shared server; what it prints.
async fn postgres(name: &str, arguments: &[&str]) -> Result<()> {
    let dirs = flashgate_servers::postgres_dirs();
    let mut command = Command::new(flashgate_servers::program(name, "postgresql", &dirs)?);
    let port = flashgate_servers::shared().await?.postgres().port().to_string();
    command.args(["-h", "127.0.0.1", "-p", &port, "-U", "flashgate"]).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_restored_from_a_backup_and_the_gate_is_rebuilt_from_it() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("ledger-backup", 6)).await?;
    let bought = async || -> Result<_> {
        let mut buyer = shop.buyer(&sale);
        buyer.enter().await?;
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        anyhow::Ok((buyer, status))
    };
    let (payer, paying) = bought().await?;
    payer.pay_and_wait(&paying, "ok").await?;
    bought().await?;
    shop.quiet(&sale).await?;
    let dir = tempfile::tempdir()?;
    let dump = dir.path().join("ledger.dump");
    let database = shop.prefix();
    postgres("pg_dump", &["--format", "custom", "--file", text(&dump)?, database]).await?;
    // What comes after the backup is lost with the database.
    let (late, _) = bought().await?;
    shop.quiet(&sale).await?;
    shop.stack.kill_origin(0).await?;
    postgres("dropdb", &["--force", database]).await?;
    postgres("createdb", &[database]).await?;
    postgres("pg_restore", &["--dbname", database, text(&dump)?]).await?;
    shop.stack.start_origin(0).await?;
    // The gate knows of a unit that the ledger does not; the operator's order sets that right.
    shop.stack.admin().rebuild(&sale).await?;
    shop.rebuilt(&sale, 1).await?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.live_units, books.on_offer), (1, 2, 4));
    // Whoever was forgotten buys anew, under his old key.
    late.claim_at_last("k", 1).await?.accepted()?;
    let books = shop.audit(&sale).await?;
    assert_eq!((books.live_units, books.on_offer), (3, 3));
    shop.stack.stop().await
}
