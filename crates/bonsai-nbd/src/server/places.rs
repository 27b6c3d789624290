//! The connections that there are, and who makes way when there are as many as there may be.
//!
//! # Invariants
//! 1. A client that has an export keeps its connection, whoever comes.
//! 2. A client without one makes way only if no listener has more of these than its own. If the newcomer's listener has as many,
//!    it had [`GRACE`] to choose.
//! 3. While requests of clients that have gone wait for the disk of an export, that export has at most its share of the
//!    connections.
//! 4. An export that nobody is connected to finds room for a client: others may not take the last connections with their second and further
//!    ones, up to half of all.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::lock;

/// How long a client may take to choose an export, whoever else comes.
const GRACE: Duration = Duration::from_secs(1);
/// How long the end of a connection is waited for: nothing that it waits for itself outlasts its socket.
const END: Duration = Duration::from_millis(100);

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    exports: usize,
    taken: Mutex<Taken>,
    /// A connection has gone.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    of: HashMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// The number of its listener.
    listener: usize,
    since: Instant,
    /// The name of the one that it has.
    export: Option<String>,
    /// It was told to go.
    ends: bool,
    /// Its client has gone, and its last requests are under way.
    gone: bool,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    pub(super) fn new(most: usize, exports: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            exports,
            taken: Mutex::default(),
            left: Condvar::new(),
        })
    }

    /// Counts a connection by a socket of its own; `None` where nobody makes way for it.
    pub(super) fn take(self: &Arc<Self>, socket: OwnedFd, listener: usize) -> Option<Place> {
        let mut taken = lock(&self.taken);
        if taken.of.len() >= self.most {
            let victim = taken.who_makes_way(listener, Instant::now())?;
            victim.ends = true;
            // It fails where the client has gone.
            let _ = shutdown(&victim.socket, Shutdown::Both);
            let is_full = |taken: &mut Taken| taken.of.len() >= self.most;
            let waited = self.left.wait_timeout_while(taken, END, is_full);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            if taken.of.len() >= self.most {
                return None;
            }
        }
        taken.last += 1;
        let number = taken.last;
        let connection = Connection {
            socket,
            listener,
            since: Instant::now(),
            export: None,
            ends: false,
            gone: false,
        };
        taken.of.insert(number, connection);
        Some(Place {
            places: Arc::clone(self),
            number,
        })
    }

    pub(super) fn are_empty(&self) -> bool {
        lock(&self.taken).of.is_empty()
    }

    pub(super) fn shut(&self, how: Shutdown) {
        for connection in lock(&self.taken).of.values() {
            let _ = shutdown(&connection.socket, how);
        }
    }
}

impl Taken {
    /// The oldest of those without an export at the listeners that have the most of them.
    fn who_makes_way(&mut self, newcomer: usize, now: Instant) -> Option<&mut Connection> {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        let waiting = |of: &&mut Connection| of.export.is_none();
        for of in self.of.values_mut().filter(waiting) {
            *counts.entry(of.listener).or_default() += 1;
        }
        let most = *counts.values().max()?;
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let may_go = |of: &&mut Connection| {
            let is_late = own < most || now.duration_since(of.since) >= GRACE;
            is_late && counts.get(&of.listener) == Some(&most) && !of.ends
        };
        let all = self.of.values_mut().filter(waiting).filter(may_go);
        all.min_by_key(|of| of.since)
    }

    /// Number of clients per export; exports without clients are absent.
    fn clients(&self) -> HashMap<&str, usize> {
        let mut clients = HashMap::new();
        for name in self.of.values().filter_map(|of| of.export.as_deref()) {
            *clients.entry(name).or_default() += 1;
        }
        clients
    }

    /// Whether one more client of an export leaves enough for others.
    fn may_have(&self, export: &str, most: usize, exports: usize) -> bool {
        let clients = self.clients();
        let own = clients.get(export).copied().unwrap_or_default();
        let held: usize = clients.values().sum();
        let unused = exports.saturating_sub(clients.len());
        let share = (most / exports.max(1)).max(1);
        let mut all = self.of.values();
        let is_stuck = all.any(|of| of.gone && of.export.as_deref() == Some(export));
        (own == 0 || held + unused.min(most / 2) < most) && (!is_stuck || own < share)
    }
}

