//! The ledger in custody: exported and checked without the system, backed up and restored, looked over before a sale,
//! and rid of its buyers when they may be forgotten.

use anyhow::{Context, Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{SaleId, order::OrderStatus, wire::ClaimState};
use flashgate_tests::{PATIENCE, Shop, faults, shop};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

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
    for line in [
        "state: scheduled",
        "gate: 5 units on offer",
        "queue: 0 claims",
        "appendonly yes",
        "its last write reached the disk",
        "postgres: takes writes",
        "rabbitmq: takes writes",
        "provider: tells its payments",
        "edge http",
    ] {
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
    let bought = async || shop.reserved(&sale).await;
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

/// All that Postgres holds, as text: whoever is named in it is found.
async fn everything_in_postgres(shop: &Shop) -> Result<String> {
    let mut database = shop.database().await?;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'",
    )
    .fetch_all(&mut database)
    .await?;
    let mut all = String::new();
    for table in tables {
        // As text and as bytes: messages are kept as they were.
        let rows = format!("SELECT coalesce(string_agg(t::text, E'\\n'), '') FROM \"{table}\" t");
        all += &sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(rows)).fetch_one(&mut database).await?;
    }
    let letters: Vec<Vec<u8>> = sqlx::query_scalar("SELECT body FROM dead_letters").fetch_all(&mut database).await?;
    letters.iter().for_each(|body| all += &String::from_utf8_lossy(body));
    Ok(all)
}

/// Who of these is named anywhere.
async fn named<'n>(shop: &Shop, names: &[&'n str]) -> Result<Vec<&'n str>> {
    let all = everything_in_postgres(shop).await? + &faults::everything_in_redis(shop).await?;
    Ok(names.iter().copied().filter(|name| all.contains(name)).collect())
}

/// Ann has paid, Bob has not, and a message of Eve's could not be settled.
async fn ann_bob_and_eve(shop: &Shop, sale: &SaleId) -> Result<()> {
    for name in ["ann-of-the-alps", "bob-of-the-bog"] {
        let mut buyer = shop.buyer(sale);
        buyer.token = Some(shop.direct(sale).token(name)?);
        let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
        let status = buyer.settled(&accepted.status_url).await?;
        if name.starts_with("ann") {
            buyer.pay_and_wait(&status, "ok").await?;
        } else {
            faults::expire_now(shop, status.claim_id).await?;
            buyer.status_after(&status.status_url, ClaimState::Ledger(OrderStatus::Reserved)).await?;
        }
    }
    let claim = faults::claim_and_die(shop, sale, "carl-of-the-coast", "k", 0).await?;
    faults::publish(shop, &claim).await?;
    shop.quiet(sale).await?;
    faults::expire_now(shop, claim.claim_id).await?;
    until("his time is over too", PATIENCE, || async { Ok(shop.stack.admin().audit(sale).await?.live_units == 1) })
        .await?;
    let lie = flashgate_shared::envelope::ClaimEnvelope { buyer: "eve-of-the-east".parse()?, ..claim };
    faults::publish(shop, &lie).await?;
    let admin = shop.stack.admin();
    until("the lie is kept", PATIENCE, || async { Ok(admin.dead_letters(sale).await?.len() == 1) }).await?;
    shop.quiet(sale).await
}

const ALL: [&str; 4] = ["ann-of-the-alps", "bob-of-the-bog", "carl-of-the-coast", "eve-of-the-east"];

