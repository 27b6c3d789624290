//! Certificates and keys of a server, from files in PEM.
//!
//! The operator names these files, so that links are followed; what is opened has to be a regular file, and is checked on
//! the descriptor, as a pipe would keep the server from starting for as long as nobody writes into it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustls::server::WebPkiClientVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// The longest file that is read: a bundle of all public authorities has some 250 KiB.
const MOST_BYTES: u64 = 4 << 20;

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file with certificates or a key.
    #[error("{path}: {why}")]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A key of another certificate.
    #[error("{key}: is not the key of the certificate in {certificate}")]
    Mismatch {
        /// The file with the key.
        key: PathBuf,
        /// Path of the certificate.
        certificate: PathBuf,
    },
    /// Something else.
    #[error("{path}: {source}")]
    Rustls {
        /// Path of the file that it is about.
        path: PathBuf,
        /// The error of rustls.
        source: rustls::Error,
    },
}

impl TlsError {
    /// A key with permissions that are too wide; `right` would do.
    #[must_use]
    pub fn key_mode(files: &Files, tls: &ServerTls, right: u32) -> Self {
        let mode = tls.key_mode;
        let why = format!("mode {mode:03o}, by which others can read it: chmod {right:03o}");
        pem(&files.key, why)
    }
}

/// Files in PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// A chain of certificates, that of the server first.
    pub certificate: PathBuf,
    /// The key of the first.
    pub key: PathBuf,
    /// Authorities that a client's certificate has to come from; without them, every client is let in.
    pub client_authorities: Option<PathBuf>,
}

/// TLS of a server.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// For rustls.
    pub config: Arc<ServerConfig>,
    /// Permissions of the key's file.
    pub key_mode: u32,
}

impl ServerTls {
    /// True if every user of this machine can read the key.
    #[must_use]
    pub const fn exposed_key(&self) -> bool {
        self.key_mode & 0o004 != 0
    }
}

impl Files {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be used, or a key of another certificate.
    pub fn read(&self) -> Result<ServerTls, TlsError> {
        server_tls(
            &self.certificate,
            &self.key,
            self.client_authorities.as_deref(),
        )
    }
}

fn server_tls(
    certificate: &Path,
    key: &Path,
    client_authorities: Option<&Path>,
) -> Result<ServerTls, TlsError> {
    let chain = certificates(certificate)?;
    let (secret, key_mode) = private_key(key)?;
    let rustls = |path: &Path| {
        let path = path.to_owned();
        |source| TlsError::Rustls { path, source }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(rustls(certificate))?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(rustls(path))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|error| pem(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, secret)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::Mismatch {
                key: key.to_owned(),
                certificate: certificate.to_owned(),
            },
            error => rustls(certificate)(error),
        })?;
    Ok(ServerTls {
        config: Arc::new(config),
        key_mode,
    })
}

fn pem(path: &Path, why: impl Into<String>) -> TlsError {
    TlsError::Pem {
        path: path.to_owned(),
        why: why.into(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let (text, _) = read(path).map_err(|why| pem(path, why))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| pem(path, format!("is no PEM: {error}")))?;
    if found.is_empty() {
        let why = "has no certificate in PEM (-----BEGIN CERTIFICATE-----)";
        return Err(pem(path, why));
    }
    Ok(found)
}

/// A key, and the permissions of its file.
fn private_key(path: &Path) -> Result<(PrivateKeyDer<'static>, u32), TlsError> {
    let (text, mode) = read(path).map_err(|why| pem(path, why))?;
    if let Ok(key) = PrivateKeyDer::from_pem_slice(&text) {
        return Ok((key, mode));
    }
    let has = |words: &[u8]| text.windows(words.len()).any(|window| window == words);
    let why = if has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED") {
        "the key is encrypted, and nobody is there to give its password: openssl pkey decrypts it"
    } else if has(b"-----BEGIN CERTIFICATE-----") {
        "has a certificate and no private key"
    } else {
        "has no private key in PEM (-----BEGIN PRIVATE KEY-----)"
    };
    Err(pem(path, why))
}

/// All of a regular file, and its permissions.
fn read(path: &Path) -> Result<(Vec<u8>, u32), String> {
    // The kind is known before anything is opened that opening has an effect on, and checked again on the descriptor.
    let is_file = |meta: &std::fs::Metadata| match meta.is_file() {
        true => Ok(()),
        false => Err("is no regular file".to_owned()),
    };
    let said = |error: io::Error| format!("cannot be read: {error}");
    is_file(&std::fs::metadata(path).map_err(said)?)?;
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(said)?;
    let meta = file.metadata().map_err(said)?;
    is_file(&meta)?;
    if meta.len() > MOST_BYTES {
        return Err(format!(
            "has {} bytes, more than PEM files have",
            meta.len()
        ));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(said)?;
    Ok((bytes, meta.mode() & 0o777))
}
