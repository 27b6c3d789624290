//! What is known of blocks with contents, in pages of 256. The pages of a volume are a ring.

use std::sync::atomic::{AtomicBool, Ordering};

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

/// A bit for each block of a page.
pub(super) type Mask = [u64; BLOCKS_LEN / 64];

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
}

#[derive(Debug)]
struct Page {
    volume: Volume,
    /// Which life of the volume it is of: see `volumes.rs`.
    life: u32,
    /// Which 256 blocks of the volume.
    index: u32,
    /// The neighbours in the ring of the volume's pages.
    before: u32,
    after: u32,
    /// Blocks with contents, and blocks of zeroes.
    contents: u16,
    zeroes: u16,
    touched: AtomicBool,
    cells: [u32; BLOCKS_LEN],
    /// The block beneath in the stack; only where there is any.
    nexts: Option<Box<[u32; BLOCKS_LEN]>>,
}

pub(super) const NEXTS_BYTES: usize = size_of::<[u32; BLOCKS_LEN]>();
/// A page, and its pointer.
pub(super) const PAGE_BYTES: usize = size_of::<Page>() + size_of::<Option<Box<Page>>>();

#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<Option<Box<Page>>>,
    free: Vec<u32>,
    with_nexts: usize,
}

/// A page that has gone.
pub(super) struct Gone {
    pub(super) volume: Volume,
    pub(super) life: u32,
    pub(super) index: u32,
    pub(super) zeroes: Mask,
    pub(super) has_nexts: bool,
    /// The next of its ring; [`NO_PAGE`] where it was the last one.
    pub(super) after: u32,
}

impl Pages {
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

    /// A page for 256 blocks of a volume, in the ring of `ring`; none when there are as many as can be numbered.
    pub(super) fn add(
        &mut self,
        (volume, life): (Volume, u32),
        index: u32,
        zeroes: Mask,
        ring: u32,
    ) -> Option<u32> {
        let is_zero = |at: usize| zeroes[at / 64] >> (at % 64) & 1 != 0;
        let count: u32 = zeroes.iter().map(|word| word.count_ones()).sum();
        let page = Box::new(Page {
            volume,
            life,
            index,
            before: 0,
            after: 0,
            contents: 0,
            zeroes: u16::try_from(count).unwrap_or(0),
            touched: AtomicBool::new(true),
            cells: std::array::from_fn(|at| if is_zero(at) { ZERO } else { UNKNOWN }),
            nexts: None,
        });
        let number = if let Some(number) = self.free.pop() {
            self.pages[number as usize] = Some(page);
            number
        } else {
            // The last one is left out: its last block would be NIL.
            if self.pages.len() + 1 >= MAX_PAGES {
                return None;
            }
            if self.pages.len() == self.pages.capacity() {
                self.pages.reserve_exact(self.step());
            }
            self.pages.push(Some(page));
            u32::try_from(self.pages.len() - 1).ok()?
        };
        self.enter_ring(number, ring);
        Some(number)
    }

    /// Puts a page before `ring`, where the hand comes last.
    fn enter_ring(&mut self, number: u32, ring: u32) {
        let (before, after) = match ring {
            NO_PAGE => (number, number),
            ring => (self.numbered(ring).before, ring),
        };
        let page = self.numbered_mut(number);
        (page.before, page.after) = (before, after);
        self.numbered_mut(before).after = number;
        self.numbered_mut(after).before = number;
    }

    /// Gives a page back, in which no content is known.
    pub(super) fn remove(&mut self, number: u32) -> Gone {
        let page = self.pages[number as usize].take().expect("a page in use");
        debug_assert_eq!(page.contents, 0, "a page with contents is kept");
        self.with_nexts -= usize::from(page.nexts.is_some());
        self.free.push(number);
        let after = if page.after == number {
            NO_PAGE
        } else {
            self.numbered_mut(page.before).after = page.after;
            self.numbered_mut(page.after).before = page.before;
            page.after
        };
        let mut zeroes = Mask::default();
        if page.zeroes > 0 {
            for (at, cell) in page.cells.iter().enumerate() {
                zeroes[at / 64] |= u64::from(*cell == ZERO) << (at % 64);
            }
        }
        Gone {
            volume: page.volume,
            life: page.life,
            index: page.index,
            zeroes,
            has_nexts: page.nexts.is_some(),
            after,
        }
    }

    fn numbered(&self, page: u32) -> &Page {
        let page = self.pages[page as usize].as_deref();
        page.expect("a page in use")
    }

    fn numbered_mut(&mut self, page: u32) -> &mut Page {
        let page = self.pages[page as usize].as_deref_mut();
        page.expect("a page in use")
    }

    #[inline]
    fn page(&self, slot: u32) -> &Page {
        self.numbered(slot >> BLOCKS_BITS)
    }

