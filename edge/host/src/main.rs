//! The edge's binary: reads the configuration, serves, ends on SIGTERM or SIGINT.

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
    let server = Server::start(config, compiled).await?;
    if let Some(admin) = server.admin_address() {
        println!("admin http://{admin}");
    }
    println!("listening http://{}", server.address());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("shutting down");
    if !server.stop().await {
        tracing::warn!("the grace time was too short: requests were cut off");
    }
    Ok(())
}
