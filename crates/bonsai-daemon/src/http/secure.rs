//! The certificate of a listener: read at the start, and again when it is renewed.
//!
//! # Invariants
//! 1. What is shown to clients was read as a whole, and certificate and key fit together.
//! 2. One that cannot be used keeps the last one in its place, and is said.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bonsai_api::Tls;
use bonsai_services::refusal::before_start;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::body::aside;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(2);

/// Certificate and key.
pub(crate) struct Secure {
    files: Tls,
    state: Mutex<State>,
}

struct State {
    now: TlsAcceptor,
    /// Stamps of the files as they were read last.
    stamps: Stamps,
    problem: Option<String>,
}

/// All that differs when a file is another one, or has been written: device, inode, length, and the times of both.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;
type Stamps = [Stamp; 2];

impl std::fmt::Debug for Secure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Secure")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

fn stamps(files: &Tls) -> Stamps {
    [&files.certificate, &files.key].map(|path| {
        let meta = fs::metadata(path).ok()?;
        let times = (
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        );
        Some((
            meta.dev(),
            meta.ino(),
            meta.len(),
            times.0,
            times.1,
            times.2,
            times.3,
        ))
    })
}

/// Reads both.
fn read(files: &Tls) -> anyhow::Result<TlsAcceptor> {
    let named = |path: &PathBuf| format!("{}: cannot be read as PEM", path.display());
    for path in [&files.certificate, &files.key] {
        // A pipe would be waited for.
        let is_file = fs::metadata(path).with_context(|| named(path))?.is_file();
        anyhow::ensure!(is_file, "{}: is no regular file", path.display());
    }
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| named(&files.certificate))?;
    let shown = Path::display(&files.certificate);
    anyhow::ensure!(!chain.is_empty(), "{shown}: there is no certificate in it");
    let key = PrivateKeyDer::from_pem_file(&files.key).with_context(|| named(&files.key))?;
    let mode = fs::metadata(&files.key)?.permissions().mode();
    anyhow::ensure!(
        mode & 0o077 == 0,
        "{}: others may read it (mode {:o}): chmod 600",
        files.key.display(),
        mode & 0o777
    );
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config
        .with_single_cert(chain, key)
        .context("api.tls: certificate and key do not fit")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Secure {
    /// Reads certificate and key.
    pub(crate) fn open(files: &Tls) -> anyhow::Result<Arc<Self>> {
        // Before they are read: what is written meanwhile is read again.
        let stamps = stamps(files);
        let state = State {
            now: read(files).map_err(before_start)?,
            stamps,
            problem: None,
        };
        Ok(Arc::new(Self {
            files: files.clone(),
            state: Mutex::new(state),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificate that the next client is shown.
    pub(super) fn now(&self) -> TlsAcceptor {
        self.state().now.clone()
    }

    /// Why a renewed one is not used, in words.
    pub(super) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    /// Looks whether there is another one, again and again.
    pub(super) async fn renew(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let secure = Arc::clone(&self);
            if aside(move || secure.look()).await.is_err() {
                // The daemon is ending.
                return;
            }
        }
    }

    fn look(&self) {
        let stamps = stamps(&self.files);
        if self.state().stamps == stamps {
            return;
        }
        let read = read(&self.files);
        let mut state = self.state();
        state.stamps = stamps;
        match read {
            Ok(now) => {
                state.now = now;
                state.problem = None;
            }
            // Where two files are renewed one after the other, the second one ends this.
            Err(error) => {
                let why = bonsai_host::sentence(error.as_ref());
                state.problem = Some(format!(
                    "the renewed certificate is not used, and the one before still is: {why}"
                ));
            }
        }
    }
}