    #[inline]
    fn page_mut(&mut self, slot: u32) -> &mut Page {
        self.numbered_mut(slot >> BLOCKS_BITS)
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

    /// Notes that a block of the page was asked for.
    #[inline]
    pub(super) fn touch(&self, slot: u32) {
        let touched = &self.page(slot).touched;
        if !touched.load(Ordering::Relaxed) {
            touched.store(true, Ordering::Relaxed);
        }
    }

    /// Says by how much zeroes become more, and contents.
    pub(super) fn set(&mut self, slot: u32, cell: Cell) -> (i64, i64) {
        let page = self.page_mut(slot);
        let place = &mut page.cells[(slot % BLOCKS) as usize];
        let before = Cell::of(*place);
        *place = cell.packed();
        let count = |is: fn(&Cell) -> bool| (is(&before), is(&cell));
        let (zeroes, contents) = (
            count(|cell| *cell == Cell::Zero),
            count(|cell| matches!(cell, Cell::Content(_))),
        );
        page.zeroes = page.zeroes + u16::from(zeroes.1) - u16::from(zeroes.0);
        page.contents = page.contents + u16::from(contents.1) - u16::from(contents.0);
        let more = |(before, now): (bool, bool)| i64::from(now) - i64::from(before);
        (more(zeroes), more(contents))
    }

    #[inline]
    pub(super) fn next(&self, slot: u32) -> u32 {
        let nexts = self.page(slot).nexts.as_ref();
        nexts.map_or(NIL, |nexts| nexts[(slot % BLOCKS) as usize])
    }

    /// Whether it took memory for pointers.
    pub(super) fn set_next(&mut self, slot: u32, next: u32) -> bool {
        let page = self.page_mut(slot);
        if page.nexts.is_none() && next == NIL {
            return false;
        }
        let fresh = page.nexts.is_none();
        let nexts = page
            .nexts
            .get_or_insert_with(|| Box::new([NIL; BLOCKS_LEN]));
        nexts[(slot % BLOCKS) as usize] = next;
        self.with_nexts += usize::from(fresh);
        fresh
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

    /// The volume, and which life of it.
    pub(super) fn owner(&self, slot: u32) -> (Volume, u32) {
        let page = self.page(slot);
        (page.volume, page.life)
    }

    /// Blocks of the page with contents.
    pub(super) fn contents(&self, page: u32) -> u16 {
        self.numbered(page).contents
    }

    /// Blocks of the page that are zeroes.
    pub(super) fn zeroes(&self, page: u32) -> u16 {
        self.numbered(page).zeroes
    }

    pub(super) fn slots(page: u32) -> std::ops::Range<u32> {
        page << BLOCKS_BITS..(page << BLOCKS_BITS) + BLOCKS
    }

    /// From a page of a ring on, the first that was not used since the hand was there last, other than `keep`. All that
    /// the hand goes past count as not used; after `steps` the next one is taken.
    pub(super) fn victim(&self, ring: u32, keep: Option<u32>, steps: usize) -> Option<u32> {
        if ring == NO_PAGE {
            return None;
        }
        let mut at = ring;
        for step in 0.. {
            let page = self.numbered(at);
            let is_used = page.touched.swap(false, Ordering::Relaxed);
            if Some(at) != keep && (!is_used || step >= steps) {
                return Some(at);
            }
            if page.after == at {
                return (Some(at) != keep).then_some(at);
            }
            at = page.after;
        }
        None
    }

    /// The page after this one in its ring.
    pub(super) fn after(&self, page: u32) -> u32 {
        self.numbered(page).after
    }

    /// Pages in use: number, owner, index, contents and zeroes as counted, contents and zeroes in truth, and whether it
    /// has pointers.
    pub(super) fn all(&self) -> impl Iterator<Item = Seen> + '_ {
        self.pages.iter().zip(0..).filter_map(|(page, number)| {
            let page = page.as_deref()?;
            let count = |is: fn(&Cell) -> bool| page.cells.iter().map(|&c| Cell::of(c)).filter(is);
            Some(Seen {
                number,
                owner: (page.volume, page.life),
                kept: (page.contents.into(), page.zeroes.into()),
                counted: (
                    count(|cell| matches!(cell, Cell::Content(_))).count(),
                    count(|cell| *cell == Cell::Zero).count(),
                ),
                has_nexts: page.nexts.is_some(),
            })
        })
    }

    pub(super) fn kept_nexts(&self) -> usize {
        self.with_nexts
    }
}

/// A page, for checks.
pub(super) struct Seen {
    pub(super) number: u32,
    pub(super) owner: (Volume, u32),
    pub(super) kept: (usize, usize),
    pub(super) counted: (usize, usize),
    pub(super) has_nexts: bool,
}
