//! `flashgate sale erase`: who bought is forgotten, and the books stay whole.

use super::{Where, sale::unknown_sale, say, takes_stdout, write_json};
use anyhow::{Context, Result, bail};
use clap::Args;
use flashgate_shared::{BuyerId, SaleId, limits, problem::ProblemKind, wire::ErasureRequest};
use std::{io::BufRead, path::PathBuf, process::ExitCode};

/// Arguments of `sale erase`.
#[derive(Debug, Args)]
pub(super) struct EraseArgs {
    /// The sale; it must be closed, and its reservations paid or over
    #[arg(value_name = "SALE")]
    id: SaleId,
    /// Whose data goes: the id that the shop's entry tokens name (- reads it from standard input)
    #[arg(long, value_name = "BUYER", required_unless_present = "everybody", conflicts_with = "everybody")]
    buyer: Option<String>,
    /// All buyers of the sale
    #[arg(long)]
    everybody: bool,
    /// It is meant: nothing brings the data back
    #[arg(long)]
    yes: bool,
}

impl EraseArgs {
    pub(super) async fn run(&self, place: &Where, json: Option<&PathBuf>) -> Result<ExitCode> {
        let whose = match &self.buyer {
            Some(text) if text == "-" => ErasureRequest::Buyer(buyer(&first_line(std::io::stdin().lock())?)?),
            Some(text) => ErasureRequest::Buyer(buyer(text)?),
            None => ErasureRequest::Everybody {},
        };
        if !self.yes {
            bail!("nothing brings erased data back: look whether it is the right sale, and say it again with --yes");
        }
        let admin = place.admin()?;
        // Told apart from a buyer of whom nothing is known.
        admin.show(&self.id).await.map_err(|e| unknown_sale(e, &self.id))?;
        let erasure = admin.erase(&self.id, &whose).await.map_err(|error| match error.kind() {
            Some(ProblemKind::NotFound) => anyhow::anyhow!("the ledger knows no such buyer in {}", self.id),
            _ => error.into(),
        })?;
        if let Some(path) = json {
            write_json(path, &erasure)?;
        }
        if !takes_stdout(json) {
            let (n, id) = (erasure.buyers, erasure.id);
            let buyers = if n == 1 { "buyer" } else { "buyers" };
            say(&format!(
                "{}: {n} {buyers} erased (erasure {id}); the gate forgets with its rebuild, in a second",
                self.id
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn buyer(text: &str) -> Result<BuyerId> {
    text.parse().map_err(|e| anyhow::anyhow!("--buyer: {e}"))
}

fn first_line(input: impl BufRead) -> Result<String> {
    let mut line = String::new();
    let most = limits::BUYER_ID_BYTES as u64 + 2;
    input.take(most).read_line(&mut line).context("--buyer: standard input")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_is_read_from_one_line() {
        assert_eq!(first_line(&b"ann\r\nbob\n"[..]).unwrap(), "ann");
        assert!(buyer("").is_err());
        assert!(buyer(&first_line(&b"x".repeat(1_000)[..]).unwrap()).is_err(), "too long is no other buyer");
    }
}
