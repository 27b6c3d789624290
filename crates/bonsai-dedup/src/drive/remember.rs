//! Changes of the map: a block joins a stack or leaves it.

use super::pages::{BLOCKS, BLOCKS_BITS, Cell, Mask, NEXTS_BYTES, NIL, Pages};
use super::table::{MAX_PAGES, Place};
use super::{Content, DriveMap, Group, Key, Learned, Volume};

/// Steps that the blocks of one page may take; after that, contents in whose middle one is are condemned.
const MOST_WALKED: u32 = 1 << 14;

impl<K: Key> DriveMap<K> {
    pub(super) fn group_of(&self, slot: u32) -> Group {
        self.volumes.group(self.pages.volume(slot))
    }

    pub(super) fn remember(&mut self, volume: Volume, block: u64, content: Content<K>) -> Learned {
        if !self.volumes.is_open(volume) || block >> BLOCKS_BITS >= MAX_PAGES {
            return Learned::Refused;
        }
        if self.is_known_as(volume, block, content) {
            return Learned::Again;
        }
        match content {
            Content::Zero => self.remember_zero(volume, block),
            Content::Key(key) => self.remember_key(volume, block, key),
        }
    }

    fn remember_key(&mut self, volume: Volume, block: u64, key: K) -> Learned {
        let Some(slot) = self.place_for(volume, block) else {
            return Learned::Refused;
        };
        let page = slot >> BLOCKS_BITS;
        self.pinned = Some(page);
        let learned = match self.pages.cell(slot) {
            Cell::Content(content) if self.contents.leader(content).is_none() => Learned::Refused,
            before => {
                if let Cell::Content(_) | Cell::Zero = before {
                    self.change(volume, block);
                    self.detach(slot, Cell::Unknown);
                }
                match self.pages.cell(slot) {
                    // What it was in was too long to take it out.
                    Cell::Content(_) => Learned::Refused,
                    _ => self.join(slot, key),
                }
            }
        };
        self.pinned = None;
        if learned == Learned::Refused {
            self.settle(page);
        }
        learned
    }

    /// A block has another content than was known, though nobody said that it was written: what was planned by the old
    /// one is void.
    pub(super) fn change(&mut self, volume: Volume, block: u64) {
        self.counters.changed += 1;
        if let Some(stamps) = self.volumes.stamps(volume) {
            stamps.void(block);
        }
    }

    fn is_known_as(&self, volume: Volume, block: u64, content: Content<K>) -> bool {
        match (self.cell(volume, block), content) {
            (Cell::Zero, Content::Zero) => true,
            (Cell::Content(number), Content::Key(key)) => {
                self.contents.touch(number);
                self.contents.leader(number).is_some() && self.contents.key(number) == key
            }
            _ => false,
        }
    }

    /// The block goes on top of the stack of its content.
    fn join(&mut self, slot: u32, key: K) -> Learned {
        let group = self.group_of(slot);
        if self.find(key, group).is_some() {
            while self.pages.next_growth(slot) > self.spare() {
                if !self.free_some(self.pages.volume(slot), NEXTS_BYTES) {
                    return Learned::Refused;
                }
            }
            // What went may have taken the content with it, or given it another number.
            if let Some(content) = self.find(key, group) {
                self.set_next(slot, self.contents.head(content));
                self.set_head(content, slot);
                self.contents.touch(content);
                self.set_cell(slot, Cell::Content(content));
                return Learned::Duplicate;
            }
        }
        if !self.room_for_content(slot, key, group) {
            return Learned::Refused;
        }
        let (pages, volumes) = (&self.pages, &self.volumes);
        let group_of = |slot| volumes.group(pages.volume(slot));
        let content = self.contents.add(key, group, slot, group_of);
        if let Some(usage) = self.volumes.usage(self.pages.owner(slot)) {
            usage.contents += 1;
        }
        self.set_next(slot, NIL);
        self.set_cell(slot, Cell::Content(content));
        Learned::New
    }

    pub(super) fn find(&self, key: K, group: Group) -> Option<u32> {
        self.contents.find(key, group, |slot| self.group_of(slot))
    }

    /// The place of a block, with a page made for it when there is none.
    pub(super) fn place_for(&mut self, volume: Volume, block: u64) -> Option<u32> {
        if let Some(slot) = self.volumes.slot(volume, block) {
            return Some(slot);
        }
        let index = u32::try_from(block >> BLOCKS_BITS).ok()?;
        loop {
            let entry = self.volumes.get(volume)?;
            // Zeroes of the page are in its cells then.
            let need = entry.table.growth(index, Place::Page(0)) + self.pages.growth();
            if need <= self.spare() {
                break;
            }
            if !self.free_some(volume, need) {
                return None;
            }
        }
        let entry = self.volumes.get(volume)?;
        let (life, ring) = (entry.life, entry.ring);
        let zeroes = match entry.table.place(index) {
            Place::Zeroes(mask) => mask,
            Place::None | Place::Page(_) => Mask::default(),
        };
        let page = self.pages.add((volume, life), index, zeroes, ring)?;
        self.volumes
            .with_table(volume, |table| table.set(index, Place::Page(page)));
        let entry = self.volumes.entries.get_mut(volume.index())?;
        if entry.ring == super::pages::NO_PAGE {
            entry.ring = page;
        }
        entry.usage.pages += 1;
        entry.usage.zeroes += u64::from(self.pages.zeroes(page));
        self.volumes.slot(volume, block)
    }

