//! A private shop with its private servers: what `flashgate up`, `demo` and a rehearsal without a
//! running shop start, and stop again however they end.

use crate::{
    rehearse::Target,
    stack::{Backends, Stack, StackConfig},
    state::{self, ShopState},
    steps::Steps,
    workerd::Workerd,
};
use anyhow::{Context, Result};
use flashgate_servers::Servers;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

/// The database and the vhost of a private shop.
const NAME: &str = "flashgate";
/// How often a shop that is up is looked at, in milliseconds.
const WATCH_MS: u64 = 500;

/// A shop that runs.
#[derive(Debug)]
pub struct Shop {
    /// Origin, edge and provider.
    pub stack: Stack,
    servers: Servers,
    state_file: Option<PathBuf>,
    // Last: the servers' data go when the servers are gone.
    _servers_dir: TempDir,
}

impl Shop {
    /// Starts servers and stack; every step is told.
    pub async fn start(config: StackConfig, steps: Steps) -> Result<Self> {
        let servers_dir = tempfile::Builder::new().prefix("flashgate-servers-").tempdir()?;
        let servers =
            steps.run("private Redis, RabbitMQ and Postgres ready", Servers::start(servers_dir.path())).await?;
        let backends = Backends {
            redis_url: servers.redis.url(),
            rabbit_url: servers.rabbit.add_vhost(NAME).await?,
            postgres_url: servers.postgres.create_database(NAME).await?,
        };
        match Stack::start(&backends, config).await {
            Ok(stack) => Ok(Self { stack, servers, state_file: None, _servers_dir: servers_dir }),
            Err(error) => {
                // The first failure is the one to tell.
                let _ = servers.stop().await;
                Err(error)
            }
        }
    }

    /// What other commands need to find it.
    pub fn state(&self) -> ShopState {
        let stack = &self.stack;
        let worker_urls = stack.workers().iter().map(|worker| worker.url().to_owned());
        let worker_pids = stack.workers().iter().map(Workerd::pid);
        ShopState {
            version: ShopState::VERSION,
            pid: std::process::id(),
            edge_urls: stack.edge_urls().iter().cloned().chain(worker_urls).collect(),
            origin_url: stack.origin_url().to_owned(),
            provider_url: stack.provider_url().to_owned(),
            admin_token_file: stack.admin_token_file(),
            data_dir: stack.data_dir().to_owned(),
            edge_pids: (0..stack.edge_urls().len()).filter_map(|i| stack.edge_pid(i)).chain(worker_pids).collect(),
            origin_pids: (0..stack.origins()).filter_map(|i| stack.origin_pid(i)).collect(),
        }
    }

    /// Writes the state file; it goes when the shop stops.
    pub fn announce(&mut self, path: &Path) -> Result<()> {
        state::write(path, &self.state())?;
        self.state_file = Some(path.to_owned());
        Ok(())
    }

    /// Where a rehearsal finds it.
    pub fn target(&self) -> Target {
        let state = self.state();
        Target {
            edge_urls: state.edge_urls,
            admin: self.stack.admin(),
            provider_url: Some(state.provider_url),
            edge_pids: state.edge_pids,
            origin_pids: state.origin_pids,
        }
    }

    /// Stays up until a part fails.
    pub async fn watch(&self) -> Result<()> {
        loop {
            self.stack.check().await?;
            tokio::time::sleep(Duration::from_millis(WATCH_MS)).await;
        }
    }

    /// Stops everything.
    pub async fn stop(self, steps: Steps) -> Result<()> {
        if let Some(path) = &self.state_file {
            state::remove(path, std::process::id());
        }
        let stack = steps.run("edge and origin stopped", self.stack.stop()).await;
        let servers = steps.run("servers stopped", self.servers.stop()).await;
        stack.and(servers)
    }
}

/// Waits for Ctrl-C, SIGTERM or a closed terminal.
pub async fn told_to_end() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("signals cannot be heard")?;
    let mut hang_up = signal(SignalKind::hangup()).context("signals cannot be heard")?;
    tokio::select! {
        heard = tokio::signal::ctrl_c() => heard.context("signals cannot be heard")?,
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}
