//! TLS for buyers, where no CDN does it: certificates from PEM files, read again on a reload.

use crate::{
    config::{Limits, ms},
    gauge::Gauge,
};
use anyhow::{Context, ensure};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Protocols in the order of our choice (ALPN, RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where a certificate and its key are.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) certificates: PathBuf,
    pub(crate) key: PathBuf,
}

/// What new connections are accepted with.
pub(crate) struct Tls {
    files: Files,
    handshake_timeout_ms: u64,
    handshakes: Arc<Gauge>,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// # Errors
    /// A file cannot be read, or they do not belong together.
    pub(crate) fn new(files: Files, limits: &Limits) -> anyhow::Result<Self> {
        let current = RwLock::new(Arc::new(files.load()?));
        let handshakes = Gauge::new(limits.max_tls_handshakes);
        Ok(Self { files, handshake_timeout_ms: limits.tls_handshake_timeout_ms, handshakes, current })
    }

    /// Reads the files again; the outcome is used once it is put in place.
    pub(crate) fn read_again(&self) -> anyhow::Result<ServerConfig> {
        self.files.load()
    }

    /// From now on new connections get this. Those that stand are not touched.
    pub(crate) fn put(&self, config: ServerConfig) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The handshake; `None` when it failed or took too long, or there are too many.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let _place = self.handshakes.enter()?;
        let config = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let peer = stream.peer_addr().ok();
        match timeout(ms(self.handshake_timeout_ms), TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(e)) => {
                tracing::debug!(error = %e, ?peer, "TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!(?peer, "TLS handshake took too long");
                None
            }
        }
    }
}

impl Files {
    fn load(&self) -> anyhow::Result<ServerConfig> {
        let named = |path: &Path| format!("TLS: {}", path.display());
        let certificates = CertificateDer::pem_file_iter(&self.certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| named(&self.certificates))?;
        ensure!(!certificates.is_empty(), "TLS: no certificate in {}", self.certificates.display());
        let key = PrivateKeyDer::from_pem_file(&self.key).with_context(|| named(&self.key))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .with_context(|| named(&self.certificates))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(config)
    }
}
