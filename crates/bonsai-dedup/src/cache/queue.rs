//! A queue of blocks from which any may go.

/// The word of a block: where its entry is, in which queue, and two bits that are its policy's.
pub(super) type Word = u32;

/// The word of a block that is in no queue.
pub(super) const NOWHERE: Word = u32::MAX;

const PLACE_BITS: u32 = 28;
const PLACE: Word = (1 << PLACE_BITS) - 1;
const TAG_SHIFT: u32 = PLACE_BITS;
const FLAG_SHIFT: u32 = PLACE_BITS + 2;
/// Place and queue, without flags.
const WHERE: Word = (1 << FLAG_SHIFT) - 1;

/// In which of its policy's queues a block is.
pub(super) fn tag(word: Word) -> u32 {
    (word & WHERE) >> TAG_SHIFT
}

/// What its policy keeps of a block: 0 to 3.
pub(super) fn flags(word: Word) -> u32 {
    word >> FLAG_SHIFT
}

pub(super) fn with_flags(word: Word, flags: u32) -> Word {
    word & WHERE | flags << FLAG_SHIFT
}

#[derive(Debug)]
pub(super) struct Queue {
    ring: Vec<u32>,
    /// Place of the oldest entry.
    first: usize,
    /// Entries, with dead ones.
    window: usize,
    /// Entries that are not dead.
    live: u32,
    tag: u32,
}

impl Queue {
    /// A queue of at most `most` blocks, with room for `times` as many entries: the more, the more seldom dead
    /// ones are cleared away. One is enough where none are dead.
    pub(super) fn new(tag: u32, most: u32, times: usize) -> Self {
        let entries = (most as usize * times + 4).min(PLACE as usize);
        Self {
            ring: vec![0; entries],
            first: 0,
            window: 0,
            live: 0,
            tag: tag << TAG_SHIFT,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.live
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<u32>()
    }

    fn wrapped(&self, at: usize) -> usize {
        if at < self.ring.len() {
            at
        } else {
            at - self.ring.len()
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a place is below 2^28")]
    fn word(&self, place: usize) -> Word {
        self.tag | place as u32
    }

    fn is_live(&self, place: usize, words: &[Word]) -> bool {
        words[self.ring[place] as usize] & WHERE == self.word(place)
    }

    /// A block comes, which is in no queue or leaves the one that it is in.
    #[inline]
    pub(super) fn push(&mut self, words: &mut [Word], id: u32, flags: u32) {
        if self.window == self.ring.len() {
            self.compact(words);
        }
        let place = self.wrapped(self.first + self.window);
        self.ring[place] = id;
        self.window += 1;
        self.live += 1;
        words[id as usize] = self.word(place) | flags << FLAG_SHIFT;
    }

    /// A block goes, or comes anew: its word is about to change.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.live -= 1;
    }

    /// The oldest goes; its word is still what it was.
    #[inline]
    pub(super) fn pop(&mut self, words: &[Word]) -> Option<u32> {
        while self.window > 0 {
            let place = self.first;
            self.first = self.wrapped(place + 1);
            self.window -= 1;
            if self.is_live(place, words) {
                self.live -= 1;
                return Some(self.ring[place]);
            }
        }
        None
    }

    /// The entries that are not dead move together.
    #[cold]
    fn compact(&mut self, words: &mut [Word]) {
        let mut to = self.first;
        let mut kept = 0;
        for n in 0..self.window {
            let from = self.wrapped(self.first + n);
            if self.is_live(from, words) {
                let id = self.ring[from];
                self.ring[to] = id;
                let word = &mut words[id as usize];
                *word = self.tag | u32::try_from(to).unwrap_or(PLACE) | flags(*word) << FLAG_SHIFT;
                to = self.wrapped(to + 1);
                kept += 1;
            }
        }
        self.window = kept;
    }

    /// The first live entry at or after a block's, towards the newest; from the oldest without one.
    pub(super) fn next_from(&self, words: &[Word], place: Option<usize>) -> Option<usize> {
        let start = place.map_or(0, |place| self.age(place));
        let places = (start..self.window).map(|n| self.wrapped(self.first + n));
        places.into_iter().find(|&place| self.is_live(place, words))
    }

    /// How many entries are older.
    fn age(&self, place: usize) -> usize {
        if place >= self.first {
            place - self.first
        } else {
            place + self.ring.len() - self.first
        }
    }

    /// The entry behind another, towards the newest, dead or not; none behind the newest.
    pub(super) fn behind(&self, place: usize) -> Option<usize> {
        (self.age(place) + 1 < self.window).then(|| self.wrapped(place + 1))
    }

    pub(super) fn at(&self, place: usize) -> u32 {
        self.ring[place]
    }

    /// Dead entries at the front go.
    pub(super) fn trim(&mut self, words: &[Word]) {
        while self.window > 0 && !self.is_live(self.first, words) {
            self.first = self.wrapped(self.first + 1);
            self.window -= 1;
        }
    }

    /// What the next evictions will look at.
    pub(super) fn warm(&self, words: &[Word], count: usize) -> u32 {
        let next = (0..count.min(self.window)).map(|n| self.wrapped(self.first + n));
        next.fold(0, |sum, place| sum ^ words[self.ring[place] as usize])
    }
}

/// Words of some blocks.
pub(super) fn warm(words: &[Word], ids: &[u32]) -> u32 {
    ids.iter().fold(0, |sum, &id| sum ^ words[id as usize])
}

/// Where a block's entry is.
pub(super) fn place(word: Word) -> usize {
    (word & PLACE) as usize
}
