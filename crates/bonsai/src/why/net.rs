//! The sockets of a service, looked at again and again.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_host::sockets::{self, Kind, Table, Tcp};
use bonsai_host::threads::{Doing, Thread};

use super::activity::{Connections, Descriptor, waits_on_descriptor};
use super::judge::Queues;

/// What is known of the sockets of a service.
#[derive(Debug, Default)]
pub(super) struct Net {
    /// Sockets of each process, by inode number; `None` if they may not be known.
    of_process: BTreeMap<u32, Option<Vec<u64>>>,
    /// A process of each network namespace, so that no table is read twice.
    tables: BTreeMap<std::path::PathBuf, u32>,
    /// The TCP sockets of all of its namespaces.
    tcp: Table,
    /// Whether there was such a table.
    known: bool,
    /// Ports that somebody listens on.
    ports: BTreeSet<u16>,
    /// Unix sockets that wait for connections.
    listeners: BTreeSet<u64>,
    /// For how many looks in a row bytes have lain in the send queue of a socket.
    stuck: BTreeMap<u64, u32>,
    /// Looks so far.
    looks: u32,
}

/// Bytes that lie in a send queue for so many looks in a row do not flow.
const STUCK: u32 = 2;

impl Net {
    /// Finds the sockets of these processes.
    pub(super) fn find(&mut self, pids: &[u32]) {
        let mut tables = BTreeMap::new();
        self.of_process.clear();
        for pid in pids {
            self.of_process.insert(*pid, sockets::sockets(*pid));
            // Who may not read the link has one table for each process: that is
            // slower and not wrong.
            let own = format!("/proc/{pid}/ns/net");
            let namespace = std::fs::read_link(&own).unwrap_or_else(|_| own.into());
            tables.entry(namespace).or_insert(*pid);
        }
        self.listeners = tables
            .values()
            .flat_map(|pid| sockets::unix_listeners(*pid))
            .collect();
        self.tables = tables;
    }

    /// Looks at the queues.
    pub(super) fn look(&mut self) {
        self.looks += 1;
        self.tcp.clear();
        let none = |sockets: &Option<Vec<u64>>| sockets.as_ref().is_some_and(Vec::is_empty);
        if self.of_process.values().all(none) {
            // The tables are as long as the machine has connections.
            self.known = true;
            self.stuck.clear();
            return;
        }
        for pid in self.tables.values() {
            if let Some(table) = sockets::tcp(*pid) {
                self.known = true;
                self.tcp.extend(table);
            }
        }
        self.ports = self
            .tcp
            .values()
            .filter(|t| t.listens)
            .map(|t| t.port)
            .collect();
        let mine = self.sockets();
        let full = |inode: &u64| self.tcp.get(inode).is_some_and(|tcp| tcp.held_up() > 0);
        let before = std::mem::take(&mut self.stuck);
        self.stuck = mine
            .into_iter()
            .filter(full)
            .map(|inode| (inode, before.get(&inode).map_or(1, |looks| looks + 1)))
            .collect();
    }

    /// The descriptor that a thread waits on, if it may wait on one.
    pub(super) fn descriptor(&self, thread: &Thread) -> Option<Descriptor> {
        let Doing::Call(number, fd) = thread.doing else {
            return None;
        };
        if !waits_on_descriptor(number) {
            return None;
        }
        let kind = sockets::descriptor(thread.pid, fd)?;
        let tcp = match kind {
            Kind::Socket(inode) => self.tcp.get(&inode).copied(),
            _ => None,
        };
        Some(Descriptor {
            kind,
            tcp,
            accepted: tcp.is_some_and(|tcp| self.is_accepted(&tcp)),
        })
    }

    /// The connections of a process.
    pub(super) fn connections(&self, pid: u32) -> Connections {
        let mut found = Connections {
            // A child that serves has not always kept its parent's socket.
            serves: self.listens(),
            ..Connections::default()
        };
        for inode in self.of_process.get(&pid).into_iter().flatten().flatten() {
            let Some(tcp) = self.tcp.get(inode).filter(|tcp| tcp.connected) else {
                continue;
            };
            let accepted = self.is_accepted(tcp);
            found.serves |= accepted;
            found.outgoing |= !accepted;
            found.stuck |= self.stuck.get(inode).is_some_and(|looks| *looks >= STUCK);
        }
        found
    }

    /// The sockets of all processes whose descriptors may be seen.
    fn sockets(&self) -> BTreeSet<u64> {
        let known = self.of_process.values().flatten();
        known.flatten().copied().collect()
    }

    /// The queues of all connections; `None` if they may not be known.
    pub(super) fn queues(&self) -> Option<Queues> {
        if !self.known || self.of_process.values().any(Option::is_none) {
            return None;
        }
        let mut queues = Queues::default();
        for inode in self.sockets() {
            let Some(tcp) = self.tcp.get(&inode).filter(|tcp| tcp.connected) else {
                continue;
            };
            queues.connections += 1;
            queues.unsent = queues.unsent.saturating_add(tcp.unsent);
            queues.unread = queues.unread.saturating_add(tcp.unread);
            queues.stuck += u64::from(self.stuck.get(&inode) == Some(&self.looks));
        }
        Some(queues)
    }

    /// Whether the service waits for connections.
    fn listens(&self) -> bool {
        let mut mine = self.of_process.values().flatten().flatten();
        mine.any(|inode| {
            self.listeners.contains(inode) || self.tcp.get(inode).is_some_and(|tcp| tcp.listens)
        })
    }

    fn is_accepted(&self, tcp: &Tcp) -> bool {
        self.ports.contains(&tcp.port)
    }
}
