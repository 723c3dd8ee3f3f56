//! What goes wrong on purpose: origins that die half way, messages that come twice.

use crate::Shop;
use anyhow::{Context, Result, bail};
use flashgate_queue::Published;
use flashgate_shared::{
    BucketIndex, ClaimId, Epoch, SaleId, UnixMs,
    envelope::{ClaimEnvelope, ENVELOPE_VERSION},
    trace::TraceId,
};
use flashgate_stock::{ClaimAttempt, ClaimReply};
use fred::{
    interfaces::{ClientLike, KeysInterface, LuaInterface},
    types::{CustomCommand, Value},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{os::unix::fs::PermissionsExt, path::PathBuf};

/// Many of [`claim_and_die`], in turn over so many buckets: what the relay has to publish.
pub async fn claims_and_die(shop: &Shop, sale: &SaleId, buyers: &[String], buckets: u16) -> Result<()> {
    let (epoch, now_ms) = (shop.epoch(sale).await?, shop.stock.now_ms().await?);
    for (n, buyer) in (0..buckets).cycle().zip(buyers) {
        claim(shop, sale, epoch, now_ms, buyer, "k", n).await?;
    }
    Ok(())
}

/// Takes one unit at the gate as an origin does that dies before it publishes: the receipt and the
/// outbox entry are left. The envelope is what it would have sent.
pub async fn claim_and_die(
    shop: &Shop,
    sale: &SaleId,
    buyer: &str,
    key: &str,
    bucket: BucketIndex,
) -> Result<ClaimEnvelope> {
    claim(shop, sale, shop.epoch(sale).await?, shop.stock.now_ms().await?, buyer, key, bucket).await
}

async fn claim(
    shop: &Shop,
    sale: &SaleId,
    epoch: Epoch,
    now_ms: UnixMs,
    buyer: &str,
    key: &str,
    bucket: BucketIndex,
) -> Result<ClaimEnvelope> {
    let buyer = buyer.parse()?;
    let attempt = ClaimAttempt {
        claim_id: ClaimId::derive(sale, &buyer, &key.parse()?),
        sale: sale.clone(),
        epoch,
        buyer,
        quantity: 1,
        per_buyer_limit: 1,
        second_try: false,
        now_ms,
        trace_id: TraceId::from_random(uuid::Uuid::new_v4().as_u128()),
    };
    match shop.stock.claim(&attempt, bucket).await? {
        ClaimReply::Ok { hold, .. } => Ok(ClaimEnvelope {
            v: ENVELOPE_VERSION,
            sale: attempt.sale,
            claim_id: attempt.claim_id,
            buyer: attempt.buyer,
            quantity: attempt.quantity,
            hold,
            claimed_at_ms: attempt.now_ms,
            trace_id: attempt.trace_id,
        }),
        other => bail!("the gate does not take the claim: {other:?}"),
    }
}

/// Publishes an envelope as an origin does.
pub async fn publish(shop: &Shop, envelope: &ClaimEnvelope) -> Result<()> {
    match shop.queue.publish(envelope).await {
        Published::Confirmed => Ok(()),
        other => bail!("not confirmed: {other:?}"),
    }
}

/// Lets a reservation's time be over now: both the time to pay and the hold.
pub async fn expire_now(shop: &Shop, claim: ClaimId) -> Result<()> {
    let moved = sqlx::query(
        "UPDATE orders SET reserved_at_ms = unix_now_ms() - 3, pay_by_ms = unix_now_ms() - 2, hold_until_ms = unix_now_ms() - 1
         WHERE claim_id = $1 AND status = 'RESERVED'",
    );
    let moved = moved.bind(claim.0).execute(&mut shop.database().await?).await?.rows_affected();
    if moved == 1 { Ok(()) } else { bail!("{claim} is not reserved") }
}

/// Lets only the time to pay be over; the grace still runs.
pub async fn end_pay_window(shop: &Shop, claim: ClaimId) -> Result<()> {
    let moved = sqlx::query(
        "UPDATE orders SET reserved_at_ms = unix_now_ms() - 3, pay_by_ms = unix_now_ms() - 2
         WHERE claim_id = $1 AND status = 'RESERVED'",
    );
    let moved = moved.bind(claim.0).execute(&mut shop.database().await?).await?.rows_affected();
    if moved == 1 { Ok(()) } else { bail!("{claim} is not reserved") }
}

/// A process that is stopped; it goes on when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it (SIGSTOP).
    pub fn new(pid: Option<u32>) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid.context("it does not run")?)?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// How long an outage lasts, as `FLASHGATE_OUTAGE_S` says; over at once without it, for nothing in one counts time.
