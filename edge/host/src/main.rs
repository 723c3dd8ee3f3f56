//! The edge's binary: reads the configuration, serves, reads component and certificates again on SIGHUP, ends on
//! SIGTERM or SIGINT.

use anyhow::Context;
use clap::Parser;
use flashgate_edge::{Compiled, Config, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Without `RUST_LOG`.
const LOG_FILTER: &str = "info,wasmtime=warn,cranelift=warn";

fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(LOG_FILTER))?;
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).with_env_filter(filter).init();
    let compiled = Compiled::load(&config.component)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(&config, compiled))
}

async fn run(config: &Config, compiled: Compiled) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hang_up = signal(SignalKind::hangup()).context("SIGHUP")?;
    let server = Server::start(config, compiled).await?;
    if let Some(admin) = server.admin_address() {
        println!("admin http://{admin}");
    }
    println!("listening {}://{}", if server.is_tls() { "https" } else { "http" }, server.address());
    loop {
        let reloaded = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => tokio::select! {
                reloaded = server.reload() => reloaded,
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            },
        };
        match reloaded {
            Ok(()) => tracing::info!("component and certificates were read again"),
            Err(e) => tracing::error!(error = format!("{e:#}"), "the reload failed: everything stays as it was"),
        }
    }
    tracing::info!("shutting down");
    if !server.stop().await {
        tracing::warn!("the grace time was too short: requests were cut off");
    }
    Ok(())
}
