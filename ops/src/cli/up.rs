//! `flashgate up`: a private shop that stays until it is told to end.

use super::{Where, say, takes_stdout, write_json};
use crate::{
    shop::Shop,
    stack::{Stack, StackConfig},
    steps::Steps,
};
use anyhow::{Result, ensure};
use clap::Args;
use std::{path::PathBuf, process::ExitCode};

/// Arguments of `up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    #[command(flatten)]
    shop: ShopArgs,
    /// Where other commands look for this shop [default: below $XDG_RUNTIME_DIR or /tmp]
    #[arg(long, env = "FLASHGATE_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    /// Write the addresses as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a private shop is made of.
#[derive(Debug, Clone, Args)]
pub(super) struct ShopArgs {
    /// Edges; at least one of them is a host [default: one more than --workers]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    edges: Option<u8>,
    /// How many of them are Cloudflare Workers in workerd, as `make worker` built them
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=63))]
    workers: u8,
    /// Port of the first edge [default: a free one]
    #[arg(long)]
    port: Option<u16>,
    /// Keep secrets and logs in this directory [default: a temporary one, removed in the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The edge's component [default: the one built by `make wasm`]
    #[arg(long, env = "FLASHGATE_COMPONENT", value_name = "FILE")]
    component: Option<PathBuf>,
}

impl ShopArgs {
    /// A shop with so many edges, all else by default.
    pub(super) fn with_edges(edges: u8, workers: u8) -> Self {
        Self { edges: Some(edges), workers, port: None, data_dir: None, component: None }
    }

    /// The stack's configuration.
    pub(super) fn config(&self) -> Result<StackConfig> {
        let (edges, workers) = (self.edges.unwrap_or(self.workers + 1), self.workers);
        ensure!(workers < edges, "of {edges} edges {workers} cannot be Workers: at least one is a host (--edges)");
        Ok(StackConfig {
            edges: usize::from(edges - workers),
            workers: usize::from(workers),
            edge_port: self.port,
            data_dir: self.data_dir.clone(),
            component: self.component.clone(),
            verbose: true,
            ..StackConfig::default()
        })
    }
}

pub(super) async fn run(args: UpArgs) -> Result<ExitCode> {
    let steps = Steps::new(true);
    let Some(mut shop) = super::unless_told_to_end(Shop::start(args.shop.config()?, steps)).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let ran = stay(&mut shop, &args).await;
    // Everything is stopped first; then the reason is told.
    let stopped = shop.stop(steps).await;
    ran.and(stopped).map(|()| ExitCode::SUCCESS)
}

async fn stay(shop: &mut Shop, args: &UpArgs) -> Result<()> {
    let place = Where { state: args.state.clone(), origin: None, admin_token_file: None };
    shop.announce(&place.path())?;
    if let Some(path) = &args.json {
        write_json(path, &shop.state())?;
    }
    if !takes_stdout(args.json.as_ref()) {
        say(&addresses(&shop.stack))?;
        say(
            "Put something on sale: flashgate sale create --title \"A hundred phones\" --stock 100 --price \"199.00 EUR\" --opens \"in 60s\"",
        )?;
        say("Ctrl-C stops everything.")?;
    }
    super::unless_told_to_end(shop.watch()).await.map(|_| ())
}

/// The addresses of a stack, a line each.
pub(super) fn addresses(stack: &Stack) -> String {
    let mut text = String::from("\n");
    for url in stack.edge_urls() {
        text += &format!("  edge      {url}\n");
    }
    for worker in stack.workers() {
        text += &format!("  worker    {}\n", worker.url());
    }
    text += &format!("  origin    {}\n", stack.origin_url());
    text += &format!("  provider  {}\n", stack.provider_url());
    text += &format!("  logs      {}\n", stack.data_dir().display());
    text
}
