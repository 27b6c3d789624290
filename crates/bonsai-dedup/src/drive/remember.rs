//! Changes of the map: a block joins a stack or leaves it, and what has to go for it.

use super::pages::{BLOCKS_BITS, Cell, NIL};
use super::volumes::MAX_PAGES;
use super::{Content, DriveMap, Group, Key, Learned, Volume};

impl<K: Key> DriveMap<K> {
    pub(super) fn group_of(&self, slot: u32) -> Group {
        self.volumes.group(self.pages.volume(slot))
    }

    pub(super) fn remember(&mut self, volume: Volume, block: u64, content: Content<K>) -> Learned {
        if !self.volumes.is_open(volume) {
            return Learned::Refused;
        }
        if self.is_known_as(volume, block, content) {
            return Learned::Again;
        }
        let Some(slot) = self.place_for(volume, block) else {
            return Learned::Refused;
        };
        self.pinned = Some(slot >> BLOCKS_BITS);
        if let Cell::Content(_) | Cell::Zero = self.pages.cell(slot) {
            self.counters.changed += 1;
            self.detach(slot, Cell::Unknown);
        }
        let learned = match content {
            Content::Zero => {
                self.pages.set(slot, Cell::Zero);
                Learned::New
            }
            Content::Key(key) => self.join(slot, key),
        };
        self.pinned = None;
        if learned == Learned::Refused {
            self.drop_if_empty(slot);
        }
        learned
    }

    fn is_known_as(&mut self, volume: Volume, block: u64, content: Content<K>) -> bool {
        let slot = self.volumes.slot(volume, block);
        match (slot.map(|slot| self.pages.cell(slot)), content) {
            (Some(Cell::Zero), Content::Zero) => true,
            (Some(Cell::Content(number)), Content::Key(key)) => {
                self.contents.touch(number);
                self.contents.key(number) == key
            }
            _ => false,
        }
    }

    /// The block goes on top of the stack of its content.
    fn join(&mut self, slot: u32, key: K) -> Learned {
        let group = self.group_of(slot);
        let known = self.find(key, group);
        if let Some(content) = known {
            if self.pages.next_growth(slot) > self.spare() && !self.free_page(slot) {
                return Learned::Refused;
            }
            // A page that went may have taken the content with it.
            if self.find(key, group) == Some(content) {
                self.pages.set_next(slot, self.contents.head(content));
                self.contents.set_head(content, slot);
                self.contents.touch(content);
                self.pages.set(slot, Cell::Content(content));
                return Learned::Duplicate;
            }
        }
        if !self.room_for_content(slot) {
            return Learned::Refused;
        }
        let (pages, volumes) = (&self.pages, &self.volumes);
        let group_of = |slot| volumes.group(pages.volume(slot));
        let content = self.contents.add(key, group, slot, group_of);
        self.pages.set_next(slot, NIL);
        self.pages.set(slot, Cell::Content(content));
        Learned::New
    }

    pub(super) fn find(&self, key: K, group: Group) -> Option<u32> {
        self.contents.find(key, group, |slot| self.group_of(slot))
    }

    /// The place of a block, with a page made for it when there is none.
    fn place_for(&mut self, volume: Volume, block: u64) -> Option<u32> {
        if let Some(slot) = self.volumes.slot(volume, block) {
            return Some(slot);
        }
        let number = block >> BLOCKS_BITS;
        if number >= MAX_PAGES {
            return None;
        }
        let index = usize::try_from(number).ok()?;
        let mut need = self.volumes.growth(volume, index) + self.pages.growth();
        while need > self.spare() {
            self.evict_page()?;
            need = self.volumes.growth(volume, index) + self.pages.growth();
        }
        let page = self.pages.add(volume, u32::try_from(number).ok()?)?;
        self.volumes.set(volume, index, page);
        self.volumes.slot(volume, block)
    }

    /// Bytes that are left.
    pub(super) fn spare(&self) -> usize {
        self.config.max_bytes.saturating_sub(self.bytes())
    }

    fn room_for_content(&mut self, slot: u32) -> bool {
        while !self.contents.has_room(self.spare()) {
            let Some(content) = self.contents.victim() else {
                return false;
            };
            self.counters.contents_evicted += 1;
            self.forget_content(content, slot);
        }
        true
    }

    /// Makes room by a page that is not the one of `slot`.
    fn free_page(&mut self, slot: u32) -> bool {
        while self.pages.next_growth(slot) > self.spare() {
            if self.evict_page().is_none() {
                return false;
            }
        }
        true
    }

    pub(super) fn evict_page(&mut self) -> Option<()> {
        let page = self.pages.victim(self.pinned)?;
        self.counters.pages_evicted += 1;
        self.forget_page(page);
        Some(())
    }

    /// Nothing is known of a block any more, but why.
    pub(super) fn unlink(&mut self, volume: Volume, block: u64, cell: Cell) {
        if let Some(slot) = self.volumes.slot(volume, block) {
            self.detach(slot, cell);
            self.drop_if_empty(slot);
        }
    }

    /// Takes a block out of its stack.
    fn detach(&mut self, slot: u32, cell: Cell) {
        if let Cell::Content(content) = self.pages.cell(slot) {
            self.leave(slot, content);
        }
        self.pages.set(slot, cell);
    }

    fn leave(&mut self, slot: u32, content: u32) {
        let beneath = self.pages.next(slot);
        let mut above = self.contents.head(content);
        if above == slot {
            if beneath == NIL {
                self.remove_content(content);
            } else {
                self.contents.set_head(content, beneath);
            }
            self.pages.set_next(slot, NIL);
            return;
        }
        for _ in 0..self.config.max_walk {
            let next = self.pages.next(above);
            if next == slot {
                self.pages.set_next(above, beneath);
                self.pages.set_next(slot, NIL);
                return;
            }
            above = next;
        }
        self.counters.too_long += 1;
        self.forget_content(content, slot);
    }

    fn remove_content(&mut self, content: u32) {
        let (pages, volumes) = (&self.pages, &self.volumes);
        let group_of = |slot| volumes.group(pages.volume(slot));
        self.contents.remove(content, group_of);
    }

    /// Forgets a content and all its blocks; the page of `keep` stays, also when nothing is left in it.
    fn forget_content(&mut self, content: u32, keep: u32) {
        let mut slot = self.contents.head(content);
        self.remove_content(content);
        while slot != NIL {
            let beneath = self.pages.next(slot);
            self.pages.set_next(slot, NIL);
            self.pages.set(slot, Cell::Evicted);
            if keep >> BLOCKS_BITS != slot >> BLOCKS_BITS {
                self.drop_if_empty(slot);
            }
            slot = beneath;
        }
    }

    pub(super) fn forget_page(&mut self, page: u32) {
        for slot in self.pages.slots(page) {
            // A walk that is too long forgets the block as well.
            if self.pages.cell(slot) != Cell::Unknown {
                self.detach(slot, Cell::Unknown);
            }
        }
        self.drop_if_empty(page << BLOCKS_BITS);
    }

    fn drop_if_empty(&mut self, slot: u32) {
        let page = slot >> BLOCKS_BITS;
        if self.pages.is_empty(slot) && self.pinned != Some(page) {
            let (volume, index) = self.pages.remove(page);
            self.volumes.clear(volume, index);
        }
    }
}
