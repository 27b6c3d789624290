//! From the number of a block to a page, and which blocks of a volume are zeroes where no page is.
//!
//! Two levels: a leaf is for 1,024 pages of 256 blocks, 1 GiB of disk at 4 KiB a block. Zeroes cost no entry: a leaf of
//! nothing but zeroes is one word of the upper level, a page of nothing but zeroes one of its leaf, and
//! else they take a bit for each block of the page.

use super::pages::{BLOCKS_BITS, Mask};

/// Pages of a volume at most: 2^32 blocks.
pub(super) const MAX_PAGES: u64 = 1 << 24;

/// Pages of a leaf.
pub(super) const LEAF: u32 = 1 << LEAF_BITS;
pub(super) const LEAF_BITS: u32 = 10;

const NONE: u32 = u32::MAX;
const ZERO: u32 = u32::MAX - 1;
/// With this, the rest is the number of a mask; without, that of a page.
const MASK: u32 = 1 << 31;

pub(super) const FULL: Mask = [u64::MAX; 4];
const EMPTY: Mask = [0; 4];

/// What is known of 256 blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    None,
    /// Blocks that are zeroes: not none of them.
    Zeroes(Mask),
    /// What a page says.
    Page(u32),
}

#[derive(Debug, Default)]
enum Branch {
    #[default]
    None,
    /// All blocks of it are zeroes.
    Zero,
    Leaf(Box<Leaf>),
}

#[derive(Debug)]
struct Leaf {
    entries: [u32; LEAF as usize],
    /// Entries that are not [`NONE`].
    used: u32,
    /// Entries that are [`ZERO`].
    zero: u32,
    masks: Vec<Masked>,
}

#[derive(Debug)]
struct Masked {
    mask: Mask,
    /// Whose it is: the number of the entry.
    of: u32,
}

/// Masks by which a leaf's list of them grows.
const STEP: usize = 16;

pub(super) const LEAF_BYTES: usize = size_of::<Leaf>();
/// What one more mask takes at most, when its list grows.
pub(super) const MASK_BYTES: usize = STEP * size_of::<Masked>();
const BRANCH_BYTES: usize = size_of::<Branch>();

/// What is known of a volume's blocks.
#[derive(Debug, Default)]
pub(super) struct Table {
    branches: Vec<Branch>,
    /// Leaves and their masks.
    leaf_bytes: usize,
    /// Blocks that are zeroes, but for those of pages.
    zeroes: u64,
    /// The next branch whose zeroes are forgotten for want of room.
    hand: usize,
}

const fn branch(page: u32) -> usize {
    (page >> LEAF_BITS) as usize
}

const fn entry(page: u32) -> usize {
    (page % LEAF) as usize
}

fn count(mask: &Mask) -> u64 {
    mask.iter().map(|word| u64::from(word.count_ones())).sum()
}

impl Leaf {
    fn of(entry: u32) -> Box<Self> {
        let all = if entry == ZERO { LEAF } else { 0 };
        Box::new(Self {
            entries: [entry; LEAF as usize],
            used: all,
            zero: all,
            masks: Vec::new(),
        })
    }

    fn bytes(&self) -> usize {
        LEAF_BYTES + self.masks.capacity() * size_of::<Masked>()
    }

    fn place(&self, at: usize) -> Place {
        match self.entries[at] {
            NONE => Place::None,
            ZERO => Place::Zeroes(FULL),
            of if of & MASK != 0 => Place::Zeroes(self.masks[(of & !MASK) as usize].mask),
            page => Place::Page(page),
        }
    }

    fn set(&mut self, at: usize, place: Place) {
        let old = self.entries[at];
        self.used -= u32::from(old != NONE);
        self.zero -= u32::from(old == ZERO);
        if old != NONE && old != ZERO && old & MASK != 0 {
            self.drop_mask(old & !MASK);
        }
        self.entries[at] = match place {
            Place::None | Place::Zeroes(EMPTY) => NONE,
            Place::Zeroes(FULL) => ZERO,
            Place::Zeroes(mask) => MASK | self.add_mask(mask, at),
            Place::Page(page) => page,
        };
        self.used += u32::from(self.entries[at] != NONE);
        self.zero += u32::from(self.entries[at] == ZERO);
    }

    fn add_mask(&mut self, mask: Mask, at: usize) -> u32 {
        if self.masks.len() == self.masks.capacity() {
            self.masks.reserve_exact(STEP);
        }
        let of = u32::try_from(at).unwrap_or(0);
        self.masks.push(Masked { mask, of });
        u32::try_from(self.masks.len() - 1).unwrap_or(0)
    }

