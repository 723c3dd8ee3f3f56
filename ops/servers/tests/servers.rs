//! The three servers start, answer, restart with their data, and are gone after their end.

use anyhow::Result;
use flashgate_servers::{Servers, until};
use std::{net::TcpStream, time::Duration};

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_start_answer_and_end() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let servers = Servers::start(dir.path()).await?;
    let ports = [servers.redis.port(), servers.rabbit.port(), servers.postgres.port()];
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

/// Starts a server in a second process that dies without a word, and sees the server end.
#[tokio::test]
async fn servers_end_when_their_user_is_killed() -> Result<()> {
    if let Ok(dir) = std::env::var("FLASHGATE_SERVERS_VICTIM") {
        let redis = flashgate_servers::Redis::start(dir.as_ref()).await?;
        std::fs::write(std::path::Path::new(&dir).join("port"), redis.port().to_string())?;
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir()?;
    let mut victim = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "servers_end_when_their_user_is_killed"])
        .env("FLASHGATE_SERVERS_VICTIM", dir.path())
        .spawn()?;
    let file = dir.path().join("port");
    let mut port = 0;
    until("the victim's Redis answers", Duration::from_secs(60), || {
        port = std::fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        async move { Ok(port != 0 && answers(port)) }
    })
    .await?;
    victim.kill().await?;
    until("its Redis is gone", Duration::from_secs(30), || async move { Ok(!answers(port)) }).await
}
