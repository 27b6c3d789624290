//! Connections over TCP. Nobody knows whose they are until a token is shown: so those that have
//! shown none are few and have little time, and the oldest makes room for the next one. Those that
//! have are counted by whose token it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use governor::DefaultDirectRateLimiter;
use tokio::sync::Notify;

use super::auth::quota;
use super::places::{Client, Place, Places};

/// Connections of a listener without a token at a time.
pub(super) const MOST: usize = 64;

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
    /// What ends each of them.
    ends: BTreeMap<u64, Arc<Notify>>,
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

    /// One more, in the place of the oldest where there are many.
    pub(super) fn arrive(&self) -> Arc<Arrival> {
        let mut waiting = self.hall.waiting();
        if waiting.ends.len() >= MOST
            && let Some((_, end)) = waiting.ends.pop_first()
        {
            end.notify_one();
        }
        let number = waiting.next;
        waiting.next += 1;
        let end = Arc::new(Notify::new());
        waiting.ends.insert(number, Arc::clone(&end));
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

    /// Somebody has shown a token on it; whether there is a place for it.
    pub(super) fn is_of(&self, client: &Client) -> bool {
        let mut place = self.place();
        if place.is_none() {
            *place = self.hall.places.take(client);
            if place.is_some() {
                self.hall.waiting().ends.remove(&self.number);
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
        self.hall.waiting().ends.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn who_shows_no_token_makes_room_for_the_next() {
        let arrivals = Arrivals::new(Places::new(2, 1, 0));
        let ousted = |arrival: &Arrival| arrival.ousted().now_or_never().is_some();
        let known = arrivals.arrive();
        let (one, other) = (Client::Pages(u32::MAX - 1), Client::Pages(u32::MAX - 2));
        assert!(known.is_of(&one) && known.is_of(&one));
        let mut silent: Vec<_> = (0..=MOST).map(|_| arrivals.arrive()).collect();
        assert!(!ousted(&known), "it has shown one");
        assert!(ousted(&silent[0]) && !ousted(&silent[1]));
        // One that has ended makes room as well.
        drop(silent.pop());
        silent.push(arrivals.arrive());
        assert!(!ousted(&silent[1]));
        assert!(!silent[1].is_of(&one), "they have one already");
        assert!(silent[1].is_of(&other));
        drop(known);
        assert!(silent[2].is_of(&one));
    }
}
