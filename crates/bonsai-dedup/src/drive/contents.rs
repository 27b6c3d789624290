//! Contents: their keys, their leaders, and the index by which they are found.

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
/// Set in the head of a content that is not in use; the rest is the next one that is not, or [`NIL`].
const UNUSED: u32 = 1 << 30;

/// Contents at most, so that they fit beside both bits.
const MAX_CONTENTS: usize = (1 << 30) - CHUNK;

const FREE: u32 = u32::MAX;
const FIRST_INDEX: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    /// The leader, and whether anyone asked for it; or the next that is not in use.
    head: u32,
}

#[derive(Debug)]
pub(super) struct Contents<K> {
    chunks: Vec<Box<[Entry<K>]>>,
    /// Numbers given out so far.
    used: usize,
    /// The first that is not in use, or [`NIL`].
    free: u32,
    index: Vec<u32>,
    len: u32,
    hand: usize,
}

impl<K: Key> Contents<K> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            used: 0,
            free: NIL,
            index: vec![FREE; FIRST_INDEX],
            len: 0,
            hand: 0,
        }
    }

    pub(super) fn key(&self, content: u32) -> K {
        self.entry(content).key
    }

    #[inline]
    fn entry(&self, content: u32) -> &Entry<K> {
        &self.chunks[(content >> CHUNK_BITS) as usize][content as usize % CHUNK]
    }

    #[inline]
    fn entry_mut(&mut self, content: u32) -> &mut Entry<K> {
        &mut self.chunks[(content >> CHUNK_BITS) as usize][content as usize % CHUNK]
    }

    #[inline]
    pub(super) fn head(&self, content: u32) -> u32 {
        self.entry(content).head & !TOUCHED
    }

    pub(super) fn set_head(&mut self, content: u32, slot: u32) {
        let entry = self.entry_mut(content);
        entry.head = entry.head & TOUCHED | slot;
    }

    #[inline]
    pub(super) fn touch(&mut self, content: u32) {
        let entry = self.entry_mut(content);
        if entry.head & TOUCHED == 0 {
            entry.head |= TOUCHED;
        }
    }

    fn bits(key: K, group: Group) -> u64 {
        key.bits() ^ mix(u64::from(group.0))
    }

    fn start(&self, bits: u64) -> usize {
        let scaled = (u128::from(bits) * self.index.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Steps through the index from where `bits` belong.
    fn from(&self, bits: u64) -> impl Iterator<Item = usize> + use<K> {
        let (start, len) = (self.start(bits), self.index.len());
        (start..len).chain(0..start)
    }

    /// The content with this key in this group; `group_of` is the group of a leader's place.
    pub(super) fn find(
        &self,
        key: K,
        group: Group,
        group_of: impl Fn(u32) -> Group,
    ) -> Option<u32> {
        for at in self.from(Self::bits(key, group)) {
            match self.index[at] {
                FREE => return None,
                content => {
                    if self.key(content) == key && group_of(self.head(content)) == group {
                        return Some(content);
                    }
                }
            }
        }
        None
    }

    fn is_index_full(&self) -> bool {
        (self.len as usize + 1) * 8 > self.index.len() * 7
    }

    /// Whether a content can be added with this many bytes more.
    pub(super) fn has_room(&self, spare: usize) -> bool {
        let mut bytes = 0;
        if self.is_index_full() {
            // Both are there while one is copied into the other.
            bytes += self.next_index() * size_of::<u32>();
        }
        if self.free == NIL && self.used == self.chunks.len() * CHUNK {
            bytes += self.chunk_bytes();
        }
        bytes <= spare && (self.free != NIL || self.used < MAX_CONTENTS)
    }

    fn chunk_bytes(&self) -> usize {
        let list = if self.chunks.len() == self.chunks.capacity() {
            (self.chunks.len() + 64) * size_of::<Box<[Entry<K>]>>()
        } else {
            0
        };
        CHUNK * size_of::<Entry<K>>() + list
    }

    fn next_index(&self) -> usize {
        self.index.len() + self.index.len() / 8
    }

    /// A content with this leader. There is room.
    pub(super) fn add(
        &mut self,
        key: K,
        group: Group,
        head: u32,
        group_of: impl Fn(u32) -> Group,
    ) -> u32 {
        if self.is_index_full() {
            self.grow_index(&group_of);
        }
        let content = self.unused(key);
        *self.entry_mut(content) = Entry {
            key,
            head: head | TOUCHED,
        };
        self.insert(Self::bits(key, group), content);
        self.len += 1;
        content
    }

    fn unused(&mut self, key: K) -> u32 {
        if self.free != NIL {
            let content = self.free;
            self.free = self.entry(content).head & !UNUSED;
            return content;
        }
        if self.used == self.chunks.len() * CHUNK {
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(64);
            }
            let empty = Entry {
                key,
                head: UNUSED | NIL,
            };
            self.chunks.push(vec![empty; CHUNK].into_boxed_slice());
        }
        self.used += 1;
        u32::try_from(self.used - 1).expect("at most 2^30 contents")
    }

    fn insert(&mut self, bits: u64, content: u32) {
        let place = self.from(bits).find(|&at| self.index[at] == FREE);
        let place = place.expect("an eighth of the index is free");
        self.index[place] = content;
    }

    fn grow_index(&mut self, group_of: &impl Fn(u32) -> Group) {
        let larger = vec![FREE; self.next_index()];
        let old = std::mem::replace(&mut self.index, larger);
        for content in old.into_iter().filter(|&content| content != FREE) {
            let group = group_of(self.head(content));
            self.insert(Self::bits(self.key(content), group), content);
        }
    }

    /// Takes a content out. Its leader's place is still in its group.
    pub(super) fn remove(&mut self, content: u32, group_of: impl Fn(u32) -> Group) {
        let home = |this: &Self, content| {
            let group = group_of(this.head(content));
            this.start(Self::bits(this.key(content), group))
        };
        let len = self.index.len();
        let start = home(self, content);
        let hole = (start..len)
            .chain(0..start)
            .find(|&at| self.index[at] == content);
        let mut hole = hole.expect("every content is in the index");
        // Those behind move up, each as far as its own place allows.
        let mut at = (hole + 1) % len;
        while self.index[at] != FREE {
            let wanted = home(self, self.index[at]);
            if (at + len - wanted) % len >= (at + len - hole) % len {
                self.index[hole] = self.index[at];
                hole = at;
            }
            at = (at + 1) % len;
        }
        self.index[hole] = FREE;
        self.entry_mut(content).head = UNUSED | self.free;
        self.free = content;
        self.len -= 1;
    }

    /// The next content that nobody asked for since the hand was there last.
    pub(super) fn victim(&mut self) -> Option<u32> {
        for _ in 0..2 * self.used + 1 {
            let content = u32::try_from(self.hand).ok()?;
            self.hand = if self.hand + 1 < self.used {
                self.hand + 1
            } else {
                0
            };
            if self.used == 0 || !self.is_used(content) {
                continue;
            }
            let entry = self.entry_mut(content);
            if entry.head & TOUCHED == 0 {
                return Some(content);
            }
            entry.head &= !TOUCHED;
        }
        None
    }

    fn is_used(&self, content: u32) -> bool {
        self.entry(content).head & UNUSED == 0
    }

    /// Numbers that were given out so far.
    pub(super) fn numbers(&self) -> u32 {
        u32::try_from(self.used).unwrap_or(u32::MAX)
    }

    /// The leader of a content, if it is in use.
    pub(super) fn head_of(&self, content: u32) -> Option<u32> {
        let is_there = (content as usize) < self.used && self.is_used(content);
        is_there.then(|| self.head(content))
    }

    /// Contents in use.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers = (0..self.used).filter_map(|n| u32::try_from(n).ok());
        numbers.filter(|&content| self.is_used(content))
    }
}

impl<K> Contents<K> {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Entry<K>>()
            + self.chunks.capacity() * size_of::<Box<[Entry<K>]>>()
            + self.index.capacity() * size_of::<u32>()
    }
}
