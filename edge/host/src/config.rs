//! What an operator can set. Every limit has a name with its unit and a default; secrets come from
//! files only.

use crate::tls;
use anyhow::{Context, ensure};
use clap::Parser;
use http::{Uri, uri::Authority};
use std::{collections::HashMap, net::SocketAddr, num::NonZeroUsize, path::PathBuf, thread, time::Duration};

/// Serves Flashgate's edge component.
#[derive(Clone, Debug, Parser)]
#[command(name = "flashgate-edge", version)]
pub struct Config {
    /// The component (Wasm, HTTP over WASI 0.3).
    #[arg(long, value_name = "PATH")]
    pub component: PathBuf,
    /// Address for buyers; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address for `/healthz` and `/metrics`; none by default. Keep it private.
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<SocketAddr>,
    /// The certificate chain for buyers, PEM; without it HTTP is spoken without TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A line of JSON for each answer goes here; none by default. Opened anew on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Of refusals (4xx and 503) the access log has one in so many.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub access_log_refusals_every: u64,
    /// The origin's URL: the component's variable `origin_url`.
    #[arg(long, value_name = "URL")]
    pub origin: Option<Uri>,
    /// A file with the secret that the origin knows this edge by: the component's variable `edge_key`.
    #[arg(long, value_name = "FILE")]
    pub edge_key_file: Option<PathBuf>,
    /// A file with the origin's document keys (a JWK set): the component's variable `document_keys`.
    #[arg(long, value_name = "FILE")]
    pub document_keys_file: Option<PathBuf>,
    /// The file of the component's key-value store; without it the store is empty after a restart.
    #[arg(long, value_name = "FILE")]
    pub key_value: Option<PathBuf>,
    /// Hosts that the component may call [default: the origin's].
    #[arg(long = "allow-host", value_name = "HOST:PORT")]
    pub allow_hosts: Vec<Authority>,
    /// Instances of the component, each on a thread of its own [default: one per core].
    #[arg(long, value_name = "N")]
    pub instances: Option<NonZeroUsize>,
    /// Time for requests in flight after SIGTERM or SIGINT.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub shutdown_grace_ms: u64,
    /// What a client may take.
    #[command(flatten)]
    pub limits: Limits,
}

/// What a client, and the component on its behalf, may take.
#[derive(Clone, Debug, Parser)]
pub struct Limits {
    /// Open connections of all clients; more are refused with 503.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub max_connections: usize,
    /// Time for a request's header, and for the first request of a connection.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub header_read_timeout_ms: u64,
    /// TLS handshakes at once; more connections are closed.
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    pub max_tls_handshakes: usize,
    /// Time for a TLS handshake.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub tls_handshake_timeout_ms: u64,
    /// A connection without a request is closed after this time.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub idle_timeout_ms: u64,
    /// Header fields of a request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_headers: usize,
    /// Bytes of a request's header.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10, value_parser = clap::value_parser!(u32).range(8192..))]
    pub max_header_bytes: u32,
    /// Bytes of a request's body.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    pub max_body_bytes: usize,
    /// Time for a request's body.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub body_read_timeout_ms: u64,
    /// Concurrent requests on one HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_h2_streams: u32,
    /// Requests that an instance works on at once; more are refused with 503.
    #[arg(long, value_name = "N", default_value_t = 4_096)]
    pub max_requests_in_flight: usize,
    /// Answers of an instance being sent at once, event streams included; more are refused with 503.
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub max_open_answers: usize,
    /// Time for the component to begin its answer.
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    pub request_timeout_ms: u64,
    /// An instance that computes for so long without a pause is interrupted.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    pub max_compute_ms: u64,
    /// Linear memory of an instance.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub max_memory_bytes: usize,
    /// Time for a connection to another server.
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub outgoing_connect_timeout_ms: u64,
    /// Time for another server to begin its answer.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub outgoing_first_byte_timeout_ms: u64,
    /// Silence within an answer of another server; event streams must send a comment more often.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub outgoing_silence_timeout_ms: u64,
}

/// Longest secret that is accepted.
const MAX_SECRET_BYTES: usize = 4 << 10;

