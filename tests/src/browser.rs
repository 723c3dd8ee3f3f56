//! A real browser: Chromium without a window, driven over WebDriver (W3C) through its own driver.

use crate::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use fantoccini::{
    Client, ClientBuilder, Locator,
    wd::{Capabilities, WebDriverCompatibleCommand},
};
use flashgate_servers::{Guarded, free_port, program, until};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use url::Url;

/// A browser with one empty profile of its own.
pub struct Browser {
    /// The WebDriver session.
    pub client: Client,
    driver: Guarded,
    dir: TempDir,
}

impl Browser {
    /// Starts the driver and, through it, the browser.
    pub async fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("flashgate-browser-").tempdir()?;
        let port = free_port()?;
        let mut command = std::process::Command::new(program("chromedriver", "chromium-driver", &[])?);
        command.arg(format!("--port={port}"));
        let driver = Guarded::start("chromedriver", dir.path(), command)?;
        let address = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::builder().no_proxy().build()?;
        until("chromedriver answers", PATIENCE, || {
            let running = driver.check_running();
            let status = http.get(format!("{address}/status")).send();
            async move {
                running?;
                Ok(status.await?.status().is_success())
            }
        })
        .await?;
        let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &profile,
        ];
        let chromium = program("chromium", "chromium", &[]).or_else(|_| program("google-chrome", "chromium", &[]))?;
        let mut wanted = Capabilities::new();
        wanted.insert("goog:chromeOptions".into(), json!({"args": arguments, "binary": chromium}));
        wanted.insert("goog:loggingPrefs".into(), json!({"browser": "ALL"}));
        let session = ClientBuilder::new(HttpConnector::new()).capabilities(wanted).connect(&address).await;
        let client = session.with_context(|| format!("no browser session:\n{}", driver.log_tail()))?;
        Ok(Self { client, driver, dir })
    }

    /// Ends the browser and its driver. Fails when a page broke its own security policy or threw.
    pub async fn stop(self) -> Result<()> {
        let faults = self.faults().await;
        self.client.close().await?;
        self.driver.stop().await?;
        drop(self.dir);
        let faults = faults?;
        ensure!(faults.is_empty(), "the console shows faults of the page: {faults:#?}");
        Ok(())
    }

    /// Sets the page's clock wrong by so many milliseconds, for every document that is loaded from now on.
    pub async fn set_clock_wrong_by(&self, ms: i64) -> Result<()> {
        let source = format!("{{ const right = Date.now; Date.now = () => right() + {ms}; }}");
        let command = Extension {
            path: "goog/cdp/execute",
            body: json!({"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": source}}),
        };
        self.client.issue_cmd(command).await?;
        Ok(())
    }

    /// Waits until the element's text contains this; the text.
    pub async fn text(&self, css: &str, wanted: &str) -> Result<String> {
        until(&format!("{css} says {wanted:?}"), PATIENCE, || async {
            let text = self.client.find(Locator::Css(css)).await?.text().await?;
            ensure!(text.contains(wanted), "it says {text:?}");
            Ok(true)
        })
        .await?;
        Ok(self.client.find(Locator::Css(css)).await?.text().await?)
    }

    /// Clicks the element once it can be clicked.
    pub async fn click(&self, css: &str) -> Result<()> {
        until(&format!("{css} can be clicked"), PATIENCE, || async {
            let element = self.client.find(Locator::Css(css)).await?;
            Ok(element.is_displayed().await? && element.is_enabled().await?)
        })
        .await?;
        Ok(self.client.find(Locator::Css(css)).await?.click().await?)
    }

    /// What the console says of exceptions and of the page's security policy. That a request was refused
    /// is no fault: that is what this shop does.
    async fn faults(&self) -> Result<Vec<String>> {
        let log = self.client.issue_cmd(Extension { path: "se/log", body: json!({"type": "browser"}) }).await?;
        let Value::Array(entries) = log else { bail!("no log: {log}") };
        let of_page = |entry: &Value| match (entry["level"].as_str(), entry["source"].as_str()) {
            (_, Some("security")) => true,
            (Some("SEVERE"), source) => source != Some("network"),
            _ => false,
        };
        Ok(entries.into_iter().filter(of_page).map(|entry| entry.to_string()).collect())
    }
}

/// A command of Chromium's driver beyond the standard.
#[derive(Debug)]
struct Extension {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base_url: &Url, session_id: Option<&str>) -> Result<Url, url::ParseError> {
        base_url.join(&format!("session/{}/{}", session_id.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}
