//! The certificate of a listener: read at the start, and again when it is renewed.

use std::sync::Arc;
use std::time::Duration;

use bonsai_api::Tls;
use bonsai_services::refusal::before_start;
use bonsai_tls::{Files, Renewable, TlsError};
use tokio_rustls::TlsAcceptor;

use super::body::aside;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(2);

/// Certificate and key.
#[derive(Debug)]
pub(crate) struct Secure(Renewable);

impl Secure {
    /// Reads certificate and key.
    pub(crate) fn open(files: &Tls) -> anyhow::Result<Arc<Self>> {
        let files = Files {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            client_authorities: None,
        };
        let opened = Renewable::open(files, |files, tls| match tls.key_mode & 0o077 {
            0 => Ok(()),
            _ => Err(TlsError::key_mode(files, tls, 0o600)),
        });
        let opened = opened.map_err(|error| before_start(error.into()))?;
        Ok(Arc::new(Self(opened.0)))
    }

    /// The certificate that the next client is shown.
    pub(super) fn now(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.config())
    }

    /// Why a renewed one is not used, in words.
    pub(super) fn problem(&self) -> Option<String> {
        let why = self.0.problem()?;
        Some(format!(
            "the renewed certificate is not used, and the one before still is: {why}"
        ))
    }

    /// Looks whether there is another one, again and again.
    pub(super) async fn renew(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let secure = Arc::clone(&self);
            if aside(move || secure.0.look()).await.is_err() {
                // The daemon is ending.
                return;
            }
        }
    }
}
