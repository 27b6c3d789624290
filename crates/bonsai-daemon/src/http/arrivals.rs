//! Connections over TCP. Their client is not known until a token is shown: so those that have
//! shown none have little time and a share for each client, and the client with most makes room for the next one.
//! Connections with a token are counted by its owner.
//!
//! # Invariants
//! 1. There are [`MOST`] without a token, and [`OF_EACH`] of them of one client: a user of this machine, where the kernel
//!    says which, otherwise an address.
//! 2. Room is made by the client that comes, where it has its share, otherwise by the one that has most; first by those
//!    that have said nothing, the oldest first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use governor::DefaultDirectRateLimiter;
use tokio::sync::Notify;

use super::auth::quota;
use super::places::{Client, Place, Places};

/// Connections of a listener without a token at a time.
pub(super) const MOST: usize = 1024;

/// The part of one client: at a thousand a second from one that is hostile, each has half a second to say something.
pub(super) const OF_EACH: usize = 512;

/// How long a connection may show none.
pub(super) const TIME: Duration = Duration::from_secs(10);

/// Those of a listener.
#[derive(Debug)]
pub(super) struct Arrivals {
    hall: Arc<Hall>,
}

#[derive(Debug)]
struct Hall {
    /// For those that have shown a token.
    places: Places,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, Waiter>,
    /// The same by client, silent ones first, the oldest first.
    order: BTreeSet<(Client, bool, u64)>,
    /// Their number, of each client.
    counts: BTreeMap<Client, usize>,
}

#[derive(Debug)]
struct Waiter {
    client: Client,
    /// Its end.
    end: Arc<Notify>,
    /// True once it has shaken hands, or asked for something.
    spoke: bool,
}

impl Waiting {
    fn of(&self, client: &Client) -> usize {
        self.counts.get(client).copied().unwrap_or(0)
    }

    fn insert(&mut self, client: Client, end: Arc<Notify>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.order.insert((client.clone(), false, number));
        *self.counts.entry(client.clone()).or_default() += 1;
        let waiter = Waiter {
            client,
            end,
            spoke: false,
        };
        self.all.insert(number, waiter);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.all.remove(&number)?;
        let client = waiter.client.clone();
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
        self.order.remove(&(client, waiter.spoke, number));
        Some(waiter)
    }

    fn speaks(&mut self, number: u64) {
        let Some(waiter) = self.all.get_mut(&number).filter(|waiter| !waiter.spoke) else {
            return;
        };
        waiter.spoke = true;
        let client = waiter.client.clone();
        self.order.remove(&(client.clone(), false, number));
        self.order.insert((client, true, number));
    }

    /// The client that has most.
    fn largest(&self) -> Option<Client> {
        let largest = self.counts.iter().max_by_key(|(_, count)| **count);
        largest.map(|(client, _)| client.clone())
    }

