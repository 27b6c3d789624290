//! What is known of blocks, in pages of 256.

use super::Volume;

/// Blocks of a page: a power of two.
pub(super) const BLOCKS: u32 = 1 << BLOCKS_BITS;
pub(super) const BLOCKS_BITS: u32 = 8;
const BLOCKS_LEN: usize = BLOCKS as usize;

/// No block: the end of a stack.
pub(super) const NIL: u32 = 0x3fff_ffff;
pub(super) const NO_PAGE: u32 = u32::MAX;

/// Pages at most, so that places of blocks keep two bits free.
const MAX_PAGES: usize = 1 << (30 - BLOCKS_BITS);

const UNKNOWN: u32 = 0;
const WRITTEN: u32 = 1;
const EVICTED: u32 = 2;
const ZERO: u32 = 3;
const FIRST: u32 = 4;

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Unknown,
    Written,
    Evicted,
    Zero,
    /// The number of its content.
    Content(u32),
}

impl Cell {
    fn packed(self) -> u32 {
        match self {
            Self::Unknown => UNKNOWN,
            Self::Written => WRITTEN,
            Self::Evicted => EVICTED,
            Self::Zero => ZERO,
            Self::Content(content) => content + FIRST,
        }
    }

    fn of(packed: u32) -> Self {
        match packed {
            UNKNOWN => Self::Unknown,
            WRITTEN => Self::Written,
            EVICTED => Self::Evicted,
            ZERO => Self::Zero,
            content => Self::Content(content - FIRST),
        }
    }

    fn is_known(self) -> bool {
        matches!(self, Self::Zero | Self::Content(_))
    }
}

#[derive(Debug)]
struct Page {
    volume: Volume,
    /// Which 256 blocks of the volume.
    index: u32,
    known: u32,
    touched: bool,
    cells: [u32; BLOCKS_LEN],
    /// The block beneath in the stack; only where there is any.
    nexts: Option<Box<[u32; BLOCKS_LEN]>>,
}

const NEXTS_BYTES: usize = size_of::<[u32; BLOCKS_LEN]>();
/// A page, and its pointer.
const PAGE_BYTES: usize = size_of::<Page>() + size_of::<Option<Box<Page>>>();

#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<Option<Box<Page>>>,
    free: Vec<u32>,
    known: u64,
    with_nexts: usize,
    hand: usize,
}

