//! What narrows a limit down: the words behind its `@`.
//!
//! | written | means |
//! |---|---|
//! | `/srv/video/**` | files whose path matches the pattern (`bonsai_calls::pattern`) |
//! | `mount:/srv` | files on the device that the path is on when the limit is set |
//! | `10.0.0.0/8`, `[fd00::]/8` | sockets whose peer is in the network |
//! | `port:443`, `port:8000-8100` | sockets with such a port at either end |
//! | `10.0.0.0/8,port:443` | both |
//!
//! The same scope has one name, however it was written.

use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;

use bonsai_calls::{CALLS, CallId, Class, Selection, about};
use bonsai_ledger::{End, Kind, LIMIT_NAME, Scope, mapped};

/// Why a scope makes no sense; each message is one sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeProblem {
    /// None of the forms.
    #[error(
        "{text:?} is neither a path, nor a network, nor a port: write /srv/**, mount:/srv, 10.0.0.0/8, [fd00::]/8 or port:443"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// A path that does not begin with a slash.
    #[error("{text:?} is a relative path: write it from / on, as in /srv/video/**")]
    Relative {
        /// The path.
        text: String,
    },
    /// A folder where files are meant.
    #[error("{text:?} ends in /: write {text}** for all below it")]
    Folder {
        /// The path.
        text: String,
    },
    /// `..` in a path.
    #[error("{text:?} has .. in it: write the path without it")]
    Parent {
        /// The path.
        text: String,
    },
    /// A backslash with nothing behind it.
    #[error("{text:?} ends in a backslash, which takes the letter behind it as it is: write two")]
    Backslash {
        /// The path.
        text: String,
    },
    /// The path of a mount cannot be looked at.
    #[error("mount:{path} cannot be looked at ({error}): write a path that exists")]
    Mount {
        /// The path.
        path: String,
        /// Why.
        error: String,
    },
    /// Not an address.
    #[error("{text:?} is no address: write 10.0.0.1, 10.0.0.0/8, [fd00::1] or [fd00::]/8")]
    Address {
        /// The text.
        text: String,
    },
    /// Not a length.
    #[error("{text:?} is no network: behind the / of {address} stands a number from 0 to {most}")]
    Prefix {
        /// The text.
        text: String,
        /// Its address.
        address: IpAddr,
        /// The longest prefix.
        most: u8,
    },
    /// Bits beyond the prefix.
    #[error("{text:?} has bits set beyond its first {bits}: write {right}")]
    HostBits {
        /// The text.
        text: String,
        /// How many bits count.
        bits: u8,
        /// The network.
        right: String,
    },
    /// Not a port.
    #[error("{text:?} is no port: write port:443 or port:8000-8100, from 1 to 65535")]
    Port {
        /// The text.
        text: String,
    },
    /// A range from behind.
    #[error("{text:?} goes from a larger port to a smaller one: write port:{last}-{first}")]
    PortOrder {
        /// The text.
        text: String,
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Two of one kind.
    #[error("{text:?} names two {what}: write a limit for each")]
    TwoOf {
        /// The text.
        text: String,
        /// Of what.
        what: &'static str,
    },
    /// Files, and calls that have none.
    #[error(
        "{calls} is on no files, so it cannot be for {scope}: limits for paths are on read, write, disk, open, stat and the like"
    )]
    NoFiles {
        /// The calls.
        calls: String,
        /// The scope.
        scope: String,
    },
    /// A mount, and calls that have no open files.
    #[error(
        "{calls} is on no open files, so it cannot be for {scope}: limits for mounts are on read, write, disk and the like"
    )]
    NoOpenFiles {
        /// The calls.
        calls: String,
        /// The scope.
        scope: String,
    },
    /// Peers, and calls that have none.
    #[error(
        "{calls} is on no sockets, so it cannot be for {scope}: limits for peers and ports are on send, recv, net, connect and the like"
    )]
    NoSockets {
        /// The calls.
        calls: String,
        /// The scope.
        scope: String,
    },
    /// Peers, and calls that do not know theirs yet.
    #[error(
        "{calls} does not know its peer beforehand, so it cannot be for {scope}: limit it by port, as in {calls}@port:443"
    )]
    NoPeers {
        /// The calls.
        calls: String,
        /// The scope.
        scope: String,
    },
    /// Streams, and calls that have none.
    #[error(
        "{calls} has no streams, so it cannot be limited per stream: such limits are on calls that move bytes, as in send/stream or read/stream"
    )]
    NoStreams {
        /// The calls.
        calls: String,
    },
    /// Longer than the ledger has room for.
    #[error("the limit's name has {len} bytes: at most {LIMIT_NAME} fit, so write a shorter path")]
    TooLong {
        /// How long it is.
        len: usize,
    },
}

/// What a limit is for, and the one way to write that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Narrowed {
    pub(super) scope: Scope,
    pub(super) name: String,
}

