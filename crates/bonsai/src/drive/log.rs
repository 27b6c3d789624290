//! What a server prints: the addresses of its exports, and events of clients and images.

use std::path::Path;
use std::sync::Arc;

use bonsai_nbd::export::Export;
use bonsai_nbd::server::{Address, Event};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::escape::say;
use crate::cli::DriveServe;

/// What has a meaning in a URI, or is not ASCII (RFC 3986, section 2.3); slashes stay, as a path has them.
const IN_URI: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Prints what is served where, as clients write it: the schemes are those of the NBD project's `doc/uri.md`.
pub(super) fn tell(exports: &[Arc<Export>], addresses: &[Address], args: &DriveServe) {
    for export in exports {
        for address in addresses {
            say!(
                "bonsai: {} is served at {}",
                export.image().path().display(),
                uri(&export.info().name, address, args)
            );
        }
    }
}

fn uri(name: &str, address: &Address, args: &DriveServe) -> String {
    let has_tls = args.tls_cert.is_some();
    let name = percent_encode(name.as_bytes(), IN_URI);
    match address {
        Address::Unix(path) => {
            let scheme = if has_tls && args.tls_unix {
                "nbds"
            } else {
                "nbd"
            };
            let path = percent_encode(Path::as_os_str(path).as_encoded_bytes(), IN_URI);
            format!("{scheme}+unix:///{name}?socket={path}")
        }
        Address::Tcp(at) => {
            let scheme = if has_tls { "nbds" } else { "nbd" };
            format!("{scheme}://{at}/{name}")
        }
    }
}

/// Prints an event; those of clients only where `verbose`.
pub(super) fn log(event: &Event<'_>, verbose: bool) {
    match event {
        Event::Image { export, what } => say!("bonsai: {export}: {what}"),
        Event::Full { most } => {
            say!("bonsai: a client was sent away: there are {most} already");
        }
        Event::Exhausted { error } => {
            say!(
                "bonsai: no more clients are let in for now: {error}; each takes some open files (ulimit -n) and a thread"
            );
        }
        Event::Failed {
            export,
            operation,
            offset,
            length,
            error,
            omitted,
        } => {
            let more = match omitted {
                0 => String::new(),
                count => format!(" ({count} more before this one)"),
            };
            say!(
                "bonsai: {export}: {operation} of {length} bytes at {offset} failed: {error}{more}"
            );
        }
        Event::Omitted { export, count } => {
            say!("bonsai: {export}: {count} more requests failed");
        }
        Event::Closed {
            export,
            peer,
            why: Some(why),
        } if verbose => {
            say!("bonsai: {export}: {peer} was left: {why}");
        }
        Event::Closed {
            export,
            peer,
            why: None,
        } if verbose => say!("bonsai: {export}: {peer} has ended"),
        Event::Open { export, peer } if verbose => say!("bonsai: {export}: {peer} has come"),
        _ => {}
    }
}