    pub(super) fn set_cell(&mut self, slot: u32, cell: Cell) {
        let (zeroes, blocks) = self.pages.set(slot, cell);
        if zeroes == 0 && blocks == 0 {
            return;
        }
        if let Some(usage) = self.volumes.usage(self.pages.owner(slot)) {
            usage.zeroes = usage.zeroes.wrapping_add_signed(zeroes);
            usage.blocks = usage.blocks.wrapping_add_signed(blocks);
        }
    }

    fn set_next(&mut self, slot: u32, next: u32) {
        if self.pages.set_next(slot, next)
            && let Some(usage) = self.volumes.usage(self.pages.owner(slot))
        {
            usage.nexts += 1;
        }
    }

    /// Another block leads: the content is its volume's to account for.
    fn set_head(&mut self, content: u32, slot: u32) {
        if self.volumes.len() > 1 || !self.dying.is_empty() {
            let (old, new) = (
                self.pages.owner(self.contents.head(content)),
                self.pages.owner(slot),
            );
            if old != new {
                if let Some(usage) = self.volumes.usage(old) {
                    usage.contents -= 1;
                }
                if let Some(usage) = self.volumes.usage(new) {
                    usage.contents += 1;
                }
            }
        }
        self.contents.set_head(content, slot);
    }

    /// Nothing is known of a block any more, but why.
    pub(super) fn unlink(&mut self, volume: Volume, block: u64, cell: Cell) {
        if let Some(slot) = self.volumes.slot(volume, block) {
            self.detach(slot, cell);
            self.settle(slot >> BLOCKS_BITS);
        } else {
            self.unlink_zero(volume, block);
        }
    }

    /// Takes a block out of its stack; says how many steps that took. The block of a condemned content stays where it is:
    /// nothing is known of it already.
    pub(super) fn detach(&mut self, slot: u32, cell: Cell) -> u32 {
        let mut steps = 0;
        if let Cell::Content(content) = self.pages.cell(slot) {
            if self.contents.leader(content).is_none() {
                return 0;
            }
            match self.leave(slot, content) {
                Some(taken) => steps = taken,
                None => return self.config.max_walk,
            }
        }
        self.set_cell(slot, cell);
        steps
    }

    /// None where it could not be taken out, and the content was condemned instead.
    fn leave(&mut self, slot: u32, content: u32) -> Option<u32> {
        let mut above = self.contents.leader(content)?;
        let beneath = self.pages.next(slot);
        if above == slot {
            if beneath == NIL {
                self.remove_content(content);
            } else {
                self.set_head(content, beneath);
            }
            self.set_next(slot, NIL);
            return Some(0);
        }
        for step in 0..self.config.max_walk {
            let next = self.pages.next(above);
            if next == slot {
                self.set_next(above, beneath);
                self.set_next(slot, NIL);
                return Some(step);
            }
            above = next;
        }
        self.counters.too_long += 1;
        self.condemn(content);
        None
    }

    /// The volume of the leader has one content less.
    pub(super) fn discharge(&mut self, content: u32) {
        let owner = self.pages.owner(self.contents.head(content));
        if let Some(usage) = self.volumes.usage(owner) {
            usage.contents -= 1;
        }
    }

    fn remove_content(&mut self, content: u32) {
        self.discharge(content);
        let (pages, volumes) = (&self.pages, &self.volumes);
        let group_of = |slot| volumes.group(pages.volume(slot));
        self.contents.remove(content, group_of);
    }

    /// Takes all blocks out of a page; says how many steps that took.
    pub(super) fn forget_page(&mut self, page: u32) -> u32 {
        let mut steps = BLOCKS / 16;
        for slot in Pages::slots(page) {
            match self.pages.cell(slot) {
                Cell::Unknown => {}
                Cell::Content(content)
                    if steps > MOST_WALKED && self.config.max_walk < u32::MAX =>
                {
                    if self
                        .contents
                        .leader(content)
                        .is_some_and(|head| head != slot)
                    {
                        self.condemn(content);
                    } else {
                        self.detach(slot, Cell::Unknown);
                    }
                }
                Cell::Content(_) => {
                    let walked = self.detach(slot, Cell::Unknown);
                    steps = steps.saturating_add(walked).saturating_add(1);
                }
                Cell::Written | Cell::Evicted | Cell::Zero => self.set_cell(slot, Cell::Unknown),
            }
        }
        self.settle(page);
        steps
    }

    /// A page without contents goes; which of its blocks are zeroes takes a bit for each.
    pub(super) fn settle(&mut self, page: u32) {
        if self.pages.contents(page) > 0 || self.pinned == Some(page) {
            return;
        }
        let gone = self.pages.remove(page);
        let owner = (gone.volume, gone.life);
        if !self.volumes.is_alive(owner) {
            let dying = self
                .dying
                .iter_mut()
                .filter(|of| of.owner == owner && of.ring == page);
            dying.for_each(|of| of.ring = gone.after);
            return;
        }
        let zeroes: u32 = gone.zeroes.iter().map(|word| word.count_ones()).sum();
        if let Some(entry) = self.volumes.entries.get_mut(gone.volume.index()) {
            entry.usage.pages -= 1;
            entry.usage.nexts -= u32::from(gone.has_nexts);
            entry.usage.zeroes -= u64::from(zeroes);
            if entry.ring == page {
                entry.ring = gone.after;
            }
        }
        let place = match zeroes {
            0 => Place::None,
            _ => Place::Zeroes(gone.zeroes),
        };
        self.volumes
            .with_table(gone.volume, |table| table.set(gone.index, place));
    }
}