    fn drop_mask(&mut self, number: u32) {
        self.masks.swap_remove(number as usize);
        if let Some(moved) = self.masks.get(number as usize) {
            self.entries[moved.of as usize] = MASK | number;
        }
        if self.masks.len() + 2 * STEP <= self.masks.capacity() {
            self.masks.shrink_to(self.masks.len() + STEP);
        }
    }
}

impl Table {
    pub(super) fn bytes(&self) -> usize {
        self.leaf_bytes + self.branches.capacity() * BRANCH_BYTES
    }

    /// Bytes that [`Self::forget_zeroes`] can free, and pages that come and go.
    pub(super) fn leaf_bytes(&self) -> usize {
        self.leaf_bytes
    }

    pub(super) fn zeroes(&self) -> u64 {
        self.zeroes
    }

    /// The page of 256 blocks, if there is one.
    #[inline]
    pub(super) fn page(&self, page: u32) -> Option<u32> {
        match self.branches.get(branch(page))? {
            Branch::Leaf(leaf) => {
                let of = leaf.entries[entry(page)];
                (of & MASK == 0).then_some(of)
            }
            Branch::None | Branch::Zero => None,
        }
    }

    pub(super) fn place(&self, page: u32) -> Place {
        match self.branches.get(branch(page)) {
            None | Some(Branch::None) => Place::None,
            Some(Branch::Zero) => Place::Zeroes(FULL),
            Some(Branch::Leaf(leaf)) => leaf.place(entry(page)),
        }
    }

    /// Bytes that setting the place of these blocks may need more.
    pub(super) fn growth(&self, page: u32, place: Place) -> usize {
        let masks = match place {
            Place::Zeroes(mask) if mask != FULL && mask != EMPTY => MASK_BYTES,
            _ => 0,
        };
        match self.branches.get(branch(page)) {
            Some(Branch::Leaf(_)) => masks,
            Some(_) => LEAF_BYTES + masks,
            // The old list is there until the new one is filled.
            None => LEAF_BYTES + masks + self.longer(page) * BRANCH_BYTES,
        }
    }

    fn longer(&self, page: u32) -> usize {
        let wanted = branch(page) + 1;
        if wanted <= self.branches.capacity() {
            return 0;
        }
        wanted.max(self.branches.capacity() * 2).min(
            usize::try_from(MAX_PAGES >> LEAF_BITS)
                .unwrap_or(wanted)
                .max(wanted),
        )
    }

    fn reach(&mut self, page: u32) {
        let wanted = branch(page) + 1;
        if wanted > self.branches.len() {
            let length = self.longer(page);
            if length > 0 {
                self.branches.reserve_exact(length - self.branches.len());
            }
            self.branches.resize_with(wanted, Branch::default);
        }
    }

    /// Puts down what is known of 256 blocks. There is room for it.
    pub(super) fn set(&mut self, page: u32, place: Place) {
        let old = self.place(page);
        if old == place {
            return;
        }
        self.reach(page);
        let mut bytes = self.leaf_bytes;
        let branch = &mut self.branches[branch(page)];
        let leaf = match branch {
            Branch::Leaf(leaf) => leaf,
            Branch::None | Branch::Zero => {
                let all = if matches!(branch, Branch::Zero) {
                    ZERO
                } else {
                    NONE
                };
                *branch = Branch::Leaf(Leaf::of(all));
                bytes += LEAF_BYTES;
                let Branch::Leaf(leaf) = branch else { return };
                leaf
            }
        };
        bytes -= leaf.bytes();
        leaf.set(entry(page), place);
        bytes += leaf.bytes();
        let zeroes = |place: &Place| match place {
            Place::Zeroes(mask) => count(mask),
            _ => 0,
        };
        self.zeroes = self.zeroes + zeroes(&place) - zeroes(&old);
        let whole = if leaf.used == 0 {
            Some(Branch::None)
        } else {
            (leaf.zero == LEAF).then_some(Branch::Zero)
        };
        if let Some(whole) = whole {
            bytes -= leaf.bytes();
            *branch = whole;
        }
        self.leaf_bytes = bytes;
        self.trim();
    }

    /// Gives back the end of the list of branches where nothing is known.
    fn trim(&mut self) {
        while matches!(self.branches.last(), Some(Branch::None)) {
            self.branches.pop();
        }
        if self.branches.len() * 4 <= self.branches.capacity() {
            self.branches.shrink_to(self.branches.len() * 2);
        }
    }

