//! TLS of a server, as the command line names it.

use std::sync::Arc;

use bonsai_tls::{Files, Renewable};

use super::escape::say;
use crate::cli::DriveServe;

/// Certificate and key; `None` without them.
///
/// # Errors
/// Files that cannot be read, or do not belong together.
pub(super) fn config(args: &DriveServe) -> anyhow::Result<Option<Arc<Renewable>>> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let files = Files {
        certificate: certificate.clone(),
        key: key.clone(),
        client_authorities: args.tls_client_ca.clone(),
    };
    crate::tls::open(files, |text| say!("{text}")).map(Some)
}