impl Config {
    /// The files for TLS, when it is wanted.
    pub(crate) fn tls_files(&self) -> Option<tls::Files> {
        let (certificates, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(tls::Files { certificates, key })
    }

    /// One instance per core, unless told otherwise.
    pub(crate) fn instance_count(&self) -> usize {
        self.instances.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// The hosts that the component may call, as `host:port` in lower case.
    ///
    /// # Errors
    /// The origin's URL is not absolute.
    pub(crate) fn allowed_hosts(&self) -> anyhow::Result<Vec<String>> {
        let mut allowed: Vec<String> =
            self.allow_hosts.iter().map(|a| host_and_port(a, a.port_u16().unwrap_or(443))).collect();
        if let Some(origin) = &self.origin {
            let host = uri_host(origin).context("--origin must be an absolute http or https URL")?;
            if allowed.is_empty() {
                allowed.push(host);
            }
        }
        Ok(allowed)
    }

    /// The component's variables.
    ///
    /// # Errors
    /// The file with the edge key cannot be read, is empty or too long.
    pub(crate) fn variables(&self) -> anyhow::Result<HashMap<String, String>> {
        let mut variables = HashMap::new();
        if let Some(origin) = &self.origin {
            variables.insert("origin_url".to_owned(), origin.to_string().trim_end_matches('/').to_owned());
        }
        if let Some(path) = &self.edge_key_file {
            let key = std::fs::read_to_string(path).with_context(|| format!("edge key in {}", path.display()))?;
            // The origin's file may hold older keys after the current one.
            let key = key.trim_start().lines().next().unwrap_or_default().trim_end();
            ensure!(!key.is_empty() && key.len() <= MAX_SECRET_BYTES, "edge key in {}: bad length", path.display());
            variables.insert("edge_key".to_owned(), key.to_owned());
        }
        let keys = match &self.document_keys_file {
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("document keys in {}", path.display()))?
            }
            None => String::new(),
        };
        ensure!(keys.len() <= MAX_SECRET_BYTES, "--document-keys-file: more than {MAX_SECRET_BYTES} bytes");
        variables.insert("document_keys".to_owned(), keys);
        Ok(variables)
    }
}

/// `host:port` of an absolute HTTP URL.
pub(crate) fn uri_host(uri: &Uri) -> Option<String> {
    let port = match uri.scheme_str()? {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = uri.authority()?;
    Some(host_and_port(authority, authority.port_u16().unwrap_or(port)))
}

fn host_and_port(authority: &Authority, port: u16) -> String {
    format!("{}:{port}", authority.host().to_ascii_lowercase())
}

/// A time-out in milliseconds.
pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &[&str]) -> Config {
        Config::parse_from(["flashgate-edge", "--component", "x.wasm"].iter().chain(arguments))
    }

    #[test]
    fn the_origin_is_the_only_allowed_host_by_default() {
        let c = config(&["--origin", "http://Origin.example/"]);
        assert_eq!(c.allowed_hosts().unwrap(), ["origin.example:80"]);
        assert_eq!(c.variables().unwrap()["origin_url"], "http://Origin.example");
        assert!(config(&[]).allowed_hosts().unwrap().is_empty());
        assert!(config(&["--origin", "ftp://x/"]).allowed_hosts().is_err());
    }

    #[test]
    fn a_list_replaces_the_origin() {
        let c = config(&["--origin", "https://o.example", "--allow-host", "a:81", "--allow-host", "b"]);
        assert_eq!(c.allowed_hosts().unwrap(), ["a:81", "b:443"]);
    }

    #[test]
    fn a_default_port_is_the_schemes() {
        assert_eq!(uri_host(&Uri::from_static("https://x/")).unwrap(), "x:443");
        assert_eq!(uri_host(&Uri::from_static("http://[::1]:8/")).unwrap(), "[::1]:8");
        assert_eq!(uri_host(&Uri::from_static("/x")), None);
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let parse = |more: &[&str]| Config::try_parse_from(["flashgate-edge", "--component", "x"].iter().chain(more));
        assert!(parse(&["--tls-cert", "c"]).is_err() && parse(&["--tls-key", "k"]).is_err());
        assert!(parse(&["--tls-cert", "c", "--tls-key", "k"]).unwrap().tls_files().is_some());
        assert!(parse(&[]).unwrap().tls_files().is_none());
    }

    #[test]
    fn an_empty_secret_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert!(config(&["--edge-key-file", path]).variables().is_err());
        std::fs::write(path, "secret\n").unwrap();
        assert_eq!(config(&["--edge-key-file", path]).variables().unwrap()["edge_key"], "secret");
        std::fs::write(path, "the new one\nsecret\n").unwrap();
        assert_eq!(config(&["--edge-key-file", path]).variables().unwrap()["edge_key"], "the new one");
    }
}