    /// A leaf that has no pages becomes what is said of it, zeroes or nothing known; false where it has pages.
    pub(super) fn set_leaf(&mut self, page: u32, is_zero: bool) -> bool {
        if !is_zero && branch(page) >= self.branches.len() {
            return true;
        }
        self.reach(page);
        let branch = &mut self.branches[branch(page)];
        let had = match branch {
            Branch::None => 0,
            Branch::Zero => u64::from(LEAF) << BLOCKS_BITS,
            Branch::Leaf(leaf) => {
                let masks = u32::try_from(leaf.masks.len()).unwrap_or(0);
                if leaf.used != leaf.zero + masks {
                    return false;
                }
                self.leaf_bytes -= leaf.bytes();
                let masks = leaf.masks.iter().map(|masked| count(&masked.mask));
                masks.sum::<u64>() + (u64::from(leaf.zero) << BLOCKS_BITS)
            }
        };
        self.zeroes -= had;
        *branch = if is_zero { Branch::Zero } else { Branch::None };
        self.zeroes += if is_zero {
            u64::from(LEAF) << BLOCKS_BITS
        } else {
            0
        };
        self.trim();
        true
    }

    /// Forgets all zeroes of the next leaf that has any; false where none has.
    pub(super) fn forget_zeroes(&mut self) -> bool {
        for _ in 0..self.branches.len() {
            let at = self.hand % self.branches.len();
            self.hand = at + 1;
            let branch = &mut self.branches[at];
            let Branch::Leaf(leaf) = branch else {
                continue;
            };
            if leaf.zero == 0 && leaf.masks.is_empty() {
                continue;
            }
            self.leaf_bytes -= leaf.bytes();
            let masks = leaf.masks.iter().map(|masked| count(&masked.mask));
            self.zeroes -= masks.sum::<u64>() + (u64::from(leaf.zero) << BLOCKS_BITS);
            for entry in &mut leaf.entries {
                if *entry & MASK != 0 {
                    *entry = NONE;
                }
            }
            let masks = u32::try_from(leaf.masks.len()).unwrap_or(0);
            leaf.used -= leaf.zero + masks;
            leaf.zero = 0;
            leaf.masks = Vec::new();
            if leaf.used == 0 {
                *branch = Branch::None;
                self.trim();
            } else {
                self.leaf_bytes += leaf.bytes();
            }
            return true;
        }
        // Whole leaves of zeroes take little: they are the last to go.
        let zero = |branch: &Branch| matches!(branch, Branch::Zero);
        let Some(at) = self.branches.iter().rposition(zero) else {
            return false;
        };
        self.branches[at] = Branch::None;
        self.zeroes -= u64::from(LEAF) << BLOCKS_BITS;
        self.trim();
        true
    }

    /// Gives back the last leaf of a table of whose pages none is needed; false where there is none left.
    pub(super) fn drop_leaf(&mut self) -> bool {
        let Some(branch) = self.branches.pop() else {
            return false;
        };
        if let Branch::Leaf(leaf) = branch {
            self.leaf_bytes -= leaf.bytes();
        }
        true
    }

    /// Leaves that have no pages are all zeroes, or nothing is known of them: what there is from this page on, and
    /// whether the whole of its leaf is that.
    pub(super) fn uniform(&self, page: u32) -> Option<bool> {
        match self.branches.get(branch(page)) {
            None | Some(Branch::None) => Some(false),
            Some(Branch::Zero) => Some(true),
            Some(Branch::Leaf(_)) => None,
        }
    }

    /// Pages that the list of leaves reaches to.
    pub(super) fn end(&self) -> u64 {
        (self.branches.len() as u64) << LEAF_BITS
    }

    /// Bytes and zeroes, counted anew.
    pub(super) fn counted(&self) -> (usize, u64) {
        let (mut bytes, mut zeroes) = (self.branches.capacity() * BRANCH_BYTES, 0);
        for branch in &self.branches {
            match branch {
                Branch::None => {}
                Branch::Zero => zeroes += u64::from(LEAF) << BLOCKS_BITS,
                Branch::Leaf(leaf) => {
                    bytes += leaf.bytes();
                    for at in 0..LEAF as usize {
                        if let Place::Zeroes(mask) = leaf.place(at) {
                            assert_ne!(mask, EMPTY, "4: a mask has bits");
                            zeroes += count(&mask);
                        }
                    }
                    assert_ne!(leaf.used, 0, "4: a leaf is given back when it has nothing");
                    assert_ne!(leaf.zero, LEAF, "4: a leaf of zeroes is one word");
                }
            }
        }
        (bytes, zeroes)
    }
}

/// A mask of some of 256 blocks.
pub(super) fn mask(blocks: std::ops::Range<u32>) -> Mask {
    let mut mask = EMPTY;
    for (word, start) in mask.iter_mut().zip((0..).step_by(64)) {
        let low = blocks.start.clamp(start, start + 64) - start;
        let high = blocks.end.clamp(start, start + 64) - start;
        if low < high {
            *word = (u64::MAX >> (64 - (high - low))) << low;
        }
    }
    mask
}

pub(super) fn has(mask: &Mask, at: u32) -> bool {
    mask[(at / 64) as usize] >> (at % 64) & 1 != 0
}
