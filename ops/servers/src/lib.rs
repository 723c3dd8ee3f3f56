//! Private servers for the demo and the tests: Redis, RabbitMQ and Postgres on free ports of
//! 127.0.0.1, with their data under a directory of the caller.
//!
//! The programs are those installed on the machine; a service that is already running is never
//! touched. Each server is a child of a small shell that watches the caller's end of a pipe, so that
//! it ends when its user ends, also by SIGKILL. This crate depends on nothing of Flashgate.

mod find;
mod guard;
mod postgres;
mod rabbit;
mod redis;
mod shared;

pub use guard::Guarded;
pub use postgres::Postgres;
pub use rabbit::Rabbit;
pub use redis::{Fsync, Redis};
pub use shared::{SharedServers, shared};

use anyhow::{Context, Result, bail};
use std::{future::Future, net::TcpListener, path::Path, time::Duration};

/// How often [`until`] asks.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long a server may take to be ready.
pub const READY_WITHIN: Duration = Duration::from_secs(60);

/// Asks `condition` until it says yes. An `Err` is a no with a reason, named when time is up.
pub async fn until<F, Fut>(what: &str, deadline: Duration, mut condition: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let end = tokio::time::Instant::now() + deadline;
    loop {
        let last = condition().await;
        if let Ok(true) = last {
            return Ok(());
        }
        if tokio::time::Instant::now() >= end {
            return match last {
                Err(error) => Err(error.context(format!("waited {deadline:?} in vain: {what}"))),
                Ok(_) => bail!("waited {deadline:?} in vain: {what}"),
            };
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// One of each, in one directory.
#[derive(Debug)]
pub struct Servers {
    /// Redis.
    pub redis: Redis,
    /// RabbitMQ.
    pub rabbit: Rabbit,
    /// Postgres.
    pub postgres: Postgres,
}

impl Servers {
    /// Starts the three at once, with their data under `dir`.
    pub async fn start(dir: &Path) -> Result<Self> {
        let (redis, rabbit, postgres) =
            tokio::try_join!(Redis::start(dir), Rabbit::start(dir), Postgres::start(dir))?;
        Ok(Self { redis, rabbit, postgres })
    }

    /// Stops the three and waits until they are gone.
    pub async fn stop(self) -> Result<()> {
        let (redis, rabbit, postgres) =
            tokio::join!(self.redis.stop(), self.rabbit.stop(), self.postgres.stop());
        redis.and(rabbit).and(postgres)
    }
}
