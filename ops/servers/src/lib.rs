//! Private servers for the demo and the tests: Redis, RabbitMQ and Postgres on free ports of
//! 127.0.0.1, with their data under a directory of the caller.
//!
//! The programs are those installed on the machine; a service that is already running is never
//! touched. A small shell with the other end of a pipe in hand watches over each server, so that it ends
//! when its user ends, also by SIGKILL. This crate depends on nothing of Flashgate.

mod disk;
mod find;
mod guard;
mod postgres;
mod proxy;
mod rabbit;
mod redis;
mod shared;
mod topology;
mod watchdog;

pub use disk::SmallDisk;
pub use find::{postgres_dirs, program};
pub use guard::Guarded;
pub use postgres::Postgres;
pub use proxy::Proxy;
pub use rabbit::Rabbit;
pub use redis::{Fsync, Redis};
pub use shared::{SharedServers, shared};
pub use topology::{Cluster, Sentinels};
pub use watchdog::Watchdog;

use anyhow::{Result, bail};
use std::{
    collections::hash_map::RandomState,
    fs,
    future::Future,
    hash::BuildHasher,
    net::TcpListener,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

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

/// Lowest port that [`free_port`] gives.
const PORTS_FROM: u16 = 12_000;
/// Where the system's own choice of ports starts when it does not tell.
const EPHEMERAL_FROM: u16 = 32_768;

/// A port of 127.0.0.1 that was free a moment ago, below those that the system gives to outgoing
/// connections: between the choice and a server's slow start, none of them can take it.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let until = range.split_whitespace().next().and_then(|from| from.parse().ok());
    let until = until.filter(|from| *from > PORTS_FROM + 1_000).unwrap_or(EPHEMERAL_FROM);
    let span = until.saturating_sub(PORTS_FROM).max(1);
    // Each process starts at a random place, so that two at once hardly meet.
    static START: OnceLock<u64> = OnceLock::new();
    let start = START.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    for _ in 0..span {
        let step = (start % u64::from(span)) as u16;
        let port = PORTS_FROM
            + (u32::from(step) + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))).rem_euclid(u32::from(span)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 between {PORTS_FROM} and {until}")
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
        let (redis, rabbit, postgres) = tokio::try_join!(Redis::start(dir), Rabbit::start(dir), Postgres::start(dir))?;
        Ok(Self { redis, rabbit, postgres })
    }

    /// Stops the three and waits until they are gone.
    pub async fn stop(self) -> Result<()> {
        let (redis, rabbit, postgres) = tokio::join!(self.redis.stop(), self.rabbit.stop(), self.postgres.stop());
        redis.and(rabbit).and(postgres)
    }
}
