//! Reuse distances, and from them the hits of LRU in caches of every size, in one pass.
//!
//! LRU holds the `c` blocks that were used last, so an access hits if and only if fewer than `c` other blocks were
//! used since the last access to its block (Mattson and others, 1970). To count them each access takes
//! the next of a row of slots, and its block leaves the one that it had: blocks used since are the slots taken behind that.
//!
//! - `last`: the slot of each block. One memory access that the processor cannot guess.
//! - A bitmap of the slots that are taken, 64 to a word: half a byte a block, in the second cache or the first.
//! - A Fenwick tree (Fenwick, 1994) over groups of 512 slots, filled when a group is: it stays in the
//!   first cache.
//!
//! When the slots are used up the blocks move together, in order; that is once in three accesses for each
//! block, and costs about as much as one of them.

const GROUP: usize = 512;
const WORDS: usize = GROUP / 64;
const NEVER: u32 = u32::MAX;

/// Counts blocks used since the last use of a block.
#[derive(Debug)]
pub struct Distances {
    last: Vec<u32>,
    taken: Vec<u64>,
    /// Slots taken in full groups, as a Fenwick tree; entry 0 is not used.
    tree: Vec<u32>,
    next: usize,
    /// Blocks seen so far.
    seen: u32,
}

impl Distances {
    /// For blocks `0..ids`.
    #[must_use]
    pub fn new(ids: u32) -> Self {
        let groups = (ids as usize * 4).div_ceil(GROUP).max(4);
        // Slots are u32; more than 2^30 blocks get fewer slots each.
        let groups = groups.min((NEVER as usize - 1) / GROUP);
        Self {
            last: vec![NEVER; ids as usize],
            taken: vec![0; groups * WORDS],
            tree: vec![0; groups + 1],
            next: 0,
            seen: 0,
        }
    }

    /// Other blocks that were used since the last use of this one; none at its first use.
    ///
    /// # Panics
    /// When there is no such block.
    #[inline]
    pub fn access(&mut self, id: u32) -> Option<u32> {
        if self.next == self.taken.len() * 64 {
            self.compact();
        }
        let slot = self.last[id as usize];
        let distance = if slot == NEVER {
            self.seen += 1;
            None
        } else {
            let slot = slot as usize;
            let distance = self.seen - self.until(slot);
            self.leave(slot);
            Some(distance)
        };
        let next = self.next;
        self.taken[next / 64] |= 1 << (next % 64);
        // At most 2^32 - 2 slots, by new().
        #[expect(clippy::cast_possible_truncation, reason = "slots are fewer")]
        let slot = next as u32;
        self.last[id as usize] = slot;
        self.next += 1;
        if self.next.is_multiple_of(GROUP) {
            self.fill(next / GROUP);
        }
        distance
    }

    /// Loads what accesses to these blocks will want.
    #[must_use]
    pub fn warm(&self, ids: &[u32]) -> u32 {
        ids.iter().fold(0, |sum, &id| sum ^ self.last[id as usize])
    }

    /// Slots taken up to one, and that one.
    #[inline]
    fn until(&self, slot: usize) -> u32 {
        let group = slot / GROUP;
        let mut sum = 0;
        let mut node = group;
        while node > 0 {
            sum += self.tree[node];
            node &= node - 1;
        }
        let word = slot / 64;
        for at in group * WORDS..word {
            sum += self.taken[at].count_ones();
        }
        let upto = u64::MAX >> (63 - slot % 64);
        sum + (self.taken[word] & upto).count_ones()
    }

    #[inline]
    fn leave(&mut self, slot: usize) {
        self.taken[slot / 64] &= !(1 << (slot % 64));
        let group = slot / GROUP;
        // A group that is not full yet is not in the tree.
        if (group + 1) * GROUP <= self.next {
            let mut node = group + 1;
            while node < self.tree.len() {
                self.tree[node] = self.tree[node].wrapping_sub(1);
                node += node & node.wrapping_neg();
            }
        }
    }

    /// A group is full: it comes into the tree.
    fn fill(&mut self, group: usize) {
        let words = &self.taken[group * WORDS..(group + 1) * WORDS];
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        let mut node = group + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(count);
            node += node & node.wrapping_neg();
        }
    }

    #[cold]
    fn compact(&mut self) {
        let mut before = 0;
        let words = self.taken.iter();
        let ranks: Vec<u32> = words
            .map(|word| {
                let rank = before;
                before += word.count_ones();
                rank
            })
            .collect();
        for last in self.last.iter_mut().filter(|last| **last != NEVER) {
            let slot = *last as usize;
            let below = (1_u64 << (slot % 64)) - 1;
            *last = ranks[slot / 64] + (self.taken[slot / 64] & below).count_ones();
        }
        self.taken.fill(0);
        self.tree.fill(0);
        self.next = before as usize;
        for word in 0..self.next / 64 {
            self.taken[word] = u64::MAX;
        }
        if !self.next.is_multiple_of(64) {
            self.taken[self.next / 64] = (1 << (self.next % 64)) - 1;
        }
        for group in 0..self.next / GROUP {
            self.fill(group);
        }
    }

    /// Blocks seen so far.
    #[must_use]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.last.capacity() * 4 + self.taken.capacity() * 8 + self.tree.capacity() * 4
    }
}
