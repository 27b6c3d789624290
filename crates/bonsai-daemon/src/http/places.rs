//! Places: how many of something there are at a time, how many of them one client may have, and how
//! many are kept for root and the daemon's own user.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::who::Who;

/// What is counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Client {
    /// A user of this machine.
    User(u32),
    /// The pages of a user.
    Pages(u32),
    /// Whoever has a token of that name.
    Token(String),
    /// Somebody who has shown none.
    Address(IpAddr),
}

impl Client {
    /// Whoever asks, by whichever way.
    pub(super) fn of(who: &Who) -> Self {
        match who.uid {
            Some(uid) => Self::User(uid),
            None => Self::Token(who.name.clone()),
        }
    }

    /// Somebody at an address. Whoever has one of 127.0.0.0/8 or of an IPv6 network has them all.
    pub(super) fn at(ip: IpAddr) -> Self {
        Self::Address(match ip.to_canonical() {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if !ip.is_loopback() => {
                Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into()
            }
            ip => ip,
        })
    }

    /// Whether it is somebody for whom places are kept.
    fn administers(&self) -> bool {
        matches!(self, Self::User(uid) | Self::Pages(uid) if administers(*uid))
    }
}

/// Whether a user is root or the daemon's own.
pub(super) fn administers(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Room>);

#[derive(Debug)]
struct Room {
    all: usize,
    each: usize,
    kept: usize,
    taken: Mutex<BTreeMap<Client, usize>>,
    /// One has become free.
    freed: Notify,
}

impl Places {
    /// So many in all, so many of each client, and so many of all that are kept.
    pub(crate) fn new(all: usize, each: usize, kept: usize) -> Self {
        let taken = Mutex::default();
        Self(Arc::new(Room {
            all,
            each,
            kept,
            taken,
            freed: Notify::new(),
        }))
    }

    /// One of them for a client, as soon as there is one; nothing, if that takes too long.
    pub(super) async fn wait(&self, client: &Client, patience: Duration) -> Option<Place> {
        let waited = async {
            loop {
                // Before it is looked: one that becomes free meanwhile counts.
                let freed = self.0.freed.notified();
                if let Some(place) = self.take(client) {
                    return place;
                }
                freed.await;
            }
        };
        tokio::time::timeout(patience, waited).await.ok()
    }

    /// One of them for a client, if there is one.
    pub(super) fn take(&self, client: &Client) -> Option<Place> {
        let room = Arc::clone(&self.0);
        let mut taken = room.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(client).copied().unwrap_or(0);
        let is_free = if client.administers() {
            all < room.all
        } else {
            own < room.each && all < room.all - room.kept
        };
        if !is_free {
            return None;
        }
        taken.insert(client.clone(), own + 1);
        drop(taken);
        let client = client.clone();
        Some(Place { room, client })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    client: Client,
}

impl Drop for Place {
    fn drop(&mut self) {
        let taken = self.room.taken.lock();
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.client);
            }
        }
        drop(taken);
        self.room.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_places_but_those_who_administer() {
        let places = Places::new(8, 3, 2);
        let [a, b, c, root] = [u32::MAX - 1, u32::MAX - 2, u32::MAX - 3, 0].map(Client::User);
        let of_a: Vec<_> = (0..4).map(|_| places.take(&a)).collect();
        assert_eq!(of_a.iter().flatten().count(), 3);
        let of_b: Vec<_> = (0..3).filter_map(|_| places.take(&b)).collect();
        assert_eq!(of_b.len(), 3);
        assert!(places.take(&c).is_none(), "what is left is kept");
        let of_root: Vec<_> = (0..3).filter_map(|_| places.take(&root)).collect();
        assert_eq!(of_root.len(), 2);
        drop((of_a, of_root));
        assert!(places.take(&c).is_some() && places.take(&b).is_none());
    }

    #[test]
    fn who_waits_gets_the_next_place_or_none_in_time() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let places = Places::new(2, 1, 0);
            let client = Client::User(u32::MAX - 1);
            let first = places.take(&client).expect("a place");
            let none = places.wait(&client, Duration::from_millis(20)).await;
            assert!(none.is_none(), "they have one");
            let waits = places.wait(&client, Duration::from_secs(20));
            let ends = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                drop(first);
            };
            let (next, ()) = tokio::join!(waits, ends);
            assert!(next.is_some());
        });
    }

    #[test]
    fn who_has_one_address_of_a_network_has_all() {
        let at = |ip: &str| Client::at(ip.parse().expect("an address"));
        assert_eq!(at("127.0.0.1"), at("127.255.3.4"));
        assert_eq!(at("127.0.0.1"), at("::ffff:127.0.0.2"));
        assert_eq!(at("2001:db8:0:1::1"), at("2001:db8:0:1:ffff::"));
        for (one, other) in [
            ("192.0.2.1", "192.0.2.2"),
            ("2001:db8:0:1::1", "2001:db8:0:2::1"),
            ("::1", "127.0.0.1"),
        ] {
            assert_ne!(at(one), at(other));
        }
    }
}
