//! What is known of the blocks of one export: the number of a content for each.
//!
//! # Definitions
//! - A *turn* is a moment at which a change began or ended; turns are counted from 1.
//! - A *slot* stands for all blocks whose numbers leave the same rest. It has how many changes of these are under way,
//!   and the turn of the last one that began or ended.
//! - A *word* of a block is 0 (nothing known), [`ZERO`], the number of a content, or a *ticket*: the number of
//!   what it holds is on its way, with the same ticket.
//!
//! # Invariants
//! 1. A change is told to the slot, and takes the word away, before its bytes move.
//! 2. A word that is a number, and whose slot has no change under way and none since the turn at which a
//!    read began, is that of the bytes that were read.
//! 3. A ticket becomes a number only if nothing came between. Who lays one down looks at the slot once more after that: a
//!    change that had not taken the word away yet had told the slot.
//!
//! # Limits
//! Words are of 4 bytes, in pages of 1024 that come when they are needed, and no more of them than the recording may
//! have: of other blocks nothing is ever known, and each access makes a fingerprint.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// The content of a block of zeroes.
pub(super) const ZERO: u32 = 1;
/// The number of the first content is this.
const FIRST: u32 = 2;
/// Words from here on are tickets.
const TICKETS: u32 = 1 << 31;
/// Contents have numbers below this.
pub(super) const MOST_NUMBERS: u32 = TICKETS - FIRST;

/// As many as blocks of the largest request with data, so that it has no slot twice.
const SLOTS: u64 = 8192;
const PAGE: u64 = 1024;
/// Low bits of a slot count changes that are under way.
const UNDER_WAY: u32 = 16;

#[derive(Debug)]
pub(super) struct Known {
    turns: AtomicU64,
    slots: Box<[AtomicU64]>,
    pages: Box<[OnceLock<Box<[AtomicU32]>>]>,
    /// Pages that the recording may still have.
    left: std::sync::Arc<AtomicUsize>,
    tickets: AtomicU32,
}

/// What a block is found to hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Held {
    /// A number, or [`ZERO`].
    Content(u32),
    /// It has to be found out, and may be kept if the slot is the same still.
    New { slot: u64 },
    /// It has to be found out, and is true of this request only.
    Fleeting,
}

/// A content, as its word.
pub(super) const fn word_of(number: u32) -> u32 {
    number + FIRST
}

/// The number of a content; `None` of [`ZERO`].
pub(super) const fn number_of(word: u32) -> Option<u32> {
    word.checked_sub(FIRST)
}

impl Known {
    pub(super) fn new(blocks: u64, left: std::sync::Arc<AtomicUsize>) -> Self {
        let pages = usize::try_from(blocks.div_ceil(PAGE)).unwrap_or(0);
        Self {
            turns: AtomicU64::new(0),
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
            left,
            tickets: AtomicU32::new(0),
        }
    }

    /// The turn at which a read begins.
    pub(super) fn now(&self) -> u64 {
        self.turns.load(SeqCst)
    }

    /// A change of these blocks begins; says its turn.
    pub(super) fn begin(&self, blocks: &Range<u64>) -> u64 {
        let turn = self.turns.fetch_add(1, SeqCst) + 1;
        for slot in self.slots_of(blocks) {
            let of = |old: u64| Some(turn.max(old >> UNDER_WAY) << UNDER_WAY | (old + 1) & 0xffff);
            // It always is some.
            let _ = slot.fetch_update(SeqCst, SeqCst, of);
        }
        self.forget(blocks);
        turn
    }

    /// A change has ended that began at that turn: `each` is told of every block whether what was written stays known.
    pub(super) fn end(&self, blocks: &Range<u64>, began: u64, mut each: impl FnMut(Held)) {
        let turn = self.turns.fetch_add(1, SeqCst) + 1;
        let mut held = Vec::new();
        for slot in self.slots_of(blocks) {
            let of = |old: u64| Some(turn.max(old >> UNDER_WAY) << UNDER_WAY | (old - 1) & 0xffff);
            let old = slot.fetch_update(SeqCst, SeqCst, of).unwrap_or_default();
            held.push(match old == began << UNDER_WAY | 1 {
                true => Held::New {
                    slot: turn << UNDER_WAY,
                },
                false => Held::Fleeting,
            });
        }
        let count = usize::try_from(blocks.end - blocks.start).unwrap_or(usize::MAX);
        held.iter().cycle().take(count).for_each(|held| each(*held));
    }

