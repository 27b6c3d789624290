//! One time through the original.

use bonsai_stats::SplitMix64;
use hashbrown::HashTable;

use super::Knobs;
use super::original::{NONE, Original};

/// What is there of an epoch, and what comes next.
pub(super) struct Epoch {
    pub(super) number: u64,
    /// What each block holds, by the twin's numbers of contents.
    pub(super) disk: Vec<u32>,
    pub(super) touched: Vec<bool>,
    /// The twin's number of each content of the original.
    pub(super) contents: Vec<u32>,
    /// The twin's number of a content that is a block's own.
    pub(super) private: HashTable<((u32, u32), u32)>,
    /// Windows of runs that are to come, the last one first.
    pub(super) windows: Vec<usize>,
}

impl Epoch {
    /// One of which nothing was done yet.
    pub(super) fn new(
        number: u64,
        original: &Original,
        knobs: &Knobs,
        random: &mut SplitMix64,
    ) -> Self {
        let windows = original.runs.len().div_ceil(knobs.window.max(1));
        let mut order: Vec<usize> = (0..windows).collect();
        // Where groups begin differs, so that no two neighbours are apart for ever.
        let group = knobs.shuffle.max(1);
        let skipped = usize::try_from(random.below(group as u64)).unwrap_or(0);
        let (head, rest) = order.split_at_mut(skipped.min(windows));
        shuffle(head, random);
        for part in rest.chunks_mut(group) {
            shuffle(part, random);
        }
        order.reverse();
        let blocks = original.numbers.len();
        // Without contents, or without runs that move, nothing is asked of it.
        let of = |is_wanted: bool| if is_wanted { blocks } else { 0 };
        Self {
            number,
            disk: vec![NONE; of(original.most_contents > 0)],
            touched: vec![false; of(knobs.reuse < 1.0)],
            contents: vec![NONE; original.most_contents as usize],
            private: HashTable::new(),
            windows: order,
        }
    }
}

fn shuffle(part: &mut [usize], random: &mut SplitMix64) {
    for n in (1..part.len()).rev() {
        let other = random.below(n as u64 + 1);
        part.swap(n, usize::try_from(other).unwrap_or(n));
    }
}