/// Reads what stands behind the `@` of a limit on `calls`, which are the selection;
/// `resolve` says whether a mount is looked at, as for a limit that comes into force.
pub(super) fn read(
    calls: &str,
    selection: Selection,
    per_stream: bool,
    scope: Option<&str>,
    resolve: bool,
) -> Result<Narrowed, ScopeProblem> {
    let streams = if per_stream { "/stream" } else { "" };
    let mut narrowed = match scope {
        None => Narrowed {
            scope: Scope::default(),
            name: format!("{calls}{streams}"),
        },
        Some(text) => {
            let begin = calls.len() + streams.len() + 1;
            let (scope, text) = parse(text, begin, resolve)?;
            check(calls, selection, &scope, &text)?;
            Narrowed {
                scope,
                name: format!("{calls}{streams}@{text}"),
            }
        }
    };
    if per_stream && !any(selection, moves_on_descriptor) {
        return Err(ScopeProblem::NoStreams {
            calls: calls.to_owned(),
        });
    }
    let len = narrowed.name.len();
    if len > LIMIT_NAME {
        return Err(ScopeProblem::TooLong { len });
    }
    if per_stream || narrowed.scope.is_narrow() {
        (narrowed.scope.end, narrowed.scope.kind) = looked_at(selection);
    }
    Ok(narrowed)
}

/// Which end of a call, and which kind of descriptor, the limits of a class look at.
const fn looked_at(selection: Selection) -> (Option<End>, Option<Kind>) {
    let Selection::Class(class) = selection else {
        return (None, None);
    };
    match class {
        Class::Read => (Some(End::Source), None),
        Class::Write => (Some(End::Target), None),
        Class::Send => (Some(End::Target), Some(Kind::Sockets)),
        Class::Recv => (Some(End::Source), Some(Kind::Sockets)),
        Class::Disk => (None, Some(Kind::Files)),
        Class::Net => (None, Some(Kind::Sockets)),
        _ => (None, None),
    }
}

/// The entries of a selection.
fn entries(selection: Selection) -> impl Iterator<Item = CallId> {
    let all = (0..).zip(CALLS);
    all.filter(move |(_, call)| selection.contains(call))
        .map(|(id, _)| id)
}

/// Whether one of the entries is so. Of a class, one that has two ends does not count:
/// `read` is not on sockets because `sendfile` is.
fn any(selection: Selection, is: impl Fn(CallId) -> bool) -> bool {
    let counts =
        |call: &CallId| matches!(selection, Selection::Nr(_)) || !about::has_two_ends(*call);
    entries(selection).filter(counts).any(is)
}

fn moves_on_descriptor(call: CallId) -> bool {
    let ends = about::ends(call);
    CALLS[usize::from(call)].moves_bytes() && ends.one() != about::NO_ARG
}

/// Whether calls have what a scope looks at.
fn check(calls: &str, selection: Selection, scope: &Scope, text: &str) -> Result<(), ScopeProblem> {
    let (calls, text) = (calls.to_owned(), text.to_owned());
    if scope.is_of_sockets() {
        if !any(selection, about::takes_sockets) {
            return Err(ScopeProblem::NoSockets { calls, scope: text });
        }
        if scope.peer.is_some() && !any(selection, about::takes_peers) {
            return Err(ScopeProblem::NoPeers { calls, scope: text });
        }
    } else if scope.path.is_some() && !any(selection, about::takes_paths) {
        return Err(ScopeProblem::NoFiles { calls, scope: text });
    } else if scope.device.is_some() && !any(selection, about::takes_files) {
        return Err(ScopeProblem::NoOpenFiles { calls, scope: text });
    }
    Ok(())
}

/// Reads a scope; the pattern of a path begins at `begin` of the limit's name.
fn parse(text: &str, begin: usize, resolve: bool) -> Result<(Scope, String), ScopeProblem> {
    if text.starts_with('/') {
        let pattern = pattern(text)?;
        let byte = |n: usize| u8::try_from(n).ok();
        let place = byte(begin).zip(byte(pattern.len()));
        let path = place.ok_or(ScopeProblem::TooLong {
            len: begin + pattern.len(),
        })?;
        let scope = Scope {
            path: Some(path),
            ..Scope::default()
        };
        return Ok((scope, pattern));
    }
    if let Some(path) = text.strip_prefix("mount:") {
        let path = mount(path)?;
        let device = if resolve {
            Some(device(&path)?)
        } else {
            Some(0)
        };
        let scope = Scope {
            device,
            ..Scope::default()
        };
        return Ok((scope, format!("mount:{path}")));
    }
    sockets(text)
}

/// The one way to write a pattern.
fn pattern(text: &str) -> Result<String, ScopeProblem> {
    let owned = || text.to_owned();
    let backslashes = text.chars().rev().take_while(|c| *c == '\\').count();
    if backslashes % 2 == 1 {
        return Err(ScopeProblem::Backslash { text: owned() });
    }
    if text.ends_with('/') {
        return Err(ScopeProblem::Folder { text: owned() });
    }
    let mut names: Vec<String> = Vec::new();
    for name in text.split('/').filter(|name| !matches!(*name, "" | ".")) {
        if name == ".." {
            return Err(ScopeProblem::Parent { text: owned() });
        }
        let mut name = name.to_owned();
        while name.contains("***") {
            name = name.replace("***", "**");
        }
        if name == "**" && names.last().is_some_and(|last| last == "**") {
            continue;
        }
        names.push(name);
    }
    Ok(format!("/{}", names.join("/")))
}