    /// Nothing is known of these blocks.
    fn forget(&self, blocks: &Range<u64>) {
        for block in blocks.clone() {
            if let Some(word) = self.page(block).and_then(|page| page.get())
                && let Some(word) = word.get(inside(block))
            {
                word.store(0, SeqCst);
            }
        }
    }

    /// Nothing is known of any block: somebody else wrote.
    pub(super) fn forget_all(&self) {
        for page in self.pages.iter().filter_map(OnceLock::get) {
            page.iter().for_each(|word| word.store(0, SeqCst));
        }
    }

    /// What a block held that was read, where the read began at that turn.
    pub(super) fn held(&self, block: u64, began: u64) -> Held {
        // The word first: what became known after that, the slot tells.
        let word = self.word(block).map_or(0, |word| word.load(SeqCst));
        let slot = self.slot(block).map_or(u64::MAX, |slot| slot.load(SeqCst));
        if slot & 0xffff != 0 || slot >> UNDER_WAY > began {
            return Held::Fleeting;
        }
        match word {
            0 | TICKETS.. => Held::New { slot },
            known => Held::Content(known),
        }
    }

    /// Lays a ticket down for a block whose slot is the same still; `None` where it is not, or there is no room.
    pub(super) fn ticket(&self, block: u64, slot: u64) -> Option<u32> {
        let ticket = TICKETS | self.tickets.fetch_add(1, SeqCst);
        let at = self.word(block)?;
        let old = at.load(SeqCst);
        at.compare_exchange(old, ticket, SeqCst, SeqCst).ok()?;
        if self.slot(block).is_some_and(|at| at.load(SeqCst) == slot) {
            return Some(ticket);
        }
        // It fails where the change has taken it away already.
        let _ = at.compare_exchange(ticket, 0, SeqCst, SeqCst);
        None
    }

    /// The content of the block with that ticket has been found out.
    pub(super) fn learned(&self, block: u64, ticket: u32, word: u32) {
        if let Some(at) = self.word(block) {
            // Something came between: then it stays unknown.
            let _ = at.compare_exchange(ticket, word, SeqCst, SeqCst);
        }
    }

    fn slots_of<'a>(
        &'a self,
        blocks: &Range<u64>,
    ) -> impl Iterator<Item = &'a AtomicU64> + use<'a> {
        let end = blocks.end.min(blocks.start + SLOTS);
        (blocks.start..end).filter_map(|block| self.slot(block))
    }

    fn slot(&self, block: u64) -> Option<&AtomicU64> {
        self.slots.get(usize::try_from(block % SLOTS).ok()?)
    }

    fn page(&self, block: u64) -> Option<&OnceLock<Box<[AtomicU32]>>> {
        self.pages.get(usize::try_from(block / PAGE).ok()?)
    }

    /// The word of a block; its page is made, if there may be another.
    fn word(&self, block: u64) -> Option<&AtomicU32> {
        let page = self.page(block)?;
        if page.get().is_none() {
            let less = |left: usize| left.checked_sub(1);
            self.left.fetch_update(SeqCst, SeqCst, less).ok()?;
            let fresh = (0..PAGE).map(|_| AtomicU32::new(0)).collect();
            if page.set(fresh).is_err() {
                // Somebody else was first.
                self.left.fetch_add(1, SeqCst);
            }
        }
        page.get()?.get(inside(block))
    }
}

