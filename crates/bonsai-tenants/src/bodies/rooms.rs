//! Network namespaces that services are in, kept open, and what is counted there.
//!
//! ```text
//!   book ── what is limited ──┐
//!   kernel ── slots, blocks ──┴──> Line of a link ──> Source ──> dump, once a look ──> bytes, waits
//! ```
//!
//! # Invariants
//! 1. At a look each device is asked at most once, and only if somebody is counted there.
//! 2. A socket in a namespace keeps it alive. So one that nobody else holds is let go
//!    ([`Rooms::keep`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use bonsai_link::{Events, Link, Site};

use super::pace::Pace;
use super::room::{Limited, Room, Row};
use crate::book::Book;
use crate::error::Error;

/// An interface of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    /// The cookie of its namespace.
    pub(super) room: u64,
    /// Its number there.
    pub(super) index: u32,
    /// Whether the service sends what it receives.
    pub(super) turned: bool,
}

/// What counts a direction of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The interface itself.
    Interface,
    /// The tree at its root.
    Tree,
    /// A class on a device.
    Class(u32, u16),
}

/// What counts an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// What it sends.
    pub(super) tx: Source,
    /// What it receives.
    pub(super) rx: Source,
    /// The class that a part of what it receives waits in, too.
    pub(super) further: Option<Source>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Rooms {
    folder: PathBuf,
    pub(super) ours: u64,
    rooms: BTreeMap<u64, Room>,
    look: u64,
    /// The book's file as it was read last: when it was written, and its inode.
    book: Option<(std::time::SystemTime, u64)>,
    book_pace: Pace,
}

impl Rooms {
    /// With our own namespace; the book is in `folder`.
    pub(super) fn open(folder: PathBuf) -> Result<Self, Error> {
        let room = Room::open(None)?;
        let ours = room.site.cookie()?;
        let mut rooms = Self {
            folder,
            ours,
            rooms: BTreeMap::from([(ours, room)]),
            look: 0,
            book: None,
            book_pace: Pace::default(),
        };
        rooms.list()?;
        Ok(rooms)
    }

    /// Our own, and its interfaces when they were listed last.
    pub(super) fn own(&mut self) -> Option<(&mut Site, &[Link])> {
        let room = self.rooms.get_mut(&self.ours)?;
        Some((&mut room.site, &room.links))
    }

    /// The one of our own namespace that has a name.
    pub(super) fn named(&self, name: &str) -> Option<&Link> {
        let room = self.rooms.get(&self.ours)?;
        let name_of = |place: &usize| room.links[*place].name.as_str();
        let found = room.by_name.binary_search_by_key(&name, name_of);
        found.ok().map(|place| &room.links[room.by_name[place]])
    }

    /// Lists the interfaces of all where something was heard of them.
    ///
    /// # Errors
    /// If those of our own cannot be listed. Others are let go.
    pub(super) fn list(&mut self) -> Result<(), Error> {
        let ours = self.ours;
        let mut failed = Ok(());
        self.rooms.retain(|cookie, room| {
            let listed = room.list();
            let fine = listed.is_ok();
            if *cookie == ours {
                failed = listed;
            }
            fine || *cookie == ours
        });
        if failed.is_err() {
            // A socket that is deaf is replaced.
            let mut room = Room::open(None)?;
            room.list()?;
            self.rooms.insert(ours, room);
            self.book = None;
        }
        Ok(())
    }

    /// Whether an interface was there when they were listed last.
    pub(super) fn has(&self, cookie: u64, index: u32) -> bool {
        let room = self.rooms.get(&cookie);
        room.is_some_and(|room| room.has(index))
    }

    /// Opens another namespace, if it is not open; its cookie.
    pub(super) fn enter(&mut self, namespace: &OwnedFd) -> Result<u64, Error> {
        let mut room = Room::open(Some(namespace))?;
        let cookie = room.site.cookie()?;
        if let std::collections::btree_map::Entry::Vacant(entry) = self.rooms.entry(cookie) {
            room.list()?;
            entry.insert(room);
            self.book = None;
        }
        Ok(cookie)
    }

