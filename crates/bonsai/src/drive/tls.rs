//! TLS of a server, as the command line names it.

use std::sync::Arc;

use bonsai_nbd::server::{ServerConfig, server_tls};
use bonsai_services::refusal::Refusal;

use super::escape::say;
use crate::cli::DriveServe;

/// The TLS configuration; `None` without certificates.
///
/// # Errors
/// Files that cannot be read, or do not belong together.
pub(super) fn config(args: &DriveServe) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let tls = server_tls(certificate, key, args.tls_client_ca.as_deref());
    let tls = tls.map_err(|error| Refusal::input(error.to_string()))?;
    if tls.exposed_key {
        say!(
            "bonsai: {}: every user of this machine can read this key: chmod o= keeps them from it",
            key.display()
        );
    }
    Ok(Some(tls.config))
}