fn inside(block: u64) -> usize {
    usize::try_from(block % PAGE).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 7;

    /// One who writes its number, or reads, in steps that others come between.
    #[derive(Clone, Copy)]
    struct Actor {
        writes: Option<u32>,
        step: usize,
        turn: u64,
        found: u32,
        held: Held,
        ticket: Option<u32>,
    }

    const STEPS: usize = 5;

    impl Actor {
        fn new(writes: Option<u32>) -> Self {
            Self {
                writes,
                step: 0,
                turn: 0,
                found: 0,
                held: Held::Fleeting,
                ticket: None,
            }
        }

        fn go(&mut self, known: &Known, disk: &mut u32) {
            let blocks = AT..AT + 1;
            match (self.step, self.writes) {
                (0, Some(_)) => self.turn = known.begin(&blocks),
                (0, None) => self.turn = known.now(),
                (1, Some(number)) => (*disk, self.found) = (number, number),
                (1, None) => self.found = *disk,
                (2, Some(_)) => known.end(&blocks, self.turn, |held| self.held = held),
                (2, None) => {
                    self.held = known.held(AT, self.turn);
                    if let Held::Content(word) = self.held {
                        assert_eq!(word, word_of(self.found), "what was read");
                    }
                }
                (3, _) => {
                    if let Held::New { slot } = self.held {
                        self.ticket = known.ticket(AT, slot);
                    }
                }
                _ => {
                    if let Some(ticket) = self.ticket {
                        known.learned(AT, ticket, word_of(self.found));
                    }
                }
            }
            self.step += 1;
        }
    }

    fn known(pages: usize) -> Known {
        Known::new(5000, std::sync::Arc::new(AtomicUsize::new(pages)))
    }

    /// Goes through one order; says how many actors had steps left at each of its places.
    fn order(known: &Known, actors: &[Option<u32>], choices: &[usize]) -> Vec<usize> {
        known.forget(&(AT..AT + 1));
        let mut disk = 0;
        let mut left: Vec<Actor> = actors.iter().map(|writes| Actor::new(*writes)).collect();
        let mut could = Vec::new();
        while !left.is_empty() {
            could.push(left.len());
            let at = choices.get(could.len() - 1).copied().unwrap_or(0);
            let actor = &mut left[at];
            actor.go(known, &mut disk);
            if actor.step == STEPS {
                left.remove(at);
            }
        }
        if let Held::Content(word) = known.held(AT, known.now()) {
            assert_eq!(word, word_of(disk), "what is known at the end");
        }
        could
    }

    fn every_order(actors: &[Option<u32>]) -> usize {
        let mut choices: Vec<usize> = Vec::new();
        let mut count = 0;
        let known = known(1);
        loop {
            let could = order(&known, actors, &choices);
            count += 1;
            choices.resize(could.len(), 0);
            // The next one: the last place at which another actor could have gone.
            let Some(at) = (0..could.len())
                .rev()
                .find(|at| choices[*at] + 1 < could[*at])
            else {
                return count;
            };
            choices[at] += 1;
            choices.truncate(at + 1);
        }
    }

    #[test]
    fn in_every_order_what_is_known_is_what_was_read() {
        assert_eq!(every_order(&[Some(1), None]), 252);
        assert_eq!(every_order(&[Some(1), Some(2), None]), 756_756);
    }

    #[test]
    fn what_is_quiet_is_known_and_forgotten_again() {
        let known = known(1);
        let blocks = 0..3;
        let turn = known.begin(&blocks);
        let mut held = Vec::new();
        known.end(&blocks, turn, |of| held.push(of));
        assert_eq!(held.len(), 3);
        let Held::New { slot } = held[1] else {
            panic!("{held:?}");
        };
        let ticket = known.ticket(1, slot).unwrap();
        assert!(matches!(known.held(1, known.now()), Held::New { .. }));
        known.learned(1, ticket, ZERO);
        assert_eq!(known.held(1, known.now()), Held::Content(ZERO));
        assert_eq!(known.held(1, turn), Held::Fleeting, "a read from before");
        // Beyond the memory of the recording nothing is ever known.
        assert!(matches!(known.held(4000, known.now()), Held::New { .. }));
        assert_eq!(known.ticket(4000, 0), None);
        known.forget_all();
        assert!(matches!(known.held(1, known.now()), Held::New { .. }));
    }
}
