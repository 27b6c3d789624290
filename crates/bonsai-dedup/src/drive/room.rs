//! Who gives way when the map is full.
//!
//! # Rules
//! - What a volume holds is its pages, its part of the table, and the contents that it leads.
//! - Room is made in the group that holds most, and there in the volume that holds most; of two that hold as much, in the
//!   one that asks. So groups share the map in equal parts, and volumes the part of their group (max-min
//!   fairness): what one does not use is lent to the others, and given back when it wants it. One that
//!   holds less than its share never loses what it knows to another, whatever that one does.
//! - Within a volume the hand goes round (CLOCK). A content that is evicted is one whose blocks are all the volume's; a page
//!   takes only its own blocks out of their stacks.

use super::pages::{Cell, NEXTS_BYTES, NIL, PAGE_BYTES};
use super::volumes::Entry;
use super::{Contents, DriveMap, Group, Key, Volume};

/// Steps of a hand, so that one eviction is done in some microseconds.
const STEPS: usize = 64;
/// Blocks that are told of another number of their content at once.
const SHRINK_STEPS: u32 = 1 << 13;
/// Blocks of a content that is evicted as a whole, at most.
const SHORT: usize = 16;

impl<K: Key> DriveMap<K> {
    /// Bytes that are left.
    pub(super) fn spare(&self) -> usize {
        self.config.max_bytes.saturating_sub(self.bytes())
    }

    /// Makes some room for so many bytes that a volume wants; false where there is nothing to be had for it.
    pub(super) fn free_some(&mut self, volume: Volume, need: usize) -> bool {
        if self.reclaim(256) || self.shrink() {
            return true;
        }
        let Some(most) = self.holds_most(volume, need) else {
            return false;
        };
        self.evict_page(most) || self.evict_zeroes(most)
    }

    /// The volume that gives way: the one that would hold most if the one that asks had what it wants.
    fn holds_most(&mut self, asks: Volume, need: usize) -> Option<Volume> {
        let held = |of: Volume, entry: &Entry| {
            entry.held(Contents::<K>::EACH) + if of == asks { need } else { 0 }
        };
        let sums = &mut self.sums;
        sums.clear();
        sums.resize(self.volumes.groups(), 0);
        for (of, entry) in self.volumes.numbers().zip(&self.volumes.entries) {
            sums[entry.group_at] += held(of, entry);
        }
        let own = self.volumes.get(asks).map(|entry| entry.group_at);
        let groups = sums.iter().enumerate();
        let group = groups.max_by_key(|(group, held)| (**held, Some(*group) == own));
        let group = group.map(|(group, _)| group);
        let entries = self.volumes.numbers().zip(&self.volumes.entries);
        let inside = entries.filter(|(_, entry)| Some(entry.group_at) == group);
        let most = inside.max_by_key(|(of, entry)| (held(*of, entry), *of == asks));
        most.map(|(of, _)| of)
    }

    /// Gives back entries that contents do not use any more, or a part of what is to be done for that; false where
    /// they are few.
    pub(super) fn shrink(&mut self) -> bool {
        let Some(numbers) = self.contents.last_chunk() else {
            return false;
        };
        // A chunk that is emptied in part stays usable: nothing has to resume.
        match self.empty(numbers) {
            true => self.contents.drop_last_chunk(),
            false => self.contents.keep_last_chunk(),
        }
        true
    }

    /// Gives contents other numbers; false where that is too much for once.
    fn empty(&mut self, numbers: std::ops::Range<u32>) -> bool {
        let mut steps = 0;
        for content in numbers {
            let Some(leader) = self.contents.head_of(content) else {
                continue;
            };
            let mut blocks = 0;
            let mut slot = leader;
            while slot != NIL && blocks < self.config.max_walk {
                slot = self.pages.next(slot);
                blocks += 1;
            }
            if slot != NIL {
                self.counters.too_long += 1;
                self.condemn(content);
                return false;
            }
            let to = self.contents.renumber(content, self.group_of(leader));
            let mut slot = leader;
            while slot != NIL {
                self.pages.set(slot, Cell::Content(to));
                slot = self.pages.next(slot);
            }
            steps += blocks;
            if steps > SHRINK_STEPS {
                return false;
            }
        }
        true
    }

    fn evict_page(&mut self, volume: Volume) -> bool {
        let Some(entry) = self.volumes.get(volume) else {
            return false;
        };
        let usage = entry.usage;
        let pages = usage.pages as usize * PAGE_BYTES + usage.nexts as usize * NEXTS_BYTES;
        if entry.table.leaf_bytes() > pages + usage.contents as usize * Contents::<K>::EACH
            && self.evict_zeroes(volume)
        {
            return true;
        }
        let Some(entry) = self.volumes.get(volume) else {
            return false;
        };
        let Some(page) = self.pages.victim(entry.ring, self.pinned, STEPS) else {
            return false;
        };
        let after = self.pages.after(page);
        if let Some(entry) = self.volumes.entries.get_mut(volume.index()) {
            entry.ring = after;
        }
        self.counters.pages_evicted += 1;
        self.forget_page(page);
        true
    }

    fn evict_zeroes(&mut self, volume: Volume) -> bool {
        let done = self
            .volumes
            .with_table(volume, super::table::Table::forget_zeroes);
        let done = done == Some(true);
        self.counters.zeroes_evicted += u64::from(done);
        done
    }

    pub(super) fn room_for_content(&mut self, slot: u32, key: K, group: Group) -> bool {
        let volume = self.pages.volume(slot);
        while !self.contents.has_room(key, group, self.spare()) {
            if self.reclaim(256) {
                continue;
            }
            let Some(most) = self.holds_most(volume, Contents::<K>::EACH) else {
                return false;
            };
            if !self.evict_content(most, slot) && !self.evict_page(most) && !self.evict_zeroes(most)
            {
                return false;
            }
        }
        true
    }

    /// Forgets a content that a volume leads, and that no other one has.
    fn evict_content(&mut self, volume: Volume, keep: u32) -> bool {
        let pages = &self.pages;
        let is_its = |contents: &Contents<K>, content: u32| {
            let mut slot = contents.head(content);
            for _ in 0..SHORT {
                if slot == NIL {
                    return true;
                }
                if pages.volume(slot) != volume {
                    return false;
                }
                slot = pages.next(slot);
            }
            false
        };
        let Some(content) = self.contents.victim(STEPS, is_its) else {
            return false;
        };
        self.counters.contents_evicted += 1;
        self.forget_content(content, keep);
        true
    }

    /// Forgets a content and all its blocks, which are few; the page of `keep` stays, also when nothing is left in it.
    fn forget_content(&mut self, content: u32, keep: u32) {
        let mut slot = self.contents.head(content);
        while slot != NIL {
            let beneath = self.pages.next(slot);
            self.detach(slot, Cell::Evicted);
            if keep >> super::pages::BLOCKS_BITS != slot >> super::pages::BLOCKS_BITS {
                self.settle(slot >> super::pages::BLOCKS_BITS);
            }
            slot = beneath;
        }
    }
}