impl Pages {
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    pub(super) fn bytes(&self) -> usize {
        (self.pages.len() - self.free.len()) * size_of::<Page>()
            + self.with_nexts * NEXTS_BYTES
            + self.pages.capacity() * size_of::<Option<Box<Page>>>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Bytes that one more page needs, and its pointers beneath.
    pub(super) fn growth(&self) -> usize {
        let list = if self.free.is_empty() && self.pages.len() == self.pages.capacity() {
            // The list of pages is copied into one that is longer by an eighth.
            (self.pages.len() + self.step()) * size_of::<Option<Box<Page>>>()
        } else {
            0
        };
        PAGE_BYTES + NEXTS_BYTES + list
    }

    fn step(&self) -> usize {
        (self.pages.len() / 8).max(16)
    }

    /// A page for 256 blocks of a volume; none when there are as many as can be numbered.
    pub(super) fn add(&mut self, volume: Volume, index: u32) -> Option<u32> {
        let page = Box::new(Page {
            volume,
            index,
            known: 0,
            touched: true,
            cells: [UNKNOWN; BLOCKS_LEN],
            nexts: None,
        });
        if let Some(number) = self.free.pop() {
            self.pages[number as usize] = Some(page);
            return Some(number);
        }
        // The last one is left out: its last block would be NIL.
        if self.pages.len() + 1 >= MAX_PAGES {
            return None;
        }
        if self.pages.len() == self.pages.capacity() {
            self.pages.reserve_exact(self.step());
        }
        self.pages.push(Some(page));
        u32::try_from(self.pages.len() - 1).ok()
    }

    /// Gives a page back, in which nothing is known.
    pub(super) fn remove(&mut self, number: u32) -> (Volume, usize) {
        let page = self.pages[number as usize].take().expect("a page in use");
        debug_assert_eq!(page.known, 0, "a page with known blocks is kept");
        self.with_nexts -= usize::from(page.nexts.is_some());
        self.free.push(number);
        (page.volume, page.index as usize)
    }

    fn page(&self, slot: u32) -> &Page {
        let page = self.pages[(slot >> BLOCKS_BITS) as usize].as_deref();
        page.expect("a place is in a page in use")
    }

    fn page_mut(&mut self, slot: u32) -> &mut Page {
        let page = self.pages[(slot >> BLOCKS_BITS) as usize].as_deref_mut();
        page.expect("a place is in a page in use")
    }

    #[inline]
    pub(super) fn cell(&self, slot: u32) -> Cell {
        Cell::of(self.page(slot).cells[(slot % BLOCKS) as usize])
    }

    /// What is known of a block whose page may be gone.
    pub(super) fn cell_of(&self, slot: u32) -> Option<Cell> {
        let page = self.pages.get((slot >> BLOCKS_BITS) as usize)?.as_deref()?;
        page.cells
            .get((slot % BLOCKS) as usize)
            .map(|&cell| Cell::of(cell))
    }

    #[inline]
    pub(super) fn touch(&mut self, slot: u32) {
        self.page_mut(slot).touched = true;
    }

    pub(super) fn set(&mut self, slot: u32, cell: Cell) {
        let page = self.page_mut(slot);
        let place = &mut page.cells[(slot % BLOCKS) as usize];
        let before = Cell::of(*place).is_known();
        *place = cell.packed();
        match (before, cell.is_known()) {
            (false, true) => {
                page.known += 1;
                self.known += 1;
            }
            (true, false) => {
                page.known -= 1;
                self.known -= 1;
            }
            _ => (),
        }
    }

    #[inline]
    pub(super) fn next(&self, slot: u32) -> u32 {
        let nexts = self.page(slot).nexts.as_ref();
        nexts.map_or(NIL, |nexts| nexts[(slot % BLOCKS) as usize])
    }

    pub(super) fn set_next(&mut self, slot: u32, next: u32) {
        let page = self.page_mut(slot);
        if page.nexts.is_none() && next == NIL {
            return;
        }
        let fresh = page.nexts.is_none();
        let nexts = page
            .nexts
            .get_or_insert_with(|| Box::new([NIL; BLOCKS_LEN]));
        nexts[(slot % BLOCKS) as usize] = next;
        self.with_nexts += usize::from(fresh);
    }

    /// Bytes that a pointer in this block's page needs more.
    pub(super) fn next_growth(&self, slot: u32) -> usize {
        if self.page(slot).nexts.is_some() {
            0
        } else {
            NEXTS_BYTES
        }
    }

    #[inline]
    pub(super) fn place(&self, slot: u32) -> (Volume, u64) {
        let page = self.page(slot);
        let first = u64::from(page.index) << BLOCKS_BITS;
        (page.volume, first + u64::from(slot % BLOCKS))
    }

    pub(super) fn volume(&self, slot: u32) -> Volume {
        self.page(slot).volume
    }

    pub(super) fn is_empty(&self, slot: u32) -> bool {
        self.page(slot).known == 0
    }

    pub(super) fn slots(&self, page: u32) -> std::ops::Range<u32> {
        page << BLOCKS_BITS..(page << BLOCKS_BITS) + BLOCKS
    }

    /// The next page that was not used since the hand was there last, other than `keep`.
    pub(super) fn victim(&mut self, keep: Option<u32>) -> Option<u32> {
        for _ in 0..2 * self.pages.len() + 1 {
            let number = self.hand;
            self.hand = (number + 1) % self.pages.len().max(1);
            let name = u32::try_from(number).ok();
            match self.pages.get_mut(number).and_then(Option::as_deref_mut) {
                Some(page) if page.touched => page.touched = false,
                Some(_) if name != keep => return name,
                _ => (),
            }
        }
        None
    }

    /// Pages in use, each with the count it keeps and the one that is true.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        self.pages.iter().zip(0..).filter_map(|(page, number)| {
            let page = page.as_deref()?;
            let known = page.cells.iter().filter(|&&c| Cell::of(c).is_known());
            Some((number, u64::from(page.known), known.count() as u64))
        })
    }

    pub(super) fn counted_nexts(&self) -> usize {
        let pages = self.pages.iter().flatten();
        pages.filter(|page| page.nexts.is_some()).count()
    }

    pub(super) fn kept_nexts(&self) -> usize {
        self.with_nexts
    }
}
