//! The command line of `flashgate`.

mod audit;
mod change;
mod check;
mod demo;
mod erase;
mod page;
mod publish;
mod rebuild;
mod reconcile;
mod rehearse;
mod sale;
mod torment;
mod up;

use crate::{
    admin::AdminClient,
    state::{self, ShopState, read_token},
    steps::Steps,
};
use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Exit code of a verdict "fail" and of a broken audit; errors have 2, as clap's have.
const FAIL: u8 = 1;
/// Exit code of an error.
const ERROR: u8 = 2;

/// Flashgate: run a flash sale, rehearse it, and check the books.
#[derive(Debug, Parser)]
#[command(name = "flashgate", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a private shop: servers, origin, edge and payment provider; stays until Ctrl-C
    Up(up::UpArgs),
    /// Start a shop, send 20,000 buyers at 100 units, and show the verdict
    Demo(demo::DemoArgs),
    /// Create, show, pause, resume or close sales
    Sale(sale::SaleArgs),
    /// Send a crowd at a sale of its own, and judge the outcome
    Rehearse(rehearse::RehearseArgs),
    /// Check that a sale's books hold; exit code 1 when they do not
    Audit(audit::AuditArgs),
    /// Kill, pause, cut off and empty the parts of a private shop under a crowd, and check its books
    Torment(torment::TormentArgs),
    /// Compare gate, outbox, queue and ledger; exit code 1 when they differ and it is not mended
    Reconcile(reconcile::ReconcileArgs),
    /// Export the sale page for a CDN
    Page(page::PageArgs),
    /// Run the payment provider simulator alone
    Provider(ProviderArgs),
}

/// How to find the shop.
#[derive(Debug, Clone, Args)]
struct Where {
    /// State file of a running shop [default: where `flashgate up` writes it]
    #[arg(long, global = true, env = "FLASHGATE_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    /// Address of the origin's admin API, when no state file tells it
    #[arg(long, global = true, value_name = "URL", requires = "admin_token_file")]
    origin: Option<String>,
    /// File with the admin token, to go with --origin
    #[arg(long, global = true, value_name = "FILE", requires = "origin")]
    admin_token_file: Option<PathBuf>,
}

impl Where {
    fn path(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(state::default_path)
    }

    fn admin(&self) -> Result<AdminClient> {
        match (&self.origin, &self.admin_token_file) {
            (Some(origin), Some(file)) => Ok(AdminClient::new(origin, read_token(file)?)),
            _ => state::read_required(&self.path())?.admin(),
        }
    }

    /// The running shop, when there is one.
    fn shop(&self) -> Result<Option<ShopState>> {
        state::read(&self.path())
    }
}

/// The payment provider simulator.
#[derive(Debug, Args)]
struct ProviderArgs {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where notices go: the origin's /v1/payments/notices
    #[arg(long, value_name = "URL")]
    notify: String,
    /// File with the webhook secret (whsec_…)
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
}

/// Runs the command line; the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("FLASHGATE_LOG").unwrap_or_else(|_| "warn".into()))
        .with_writer(std::io::stderr)
        .with_ansi(crate::steps::colour(std::io::stderr().is_terminal()))
        .init();
    let done = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no threads can be started")
        .and_then(|runtime| runtime.block_on(run(cli.command)));
    match done {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error leaves the exit code to tell.
            let _ = writeln!(std::io::stderr(), "flashgate: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}

async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up(args) => up::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Sale(args) => sale::run(args).await,
        Command::Rehearse(args) => rehearse::run(args).await,
        Command::Audit(args) => audit::run(args).await,
        Command::Reconcile(args) => reconcile::run(args).await,
        Command::Torment(args) => torment::run(args).await,
        Command::Page(args) => page::run(&args),
        Command::Provider(args) => provider(args).await,
    }
}

async fn provider(args: ProviderArgs) -> Result<ExitCode> {
    let provider = crate::provider::Provider::start(crate::provider::ProviderConfig {
        listen: args.listen,
        secret: read_token(&args.secret_file)?,
        notify_url: Some(args.notify),
    })
    .await?;
    say(&format!("listening {}", provider.url()))?;
    crate::shop::told_to_end().await?;
    provider.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// A line on standard output.
fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("standard output is closed")
}

/// Writes JSON to a file, or to standard output when it is `-`.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    if path == Path::new("-") {
        return say(&text);
    }
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Whether JSON takes standard output, so that nothing else may.
fn takes_stdout(json: Option<&PathBuf>) -> bool {
    json.is_some_and(|path| path == Path::new("-"))
}

/// Whether standard output may be coloured.
fn stdout_colour() -> bool {
    crate::steps::colour(std::io::stdout().is_terminal())
}

/// Runs work that a signal may end; `None` when it did.
async fn unless_told_to_end<T>(work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::select! {
        done = work => done.map(Some),
        told = crate::shop::told_to_end() => {
            told?;
            Steps::new(true).note("told to end");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        for line in [
            "flashgate rehearse --buyers 20000 --stock 100 --lapse 10% --late 5% --json r.json --edges 2",
            "flashgate sale create --id phones --title x --stock 100 --price 1EUR --opens now",
            "flashgate audit --sale s --json -",
            "flashgate demo",
            "flashgate up --data-dir d",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        for line in [
            "flashgate rehearse --buyers 1 --stock 1 --lapse 10",
            "flashgate sale show",
            "flashgate audit",
            "flashgate sale list --origin http://x",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
