//! `flashgate-origin <role[,role]|all> [--config FILE]`, `flashgate-origin config`,
//! `flashgate-origin jwks` and `flashgate-origin document-jwks`.

use anyhow::Context;
use clap::Parser;
use flashgate_origin::{
    config::{Config, DEFAULT_TOML},
    run::{Role, run},
    secrets::{document_keys, public_keys},
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use std::{path::PathBuf, process::ExitCode};

/// The origin of Flashgate.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// What to do: serve, work, relay, sweep, migrate, several with commas, or all. `config` prints
    /// the commented default settings, `jwks` the public keys of entry tokens,
    /// `document-jwks` those of sale documents.
    roles: String,
    /// A TOML file over the default settings; the environment (FLASHGATE_SECTION__KEY) overrides it.
    #[arg(long)]
    config: Option<PathBuf>,
}

/// Bounds of latency histograms, in seconds.
const BUCKETS_S: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

fn main() -> ExitCode {
    let args = Args::parse();
    if args.roles == "config" {
        print!("{DEFAULT_TOML}");
        return ExitCode::SUCCESS;
    }
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: the whole chain of causes.
            eprintln!("flashgate-origin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<()> {
    if let "jwks" | "document-jwks" = args.roles.as_str() {
        let secrets = Config::load(args.config.as_deref())?.secrets;
        let keys = if args.roles == "jwks" { public_keys(&secrets) } else { document_keys(&secrets) };
        println!("{}", keys?);
        return Ok(());
    }
    let roles = Role::parse_list(&args.roles).map_err(anyhow::Error::msg)?;
    let config = Config::load(args.config.as_deref())?;
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log.filter).context("settings: log.filter")?;
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), BUCKETS_S)?
        .install_recorder()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(run(config, &roles, metrics));
    // Whatever still runs is recorded elsewhere; the process ends now.
    runtime.shutdown_background();
    result
}
