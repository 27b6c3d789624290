//! The record of what was asked for: `links.json` in the runtime directory.
//!
//! It is gone with the kernel's own state when the machine restarts. It is written before the
//! kernel is asked, so that whoever comes after a crash in between completes what was begun. A
//! namespace is known by its cookie, which the kernel gives to no other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bonsai_link::{Group, Saved, Terms, Wanted};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::Error;

const VERSION: u32 = 1;
/// More than a hundred thousand interfaces.
const MOST: u64 = 64 << 20;

/// What is kept of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name when it was limited.
    pub name: String,
    /// What is wanted of it.
    pub terms: Terms,
    /// What somebody else had there, to be brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Saved>,
    /// Whether a place for filters (`clsact`) may have to go there, when the filters have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub going: bool,
    /// The target of the configuration that it is limited for; none by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether that target is the other end: what it sends, this receives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swapped: bool,
    /// What was wanted of it by hand before the configuration did, which is back afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand: Option<Terms>,
}

impl Entry {
    /// Whether nothing is wanted of it, and nothing is to be brought back or to go.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.terms.is_nothing() && self.adopted.is_none() && !self.going
    }
}

/// What is kept of a group of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// The target of the configuration that it is limited for.
    pub target: String,
    /// What is wanted of it.
    pub group: Group,
}

/// Whose something in a room is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// An interface, by its number.
    Link(u32),
    /// A group of processes, by its path.
    Group(String),
}

/// What is kept of an interface or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Link(Box<Entry>),
    Group(GroupEntry),
}

/// What is kept of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Its inode, by which it is found among those that there are.
    pub inode: u64,
    /// What it was called; nothing for the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its interfaces, by number.
    pub links: BTreeMap<u32, Entry>,
    /// Groups of processes that leave by them, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, GroupEntry>,
}

impl Room {
    /// Whether nothing is kept of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.groups.is_empty()
    }

    /// What is wanted there; of groups, without what there is of them now.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        let links = self.links.iter();
        let groups = self.groups.iter();
        Wanted {
            links: links
                .map(|(index, entry)| (*index, entry.terms.clone()))
                .collect(),
            groups: groups
                .map(|(path, entry)| (path.clone(), entry.group.clone()))
                .collect(),
            tree: BTreeMap::new(),
        }
    }

    /// Keeps what is to be done once limits of `before` are gone, so that it is done by whoever comes after a crash: what
    /// others had is to come back, and places for filters are to go.
    pub(crate) fn keep_what_is_due(&mut self, before: &Self) {
        for (index, had) in &before.links {
            let entry = self.links.get(index);
            let terms = entry.map(|entry| entry.terms.clone()).unwrap_or_default();
            let uplink = |terms: &Terms| terms.share.as_ref().map(|share| share.uplink);
            let goes = had.going || had.terms.rx.is_some() && terms.rx.is_none();
            let is_back = entry.is_some_and(|entry| entry.adopted.is_some());
            if goes || had.adopted.is_some() && !is_back {
                let entry = self.links.entry(*index).or_insert_with(|| Entry {
                    name: had.name.clone(),
                    ..Entry::default()
                });
                entry.going |= goes;
                if entry.adopted.is_none() {
                    entry.adopted.clone_from(&had.adopted);
                }
            }
            let left = uplink(&had.terms).filter(|of| Some(*of) != uplink(&terms));
            if let Some(entry) = left.and_then(|of| self.links.get_mut(&of)) {
                entry.going = true;
            }
        }
    }

    /// What is kept of one.
    pub(crate) fn get(&self, key: &Key) -> Option<Held> {
        match key {
            Key::Link(index) => {
                let entry = self.links.get(index).cloned();
                entry.map(|entry| Held::Link(Box::new(entry)))
            }
            Key::Group(path) => self.groups.get(path).cloned().map(Held::Group),
        }
    }

    /// Keeps something of one instead of what there was, or nothing.
    pub(crate) fn put(&mut self, key: &Key, held: Option<Held>) {
        match (key, held) {
            (Key::Link(index), Some(Held::Link(entry))) => {
                self.links.insert(*index, *entry);
            }
            (Key::Group(path), Some(Held::Group(entry))) => {
                self.groups.insert(path.clone(), entry);
            }
            (Key::Link(index), _) => {
                self.links.remove(index);
            }
            (Key::Group(path), _) => {
                self.groups.remove(path);
            }
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    #[serde(default)]
    rooms: BTreeMap<u64, Room>,
}

/// The beginning of names of files that are to replace the record.
const NEW: &str = ".links.";

/// Removes what writers have left that were killed. Others write nothing meanwhile: the lock is held.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(NEW.as_bytes()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn locked(folder: &Path, how: FlockOperation) -> Result<Option<File>, Error> {
    let path = folder.join("links.lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(&path, flags, Mode::from_raw_mode(0o600));
    match file.and_then(|file| flock(&file, how).map(|()| file)) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(Error::File {
            path,
            source: errno.into(),
        }),
    }
}

