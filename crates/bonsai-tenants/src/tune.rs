//! Rates that move many times a second: changed in the kernel without a round, which looks at
//! everything.
//!
//! # Invariants
//! 1. Only rates are changed, and only of what the last round put into force in our own namespace:
//!    whatever else is different waits for a round.
//! 2. The next round compares with what was put into force here, so that nobody takes it for the
//!    doing of somebody else.
//! 3. The book is behind until [`Keeper::note`]; what it says was wanted a moment before.

use std::collections::BTreeMap;

use bonsai_link::{Group, Seen, Site};

use crate::book::{Book, Entry};
use crate::error::Error;
use crate::keep::Keeper;
use crate::wish::Wish;

/// What has become of rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuned {
    /// They are in force.
    Done,
    /// Some of them are of who is not there, or inside somebody's namespace, or somebody else
    /// changes something just now: a round makes them so, and it need not be at once.
    Later,
    /// More than rates is different: it takes a round.
    Round,
}

/// What tuning stands on.
#[derive(Debug, Default)]
pub(crate) struct Tuning {
    /// One for all times, by whose port our own doing is known.
    site: Option<Site>,
    cookie: u64,
    /// What was there after the last round, unless that has changed something.
    seen: Option<Seen>,
    /// What is in force, or waits.
    wishes: BTreeMap<String, Wish>,
    /// The interfaces of those that are in force.
    placed: BTreeMap<String, Placed>,
    /// The paths of groups that are, and their uplinks.
    groups: BTreeMap<String, (String, u32)>,
    /// Whether the book is behind.
    is_behind: bool,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    index: u32,
    swapped: bool,
    uplink: Option<u32>,
}

impl Tuning {
    /// A round begins.
    pub(crate) fn begin(&mut self, wishes: &BTreeMap<String, Wish>) {
        self.wishes.clone_from(wishes);
        self.placed.clear();
        self.groups.clear();
        self.seen = None;
        self.is_behind = false;
    }

    /// All is as wanted there.
    pub(crate) fn saw(&mut self, seen: Seen) {
        self.seen = Some(seen);
    }

    /// One is in force, as the book says.
    pub(crate) fn placed(&mut self, cookie: u64, name: &str, index: u32, entry: &Entry) {
        self.cookie = cookie;
        let placed = Placed {
            index,
            swapped: entry.swapped,
            uplink: entry.terms.share.as_ref().map(|share| share.uplink),
        };
        self.placed.insert(name.to_owned(), placed);
    }

    /// A group is in force.
    pub(crate) fn placed_group(&mut self, cookie: u64, name: &str, path: &str, uplink: u32) {
        self.cookie = cookie;
        let placed = (path.to_owned(), uplink);
        self.groups.insert(name.to_owned(), placed);
    }
}

impl Keeper {
    /// Puts rates into force that differ from those of the last round, or were tuned since.
    ///
    /// # Errors
    /// If the book's lock, or our own namespace, cannot be used.
    pub fn tune(&mut self, wishes: &BTreeMap<String, Wish>) -> Result<Tuned, Error> {
        let tuning = &mut self.tuning;
        if !wishes.keys().eq(tuning.wishes.keys()) {
            return Ok(Tuned::Round);
        }
        let pairs = wishes.iter().zip(tuning.wishes.values());
        let moved: Vec<_> = pairs.filter(|((_, new), old)| new != old).collect();
        if !moved
            .iter()
            .all(|((_, new), old)| new.is_same_but_rates(old))
        {
            return Ok(Tuned::Round);
        }
        if moved.is_empty() {
            return Ok(Tuned::Done);
        }
        let moved: Vec<(&String, &Wish)> = moved.into_iter().map(|(new, _)| new).collect();
        let placed = |(name, wish): &(&String, &Wish)| {
            let at = tuning.placed.get(*name)?;
            Some((at.index, wish.terms(at.swapped, at.uplink)))
        };
        let terms: Vec<_> = moved.iter().filter_map(placed).collect();
        let group = |(name, wish): &(&String, &Wish)| {
            let (path, uplink) = tuning.groups.get(*name)?;
            Some((path.clone(), wish.group(*uplink).ok()?))
        };
        let groups: Vec<_> = moved.iter().filter_map(group).collect();
        let all = terms.len() + groups.len() == moved.len();
        if !terms.is_empty() || !groups.is_empty() {
            let Some(from) = self.made.get(&tuning.cookie) else {
                return Ok(Tuned::Round);
            };
            let mut to = from.clone();
            to.links.extend(terms);
            for (path, group) in groups {
                let class = to.groups.get(&path).and_then(|had| had.class);
                to.groups.insert(path, Group { class, ..group });
            }
            let Some(_alone) = Book::keep_others_out(&self.folder)? else {
                return Ok(Tuned::Later);
            };
            let site = match &mut tuning.site {
                Some(site) => site,
                none => none.insert(Site::open(None)?),
            };
            let seen = match &tuning.seen {
                Some(seen) => seen,
                None => tuning.seen.insert(site.see()?),
            };
            match site.tune(seen, from, &to) {
                Ok(Some(_)) => {}
                // A round finds out what is wrong, and with whom.
                Ok(None) | Err(_) => return Ok(Tuned::Round),
            }
            self.made.insert(tuning.cookie, to);
            tuning.is_behind = true;
        }
        for (name, wish) in moved {
            tuning.wishes.insert(name.clone(), wish.clone());
        }
        Ok(if all { Tuned::Done } else { Tuned::Later })
    }

    /// Writes the rates that were tuned into the book.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn note(&mut self) -> Result<(), Error> {
        let tuning = &mut self.tuning;
        let made = self.made.get(&tuning.cookie);
        let Some(made) = made.filter(|_| tuning.is_behind) else {
            tuning.is_behind = false;
            return Ok(());
        };
        let mut book = Book::lock(&self.folder)?;
        let ours = tuning.placed.values().map(|at| at.index);
        let room = book.room(tuning.cookie);
        for index in ours {
            if let (Some(entry), Some(terms)) = (room.links.get_mut(&index), made.links.get(&index))
                && entry.target.is_some()
            {
                entry.terms.clone_from(terms);
            }
        }
        for (path, _) in tuning.groups.values() {
            if let (Some(entry), Some(group)) = (room.groups.get_mut(path), made.groups.get(path)) {
                entry.group.clone_from(group);
            }
        }
        book.save()?;
        tuning.is_behind = false;
        Ok(())
    }

    /// Whether the book is behind.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.tuning.is_behind
    }

    /// The port by which the kernel says that something was tuned, to whoever listens.
    ///
    /// # Errors
    /// If there is no way to the kernel.
    pub fn port(&mut self) -> Result<u32, Error> {
        let site = match &mut self.tuning.site {
            Some(site) => site,
            none => none.insert(Site::open(None)?),
        };
        Ok(site.port())
    }
}