/// The one way to write the path of a mount.
fn mount(text: &str) -> Result<String, ScopeProblem> {
    if !text.starts_with('/') {
        let text = text.to_owned();
        return Err(ScopeProblem::Relative { text });
    }
    let names: Vec<&str> = text
        .split('/')
        .filter(|name| !matches!(*name, "" | "."))
        .collect();
    if names.contains(&"..") {
        let text = text.to_owned();
        return Err(ScopeProblem::Parent { text });
    }
    Ok(format!("/{}", names.join("/")))
}

fn device(path: &str) -> Result<u64, ScopeProblem> {
    let metadata = std::fs::metadata(path).map_err(|error| ScopeProblem::Mount {
        path: path.to_owned(),
        error: error.to_string(),
    })?;
    Ok(metadata.dev())
}

/// A network, ports, or both.
fn sockets(text: &str) -> Result<(Scope, String), ScopeProblem> {
    let two_of = |what| ScopeProblem::TwoOf {
        text: text.to_owned(),
        what,
    };
    let mut scope = Scope::default();
    let (mut peer, mut ports) = (None, None);
    for part in text.split(',').map(str::trim) {
        if let Some(range) = part.strip_prefix("port:") {
            let (first, last) = port_range(part, range)?;
            let name = if first == last {
                format!("port:{first}")
            } else {
                format!("port:{first}-{last}")
            };
            scope.ports = Some((first, last));
            if ports.replace(name).is_some() {
                return Err(two_of("ranges of ports"));
            }
        } else {
            let (network, name) = network(part)?;
            scope.peer = Some(network);
            if peer.replace(name).is_some() {
                return Err(two_of("networks"));
            }
        }
    }
    let names: Vec<String> = peer.into_iter().chain(ports).collect();
    Ok((scope, names.join(",")))
}

fn port_range(part: &str, range: &str) -> Result<(u16, u16), ScopeProblem> {
    let port = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let number = text.parse::<u16>().ok().filter(|n| digits && *n > 0);
        number.ok_or_else(|| ScopeProblem::Port {
            text: part.to_owned(),
        })
    };
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(range)?, port(range)?),
    };
    if first > last {
        return Err(ScopeProblem::PortOrder {
            text: part.to_owned(),
            first,
            last,
        });
    }
    Ok((first, last))
}

/// A network as the ledger has it, and the one way to write it.
fn network(part: &str) -> Result<(([u8; 16], u8), String), ScopeProblem> {
    let (address, prefix) = match part.rsplit_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (part, None),
    };
    let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
    let parsed = match bare {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => address.parse().ok(),
    };
    let Some(written) = parsed else {
        return Err(not_an_address(part, address));
    };
    let most = if written.is_ipv4() { 32 } else { 128 };
    let bits = match prefix {
        None => most,
        Some(text) => {
            let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            let number = text.parse::<u8>().ok().filter(|n| digits && *n <= most);
            number.ok_or_else(|| ScopeProblem::Prefix {
                text: part.to_owned(),
                address: written,
                most,
            })?
        }
    };
    let (bytes, all_bits) = match written {
        IpAddr::V4(v4) => (mapped(v4.octets()), bits + 96),
        IpAddr::V6(v6) => (v6.octets(), bits),
    };
    let kept = u128::from_be_bytes(bytes)
        & u128::MAX
            .checked_shl(128 - u32::from(all_bits))
            .unwrap_or(0);
    let name = network_name(kept, all_bits);
    if kept.to_be_bytes() != bytes {
        return Err(ScopeProblem::HostBits {
            text: part.to_owned(),
            bits,
            right: name,
        });
    }
    Ok(((bytes, all_bits), name))
}

fn network_name(address: u128, bits: u8) -> String {
    let v6 = Ipv6Addr::from(address);
    match v6.to_ipv4_mapped() {
        Some(v4) if bits >= 96 => match bits - 96 {
            32 => v4.to_string(),
            bits => format!("{v4}/{bits}"),
        },
        _ if bits == 128 => format!("[{v6}]"),
        _ => format!("[{v6}]/{bits}"),
    }
}

/// What a text that is no address was meant to be.
fn not_an_address(part: &str, address: &str) -> ScopeProblem {
    let text = part.to_owned();
    let like_an_address = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
    if !address.is_empty()
        && address.chars().all(like_an_address)
        && address.contains(['.', ':'])
        && !address.starts_with("..")
        && !address.starts_with("./")
    {
        ScopeProblem::Address { text }
    } else if part.contains('/') || part.starts_with('.') {
        ScopeProblem::Relative { text }
    } else {
        ScopeProblem::Unknown { text }
    }
}

#[cfg(test)]
mod tests;
