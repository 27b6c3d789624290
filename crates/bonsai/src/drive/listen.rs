//! Where a server listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bonsai_nbd::server::ServeError;
use bonsai_services::refusal::Refusal;

use crate::cli::DriveServe;

/// Where to listen on TCP, if that may be.
pub(super) fn address(text: &str, args: &DriveServe) -> anyhow::Result<SocketAddr> {
    let own = |port: &str| {
        let port = port.parse().ok()?;
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let at = text
        .strip_prefix(':')
        .map_or_else(|| text.parse().ok(), own);
    let at = at.ok_or_else(|| {
        Refusal::input(format!(
            "--listen {text}: is no address such as :10809 or 192.0.2.1:10809"
        ))
    })?;
    if !at.ip().is_loopback() && args.tls_cert.is_none() && !args.insecure {
        return Err(Refusal::input(format!(
            "--listen {text}: other machines could read and write the images; give --tls-cert and --tls-key, or --insecure"
        )));
    }
    Ok(at)
}

/// A failure to listen, as bad input where it is.
pub(super) fn said(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Thread(_) => error.into(),
        error => Refusal::input(error.to_string()),
    }
}
