//! The tables that programs read: of interfaces, and of groups of processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::groups::{At, Known};
use crate::objects::MAJOR;
use crate::tc::Handle;

use super::code::{Which, code};
use super::{Map, Value, load, tables_of};

/// More interfaces than a machine has.
const INTERFACES: u32 = 65_536;
/// Groups that are told apart, each at some uplinks.
const GROUPS: u32 = 262_144;

/// Bytes of a key of each table.
const BY_INTERFACE: usize = 4;
const BY_GROUP: usize = 16;

/// What a packet that came in by an interface belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The class, `major:minor`.
    pub(crate) class: u32,
    /// The block that it goes out through; 0 for none.
    pub(crate) ifb: u32,
}

fn value(first: u32, second: u32) -> Value {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&first.to_ne_bytes());
    value[4..].copy_from_slice(&second.to_ne_bytes());
    value
}

fn numbers(value: Value) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value;
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

/// What is known of interfaces.
#[derive(Debug)]
pub(crate) struct Table(Map<BY_INTERFACE>);

impl Table {
    /// Makes an empty one.
    pub(crate) fn new() -> Result<Self, Error> {
        let map = Map::new(INTERFACES, "bonsai_class");
        map.map(Self).map_err(Error::Bpf)
    }

    /// Gives an interface an entry, or takes it away.
    pub(crate) fn set(&self, device: u32, entry: Option<Entry>) -> Result<(), Error> {
        let value = entry.map(|entry| value(entry.class, entry.ifb));
        let answer = self.0.set(device.to_ne_bytes(), value);
        answer.map_err(Error::Bpf)
    }

    /// All that is in it.
    pub(crate) fn all(&self) -> Result<Vec<(u32, Entry)>, Error> {
        let all = self.0.all(INTERFACES).map_err(Error::Bpf)?;
        let entry = |(key, value)| {
            let (class, ifb) = numbers(value);
            (u32::from_ne_bytes(key), Entry { class, ifb })
        };
        Ok(all.into_iter().map(entry).collect())
    }

    /// Gives the kernel a program that reads this table and, where it looks at groups, theirs.
    pub(crate) fn program(
        &self,
        which: Which,
        groups: Option<(&GroupTable, u8)>,
    ) -> Result<OwnedFd, Error> {
        let groups = groups.map(|(table, deepest)| (table.as_fd(), deepest));
        let code = code(which, self.0.0.as_fd(), groups);
        load(&code, which.name()).map_err(Error::Bpf)
    }
}

/// What is known of groups of processes, at each uplink.
#[derive(Debug)]
pub(crate) struct GroupTable(Map<BY_GROUP>);

impl GroupTable {
    /// Makes an empty one.
    pub(crate) fn new() -> Result<Self, Error> {
        let map = Map::new(GROUPS, "bonsai_groups");
        map.map(Self).map_err(Error::Bpf)
    }

    /// The same, once more.
    pub(crate) fn try_clone(&self) -> Result<Self, Error> {
        let fd = self.0.0.try_clone().map_err(Error::Bpf)?;
        Ok(Self(Map(fd)))
    }

    /// Gives a group an entry, or takes it away.
    pub(crate) fn set(&self, (id, uplink): At, known: Option<Known>) -> Result<(), Error> {
        let mut key = [0; BY_GROUP];
        key[..8].copy_from_slice(&id.to_ne_bytes());
        key[8..12].copy_from_slice(&uplink.to_ne_bytes());
        let class = |slot: u16| match slot {
            0 => 0,
            slot => Handle::of(MAJOR, slot).0,
        };
        let value = known.map(|known| value(class(known.own), class(known.newcomers)));
        self.0.set(key, value).map_err(Error::Bpf)
    }

    /// All that is in it.
    pub(crate) fn all(&self) -> Result<Vec<(At, Known)>, Error> {
        let all = self.0.all(GROUPS).map_err(Error::Bpf)?;
        let entry = |(key, value): ([u8; BY_GROUP], Value)| {
            let [id @ .., e, f, g, h, _, _, _, _] = key;
            let (own, newcomers) = numbers(value);
            let known = Known {
                own: Handle(own).minor(),
                newcomers: Handle(newcomers).minor(),
            };
            let at = (u64::from_ne_bytes(id), u32::from_ne_bytes([e, f, g, h]));
            (at, known)
        };
        Ok(all.into_iter().map(entry).collect())
    }
}

impl AsFd for GroupTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// The tables that programs read.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) links: Option<Table>,
    pub(crate) groups: Option<GroupTable>,
}

impl Tables {
    /// Adds those that a program reads, by its number, as far as there are none yet.
    pub(crate) fn add_of(&mut self, program: u32) -> Result<(), Error> {
        for (table, key) in tables_of(program).map_err(Error::Bpf)? {
            match usize::try_from(key) {
                Ok(BY_INTERFACE) if self.links.is_none() => {
                    self.links = Some(Table(Map(table)));
                }
                Ok(BY_GROUP) if self.groups.is_none() => {
                    self.groups = Some(GroupTable(Map(table)));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
