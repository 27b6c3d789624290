//! Exact distances of reuse, in one pass.
//!
//! Each access takes the next slot of time, and gives the slot of its item's last access back. The distance is the
//! number of slots in use after that one. They are counted by bits, and by a tree of sums (Fenwick) over words
//! of 512 bits, which stays in the cache. When slots run out, those in use move together.

/// Distances of reuse of items with dense numbers (Mattson's stack).
#[derive(Clone, Debug)]
pub struct Stack {
    /// The slot of each item's last access, or [`NEVER`].
    last: Vec<u32>,
    /// Whose a slot is.
    owner: Vec<u32>,
    bits: Vec<u64>,
    sums: Vec<u32>,
    next: usize,
    used: usize,
}

const NEVER: u32 = u32::MAX;
const WORDS: usize = 8;
const SPAN: usize = WORDS * 64;
const FEWEST: usize = 1 << 16;

impl Default for Stack {
    fn default() -> Self {
        Self {
            last: Vec::new(),
            owner: vec![0; FEWEST],
            bits: vec![0; FEWEST / 64],
            sums: vec![0; FEWEST / SPAN + 1],
            next: 0,
            used: 0,
        }
    }
}

impl Stack {
    /// Accesses an item: how many other items were accessed since its last access, or `None` at its first.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "items and slots are below 2^32"
    )]
    pub fn access(&mut self, item: u32) -> Option<u64> {
        if self.next == self.owner.len() {
            self.compact();
        }
        let at = item as usize;
        if self.last.len() <= at {
            self.last.resize(at + 1, NEVER);
        }
        let before = std::mem::replace(&mut self.last[at], self.next as u32);
        let distance = (before != NEVER).then(|| {
            let slot = before as usize;
            let distance = self.used - self.up_to(slot);
            self.bits[slot / 64] &= !(1 << (slot % 64));
            self.add(slot, u32::MAX);
            self.used -= 1;
            distance as u64
        });
        self.owner[self.next] = item;
        self.bits[self.next / 64] |= 1 << (self.next % 64);
        self.add(self.next, 1);
        self.next += 1;
        self.used += 1;
        distance
    }

    /// Slots in use up to and with one.
    fn up_to(&self, slot: usize) -> usize {
        let span = slot / SPAN;
        let (mut at, mut sum) = (span, 0_usize);
        while at > 0 {
            sum += self.sums[at] as usize;
            at &= at - 1;
        }
        let word = slot / 64;
        for bits in &self.bits[span * WORDS..word] {
            sum += bits.count_ones() as usize;
        }
        let own = self.bits[word] & (u64::MAX >> (63 - slot % 64));
        sum + own.count_ones() as usize
    }

    /// Adds to the tree; `u32::MAX` takes one away.
    fn add(&mut self, slot: usize, n: u32) {
        let mut at = slot / SPAN + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(n);
            at += at & at.wrapping_neg();
        }
    }

    /// Moves the slots in use together; there are at least as many again then.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "items and slots are below 2^32"
    )]
    fn compact(&mut self) {
        let mut to = 0;
        for slot in 0..self.next {
            if self.bits[slot / 64] >> (slot % 64) & 1 == 1 {
                let item = self.owner[slot];
                self.owner[to] = item;
                self.last[item as usize] = to as u32;
                to += 1;
            }
        }
        let slots = (self.used * 2).max(FEWEST).next_multiple_of(SPAN);
        self.owner.resize(slots, 0);
        self.bits.clear();
        self.bits.resize(slots / 64, 0);
        self.sums.clear();
        self.sums.resize(slots / SPAN + 1, 0);
        self.next = to;
        for slot in 0..to {
            self.bits[slot / 64] |= 1 << (slot % 64);
            self.add(slot, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_a_list() {
        let mut random = bonsai_stats::SplitMix64::new(3);
        let mut stack = Stack::default();
        let mut list: Vec<u32> = Vec::new();
        for n in 0..200_000_u32 {
            // A part of few items, and now and then one of many.
            let items = if n % 10 == 0 { 3_000 } else { 50 };
            let item = u32::try_from(random.below(items)).expect("small");
            let wanted = list.iter().rev().position(|one| *one == item);
            if let Some(at) = wanted {
                list.remove(list.len() - 1 - at);
            }
            list.push(item);
            assert_eq!(stack.access(item), wanted.map(|at| at as u64), "access {n}");
        }
    }
}
