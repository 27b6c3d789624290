//! TLS of a server, as the command line names it.

use std::sync::Arc;

use bonsai_nbd::server::{ServerConfig, server_config};
use bonsai_services::refusal::Refusal;

use crate::cli::DriveServe;

/// The TLS configuration; `None` without certificates.
///
/// # Errors
/// Files that cannot be read, or do not belong together.
pub(super) fn config(args: &DriveServe) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let config = server_config(certificate, key);
            Ok(Some(
                config.map_err(|error| Refusal::input(error.to_string()))?,
            ))
        }
        _ => Ok(None),
    }
}
