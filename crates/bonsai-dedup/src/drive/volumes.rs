//! Volumes: whose they are, what is known of them, and what that takes.
//!
//! A volume that is forgotten begins another *life*: what was known of it is out of sight at once, and taken apart later
//! (`forget.rs`). A page says of which life it is.

use std::collections::HashMap;
use std::sync::Arc;

use super::pages::{BLOCKS, BLOCKS_BITS, NEXTS_BYTES, NO_PAGE, PAGE_BYTES};
use super::table::Table;
use super::{Group, Stamps, Volume};

/// What is known of a volume, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) pages: u32,
    /// Pages with pointers.
    pub(super) nexts: u32,
    /// Contents that it leads.
    pub(super) contents: u32,
    /// Blocks with contents.
    pub(super) blocks: u64,
    /// Blocks of zeroes in pages.
    pub(super) zeroes: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) group: Group,
    /// The number of the group, in the order in which they came.
    pub(super) group_at: usize,
    pub(super) life: u32,
    pub(super) table: Table,
    /// The hand in the ring of its pages, or [`NO_PAGE`].
    pub(super) ring: u32,
    pub(super) usage: Usage,
    is_open: bool,
    /// Where somebody asked for them.
    stamps: Option<Arc<Stamps>>,
}

/// What a group takes: its number, and its sum while room is made.
const GROUP_BYTES: usize = 6 * size_of::<usize>();

impl Entry {
    /// Bytes of what it knows, and of its contents, each of which takes so many.
    pub(super) fn held(&self, content: usize) -> usize {
        let usage = self.usage;
        usage.pages as usize * PAGE_BYTES
            + usage.nexts as usize * NEXTS_BYTES
            + usage.contents as usize * content
            + self.table.bytes()
    }

    /// Known blocks, zeroes among them.
    pub(super) fn known(&self) -> u64 {
        self.usage.blocks + self.usage.zeroes + self.table.zeroes()
    }
}

#[derive(Debug, Default)]
pub(super) struct Volumes {
    pub(super) entries: Vec<Entry>,
    /// Bytes of all tables.
    table_bytes: usize,
    groups: HashMap<Group, usize>,
    /// Volumes that have stamps.
    stamped: usize,
}

impl Volumes {
    pub(super) const ENTRY_BYTES: usize = size_of::<Entry>() + GROUP_BYTES;

    pub(super) fn add(&mut self, group: Group) -> Volume {
        let number = u32::try_from(self.entries.len()).expect("fewer than 2^32 volumes");
        let groups = self.groups.len();
        let group_at = *self.groups.entry(group).or_insert(groups);
        self.entries.push(Entry {
            group,
            group_at,
            life: 0,
            table: Table::default(),
            ring: NO_PAGE,
            usage: Usage::default(),
            is_open: true,
            stamps: None,
        });
        Volume(number)
    }

    pub(super) fn close(&mut self, volume: Volume) {
        if let Some(entry) = self.entries.get_mut(volume.index()) {
            entry.is_open = false;
            self.stamped -= usize::from(entry.stamps.take().is_some());
        }
    }

    pub(super) fn is_open(&self, volume: Volume) -> bool {
        self.get(volume).is_some_and(|entry| entry.is_open)
    }

    /// Counters for the writes of a volume, which are made when they are asked for.
    pub(super) fn make_stamps(&mut self, volume: Volume) -> Option<Arc<Stamps>> {
        let entry = self.entries.get_mut(volume.index())?;
        if !entry.is_open {
            return None;
        }
        self.stamped += usize::from(entry.stamps.is_none());
        Some(Arc::clone(entry.stamps.get_or_insert_default()))
    }

    pub(super) fn stamps(&self, volume: Volume) -> Option<&Arc<Stamps>> {
        self.get(volume)?.stamps.as_ref()
    }

    pub(super) fn get(&self, volume: Volume) -> Option<&Entry> {
        self.entries.get(volume.index())
    }

    pub(super) fn group(&self, volume: Volume) -> Group {
        self.entries[volume.index()].group
    }

    /// The usage of a volume, for a page of a life of it; none where that life is over.
    pub(super) fn usage(&mut self, (volume, life): (Volume, u32)) -> Option<&mut Usage> {
        let entry = self.entries.get_mut(volume.index())?;
        (entry.life == life).then_some(&mut entry.usage)
    }

    pub(super) fn is_alive(&self, (volume, life): (Volume, u32)) -> bool {
        self.get(volume).is_some_and(|entry| entry.life == life)
    }

    /// What was known of a volume, which begins another life.
    pub(super) fn end_life(&mut self, volume: Volume) -> Option<(Table, u32)> {
        let entry = self.entries.get_mut(volume.index())?;
        entry.life += 1;
        entry.usage = Usage::default();
        let table = std::mem::take(&mut entry.table);
        let ring = std::mem::replace(&mut entry.ring, NO_PAGE);
        self.table_bytes -= table.bytes();
        Some((table, ring))
    }

    /// Changes the table of a volume.
    pub(super) fn with_table<T>(
        &mut self,
        volume: Volume,
        change: impl FnOnce(&mut Table) -> T,
    ) -> Option<T> {
        let table = &mut self.entries.get_mut(volume.index())?.table;
        let before = table.bytes();
        let done = change(table);
        self.table_bytes = self.table_bytes - before + table.bytes();
        Some(done)
    }

    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.table_bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * Self::ENTRY_BYTES + self.stamped * Stamps::BYTES + self.table_bytes
    }

    /// Where a block is, when its page is there.
    #[inline]
    pub(super) fn slot(&self, volume: Volume, block: u64) -> Option<u32> {
        let index = u32::try_from(block >> BLOCKS_BITS).ok()?;
        let page = self.entries.get(volume.index())?.table.page(index)?;
        let offset = u32::try_from(block % u64::from(BLOCKS)).ok()?;
        Some(page << BLOCKS_BITS | offset)
    }

    /// Known blocks of all volumes.
    pub(super) fn known(&self) -> u64 {
        self.entries.iter().map(Entry::known).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = Volume> {
        (0..self.entries.len()).filter_map(|n| u32::try_from(n).ok().map(Volume))
    }
}
