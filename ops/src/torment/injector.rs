//! Does the faults, one at a time, while a crowd is at the shop.

use super::{
    Proxies, Suffered,
    schedule::{Fault, Kind, Part},
};
use crate::{stack::Stack, steps::Steps};
use anyhow::{Context, Result, bail};
use flashgate_servers::{Guarded, Proxy, Redis, Servers};
use flashgate_shared::{SaleId, sale::SaleState};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{sync::watch, time::sleep};

/// How long a shop may take to sell again after a fault, before the torment gives up.
const OPEN_WITHIN: Duration = Duration::from_secs(90);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often a copy of Redis's data is taken, for later.
const COPY_EVERY: u32 = 3;

pub(crate) struct Injector {
    stack: Arc<Stack>,
    servers: Option<Servers>,
    proxies: Proxies,
    /// The sale that a crowd is at now.
    raging: watch::Receiver<Option<SaleId>>,
    past: Option<TempDir>,
    steps: Steps,
    by_kind: BTreeMap<String, Suffered>,
}

/// What is left when the faults are over.
pub(crate) struct Injected {
    pub servers: Servers,
    /// The shop's only ways to them.
    pub _proxies: Proxies,
    pub by_kind: BTreeMap<String, Suffered>,
}

impl Injector {
    pub(crate) fn new(
        stack: Arc<Stack>,
        servers: Servers,
        proxies: Proxies,
        raging: watch::Receiver<Option<SaleId>>,
        steps: Steps,
    ) -> Self {
        let (past, by_kind) = (None, BTreeMap::new());
        Self { stack, servers: Some(servers), proxies, raging, past, steps, by_kind }
    }

    /// Does all faults, or as many as there are crowds for.
    pub(crate) async fn run(mut self, faults: Vec<Fault>) -> Result<Injected> {
        for (number, fault) in (0..).zip(faults) {
            sleep(fault.after).await;
            // No crowd at the moment: the books are being checked.
            let Ok(sale) = self.raging.wait_for(Option::is_some).await.map(|sale| sale.clone()) else {
                break;
            };
            let sale = sale.context("no sale")?;
            if number % COPY_EVERY == 0 {
                // Of a Redis that is being written to: what is half written is cut off when it is read.
                self.past = self.servers.as_ref().and_then(|servers| servers.redis.copy_data().ok());
            }
            self.steps.note(&format!("fault {number}: {fault}"));
            let rebuilt = self.newest_rebuild(&sale).await;
            self.hit(&fault).await.with_context(|| fault.to_string())?;
            let since = Instant::now();
            // Another life of Redis is rebuilt, whatever it remembers.
            let restarts = matches!(fault.kind, Kind::Kill | Kind::Restart | Kind::Empty | Kind::Past);
            let past = rebuilt.filter(|_| fault.part == Part::Redis && restarts);
            self.until_open(&sale, past).await.with_context(|| format!("after: {fault}"))?;
            let suffered = self.by_kind.entry(fault.name()).or_default();
            suffered.faults += 1;
            suffered.longest_until_open_ms = suffered.longest_until_open_ms.max(since.elapsed().as_millis());
        }
        let servers = self.servers.context("the servers are gone")?;
        Ok(Injected { servers, _proxies: self.proxies, by_kind: self.by_kind })
    }

