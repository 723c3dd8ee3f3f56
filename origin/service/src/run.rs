//! From settings and roles to a running process, and to its end.

use crate::{
    App, Config,
    http::{self, server},
    roles,
};
use anyhow::Context;
use flashgate_ledger::Ledger;
use metrics_exporter_prometheus::PrometheusHandle;
use std::{collections::BTreeSet, io::Write, net::SocketAddr, str::FromStr, sync::Arc};
use tokio::{net::TcpListener, task::JoinSet};

/// What a process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Answers HTTP.
    Serve,
    /// Settles.
    Work,
    /// Publishes again; gives units and money back; rebuilds gates.
    Relay,
    /// Ends unpaid reservations; erases buyers whose time is over.
    Sweep,
    /// Compares the stores, and mends single holds.
    Reconcile,
    /// Brings the database's schema up to date, first.
    Migrate,
}

impl Role {
    const ALL: [Self; 6] = [Self::Serve, Self::Work, Self::Relay, Self::Sweep, Self::Reconcile, Self::Migrate];

    /// Reads `role[,role]` or `all`.
    pub fn parse_list(text: &str) -> Result<BTreeSet<Self>, String> {
        if text == "all" {
            return Ok(Self::ALL.into());
        }
        text.split(',').map(str::parse).collect()
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        match word.trim() {
            "serve" => Ok(Self::Serve),
            "work" => Ok(Self::Work),
            "relay" => Ok(Self::Relay),
            "sweep" => Ok(Self::Sweep),
            "reconcile" => Ok(Self::Reconcile),
            "migrate" => Ok(Self::Migrate),
            other => Err(format!("unknown role {other:?}: serve, work, relay, sweep, reconcile, migrate or all")),
        }
    }
}

/// Runs the roles until a signal; then ends in bounded time.
pub async fn run(config: Config, roles: &BTreeSet<Role>, metrics: PrometheusHandle) -> anyhow::Result<()> {
    if roles.contains(&Role::Migrate) {
        let ledger = Ledger::connect(&config.postgres).await?;
        ledger.migrate().await?;
        tracing::info!("the schema is up to date");
        if roles.len() == 1 {
            return Ok(());
        }
    }
    let app = App::connect(config, metrics).await?;
    app.sales.refresh(&app.ledger).await?;
    let mut background = JoinSet::new();
    start_background(&app, roles, &mut background);
    let shutdown = app.shutdown.clone();
    tokio::spawn(async move {
        signalled().await;
        tracing::info!("ending");
        shutdown.cancel();
    });
    let serves = roles.contains(&Role::Serve);
    if let Some(listen) = app.config.server.health_listen {
        // Whoever started the process waits for `listening`: where it serves, that is said last.
        let listener = listen_on(listen, if serves { "health" } else { "listening" }).await?;
        background.spawn(server::serve(app.clone(), http::health_router(app.clone()), listener));
    }
    if serves {
        let listener = listen_on(app.config.server.listen, "listening").await?;
        server::serve(app.clone(), http::router(app.clone()), listener).await;
    } else {
        app.shutdown.cancelled().await;
    }
    let grace = std::time::Duration::from_millis(app.config.server.shutdown_grace_ms);
    let ended = tokio::time::timeout(grace, async { while background.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!("background loops were cut off; their work is recorded and will be taken up");
    }
    // Requests are over: what they confirmed last need not wait for the relay.
    let _ = tokio::time::timeout(grace, app.confirmed.flush(&app)).await;
    tracing::info!("ended");
    Ok(())
}

/// Listens, and says where on standard output: `WORD http://ADDRESS`.
async fn listen_on(listen: SocketAddr, word: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "{word}");
    let mut out = std::io::stdout();
    writeln!(out, "{word} http://{address}").and_then(|()| out.flush())?;
    Ok(listener)
}

fn start_background(app: &Arc<App>, roles: &BTreeSet<Role>, tasks: &mut JoinSet<()>) {
    macro_rules! start {
        ($name:literal, |$app:ident| $body:expr) => {{
            let app = app.clone();
            tasks.spawn(async move {
                let shutdown = app.shutdown.clone();
                roles::supervise($name, shutdown, || {
                    let $app = app.clone();
                    async move { $body.await }
                })
                .await;
            });
        }};
    }
    start!("clock", |app| app.clock.run(&app.stock, &app.shutdown));
    start!("sales", |app| app.sales.run_rows(&app.ledger, &app.shutdown));
    if roles.contains(&Role::Serve) {
        start!("maps", |app| app.sales.run_maps(&app.stock, &app.clock, &app.shutdown));
        start!("depths", |app| app.sales.run_depths(&app.queue, &app.clock, &app.shutdown));
        start!("confirmed", |app| app.confirmed.run(&app));
    }
    if roles.contains(&Role::Work) {
        start!("work", |app| roles::settle::run(app));
    }
    if roles.contains(&Role::Relay) {
        start!("relay", |app| roles::outbox::run(&app));
        start!("releases", |app| roles::releases::run(&app));
        start!("rebuild", |app| roles::rebuild::run(&app));
        start!("refunds", |app| roles::refunds::run(&app));
    }
    if roles.contains(&Role::Sweep) {
        start!("sweep", |app| roles::sweep::run(&app));
        start!("retention", |app| roles::retention::run(&app));
    }
    if roles.contains(&Role::Reconcile) {
        start!("reconcile", |app| roles::reconcile::run(&app));
    }
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        _ => {
            tracing::warn!("signals cannot be caught: the process ends without grace");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_a_list() {
        assert_eq!(Role::parse_list("all").unwrap().len(), 6);
        assert_eq!(Role::parse_list("serve,work").unwrap(), [Role::Serve, Role::Work].into());
        assert!(Role::parse_list("serve,nonsense").is_err());
        assert!(Role::parse_list("").is_err());
    }
}