#[tokio::test(flavor = "multi_thread")]
async fn buyers_are_erased_and_the_books_and_the_chain_stay_whole() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("custody-erase", 6)).await?;
    ann_bob_and_eve(&shop, &sale).await?;
    assert_eq!(named(&shop, &ALL).await?, ALL, "the search finds them while they are there");
    let dir = tempfile::tempdir()?;
    let (before, after) = (dir.path().join("before.jsonl"), dir.path().join("after.jsonl"));
    let token = shop.stack.admin_token_file();
    let place = ["--origin", shop.stack.origin_url(), "--admin-token-file", text(&token)?];
    let run = async |arguments: &[&str]| command(&shop, &[arguments, &place[..]].concat()).await;
    let erase = async |whose: &[&str]| run(&[&["sale", "erase", sale.as_str()], whose].concat()).await;
    ensure!(run(&["sale", "export", sale.as_str(), "--to", text(&before)?]).await?.status.success());
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let early = erase(&["--buyer", "ann-of-the-alps", "--yes"]).await?;
    ensure!(!early.status.success() && told(&early).contains("only a closed one"), "{}", told(&early));
    let revenue = shop.stack.admin().report(&sale).await?.revenue;
    shop.stack.admin().close(&sale).await?;
    let unsure = erase(&["--buyer", "ann-of-the-alps"]).await?;
    ensure!(!unsure.status.success() && told(&unsure).contains("--yes"), "{}", told(&unsure));
    let nobody = erase(&["--buyer", "nobody-at-all", "--yes"]).await?;
    ensure!(!nobody.status.success() && told(&nobody).contains("no such buyer"), "{}", told(&nobody));
    // One is forgotten, everywhere; then all.
    let erased = erase(&["--buyer", "ann-of-the-alps", "--yes"]).await?;
    ensure!(erased.status.success(), "{}", told(&erased));
    shop.rebuilt(&sale, 1).await?;
    assert_eq!(named(&shop, &ALL).await?, ALL[1..]);
    let erased = erase(&["--everybody", "--yes"]).await?;
    ensure!(erased.status.success(), "{}", told(&erased));
    shop.rebuilt(&sale, 2).await?;
    assert_eq!(named(&shop, &ALL).await?, [""; 0]);
    // The accounts are what they were, and the chain goes on from the one that was exported before.
    assert_eq!(shop.stack.admin().report(&sale).await?.revenue, revenue);
    let books = shop.audit(&sale).await?;
    assert_eq!((books.count(OrderStatus::Paid), books.count(OrderStatus::Expired)), (1, 2));
    ensure!(run(&["sale", "export", sale.as_str(), "--to", text(&after)?]).await?.status.success());
    let checked = command(&shop, &["audit", "--offline", text(&after)?]).await?;
    ensure!(checked.status.success(), "{}", told(&checked));
    let entries =
        |path: &Path| anyhow::Ok(fs::read_to_string(path)?.lines().skip(1).map(str::to_owned).collect::<Vec<_>>());
    ensure!(entries(&after)?.starts_with(&entries(&before)?), "the chain was changed");
    assert_eq!(shop.stack.admin().reconcile(&sale, false, 0).await?.drifts, []);
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_of_a_closed_sale_are_erased_when_their_time_is_over() -> Result<()> {
    let shop =
        Shop::start(|config| config.origin_env.push(("FLASHGATE_RETENTION__AFTER_S".into(), "1".into()))).await?;
    let (over, on) =
        (shop.create(&shop.sale("custody-over", 6)).await?, shop.create(&shop.sale("custody-on", 6)).await?);
    ann_bob_and_eve(&shop, &over).await?;
    shop.direct(&on).claim("dora-of-the-dunes", "k", 1).await?.accepted()?;
    shop.audit(&on).await?;
    shop.stack.admin().close(&over).await?;
    until("it was closed for a second", PATIENCE, || async {
        let closed: bool = sqlx::query_scalar(
            "SELECT min(made_at_ms) + 1000 < unix_now_ms() FROM sale_versions WHERE sale = $1 AND state = 'closed'",
        )
        .bind(over.as_str())
        .fetch_one(&mut shop.database().await?)
        .await?;
        Ok(closed)
    })
    .await?;
    // It is looked for at the start, and every ten minutes.
    shop.stack.kill_origin(0).await?;
    shop.stack.start_origin(0).await?;
    shop.rebuilt(&over, 1).await?;
    let everybody = [&ALL[..], &["dora-of-the-dunes"]].concat();
    assert_eq!(named(&shop, &everybody).await?, ["dora-of-the-dunes"]);
    shop.audit(&over).await?;
    shop.stack.stop().await
}