    /// Ends one of a client.
    fn end_one_of(&mut self, client: &Client) {
        let from = (client.clone(), false, 0);
        let first = self.order.range(from..).next();
        let number = first.filter(|(of, ..)| of == client).map(|first| first.2);
        if let Some(waiter) = number.and_then(|number| self.remove(number)) {
            waiter.end.notify_one();
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Arrival {
    hall: Arc<Hall>,
    number: u64,
    end: Arc<Notify>,
    place: Mutex<Option<Place>>,
    /// How often files of the page are asked for on it without a token.
    files: OnceLock<DefaultDirectRateLimiter>,
}

impl Hall {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals {
    /// None yet. Those that show a token take such places.
    pub(super) fn new(places: Places) -> Self {
        let waiting = Mutex::default();
        let hall = Arc::new(Hall { places, waiting });
        Self { hall }
    }

    /// One more of a client, in the place of another one where there are many.
    pub(super) fn arrive(&self, client: Client) -> Arc<Arrival> {
        let mut waiting = self.hall.waiting();
        if waiting.of(&client) >= OF_EACH {
            waiting.end_one_of(&client);
        } else if waiting.all.len() >= MOST
            && let Some(largest) = waiting.largest()
        {
            waiting.end_one_of(&largest);
        }
        let end = Arc::new(Notify::new());
        let number = waiting.insert(client, Arc::clone(&end));
        Arc::new(Arrival {
            hall: Arc::clone(&self.hall),
            number,
            end,
            place: Mutex::default(),
            files: OnceLock::new(),
        })
    }
}

impl Arrival {
    fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was said on it: silent ones make room before it.
    pub(super) fn speaks(&self) {
        self.hall.waiting().speaks(self.number);
    }

    /// Somebody has shown a token on it; whether there is a place for it.
    pub(super) fn is_of(&self, client: &Client) -> bool {
        let mut place = self.place();
        if place.is_none() {
            *place = self.hall.places.take(client);
            if place.is_some() {
                self.hall.waiting().remove(self.number);
            }
        }
        place.is_some()
    }

    /// Whether one more file of the page may be asked for on it, of so many a second.
    pub(super) fn lets_file(&self, requests: u32) -> bool {
        let limiter = || DefaultDirectRateLimiter::direct(quota(requests));
        self.files.get_or_init(limiter).check().is_ok()
    }

    /// Waits until it is to make room.
    pub(super) async fn ousted(&self) {
        self.end.notified().await;
        if self.place().is_some() {
            // A token was shown just then.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until its time is over, for good if a token was shown.
    pub(super) async fn overdue(&self) {
        tokio::time::sleep(TIME).await;
        if self.place().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.hall.waiting().remove(self.number);
    }
}

/// The client at the other end: a user of this machine, where the kernel says which.
pub(super) fn client(from: SocketAddr, to: SocketAddr) -> Client {
    let is_local = from.ip().to_canonical().is_loopback();
    let uid = is_local
        .then(|| bonsai_host::sockets::user_of(from, to))
        .flatten();
    uid.map_or_else(|| Client::at(from.ip()), Client::User)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn at(ip: &str) -> Client {
        Client::at(ip.parse().expect("an address"))
    }

    fn ousted(arrival: &Arrival) -> bool {
        arrival.ousted().now_or_never().is_some()
    }

    #[test]
    fn who_shows_no_token_makes_room_for_the_next() {
        let arrivals = Arrivals::new(Places::new(2, 1, 0));
        let come = || arrivals.arrive(at("192.0.2.1"));
        let known = come();
        let (one, other) = (Client::Pages(u32::MAX - 1), Client::Pages(u32::MAX - 2));
        assert!(known.is_of(&one) && known.is_of(&one));
        let mut silent: Vec<_> = (0..=OF_EACH).map(|_| come()).collect();
        assert!(!ousted(&known), "it has shown one");
        assert!(ousted(&silent[0]) && !ousted(&silent[1]));
        // One that has ended makes room as well.
        drop(silent.pop());
        silent.push(come());
        assert!(!ousted(&silent[1]));
        assert!(!silent[1].is_of(&one), "they have one already");
        assert!(silent[1].is_of(&other));
        drop(known);
        assert!(silent[2].is_of(&one));
    }

    #[test]
    fn a_client_with_many_makes_room_for_others_and_silent_ones_first() {
        let arrivals = Arrivals::new(Places::new(1, 1, 0));
        let few: Vec<_> = (0..3).map(|_| arrivals.arrive(Client::User(7))).collect();
        let spoke = arrivals.arrive(at("192.0.2.1"));
        spoke.speaks();
        let mut flood: Vec<_> = (0..10 * OF_EACH)
            .map(|_| arrivals.arrive(at("192.0.2.1")))
            .collect();
        assert!(
            few.iter().all(|arrival| !ousted(arrival)),
            "of another client"
        );
        assert!(!ousted(&spoke), "it has said something");
        assert_eq!(arrivals.hall.waiting().of(&at("192.0.2.1")), OF_EACH);
        // From very many addresses.
        for i in 0..2 * MOST {
            let ip = std::net::Ipv6Addr::from_bits((i as u128) << 64);
            flood.push(arrivals.arrive(Client::at(ip.into())));
        }
        assert!(arrivals.hall.waiting().all.len() <= MOST);
        assert!(
            arrivals.hall.waiting().of(&at("192.0.2.1")) <= 2,
            "they had most"
        );
    }
}
