//! Sale documents end to end, on each runtime: published by the command, kept by the edge, newer ones only,
//! and good enough to know a sale by when the origin is gone.

use anyhow::{Context, Result, ensure};
use flashgate_servers::until;
use flashgate_shared::{
    SaleId,
    problem::ProblemKind,
    sale::{SaleConfig, SalePhase},
    wire::{DocumentAnswer, SaleView},
};
use flashgate_tests::{PATIENCE, Shop, Workerd};
use reqwest::Method;
use serde_json::Value;
use std::process::{Command, Output};

/// `flashgate sale <verb> <sale>` at these edges; its JSON, and its exit code.
async fn command(shop: &Shop, verb: &str, sale: &SaleId, edges: &[&str]) -> Result<(Vec<Value>, i32)> {
    let arguments: Vec<_> = edges.iter().flat_map(|edge| ["--edge", edge]).collect();
    let (output, code) = run(shop, verb, sale, &arguments).await?;
    let text = String::from_utf8_lossy(&output.stderr);
    Ok((serde_json::from_slice(&output.stdout).with_context(|| text.into_owned())?, code))
}

async fn run(shop: &Shop, verb: &str, sale: &SaleId, arguments: &[&str]) -> Result<(Output, i32)> {
    let mut command = Command::new(shop.stack.origin_program().with_file_name("flashgate"));
    command.args(["sale", verb, sale.as_str(), "--json", "-", "--origin", shop.stack.origin_url()]);
    command.arg("--admin-token-file").arg(shop.stack.admin_token_file()).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let code = output.status.code().context("the command was killed")?;
    Ok((output, code))
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_published_compared_and_only_ever_replaced_by_newer_ones() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let worker = Workerd::start(&shop.stack.worker_config()).await?;
    let edges = [shop.stack.edge_url(0), worker.url()];
    let sale = shop.create(&shop.sale("publishing", 1)).await?;
    let first: DocumentAnswer = shop.stack.admin().document(&sale).await?;
    let (told, code) = command(&shop, "diff", &sale, &edges).await?;
    ensure!(code == 1 && told.iter().all(|edge| edge["version"].is_null()), "nothing is there yet: {told:?}");
    let (told, code) = command(&shop, "publish", &sale, &edges).await?;
    ensure!(code == 0, "{told:?}");
    for (edge, told) in edges.iter().zip(&told) {
        assert_eq!(
            (&told["edge"], &told["version"], &told["before"]),
            (&(*edge).into(), &first.version.into(), &Value::Null)
        );
    }
    // Again: nothing changes, and nothing differs.
    let (told, code) = command(&shop, "publish", &sale, &edges).await?;
    ensure!(code == 0 && told.iter().all(|told| told["before"] == first.version), "{told:?}");
    let (told, code) = command(&shop, "diff", &sale, &edges).await?;
    ensure!(code == 0 && told.iter().all(|told| told["fields"] == serde_json::json!([])), "{told:?}");
    // A change at the origin is a difference, until it is published.
    shop.stack.admin().pause(&sale).await?;
    let (told, code) = command(&shop, "diff", &sale, &edges).await?;
    ensure!(code == 1, "{told:?}");
    for told in &told {
        let fields: Vec<_> = told["fields"].as_array().context("fields")?.iter().map(|field| &field[0]).collect();
        assert_eq!(fields, ["sale.version", "state"], "{told}");
    }
    let (told, code) = command(&shop, "publish", &sale, &edges).await?;
    ensure!(code == 0 && told.iter().all(|told| told["version"] == first.version + 1), "{told:?}");
    // An older document is refused with the reason, whoever sends it.
    let now = shop.stack.admin().document(&sale).await?;
    for edge in edges {
        let url = format!("{edge}/v1/edge/sales/{sale}");
        let put = shop.http.put(url).bearer_auth(&now.publish_ticket).body(first.document.clone()).send().await?;
        assert_eq!(put.status(), 409, "{edge}");
        let problem: flashgate_shared::problem::Problem = put.json().await?;
        assert_eq!(problem.kind(), Some(ProblemKind::Outdated));
        ensure!(problem.detail.is_some_and(|why| why.contains("newer")), "{edge}");
    }
    // Without a ticket nobody does anything there.
    for edge in edges {
        let url = format!("{edge}/v1/edge/sales/{sale}");
        assert_eq!(shop.http.put(&url).body(now.document.clone()).send().await?.status(), 401, "{edge}");
        assert_eq!(shop.http.get(&url).bearer_auth(&now.publish_ticket).send().await?.status(), 403, "{edge}");
    }
    worker.stop().await?;
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_starts_without_its_origin_knows_the_published_sale_and_admits_nobody() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let sale = shop.create(&shop.sale("publishing-alone", 1)).await?;
    let (told, code) = command(&shop, "publish", &sale, &[shop.stack.edge_url(0)]).await?;
    ensure!(code == 0, "{told:?}");
    let token = shop.direct(&sale).token("ann")?;
    shop.stack.term_edge(0).await?;
    shop.stack.kill_origin(0).await?;
    shop.stack.start_edge(0).await?;
    let mut buyer = shop.buyer(&sale);
    buyer.token = Some(token);
    let view: SaleView = buyer.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?.json()?;
    assert_eq!((view.phase, view.title.as_str()), (SalePhase::Open, "Test sale publishing-alone"));
    assert_eq!(buyer.claim_once("k", 1).await?.refused()?, ProblemKind::Unavailable);
    // A sale that was never published is not known there.
    let unknown = buyer.ask(Method::GET, "/v1/sales/never-published", &[], None).await?;
    assert_eq!(unknown.problem()?.kind(), Some(ProblemKind::Unavailable));
    shop.stack.start_origin(0).await?;
    let accepted = buyer.claim_at_last("k", 1).await?.accepted()?;
    buyer.settled(&accepted.status_url).await?;
    assert_eq!(shop.audit(&sale).await?.live_units, 1);
    shop.stack.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_and_go_back_as_new_versions_and_every_edge_follows() -> Result<()> {
    let shop = Shop::start(|_| {}).await?;
    let worker = Workerd::start(&shop.stack.worker_config()).await?;
    let sale = shop.create(&shop.sale("publishing-settings", 1)).await?;
    let watchers = [shop.buyer(&sale), shop.buyer_at(worker.url(), &sale)];
    let title = "A better title";
    let tells = async |wanted: &str| -> Result<()> {
        for watcher in &watchers {
            until(&format!("the edge says {wanted:?}"), PATIENCE, || async {
                let answer = watcher.ask(Method::GET, &format!("/v1/sales/{sale}"), &[], None).await?;
                Ok(answer.json::<SaleView>()?.title == wanted)
            })
            .await?;
        }
        Ok(())
    };
    tells("Test sale publishing-settings").await?;
    let first = shop.stack.admin().show(&sale).await?.sale;
    let (output, code) = run(&shop, "set", &sale, &["--title", title, "--per-buyer", "1"]).await?;
    ensure!(code == 0, "{}", String::from_utf8_lossy(&output.stderr));
    let changed: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&changed["sale"]["title"], &changed["sale"]["version"]), (&title.into(), &(first.version + 1).into()));
    tells(title).await?;
    // Going back is a step forward: a new version with the old settings.
    let (output, code) = run(&shop, "rollback", &sale, &["--to", &first.version.to_string()]).await?;
    ensure!(code == 0, "{}", String::from_utf8_lossy(&output.stderr));
    tells("Test sale publishing-settings").await?;
    let back = shop.stack.admin().show(&sale).await?.sale;
    assert_eq!(back.version, first.version + 2);
    // What cannot be: an unknown version, another stock, a change on top of somebody else's.
    let (output, code) = run(&shop, "rollback", &sale, &["--to", "99"]).await?;
    ensure!(code == 2 && String::from_utf8_lossy(&output.stderr).contains("no such version"), "{output:?}");
    let more = SaleConfig { total: 2, ..back.clone() };
    let refused = shop.stack.admin().change(&more).await.err().context("the stock was changed")?;
    ensure!(refused.to_string().contains("total: cannot be changed"), "{refused}");
    let refused = shop.stack.admin().change(&first).await.err().context("an old version was changed")?;
    assert_eq!(refused.kind(), Some(ProblemKind::Outdated), "{refused}");
    shop.stack.admin().close(&sale).await?;
    let closed = shop.stack.admin().show(&sale).await?.sale;
    let refused = shop.stack.admin().change(&closed).await.err().context("a closed sale was changed")?;
    ensure!(refused.to_string().contains("closed"), "{refused}");
    // The ledger has every version, and nobody can rewrite one.
    let mut database = shop.database().await?;
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM sale_versions WHERE sale = $1")
        .bind(sale.as_str())
        .fetch_one(&mut database)
        .await?;
    assert_eq!(versions, closed.version);
    let rewritten = sqlx::query("UPDATE sale_versions SET state = 'open'").execute(&mut database).await;
    ensure!(rewritten.is_err_and(|e| e.to_string().contains("only ever added")), "rewritten");
    worker.stop().await?;
    shop.stack.stop().await
}
