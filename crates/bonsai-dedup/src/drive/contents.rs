//! Contents: their keys, their leaders, and the index by which they are found.
//!
//! The index is in [`SEGMENTS`] that grow one at a time, so that no caller waits while all of it is copied.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Group;
use super::pages::NIL;

/// By what two contents are told apart.
pub trait Key: Copy + Eq {
    /// 64 bits that differ for different keys as well as chance has it.
    fn bits(self) -> u64;
}

/// Numbers of contents in a simulation.
impl Key for u32 {
    fn bits(self) -> u64 {
        mix(u64::from(self))
    }
}

/// Fingerprints of 96 bits: among 2^28 contents (a tebibyte) two share one with a chance of 2^-41.
impl Key for [u32; 3] {
    fn bits(self) -> u64 {
        mix(u64::from(self[0]) | u64::from(self[1]) << 32) ^ u64::from(self[2])
    }
}

/// Fingerprints of 128 bits.
impl Key for [u32; 4] {
    fn bits(self) -> u64 {
        let half = u64::from(self[2]) | u64::from(self[3]) << 32;
        mix(u64::from(self[0]) | u64::from(self[1]) << 32) ^ half
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Contents that are allocated at once.
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 9;

/// The touched bit of a head; the rest is the place of the leader.
const TOUCHED: u32 = 1 << 31;
/// Set in the head of a content that is not in use; the rest is the next one that is not, or [`NIL`]. With
/// [`TOUCHED`], the content is condemned: the rest is the top of what is left of its stack.
const UNUSED: u32 = 1 << 30;

/// Contents at most, so that they fit beside both bits.
const MAX_CONTENTS: usize = (1 << 30) - CHUNK;

/// No content has this number, whatever its tag.
const FREE: u32 = u32::MAX;
/// Above the number of a content in the index: two bits of its hash, so that of four contents that are passed while another one is
/// looked for, three are not read.
const TAG: u32 = 0b11 << 30;

/// A growth of one copies some ten thousand entries at most.
const SEGMENTS: usize = 512;
const FIRST_SEGMENT: usize = 8;
/// Contents that are read, each somewhere else, before the first of them enters a larger segment: the processor waits for many of
/// them at once.
const READ_AT_ONCE: usize = 64;

#[derive(Debug)]
struct Entry<K> {
    key: K,
    /// The leader, and whether anyone asked for it; or the next that is not in use.
    head: AtomicU32,
}

#[derive(Debug)]
struct Chunk<K> {
    entries: Box<[Entry<K>]>,
    /// The number of the first that is not in use, or [`NIL`].
    free: u32,
}

#[derive(Debug)]
pub(super) struct Contents<K> {
    chunks: Vec<Chunk<K>>,
    /// A bit for each chunk with an entry that is not in use; no word before `first_free` has any.
    with_free: Vec<u64>,
    first_free: usize,
    /// Entries that are not in use.
    unused: usize,
    index: Box<[Segment]>,
    /// Entries that all segments have room for.
    room: usize,
    len: u32,
    hand: usize,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    places: Box<[u32]>,
    used: u32,
}

impl Segment {
    fn is_full(&self) -> bool {
        (self.used as usize + 1) * 8 > self.places.len() * 7
    }

    fn next_len(&self) -> usize {
        (self.places.len() + self.places.len() / 4).max(FIRST_SEGMENT)
    }

    fn start(&self, bits: u64) -> usize {
        // Below the segment's own bits, a part of the length.
        let part = u128::from(bits << SEGMENT_BITS) * self.places.len() as u128;
        usize::try_from(part >> 64).unwrap_or(0)
    }

    /// Places from where these `bits` belong.
    fn from(&self, bits: u64) -> impl Iterator<Item = usize> + use<> {
        let (start, len) = (self.start(bits), self.places.len());
        (start..len).chain(0..start)
    }

    fn insert(&mut self, bits: u64, content: u32) {
        let place = self.from(bits).find(|&at| self.places[at] == FREE);
        let place = place.expect("an eighth of the index is free");
        self.places[place] = tagged(bits, content);
        self.used += 1;
    }

    /// The place of a content.
    fn place_of(&self, bits: u64, content: u32) -> usize {
        let wanted = tagged(bits, content);
        let place = self.from(bits).find(|&at| self.places[at] == wanted);
        place.expect("every content is in the index")
    }
}

/// What the index has of a content.
fn tagged(bits: u64, content: u32) -> u32 {
    // The lowest bits say nothing of the place.
    content | u32::try_from(bits & 0b11).unwrap_or(0) << TAG.trailing_zeros()
}

const fn chunk(content: u32) -> usize {
    (content >> CHUNK_BITS) as usize
}

const SEGMENT_BITS: u32 = SEGMENTS.trailing_zeros();

fn segment(bits: u64) -> usize {
    usize::try_from(bits >> (64 - SEGMENT_BITS)).unwrap_or(0)
}

impl<K: Key> Contents<K> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            with_free: Vec::new(),
            first_free: 0,
            unused: 0,
            index: vec![Segment::default(); SEGMENTS].into_boxed_slice(),
            room: 0,
            len: 0,
            hand: 0,
        }
    }

    pub(super) fn key(&self, content: u32) -> K {
        self.entry(content).key
    }

    #[inline]
    fn entry(&self, content: u32) -> &Entry<K> {
        &self.chunks[chunk(content)].entries[content as usize % CHUNK]
    }

    #[inline]
    fn entry_mut(&mut self, content: u32) -> &mut Entry<K> {
        &mut self.chunks[chunk(content)].entries[content as usize % CHUNK]
    }

    #[inline]
    fn head_mut(&mut self, content: u32) -> &mut u32 {
        self.entry_mut(content).head.get_mut()
    }

    /// The leader of a content that is not condemned.
    #[inline]
    pub(super) fn head(&self, content: u32) -> u32 {
        self.entry(content).head.load(Ordering::Relaxed) & !TOUCHED
    }

    /// The leader; `None` of a content that is condemned.
    #[inline]
    pub(super) fn leader(&self, content: u32) -> Option<u32> {
        let head = self.head(content);
        (head & UNUSED == 0).then_some(head)
    }

    pub(super) fn set_head(&mut self, content: u32, slot: u32) {
        let head = self.head_mut(content);
        *head = *head & TOUCHED | slot;
    }

    /// Notes that the content was asked for.
    #[inline]
    pub(super) fn touch(&self, content: u32) {
        let head = &self.entry(content).head;
        let now = head.load(Ordering::Relaxed);
        if now & (TOUCHED | UNUSED) == 0 {
            head.fetch_or(TOUCHED, Ordering::Relaxed);
        }
    }

    fn bits(key: K, group: Group) -> u64 {
        key.bits() ^ mix(u64::from(group.0))
    }

    /// The content with this key in this group; `group_of` is the group of a leader's place.
    pub(super) fn find(
        &self,
        key: K,
        group: Group,
        group_of: impl Fn(u32) -> Group,
    ) -> Option<u32> {
        let bits = Self::bits(key, group);
        let segment = &self.index[segment(bits)];
        for at in segment.from(bits) {
            let place = segment.places[at];
            let content = place & !TAG;
            if place == FREE {
                return None;
            }
            if place == tagged(bits, content)
                && self.key(content) == key
                && group_of(self.head(content)) == group
            {
                return Some(content);
            }
        }
        None
    }

    /// Whether a content with this key can be added with this many bytes more.
    pub(super) fn has_room(&self, key: K, group: Group, spare: usize) -> bool {
        let mut bytes = 0;
        let segment = &self.index[segment(Self::bits(key, group))];
        if segment.is_full() {
            // Both are there while one is copied into the other.
            bytes += segment.next_len() * size_of::<u32>();
        }
        if self.unused == 0 {
            bytes += self.chunk_bytes();
        }
        bytes <= spare && (self.unused > 0 || self.chunks.len() * CHUNK < MAX_CONTENTS)
    }

    fn chunk_bytes(&self) -> usize {
        let list = if self.chunks.len() == self.chunks.capacity() {
            (self.chunks.len() + 64) * (size_of::<Chunk<K>>() + size_of::<u64>())
        } else {
            0
        };
        CHUNK * size_of::<Entry<K>>() + list
    }

    /// A content with this leader. There is room.
    pub(super) fn add(
        &mut self,
        key: K,
        group: Group,
        head: u32,
        group_of: impl Fn(u32) -> Group,
    ) -> u32 {
        let bits = Self::bits(key, group);
        let at = segment(bits);
        if self.index[at].is_full() {
            self.grow(at, &group_of);
        }
        let content = self.unused(key);
        *self.entry_mut(content) = Entry {
            key,
            head: AtomicU32::new(head | TOUCHED),
        };
        self.index[at].insert(bits, content);
        self.len += 1;
        content
    }

    fn unused(&mut self, key: K) -> u32 {
        if self.unused == 0 {
            self.add_chunk(key);
        }
        while self.with_free[self.first_free] == 0 {
            self.first_free += 1;
        }
        let bit = self.with_free[self.first_free].trailing_zeros() as usize;
        let at = self.first_free * 64 + bit;
        let content = self.chunks[at].free;
        let next = *self.head_mut(content) & !UNUSED;
        self.chunks[at].free = next;
        if next == NIL {
            self.with_free[at / 64] &= !(1 << (at % 64));
        }
        self.unused -= 1;
        content
    }

    fn add_chunk(&mut self, key: K) {
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact(64);
        }
        let at = self.chunks.len();
        let first = u32::try_from(at * CHUNK).expect("at most 2^30 contents");
        let end = first + (1 << CHUNK_BITS);
        let entry = |content| Entry {
            key,
            head: AtomicU32::new(UNUSED | if content + 1 < end { content + 1 } else { NIL }),
        };
        self.chunks.push(Chunk {
            entries: (first..end).map(entry).collect(),
            free: first,
        });
        if at / 64 == self.with_free.len() {
            self.with_free.push(0);
        }
        self.offer(at);
        self.unused += CHUNK;
    }

    /// Numbers of a chunk can be given out.
    fn offer(&mut self, chunk: usize) {
        self.with_free[chunk / 64] |= 1 << (chunk % 64);
        self.first_free = self.first_free.min(chunk / 64);
    }

    /// Whether most entries are not in use.
    pub(super) fn is_mostly_unused(&self) -> bool {
        self.unused > 4 * CHUNK && self.unused > self.chunks.len() * (CHUNK / 2)
    }

    /// The numbers of the last chunk, if the others have room for its contents, and some more. None of them is given out
    /// until it is dropped or kept.
    pub(super) fn last_chunk(&mut self) -> Option<std::ops::Range<u32>> {
        if self.unused <= CHUNK + CHUNK / 2 {
            return None;
        }
        let last = self.chunks.len() - 1;
        self.with_free[last / 64] &= !(1 << (last % 64));
        let first = u32::try_from(last * CHUNK).ok()?;
        Some(first..first + (1 << CHUNK_BITS))
    }

    /// Gives a content of the last chunk another number, which its blocks have to be told.
    pub(super) fn renumber(&mut self, content: u32, group: Group) -> u32 {
        let (key, head) = {
            let entry = self.entry(content);
            (entry.key, entry.head.load(Ordering::Relaxed))
        };
        let to = self.unused(key);
        let bits = Self::bits(key, group);
        let segment = &mut self.index[segment(bits)];
        let place = segment.place_of(bits, content);
        segment.places[place] = tagged(bits, to);
        *self.entry_mut(to) = Entry {
            key,
            head: AtomicU32::new(head),
        };
        *self.head_mut(content) = UNUSED | NIL;
        self.unused += 1;
        to
    }

    /// Gives out the numbers of the last chunk again that are not in use: it is not empty yet.
    pub(super) fn keep_last_chunk(&mut self) {
        let last = self.chunks.len() - 1;
        let mut free = NIL;
        for (at, entry) in self.chunks[last].entries.iter_mut().enumerate().rev() {
            let head = entry.head.get_mut();
            if *head & (UNUSED | TOUCHED) == UNUSED {
                *head = UNUSED | free;
                free = u32::try_from(last * CHUNK + at).expect("at most 2^30 contents");
            }
        }
        self.chunks[last].free = free;
        if free != NIL {
            self.offer(last);
        }
    }

    /// Gives the last chunk back, in which no number is in use.
    pub(super) fn drop_last_chunk(&mut self) {
        self.chunks.pop();
        self.unused -= CHUNK;
        self.with_free.truncate(self.chunks.len().div_ceil(64));
        self.first_free = self.first_free.min(self.with_free.len().saturating_sub(1));
        if self.chunks.len() + 256 <= self.chunks.capacity() {
            self.chunks.shrink_to(self.chunks.len() + 64);
        }
    }

    fn grow(&mut self, at: usize, group_of: &impl Fn(u32) -> Group) {
        let length = self.index[at].next_len();
        let mut larger = Segment {
            places: vec![FREE; length].into_boxed_slice(),
            used: 0,
        };
        let mut read = Vec::with_capacity(READ_AT_ONCE);
        for places in self.index[at].places.chunks(READ_AT_ONCE) {
            let contents = places.iter().filter(|place| **place != FREE);
            read.extend(contents.map(|place| {
                let content = place & !TAG;
                (content, self.key(content), self.head(content))
            }));
            for (content, key, head) in read.drain(..) {
                larger.insert(Self::bits(key, group_of(head)), content);
            }
        }
        self.room += length - self.index[at].places.len();
        self.index[at] = larger;
    }

    fn bits_of(&self, content: u32, group_of: impl Fn(u32) -> Group) -> u64 {
        Self::bits(self.key(content), group_of(self.head(content)))
    }

    /// Takes a content out of the index. Its leader's place is still in its group.
    fn leave_index(&mut self, content: u32, group_of: impl Fn(u32) -> Group) {
        let own = self.bits_of(content, &group_of);
        let segment_of = &self.index[segment(own)];
        let len = segment_of.places.len();
        let mut hole = segment_of.place_of(own, content);
        // Those behind move up, each as far as its own place allows.
        let mut moves = Vec::new();
        let mut at = (hole + 1) % len;
        while segment_of.places[at] != FREE {
            let next = self.bits_of(segment_of.places[at] & !TAG, &group_of);
            let wanted = segment_of.start(next);
            if (at + len - wanted) % len >= (at + len - hole) % len {
                moves.push((hole, segment_of.places[at]));
                hole = at;
            }
            at = (at + 1) % len;
        }
        let segment_of = &mut self.index[segment(own)];
        for (to, content) in moves {
            segment_of.places[to] = content;
        }
        segment_of.places[hole] = FREE;
        segment_of.used -= 1;
        self.len -= 1;
    }

    /// Takes a content out whose stack is empty but for its leader, who is leaving.
    pub(super) fn remove(&mut self, content: u32, group_of: impl Fn(u32) -> Group) {
        self.leave_index(content, group_of);
        self.release(content);
    }

    /// The content is found no more; its blocks keep its number until they have left the stack one by one.
    pub(super) fn condemn(&mut self, content: u32, group_of: impl Fn(u32) -> Group) {
        self.leave_index(content, group_of);
        *self.head_mut(content) |= TOUCHED | UNUSED;
    }

    /// What is left of the stack of a condemned content.
    pub(super) fn condemned_top(&self, content: u32) -> u32 {
        self.head(content) & !UNUSED
    }

    pub(super) fn set_condemned_top(&mut self, content: u32, slot: u32) {
        *self.head_mut(content) = TOUCHED | UNUSED | slot;
    }

    /// The number of a content that has no blocks is free.
    pub(super) fn release(&mut self, content: u32) {
        let at = chunk(content);
        let next = std::mem::replace(&mut self.chunks[at].free, content);
        *self.head_mut(content) = UNUSED | next;
        self.offer(at);
        self.unused += 1;
    }

    /// The next content that nobody asked for since the hand was there last, and that `fits`, among so many.
    pub(super) fn victim(
        &mut self,
        steps: usize,
        fits: impl Fn(&Self, u32) -> bool,
    ) -> Option<u32> {
        let numbers = self.chunks.len() * CHUNK;
        for _ in 0..steps.min(2 * numbers) {
            self.hand = if self.hand + 1 < numbers {
                self.hand + 1
            } else {
                0
            };
            let content = u32::try_from(self.hand).ok()?;
            if !self.is_used(content) || !fits(self, content) {
                continue;
            }
            let head = self.head_mut(content);
            if *head & TOUCHED == 0 {
                return Some(content);
            }
            *head &= !TOUCHED;
        }
        None
    }

    fn is_used(&self, content: u32) -> bool {
        self.head(content) & UNUSED == 0
    }

    /// Numbers that there are, whether in use or not.
    pub(super) fn numbers(&self) -> u32 {
        u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX)
    }

    /// The leader of a content, if it is in use.
    pub(super) fn head_of(&self, content: u32) -> Option<u32> {
        let is_there = content < self.numbers() && self.is_used(content);
        is_there.then(|| self.head(content))
    }

    /// Panics where a number that is not in use cannot be given out.
    pub(super) fn check_unused(&self) {
        let mut unused = 0;
        for (at, chunk) in self.chunks.iter().enumerate() {
            let is_noted = self.with_free[at / 64] >> (at % 64) & 1 != 0;
            assert_eq!(is_noted, chunk.free != NIL, "chunk {at} has some to give");
            assert!(
                !is_noted || self.first_free <= at / 64,
                "they are looked for"
            );
            let mut content = chunk.free;
            while content != NIL {
                let head = self.head(content);
                assert!(head & UNUSED != 0, "content {content} is not in use");
                content = head & !UNUSED;
                unused += 1;
            }
        }
        assert_eq!(unused, self.unused, "each number is used or given out");
    }

    /// Contents in use.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.numbers()).filter(|&content| self.is_used(content))
    }
}

impl<K> Contents<K> {
    /// What one content takes, without what is held ready for others.
    pub(super) const EACH: usize = size_of::<Entry<K>>() + size_of::<u32>() + 1;

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Entry<K>>()
            + self.chunks.capacity() * (size_of::<Chunk<K>>() + size_of::<u64>())
            + SEGMENTS * size_of::<Segment>()
            + self.room * size_of::<u32>()
    }
}
