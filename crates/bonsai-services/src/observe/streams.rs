//! The streams of limits that are per stream: which there are, and what each of them gets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bonsai_host::sockets;
use bonsai_ledger::{Ledger, Limit, ProcessId, Stream};
use serde::Serialize;

use crate::service::members::Member;

/// A stream that has a bucket of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamView {
    /// Where it leads: the address of a peer, or the path of a file; `socket` or `pipe`
    /// where that is not known.
    pub to: String,
    /// A process that has it open.
    pub pid: u32,
    /// Its descriptor there.
    pub fd: u32,
    /// What went through, units.
    pub used: u64,
    /// The rate measured, units/s; `null` at the first look.
    pub got: Option<f64>,
    /// Units that could go at once; negative while calls wait.
    pub level: i64,
    /// Waits imposed.
    pub waits: u64,
    /// Their sum, ns.
    pub waited_ns: u64,
}

/// What streams had used at a look, by bucket and identity.
pub(super) type Used = BTreeMap<(usize, u64), u64>;

/// What the streams under all limits that are per stream have used at `now`.
pub(super) fn used(ledger: &Ledger, limits: &[Limit], now: u64) -> Used {
    let per_stream = limits.iter().filter(|limit| limit.per_stream);
    let streams = per_stream.flat_map(|limit| {
        let streams = ledger.streams(limit.bucket, now).into_iter();
        streams.map(|stream| ((limit.bucket, stream.identity), stream.used))
    });
    streams.collect()
}

/// Descriptors of a service's processes, as `/proc` names them.
pub(super) struct Open {
    /// By what the link says.
    places: BTreeMap<String, (u32, u32)>,
    /// The processes.
    numbers: BTreeMap<ProcessId, u32>,
    /// By inode.
    peers: BTreeMap<u64, SocketAddr>,
}

impl Open {
    /// Those of these processes.
    pub(super) fn of(members: &[Member]) -> Self {
        let mut open = Self {
            places: BTreeMap::new(),
            numbers: members.iter().map(|m| (m.id, m.process.pid)).collect(),
            peers: BTreeMap::new(),
        };
        let mut namespaces = Vec::new();
        for pid in members.iter().map(|member| member.process.pid) {
            let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            if !namespaces.contains(&namespace) {
                open.peers.extend(sockets::peers(pid));
                namespaces.push(namespace);
            }
            let Ok(links) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            for entry in links.flatten() {
                let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
                if let (Some(fd), Some(link)) = (fd, link(&entry.path())) {
                    open.places.entry(link).or_insert((pid, fd));
                }
            }
        }
        open
    }

    /// A stream as it is shown; `None` for one that nobody has open any more.
    fn view(&self, stream: &Stream, got: Option<f64>) -> Option<StreamView> {
        let of_socket = format!("socket:[{}]", stream.identity);
        let (pid, fd, to) = match self.places.get(&of_socket) {
            Some((pid, fd)) => {
                let peer = self.peers.get(&stream.identity);
                let peer = peer.filter(|peer| !peer.ip().is_unspecified());
                let to = peer.map_or_else(|| "socket".to_owned(), ToString::to_string);
                (*pid, *fd, to)
            }
            // A socket's number has 32 bits; what has more is a file or a pipe.
            None if stream.identity >> 32 == 0 => return None,
            None => {
                let pid = *self.numbers.get(&stream.process)?;
                let link = link(format!("/proc/{pid}/fd/{}", stream.fd).as_ref())?;
                let known = !link.starts_with("socket:");
                let to = if link.starts_with("pipe:") {
                    "pipe".to_owned()
                } else {
                    link
                };
                known.then_some((pid, stream.fd, to))?
            }
        };
        Some(StreamView {
            to,
            pid,
            fd,
            used: stream.used,
            got,
            level: stream.level,
            waits: stream.waits,
            waited_ns: stream.waited_ns,
        })
    }
}

fn link(path: &std::path::Path) -> Option<String> {
    Some(
        std::fs::read_link(path)
            .ok()?
            .to_string_lossy()
            .into_owned(),
    )
}

/// The streams under a limit at `now`, the busiest first; `before` is what they had used
/// at the look before, that long ago.
pub(super) fn of(
    ledger: &Ledger,
    limit: &Limit,
    open: &Open,
    before: Option<(&Used, Duration)>,
    now: u64,
) -> Vec<StreamView> {
    let streams = ledger.streams(limit.bucket, now).into_iter();
    let views = streams.filter_map(|stream| {
        let got = before.map(|(used, time)| {
            let earlier = used.get(&(limit.bucket, stream.identity)).copied();
            let units = stream.used.saturating_sub(earlier.unwrap_or(0));
            units as f64 / time.as_secs_f64().max(1e-9)
        });
        open.view(&stream, got)
    });
    let mut views: Vec<StreamView> = views.collect();
    views.sort_by(|a, b| {
        let busy = b.got.unwrap_or(0.0).total_cmp(&a.got.unwrap_or(0.0));
        busy.then(b.used.cmp(&a.used))
    });
    views
}
