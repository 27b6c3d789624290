//! What a server prints: the addresses of its exports, and events of clients and images.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bonsai_nbd::export::Export;
use bonsai_nbd::server::Event;

use crate::output::say;

/// As a part of a URI (RFC 3986, section 2): what has a meaning there, or is not ASCII, by its number.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

/// What is served where, as clients write it.
pub(super) fn tell(exports: &[Arc<Export>], unix: Option<&Path>, tcp: Option<SocketAddr>) {
    for export in exports {
        let name = escaped(export.info().name.as_bytes());
        let unix = unix.map(|path| {
            let path = escaped(path.as_os_str().as_encoded_bytes());
            format!("nbd+unix:///{name}?socket={path}")
        });
        let tcp = tcp.map(|at| format!("nbd://{at}/{name}"));
        for uri in unix.into_iter().chain(tcp) {
            say!(
                "bonsai: {} is served at {uri}",
                export.image().path().display()
            );
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
