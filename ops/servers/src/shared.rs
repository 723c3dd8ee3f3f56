//! One set of servers for a whole test binary.

use crate::{Postgres, Rabbit, Redis, Servers, Watchdog};
use anyhow::{Context, Result};
use std::{
    path::{Path, PathBuf},
    thread,
};
use tokio::sync::{OnceCell, oneshot};

/// Servers that live as long as the process; each test makes itself a database, a key prefix and a
/// virtual host in them.
#[derive(Debug)]
pub struct SharedServers {
    servers: Servers,
    dir: PathBuf,
    // Nothing is dropped at the end of a process: the directory goes when its servers are gone.
    _remover: Watchdog,
}

impl SharedServers {
    /// The directory that they are in. What users of the servers put beneath it goes with them, when this
    /// process has ended.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Redis.
    pub fn redis(&self) -> &Redis {
        &self.servers.redis
    }

    /// RabbitMQ.
    pub fn rabbit(&self) -> &Rabbit {
        &self.servers.rabbit
    }

    /// Postgres.
    pub fn postgres(&self) -> &Postgres {
        &self.servers.postgres
    }
}

static SHARED: OnceCell<SharedServers> = OnceCell::const_new();

/// The servers of this process, started on first use. They end when the process ends.
pub async fn shared() -> Result<&'static SharedServers> {
    SHARED
        .get_or_try_init(|| async {
            let (tell, told) = oneshot::channel();
            // Each test has a runtime of its own, which ends with it: the servers need one that stays.
            // It stays without being held: nobody joins it.
            thread::Builder::new().name("flashgate-servers".into()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(async {
                        let _ = tell.send(start().await);
                        std::future::pending::<()>().await;
                    }),
                    Err(error) => drop(tell.send(Err(error.into()))),
                }
            })?;
            told.await.context("the thread that starts the servers ended")?
        })
        .await
}

async fn start() -> Result<SharedServers> {
    let dir = tempfile::Builder::new().prefix("flashgate-test-").tempdir()?;
    let servers = Servers::start(dir.path()).await?;
    let users = [servers.redis.pid(), servers.rabbit.pid(), servers.postgres.process().pid()];
    let dir = dir.keep();
    let remover = Watchdog::over_directory(&dir, &users)?;
    Ok(SharedServers { servers, dir, _remover: remover })
}