    /// Lets all go but these and our own.
    pub(super) fn keep(&mut self, used: &BTreeSet<u64>) {
        let ours = self.ours;
        self.rooms
            .retain(|cookie, _| *cookie == ours || used.contains(cookie));
    }

    /// Begins a look. Whether interfaces came, went or changed since the last one.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.look += 1;
        self.read_book(now);
        let (look, ours) = (self.look, self.ours);
        let mut changed = false;
        // A socket that is broken says nothing any more, so all may have changed.
        self.rooms.retain(|cookie, room| {
            let heard = room.events.heard();
            room.unlisted |= heard.as_ref().map_or(true, |heard| heard.links);
            changed |= room.unlisted;
            if heard.is_err()
                && *cookie == ours
                && let Ok(events) = Events::open(None)
            {
                room.events = events;
            }
            heard.is_ok() || *cookie == ours
        });
        for room in self.rooms.values_mut() {
            room.asked = [0, room.asked[0]];
            room.at_ns = 0;
            if room.stale && room.pace.is_due(now, true) {
                room.see(look);
            }
        }
        changed
    }

    /// Reads what is limited, if that was written since.
    fn read_book(&mut self, now: Instant) {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(self.folder.join("links.json")).ok();
        let file = file.and_then(|file| Some((file.modified().ok()?, file.ino())));
        if file == self.book || !self.book_pace.is_due(now, true) {
            return;
        }
        let start = Instant::now();
        // One that cannot be read says nothing of what is in force.
        if let Ok(book) = Book::read(&self.folder) {
            self.book = file;
            for (cookie, room) in &mut self.rooms {
                let entries = book.rooms().get(cookie).map(|of| of.links.iter());
                let limited = entries.into_iter().flatten().map(|(index, entry)| {
                    let terms = &entry.terms;
                    let limited = Limited {
                        tx: terms.tx.is_some(),
                        rx: terms.rx.is_some(),
                        uplink: terms.share.as_ref().map(|share| share.uplink),
                    };
                    (*index, limited)
                });
                let limited: BTreeMap<u32, Limited> = limited.collect();
                if limited != room.limited {
                    room.limited = limited;
                    room.stale = true;
                }
            }
        }
        self.book_pace.done(start.elapsed());
    }

    /// What counts an interface.
    pub(super) fn line(&self, port: Port) -> Line {
        let room = self.rooms.get(&port.room);
        let limited = room.and_then(|room| Some((room, room.limited.get(&port.index)?)));
        let Some((room, limited)) = limited else {
            return Line {
                tx: Source::Interface,
                rx: Source::Interface,
                further: None,
            };
        };
        let slot = room.slots.get(&port.index);
        let class = |device: Option<u32>| Some(Source::Class(device?, *slot?));
        let block = room.blocks.get(&port.index).copied();
        let block = class(block.filter(|_| limited.rx));
        let uplink = class(limited.uplink);
        Line {
            tx: match limited.tx {
                true => Source::Tree,
                false => Source::Interface,
            },
            rx: block.or(uplink).unwrap_or(Source::Interface),
            further: block.and(uplink),
        }
    }

    /// What a tree or class of an interface has; `None` if there is none now.
    pub(super) fn row(&mut self, port: Port, source: Source) -> Option<Row> {
        let look = self.look;
        let room = self.rooms.get_mut(&port.room)?;
        let row = match source {
            Source::Interface => return None,
            Source::Tree => return room.tree(port.index, look),
            Source::Class(device, minor) => room.class(device, minor, look),
        };
        // A limit that was just written down is not yet made, or has another place than before.
        room.stale |= row.is_none();
        row
    }

    /// What went through an interface: sent and received.
    pub(super) fn traffic(&mut self, port: Port) -> Option<[u64; 2]> {
        let look = self.look;
        let room = self.rooms.get_mut(&port.room)?;
        room.traffic(port.index, look)
    }

    /// When something was counted last in a namespace at this look, ns; 0 if nothing was.
    pub(super) fn at_ns(&self, cookie: u64) -> u64 {
        self.rooms.get(&cookie).map_or(0, |room| room.at_ns)
    }
}