impl Place {
    /// Says that the client has an export; false where it may not, for want of room for others.
    pub(super) fn has(&self, export: &str) -> bool {
        let places = &self.places;
        let mut taken = lock(&places.taken);
        let may = taken.may_have(export, places.most, places.exports);
        if let Some(own) = taken.of.get_mut(&self.number).filter(|of| may && !of.ends) {
            own.export = Some(export.to_owned());
            return true;
        }
        false
    }

    /// Says that the client has gone.
    pub(super) fn leave(&self) {
        let mut taken = lock(&self.places.taken);
        if let Some(own) = taken.of.get_mut(&self.number) {
            own.gone = true;
        }
    }

    /// Whether it was given to somebody else.
    pub(super) fn is_lost(&self) -> bool {
        let taken = lock(&self.places.taken);
        taken.of.get(&self.number).is_some_and(|of| of.ends)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.taken).of.remove(&self.number);
        self.places.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Takes a place, and gives the other end of its socket.
    fn take(places: &Arc<Places>, listener: usize) -> Option<(Place, UnixStream)> {
        let (own, other) = UnixStream::pair().expect("sockets");
        Some((places.take(own.into(), listener)?, other))
    }

    /// Drops a place once its socket was shut, as its thread does.
    fn leave((place, mut other): (Place, UnixStream)) -> std::thread::JoinHandle<bool> {
        std::thread::spawn(move || {
            let end = std::io::Read::read(&mut other, &mut [0]);
            end.is_ok_and(|bytes| bytes == 0) && place.is_lost()
        })
    }

    #[test]
    fn of_the_listener_that_has_more_the_oldest_makes_way_at_once() {
        let places = Places::new(4, 1);
        let silent = take(&places, 1).expect("room");
        let rest: Vec<_> = (0..3).filter_map(|_| take(&places, 1)).collect();
        let oldest = leave(silent);
        let newcomer = take(&places, 0).expect("it comes from another listener");
        assert!(oldest.join().expect("no panic"));
        assert!(take(&places, 1).is_none(), "the others have their second");
        assert!(rest.iter().all(|(place, _)| !place.is_lost()));
        let second = take(&places, 0);
        assert!(
            second.is_none(),
            "the next one does not go, and is not waited for long"
        );
        assert!(!newcomer.0.is_lost());
    }

    #[test]
    fn of_its_own_listener_one_makes_way_after_a_second() {
        let places = Places::new(2, 1);
        let late = leave(take(&places, 0).expect("room"));
        let _other = take(&places, 0).expect("room");
        assert!(take(&places, 0).is_none(), "both are new");
        std::thread::sleep(GRACE);
        assert!(take(&places, 0).is_some());
        assert!(late.join().expect("no panic"));
    }

    #[test]
    fn clients_that_have_gone_leave_others_theirs() {
        let places = Places::new(8, 2);
        let enter = |name: &str| take(&places, 0).filter(|(place, _)| place.has(name));
        let stuck: Vec<_> = (0..3).filter_map(|_| enter("stuck")).collect();
        stuck.iter().for_each(|(place, _)| place.leave());
        let fourth = enter("stuck").expect("its share is four");
        assert!(enter("stuck").is_none());
        let other: Vec<_> = (0..4).filter_map(|_| enter("other")).collect();
        assert_eq!(other.len(), 4);
        drop((stuck, other));
        assert_eq!(
            (0..6)
                .filter_map(|_| enter("stuck").map(std::mem::forget))
                .count(),
            6
        );
        drop(fourth);
    }

    #[test]
    fn who_has_an_export_stays_and_leaves_room_for_other_exports() {
        let of = ["a", "b", "c"];
        let places = Places::new(6, of.len());
        let mut held = Vec::new();
        for _ in 0..6 {
            let taken = take(&places, 0).expect("room");
            if !taken.0.has(of[0]) {
                break;
            }
            held.push(taken);
        }
        assert_eq!(held.len(), 4, "two exports have no client yet");
        for export in &of[1..] {
            let taken = take(&places, 0).expect("room");
            assert!(taken.0.has(export));
            held.push(taken);
        }
        std::thread::sleep(GRACE);
        assert!(take(&places, 0).is_none() && take(&places, 1).is_none());
        assert!(held.iter().all(|(place, _)| !place.is_lost()));
    }
}