/// The record, and its lock where it may be changed.
#[derive(Debug)]
pub struct Book {
    path: PathBuf,
    record: Record,
    /// Held for as long as the book is open.
    _lock: Option<File>,
}

impl Book {
    /// Opens it to be changed; waits while somebody else does.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn lock(folder: &Path) -> Result<Self, Error> {
        let lock = locked(folder, FlockOperation::LockExclusive)?;
        let mut book = Self::read(folder)?;
        book._lock = lock;
        Ok(book)
    }

    /// Keeps others from changing anything, without reading it; nothing if somebody does just now.
    pub(crate) fn keep_others_out(folder: &Path) -> Result<Option<File>, Error> {
        locked(folder, FlockOperation::NonBlockingLockExclusive)
    }

    /// Opens it to be looked at.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("links.json");
        let of_file = |source| Error::File {
            path: path.clone(),
            source,
        };
        let damaged = |what: String| Error::Damaged {
            path: path.clone(),
            what,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let record = match open(&path, flags, Mode::empty()) {
            Err(Errno::NOENT) => Record {
                version: VERSION,
                rooms: BTreeMap::new(),
            },
            Err(errno) => return Err(of_file(errno.into())),
            Ok(file) => {
                let mut bytes = Vec::new();
                let mut file = File::from(file).take(MOST + 1);
                file.read_to_end(&mut bytes).map_err(of_file)?;
                if bytes.len() as u64 > MOST {
                    return Err(damaged(format!("more than {MOST} bytes are no record")));
                }
                let record: Record =
                    serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
                if record.version != VERSION {
                    let text = format!("it is of version {}, not {VERSION}", record.version);
                    return Err(damaged(text));
                }
                record
            }
        };
        Ok(Self {
            path,
            record,
            _lock: None,
        })
    }

    /// Namespaces, by cookie.
    #[must_use]
    pub fn rooms(&self) -> &BTreeMap<u64, Room> {
        &self.record.rooms
    }

    /// What is kept of a namespace.
    pub(crate) fn room(&mut self, cookie: u64) -> &mut Room {
        self.record.rooms.entry(cookie).or_default()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record.rooms.values().all(Room::is_empty)
    }

    /// Forgets all namespaces but these; whether there were others.
    pub(crate) fn forget_but(&mut self, stays: impl Fn(&u64) -> bool) -> bool {
        let before = self.record.rooms.len();
        self.record.rooms.retain(|cookie, _| stays(cookie));
        self.record.rooms.len() != before
    }

    /// Replaces the file as a whole; it is on disk afterwards.
    pub(crate) fn save(&mut self) -> Result<(), Error> {
        self.record.rooms.retain(|_, room| !room.is_empty());
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec(&self.record)?;
            sweep(folder)?;
            let mut file = tempfile::Builder::new()
                .prefix(NEW)
                .permissions(fs::Permissions::from_mode(0o600))
                .tempfile_in(folder)?;
            file.write_all(&bytes)?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().map_err(|source| Error::File {
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_writer_left_goes_and_no_link_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = folder.path().join(".links.AbCdEf");
        fs::write(&left, "half").expect("a file");
        let mut book = Book::lock(folder.path()).expect("a book");
        book.room(7).links.insert(3, Entry::default());
        book.save().expect("saved");
        drop(book);
        assert!(!left.exists());
        let again = Book::read(folder.path()).expect("a book");
        assert!(again.rooms()[&7].links.contains_key(&3));
        let path = folder.path().join("links.json");
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).expect("moved");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        Book::read(folder.path()).expect_err("it is a link");
    }
}