    async fn hit(&mut self, fault: &Fault) -> Result<()> {
        match (fault.part, fault.kind) {
            (Part::Origin(i), Kind::Kill) => {
                self.stack.kill_origin(i).await?;
                sleep(fault.lasts).await;
                self.stack.start_origin(i).await
            }
            (Part::Origin(i), Kind::Restart) => {
                self.stack.term_origin(i).await?;
                sleep(fault.lasts).await;
                self.stack.start_origin(i).await
            }
            (Part::Origin(i), Kind::Pause) => pause(self.stack.origin_pid(i), fault.lasts).await,
            (Part::Edge(i), Kind::Kill | Kind::Restart) => {
                self.stack.kill_edge(i).await?;
                sleep(fault.lasts).await;
                self.stack.start_edge(i).await
            }
            (Part::Edge(i), Kind::Pause) => pause(self.stack.edge_pid(i), fault.lasts).await,
            (Part::Redis, Kind::Pause) => {
                let servers = self.servers.as_ref().context("the servers are gone")?;
                stop_and_go(servers.redis.process(), fault.lasts).await
            }
            (part, Kind::Cut) => {
                self.proxy(part)?.cut();
                Ok(())
            }
            (part, Kind::Silence) => {
                self.proxy(part)?.fall_silent();
                sleep(fault.lasts).await;
                self.proxy(part)?.speak();
                Ok(())
            }
            (part, kind) => self.restart(part, kind).await,
        }
    }

    fn proxy(&self, part: Part) -> Result<&Proxy> {
        Ok(match part {
            Part::Redis => &self.proxies.redis,
            Part::Rabbit => &self.proxies.rabbit,
            Part::Postgres => &self.proxies.postgres,
            Part::Origin(_) | Part::Edge(_) => bail!("nothing stands before {part}"),
        })
    }

    async fn restart(&mut self, part: Part, kind: Kind) -> Result<()> {
        let Servers { redis, rabbit, postgres } = self.servers.take().context("the servers are gone")?;
        let servers = match part {
            Part::Redis => Servers { redis: self.restarted(redis, kind).await?, rabbit, postgres },
            Part::Rabbit => Servers { redis, rabbit: rabbit.restart().await?, postgres },
            Part::Postgres => Servers { redis, rabbit, postgres: postgres.restart().await? },
            Part::Origin(_) | Part::Edge(_) => bail!("{part} is no server"),
        };
        self.servers = Some(servers);
        Ok(())
    }

    async fn restarted(&mut self, redis: Redis, kind: Kind) -> Result<Redis> {
        match (kind, self.past.take()) {
            (Kind::Empty, _) => redis.restart_empty().await,
            (Kind::Past, Some(past)) => redis.restart_from(&past).await,
            (Kind::Kill, _) => redis.restart_killed().await,
            _ => redis.restart().await,
        }
    }

    /// The newest rebuild that has ended, 0 without one; `None` when the origin does not answer.
    async fn newest_rebuild(&self, sale: &SaleId) -> Option<i64> {
        let rebuilds = self.stack.admin().rebuilds(sale).await.ok()?;
        Some(
            rebuilds
                .iter()
                .filter(|rebuild| rebuild.ended_at_ms.is_some())
                .map(|rebuild| rebuild.id)
                .max()
                .unwrap_or(0),
        )
    }

    /// Waits until the sale takes claims again, as far as the origin can tell: it is open, every part answers,
    /// and there was a rebuild after the one in `past`.
    async fn until_open(&self, sale: &SaleId, past: Option<i64>) -> Result<()> {
        let deadline = Instant::now() + OPEN_WITHIN;
        let admin = self.stack.admin();
        loop {
            let shown = admin.show(sale).await;
            let open = shown.as_ref().is_ok_and(|sale| sale.state == SaleState::Open && sale.on_offer.is_some());
            let rebuilt = past.is_none() || self.newest_rebuild(sale).await > past;
            if open && rebuilt && self.stack.is_ready(0).await {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the sale is not open again after {} s: {shown:?}", OPEN_WITHIN.as_secs());
            }
            sleep(LOOK).await;
        }
    }
}

async fn pause(pid: Option<u32>, lasts: Duration) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid.context("it does not run")?)?);
    kill(pid, Signal::SIGSTOP)?;
    sleep(lasts).await;
    Ok(kill(pid, Signal::SIGCONT)?)
}

async fn stop_and_go(process: &Guarded, lasts: Duration) -> Result<()> {
    process.signal(Signal::SIGSTOP)?;
    sleep(lasts).await;
    process.signal(Signal::SIGCONT)
}
