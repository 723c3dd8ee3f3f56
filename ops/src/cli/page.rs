//! `flashgate page export`: the sale page as files, for a CDN that serves files better than an edge.

use super::say;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use flashgate_page::Asset;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The page, for every `/s/{sale}`.
const PAGE_FILE: &str = "index.html";

/// Arguments of `page`.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    #[command(subcommand)]
    command: PageCommand,
}

#[derive(Debug, Subcommand)]
enum PageCommand {
    /// Write the sale page, its assets and the headers they need into a directory
    Export {
        /// A directory that is empty or does not exist yet
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

pub(super) fn run(args: &PageArgs) -> Result<ExitCode> {
    let PageCommand::Export { dir } = &args.command;
    let files = export(dir)?;
    say(&format!(
        "{files} files in {}. Serve {PAGE_FILE} for every /s/{{sale}}, the rest under its own path, with the headers of \
         `_headers`; send /v1/* of the same host to an edge.",
        dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the files; how many.
fn export(dir: &Path) -> Result<usize> {
    let whole = || format!("cannot write to {}", dir.display());
    fs::create_dir_all(dir).with_context(whole)?;
    let mut entries = fs::read_dir(dir).with_context(whole)?;
    ensure!(entries.next().is_none(), "{} is not empty: name a new directory", dir.display());
    let page = flashgate_page::sale_page();
    // The forms that Cloudflare Pages and Netlify read; others can be told the same by hand.
    let mut headers = String::new();
    let mut files = 0;
    let mut put = |name: &str, bytes: &[u8]| -> Result<()> {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(dir)).with_context(whole)?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        files += 1;
        Ok(())
    };
    put(PAGE_FILE, page.body)?;
    rule(&mut headers, "/s/*", page)?;
    for asset in flashgate_page::asset_paths().filter_map(flashgate_page::asset) {
        put(asset.path.trim_start_matches('/'), asset.body)?;
        rule(&mut headers, asset.path, asset)?;
    }
    put("_headers", headers.as_bytes())?;
    put("_redirects", format!("/s/* /{PAGE_FILE} 200\n").as_bytes())?;
    Ok(files)
}

/// One path and its headers. Whether and how to compress is the CDN's own affair.
fn rule(headers: &mut String, path: &str, asset: &Asset) -> Result<()> {
    writeln!(headers, "{path}")?;
    for (name, value) in asset.headers().into_iter().filter(|(name, _)| *name != "vary") {
        writeln!(headers, "  {name}: {value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_export_is_what_an_edge_serves_and_overwrites_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("site");
        assert_eq!(export(&dir).unwrap(), 5);
        let page = fs::read_to_string(dir.join(PAGE_FILE)).unwrap();
        let headers = fs::read_to_string(dir.join("_headers")).unwrap();
        for path in flashgate_page::asset_paths() {
            assert!(page.contains(path) && headers.contains(&format!("{path}\n")), "{path}");
            assert_eq!(fs::read(dir.join(&path[1..])).unwrap(), flashgate_page::asset(path).unwrap().body);
        }
        assert!(headers.starts_with("/s/*\n  content-type: text/html; charset=utf-8\n  cache-control: no-cache\n"));
        assert!(headers.contains("  content-security-policy: default-src 'none'"));
        assert!(headers.contains("immutable"));
        let again = export(&dir).unwrap_err().to_string();
        assert!(again.contains("not empty"), "{again}");
    }
}