pub async fn outage() {
    let asked = std::env::var("FLASHGATE_OUTAGE_S").ok().and_then(|seconds| seconds.parse().ok());
    tokio::time::sleep(std::time::Duration::from_secs(asked.unwrap_or(0))).await;
}

/// Makes Redis forget a key.
pub async fn forget_key(shop: &Shop, key: &str) -> Result<()> {
    let client = redis(shop).await?;
    let gone: u32 = client.del(key).await?;
    client.quit().await?;
    if gone == 1 { Ok(()) } else { bail!("there is no key {key}") }
}

/// Sets a text in Redis.
pub async fn set_key(shop: &Shop, key: &str, value: &str) -> Result<()> {
    let client = redis(shop).await?;
    let () = client.set(key, value, None, None, false).await?;
    client.quit().await?;
    Ok(())
}

/// Makes Redis forget all scripts, as a server does that was replaced.
pub async fn forget_scripts(shop: &Shop) -> Result<()> {
    let client = redis(shop).await?;
    let () = client.script_flush(false).await?;
    client.quit().await?;
    Ok(())
}

/// All that Redis holds under the shop's prefix, as text: whoever is named in it is found.
pub async fn everything_in_redis(shop: &Shop) -> Result<String> {
    let client = redis(shop).await?;
    let keys: Vec<String> =
        client.custom(CustomCommand::new_static("KEYS", None, false), vec![format!("*{}*", shop.prefix())]).await?;
    let mut all = String::new();
    for key in keys {
        let kind: String = client.custom(CustomCommand::new_static("TYPE", None, false), vec![key.clone()]).await?;
        let (command, arguments) = match kind.as_str() {
            "hash" => ("HGETALL", vec![key.clone()]),
            "stream" => ("XRANGE", vec![key.clone(), "-".into(), "+".into()]),
            "string" => ("GET", vec![key.clone()]),
            other => bail!("{key} is a {other}: how to look into it?"),
        };
        let content: Value = client.custom(CustomCommand::new(command, None, false), arguments).await?;
        all += &format!("{key}: {content:?}\n");
    }
    client.quit().await?;
    Ok(all)
}

async fn redis(shop: &Shop) -> Result<fred::clients::Client> {
    let config = fred::types::config::Config::from_url(&shop.backends.redis_url)?;
    let client = fred::types::Builder::from_config(config).build()?;
    client.init().await?;
    Ok(client)
}

/// The environment in which a program's clock is ahead by so many seconds; it runs at the right pace, and
/// time that is only measured stays right. By libfaketime, Debian's `faketime`.
pub fn clock_off_by(seconds: i64) -> Result<Vec<(String, String)>> {
    let mut environment = faketime()?;
    environment.push(("FAKETIME".into(), format!("{seconds:+}")));
    Ok(environment)
}

/// A clock that can be set while programs run by it.
pub struct SteppedClock {
    file: tempfile::NamedTempFile,
}

impl SteppedClock {
    /// A clock that is right.
    pub fn new() -> Result<Self> {
        let clock = Self { file: tempfile::NamedTempFile::new()? };
        clock.step(0)?;
        Ok(clock)
    }

    /// The environment of a program that goes by it.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let mut environment = faketime()?;
        environment.push(("FAKETIME_TIMESTAMP_FILE".into(), self.file.path().display().to_string()));
        environment.push(("FAKETIME_NO_CACHE".into(), "1".into()));
        Ok(environment)
    }

    /// From now on it is so many seconds ahead of this machine's.
    pub fn step(&self, seconds: i64) -> Result<()> {
        // At once: a program may read it at any moment.
        let next = self.file.path().with_extension("next");
        std::fs::write(&next, format!("{seconds:+}\n"))?;
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o644))?;
        Ok(std::fs::rename(next, self.file.path())?)
    }
}

/// What lets a program go by another clock: it runs at the right pace, and time that is only measured stays right.
fn faketime() -> Result<Vec<(String, String)>> {
    const NAME: &str = "faketime/libfaketime.so.1";
    let mut dirs = vec![PathBuf::from("/usr/lib"), PathBuf::from("/usr/local/lib")];
    dirs.extend(std::fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path()));
    let library = dirs.iter().map(|dir| dir.join(NAME)).find(|path| path.is_file());
    let library =
        library.context("libfaketime is missing: `make setup` with the tests installs it (Debian: faketime)")?;
    Ok(vec![("LD_PRELOAD".into(), library.display().to_string()), ("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into())])
}
