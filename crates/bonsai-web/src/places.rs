//! Places for connections: so many in all, and so many for one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonsai_stream::serve::network;

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All are taken.
    All,
    /// Those of this address are.
    Address,
}

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    of: HashMap<IpAddr, u32>,
}

/// They.
#[derive(Debug)]
pub(crate) struct Places {
    most: u32,
    per_address: u32,
    taken: Mutex<Taken>,
}

impl Places {
    pub(crate) fn new(most: u32, per_address: u32) -> Self {
        Self {
            most,
            per_address,
            taken: Mutex::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, and how many are taken with it.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Result<(Place, u32), Full> {
        let owner = network(peer);
        let mut taken = self.taken();
        if taken.all >= self.most {
            return Err(Full::All);
        }
        let own = taken.of.entry(owner).or_default();
        if *own >= self.per_address {
            return Err(Full::Address);
        }
        *own += 1;
        taken.all += 1;
        let place = Place {
            places: Arc::clone(self),
            owner,
        };
        Ok((place, taken.all))
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    owner: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(own) = taken.of.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                taken.of.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_places_and_no_more() {
        let places = Arc::new(Places::new(3, 2));
        let take = |text: &str| places.take(text.parse().expect("an address"));
        let first = take("2001:db8::1").expect("a place");
        let (_second, count) = take("2001:db8::ffff:2").expect("a place");
        assert_eq!(count, 2);
        assert_eq!(take("2001:db8::3").expect_err("a third"), Full::Address);
        let (_other, _) = take("192.0.2.1").expect("somebody else");
        assert_eq!(take("192.0.2.2").expect_err("a fourth"), Full::All);
        drop(first);
        take("::ffff:192.0.2.1").expect("one is free");
    }
}
