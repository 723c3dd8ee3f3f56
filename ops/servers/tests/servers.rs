//! The three servers start, answer, restart with their data, and are gone after their end.

use anyhow::Result;
use flashgate_servers::{Servers, until};
use std::{net::TcpStream, path::Path, time::Duration};

/// How long a server may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(60);

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_start_answer_and_end() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let servers = Servers::start(dir.path()).await?;
    let ports = [servers.redis.port(), servers.rabbit.port(), servers.rabbit.mapper_port(), servers.postgres.port()];
    assert!(ports.iter().all(|port| answers(*port)));
    servers.postgres.create_database("a_test").await?;
    servers.rabbit.add_vhost("a-test").await?;
    let Servers { redis, rabbit, postgres } = servers;
    let servers = Servers { redis: redis.restart().await?, rabbit, postgres: postgres.restart().await? };
    assert!(servers.postgres.create_database("a_test").await.is_err(), "the database is still there");
    servers.stop().await?;
    assert!(!ports.iter().any(|port| answers(*port)));
    Ok(())
}

/// Starts the servers in a second process that dies without a word, and sees them end: each of them, and
/// what they brought along.
#[tokio::test(flavor = "multi_thread")]
async fn servers_end_when_their_user_is_killed() -> Result<()> {
    if let Ok(dir) = std::env::var("FLASHGATE_SERVERS_VICTIM") {
        let servers = Servers::start(dir.as_ref()).await?;
        let ports =
            [servers.redis.port(), servers.rabbit.port(), servers.rabbit.mapper_port(), servers.postgres.port()];
        let (part, whole) = (Path::new(&dir).join("part"), Path::new(&dir).join("ports"));
        std::fs::write(&part, ports.map(|port| port.to_string()).join(" "))?;
        std::fs::rename(part, whole)?;
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir()?;
    let mut victim = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "servers_end_when_their_user_is_killed"])
        .env("FLASHGATE_SERVERS_VICTIM", dir.path())
        .spawn()?;
    let file = dir.path().join("ports");
    until("the victim's servers have started", PATIENCE, || async { Ok(file.is_file()) }).await?;
    let ports: Vec<u16> = std::fs::read_to_string(&file)?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    assert!(ports.len() == 4 && ports.iter().all(|port| answers(*port)), "{ports:?}");
    victim.kill().await?;
    until("its servers are gone", PATIENCE, || async { Ok(!ports.iter().any(|port| answers(*port))) }).await
}
