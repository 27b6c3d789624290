//! From (volume, block) to a place in a page.

use super::pages::{BLOCKS, BLOCKS_BITS, NO_PAGE};
use super::{Group, Volume};

/// Entries by which a volume's folder grows: pages of 64 MiB of disk at 4 KiB a block.
const STEP: usize = 64;

/// Pages of a volume at most: 2^32 blocks.
pub(super) const MAX_PAGES: u64 = 1 << 24;

#[derive(Debug)]
struct Entry {
    group: Group,
    open: bool,
    /// The page of each 256 blocks, or [`NO_PAGE`].
    folder: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Volumes {
    entries: Vec<Entry>,
    folder_bytes: usize,
}

impl Volumes {
    pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();

    pub(super) fn add(&mut self, group: Group) -> Volume {
        let number = u32::try_from(self.entries.len()).expect("fewer than 2^32 volumes");
        self.entries.push(Entry {
            group,
            open: true,
            folder: Vec::new(),
        });
        Volume(number)
    }

    pub(super) fn close(&mut self, volume: Volume) {
        if let Some(entry) = self.entries.get_mut(volume.index()) {
            entry.open = false;
            self.folder_bytes -= entry.folder.capacity() * size_of::<u32>();
            entry.folder = Vec::new();
        }
    }

    pub(super) fn is_open(&self, volume: Volume) -> bool {
        self.entries.get(volume.index()).is_some_and(|e| e.open)
    }

    pub(super) fn group(&self, volume: Volume) -> Group {
        self.entries[volume.index()].group
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.folder_bytes
    }

    /// Where a block is, when its page is there.
    #[inline]
    pub(super) fn slot(&self, volume: Volume, block: u64) -> Option<u32> {
        let index = usize::try_from(block >> BLOCKS_BITS).ok()?;
        let page = *self.entries.get(volume.index())?.folder.get(index)?;
        let offset = u32::try_from(block % u64::from(BLOCKS)).ok()?;
        (page != NO_PAGE).then_some(page << BLOCKS_BITS | offset)
    }

    /// Bytes that the folder needs more to have an entry for this page, and none when it has.
    pub(super) fn growth(&self, volume: Volume, index: usize) -> usize {
        let folder = &self.entries[volume.index()].folder;
        if index < folder.len() {
            return 0;
        }
        // The old one is there until the new one is filled.
        (index + 1).next_multiple_of(STEP) * size_of::<u32>()
    }

    pub(super) fn set(&mut self, volume: Volume, index: usize, page: u32) {
        let folder = &mut self.entries[volume.index()].folder;
        if index >= folder.len() {
            let before = folder.capacity();
            let length = (index + 1).next_multiple_of(STEP);
            folder.reserve_exact(length - folder.len());
            folder.resize(length, NO_PAGE);
            self.folder_bytes += (folder.capacity() - before) * size_of::<u32>();
        }
        folder[index] = page;
    }

    pub(super) fn clear(&mut self, volume: Volume, index: usize) {
        self.entries[volume.index()].folder[index] = NO_PAGE;
    }

    pub(super) fn pages(&self, volume: Volume) -> impl Iterator<Item = u32> + '_ {
        let folder = self.entries.get(volume.index()).map(|e| &e.folder[..]);
        let folder = folder.unwrap_or_default().iter();
        folder.copied().filter(|&page| page != NO_PAGE)
    }

    pub(super) fn folder_len(&self, volume: Volume) -> usize {
        self.entries
            .get(volume.index())
            .map_or(0, |e| e.folder.len())
    }

    pub(super) fn page(&self, volume: Volume, index: usize) -> Option<u32> {
        let page = *self.entries.get(volume.index())?.folder.get(index)?;
        (page != NO_PAGE).then_some(page)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = Volume> {
        (0..self.entries.len()).filter_map(|n| u32::try_from(n).ok().map(Volume))
    }

    pub(super) fn counted_bytes(&self) -> usize {
        let folders: usize = self.entries.iter().map(|e| e.folder.capacity()).sum();
        self.len() * size_of::<Entry>() + folders * size_of::<u32>()
    }
}
