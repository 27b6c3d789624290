//! The DRIVE map: to which of several blocks with equal content a read goes.
//!
//! # Words
//! - *Volume*: a disk of one guest, made of *blocks* of one size (4 KiB). It belongs to a *group*.
//! - *Content*: what a block holds, by a *key* (a fingerprint, or a number in a simulation). Two
//!   blocks share a content only when their keys are equal **and** their groups are.
//! - *Known*: a block whose content the map has. *Duplicates*: the known blocks of one content.
//! - *Leader*: the duplicate to which reads of all duplicates go. It was fetched last, so it is the one
//!   that a cache beneath is likely to hold. Nothing asks the cache.
//! - *Stamp*: proof that a block was not written since.
//!
//! # States of a block
//! ```text
//!                    learned(content)                      learned(content, after its stamp)
//!   unknown ------------------------------> known <-------------------------------- written
//!      ^  \________________________________/  |  \__________________________________^  |
//!      |        evicted (the map is full)     |              forget_range, overwrite    |
//!      |                                      | trimmed(zeroes), learned(zero)         |
//!      +--- volume removed, trimmed <---------+----------------> zero <----------------+
//! ```
//! # Rules, as the thesis on DRIVE and its simulator have them
//! - A read goes to the leader of its content, or to the block itself when it is not known.
//! - Learning a new (block, content) pair makes that block the leader: it has just been fetched or
//!   written. Learning what is known already changes nothing, and neither does a redirected read.
//! - Duplicates are a stack. A write takes the block out of it; if it was the leader, the most recently
//!   added of the rest leads. As each addition leads and each removal keeps the order, **the leader is the
//!   top of the stack**, and needs no mark of its own.
//! - After a write the caller may say what was written ("metadata updated": [`How::Write`]) or leave the
//!   block unknown until it is read next ("metadata invalidated").
//!
//! # Many callers at once
//! [`DriveMap::look`], [`DriveMap::stamp`] and all else that takes `&self` may be called by many threads at once, behind a lock
//! that readers share. A caller that works on several requests at once takes a [`Stamp`] before it reads, and shows it
//! when it has read: [`Stamps::holds`] says, without a lock, whether a block was written since, and [`DriveMap::learned`]
//! drops what was read before or during a write. A write begins with [`Stamps::begin`]; then what is known of its blocks is
//! taken out ([`DriveMap::knows_any`], [`DriveMap::forget_range`]); then its bytes move; then comes [`Stamps::end`],
//! which says what may be learned of it.
//!
//! While the stamps of two blocks hold that the map had in one stack, they have the same content: nothing but a write, and
//! the discovery that somebody wrote behind the caller's back (which voids stamps too), changes what a block holds. That
//! another block leads by now, or that the content was evicted, does not.
//!
//! # Memory
//! Blocks with contents are kept in pages of 256: 4 bytes a block, and 4 more in pages that have duplicates beneath
//! others in a stack. Zeroes outside of pages take a bit each at most, and a word for each mebibyte or gibibyte of nothing else. A
//! content takes its key and 4 bytes, and about 5 in the index. All of it is counted, and
//! never over [`Config::max_bytes`]. Who gives way when it is full is in `room.rs`: groups, and volumes within a group, share the
//! map in equal parts, and lend what they do not use.
//!
//! No operation takes time that grows with a volume: a volume is forgotten at once and taken apart in slices (`forget.rs`), ranges
//! and walks go on where they were after so many steps.
//!
//! # Invariants (each checked by [`DriveMap::check_invariants`])
//! 1. A block is in exactly one stack, that of its content, or in none; stacks have no cycle.
//! 2. Every content has at least one block, and all its blocks are in volumes of one group.
//! 3. No two contents have the same (group, key); each is found by the index.
//! 4. A page counts its contents and zeroes; a page without contents is given back, as is a leaf of the table without any entry.
//! 5. The bytes counted are the bytes held, and at most `max_bytes`; what volumes hold is counted right.
//!
//! # Limits
//! - 2^30 blocks in pages (4 TiB of known blocks of 4 KiB), 2^32 blocks a volume.
//! - Taking a block out of the middle of a stack walks from the top. After [`Config::max_walk`] steps the
//!   content is forgotten instead, blocks and all, of whichever volume of the group they are.
//! - Equal keys are taken for equal contents. A caller for whom keys may be forged or collide verifies
//!   what it redirects.

mod check;
mod contents;
mod forget;
mod pages;
mod ranges;
mod remember;
mod room;
mod stamps;
mod table;
mod volumes;
mod walk;
mod zeroes;

use std::fmt;
use std::sync::Arc;

use contents::Contents;
pub use contents::Key;
pub(crate) use contents::mix;
use forget::Dying;
use pages::{Cell, NIL, Pages};
pub use ranges::Known;
pub use stamps::{Change, Ended, Stamp, Stamps};
use volumes::Volumes;
pub use walk::Walk;

/// The least that [`Config::max_bytes`] can be: stamps of some volumes, one page and the first contents. Bytes.
pub const MIN_BYTES: usize = 128 * 1024;

/// Steps by which each learned block takes apart what was forgotten.
const LEARN_STEPS: u32 = 64;

/// What lists of what is still to be taken apart are taken to have, in bytes.
const LISTS_BYTES: usize = 4 * 1024;

/// What a map may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes that all of the map may take; less than [`MIN_BYTES`] counts as that.
    pub max_bytes: usize,
    /// Steps that taking one block out of a stack may take; then the content is forgotten.
    pub max_walk: u32,
}

impl Config {
    /// Everything is kept and followed to its end: as the thesis has it, for simulations.
    pub const UNBOUNDED: Self = Self {
        max_bytes: usize::MAX,
        max_walk: u32::MAX,
    };

    /// At most so many bytes, and walks of 4,096 steps (some tens of microseconds).
    #[must_use]
    pub const fn bounded(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            max_walk: 4_096,
        }
    }
}

/// A volume of a map, as [`DriveMap::add_volume`] named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Volume(pub(crate) u32);

impl Volume {
    /// Its number: 0 for the first that was added, and so on.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who may share contents: volumes of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(pub u32);

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content<K> {
    /// Nothing but zero bytes: no block has to be read for it.
    Zero,
    /// What has this key.
    Key(K),
}

/// How a content came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By a read that returned it.
    Read,
    /// By a write of it.
    Write,
    /// By going over a volume beforehand.
    Scan,
}

/// Where a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// To the block itself, for this reason.
    Itself(Why),
    /// To another block with the same content.
    Leader {
        /// Its volume.
        volume: Volume,
        /// Its number there.
        block: u64,
    },
    /// Nowhere: it is all zeroes.
    Zero,
}

/// Why a read is not redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Nothing is known of the block.
    Unknown,
    /// It was written, and its content not learned since.
    Written,
    /// It was known, and evicted for want of memory.
    Evicted,
    /// It is the leader of its content, and other blocks have that too.
    Leads,
    /// No other block is known to have its content.
    Alone,
}

impl Why {
    /// Whether the content of the block is known.
    #[must_use]
    pub const fn is_known(self) -> bool {
        matches!(self, Self::Leads | Self::Alone)
    }
}

/// What became of something learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The first block with this content.
    New,
    /// One more block with a content that is known; it leads now.
    Duplicate,
    /// The block was known to have it: nothing changes.
    Again,
    /// A write came in between: dropped.
    Stale,
    /// There is no room, or no such volume: dropped.
    Refused,
}

/// What happened, in numbers of blocks unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads that were redirected to another block.
    pub redirected: u64,
    /// Reads of zeroes.
    pub zero: u64,
    /// Reads of blocks that nothing was known of.
    pub unknown: u64,
    /// Reads of blocks that were written, and not learned since.
    pub written: u64,
    /// Reads of blocks that were known before the map was full.
    pub evicted: u64,
    /// Reads of leaders with duplicates.
    pub leads: u64,
    /// Reads of the only block with its content.
    pub alone: u64,
    /// Contents that came to be known.
    pub new: u64,
    /// Blocks that came to be known with a content that was known.
    pub duplicate: u64,
    /// Of both, those that came to be known by a read.
    pub by_read: u64,
    /// Those that came to be known by a write.
    pub by_write: u64,
    /// Those that came to be known by a scan.
    pub by_scan: u64,
    /// Learned again, nothing new.
    pub again: u64,
    /// Learned with another content than was known, without a write in between.
    pub changed: u64,
    /// Dropped, as a write came in between.
    pub stale: u64,
    /// Dropped for want of room.
    pub refused: u64,
    /// Contents evicted by the hand.
    pub contents_evicted: u64,
    /// Pages evicted by the hand.
    pub pages_evicted: u64,
    /// Times that the zeroes of a gibibyte were evicted.
    pub zeroes_evicted: u64,
    /// Contents forgotten, as a walk in their stack was too long.
    pub too_long: u64,
}

impl Counters {
    /// All reads.
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.redirected
            + self.zero
            + self.unknown
            + self.written
            + self.evicted
            + self.leads
            + self.alone
    }
}

/// The map. See the [module](self) for what it is.
pub struct DriveMap<K> {
    volumes: Volumes,
    pages: Pages,
    contents: Contents<K>,
    /// Lives of volumes, and contents, that are being taken apart.
    dying: Vec<Dying>,
    dying_bytes: usize,
    condemned: Vec<u32>,
    /// What each group holds, while room is made.
    sums: Vec<usize>,
    /// The page of the block that is being learned: it stays, also while nothing is known in it.
    pinned: Option<u32>,
    config: Config,
    counters: Counters,
}

impl<K> fmt::Debug for DriveMap<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriveMap")
            .field("known_blocks", &self.volumes.known())
            .field("contents", &self.contents.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<K: Key> DriveMap<K> {
    /// An empty map.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            volumes: Volumes::default(),
            pages: Pages::default(),
            contents: Contents::new(),
            dying: Vec::new(),
            dying_bytes: 0,
            condemned: Vec::new(),
            sums: Vec::new(),
            pinned: None,
            config: Config {
                max_bytes: config.max_bytes.max(MIN_BYTES),
                ..config
            },
            counters: Counters::default(),
        }
    }

    /// A volume comes, of which nothing is known; none when there is no room even for that.
    pub fn add_volume(&mut self, group: Group) -> Option<Volume> {
        while self.spare() < Volumes::ENTRY_BYTES {
            self.free_some(Volume(u32::MAX), 0).then_some(())?;
        }
        Some(self.volumes.add(group))
    }

    /// A volume goes, and what was known of it. Its number is not given out again.
    pub fn remove_volume(&mut self, volume: Volume) {
        self.forget_volume(volume);
        self.volumes.close(volume);
    }

    /// All that is known of a volume is forgotten, as somebody changed it behind the caller's back; what was read of it
    /// and is not learned yet will not be. Writes that are under way stay so. It takes as long whatever is known; memory
    /// comes back by [`Self::reclaim`], and by and by as others learn.
    pub fn forget_volume(&mut self, volume: Volume) {
        // First the stamps: a reader looks at them without the map.
        if let Some(stamps) = self.volumes.stamps(volume) {
            stamps.void_all();
        }
        self.end_life(volume);
    }

    /// The counters by which writes to a volume are noticed, for a caller with several requests at once; none when there is
    /// no room for them, or no such volume.
    pub fn stamps(&mut self, volume: Volume) -> Option<Arc<Stamps>> {
        while self.volumes.stamps(volume).is_none() && self.spare() < Stamps::BYTES {
            self.free_some(volume, 0).then_some(())?;
        }
        self.volumes.make_stamps(volume)
    }

    /// Where a read of a block goes; it counts as one read, and as use of the content.
    #[inline]
    pub fn read(&mut self, volume: Volume, block: u64) -> Source {
        let source = self.look(volume, block);
        let counters = &mut self.counters;
        *match source {
            Source::Leader { .. } => &mut counters.redirected,
            Source::Zero => &mut counters.zero,
            Source::Itself(Why::Unknown) => &mut counters.unknown,
            Source::Itself(Why::Written) => &mut counters.written,
            Source::Itself(Why::Evicted) => &mut counters.evicted,
            Source::Itself(Why::Leads) => &mut counters.leads,
            Source::Itself(Why::Alone) => &mut counters.alone,
        } += 1;
        source
    }

    /// The same, without a trace.
    #[must_use]
    pub fn peek(&self, volume: Volume, block: u64) -> Source {
        match self.volumes.slot(volume, block) {
            Some(slot) => self.source(slot),
            None => self.source_without_page(volume, block),
        }
    }

    /// The same, as use of the content, but not counted: for many callers at once.
    #[inline]
    pub fn look(&self, volume: Volume, block: u64) -> Source {
        let Some(slot) = self.volumes.slot(volume, block) else {
            return self.source_without_page(volume, block);
        };
        self.pages.touch(slot);
        if let Cell::Content(content) = self.pages.cell(slot) {
            self.contents.touch(content);
        }
        self.source(slot)
    }

    /// The block that led a content until this one came to lead it; `None` where it does not lead, or there is
    /// no other.
    #[must_use]
    pub fn led_before(&self, volume: Volume, block: u64) -> Option<(Volume, u64)> {
        let slot = self.volumes.slot(volume, block)?;
        let Cell::Content(content) = self.pages.cell(slot) else {
            return None;
        };
        let leads = self.contents.leader(content) == Some(slot);
        let next = self.alive_from(self.pages.next(slot)).filter(|_| leads)?;
        Some(self.pages.place(next))
    }

    #[inline]
    fn source(&self, slot: u32) -> Source {
        let content = match self.pages.cell(slot) {
            Cell::Content(content) => content,
            Cell::Unknown => return Source::Itself(Why::Unknown),
            Cell::Written => return Source::Itself(Why::Written),
            Cell::Evicted => return Source::Itself(Why::Evicted),
            Cell::Zero => return Source::Zero,
        };
        let Some(top) = self.contents.leader(content) else {
            return Source::Itself(Why::Evicted);
        };
        // Too many of another life are above to be passed over now.
        let Some(leader) = self.alive_from(top) else {
            return Source::Itself(Why::Leads);
        };
        if leader != slot {
            let (volume, block) = self.pages.place(leader);
            return Source::Leader { volume, block };
        }
        Source::Itself(if self.pages.next(slot) == NIL {
            Why::Alone
        } else {
            Why::Leads
        })
    }

    fn source_without_page(&self, volume: Volume, block: u64) -> Source {
        match self.cell(volume, block) {
            Cell::Zero => Source::Zero,
            _ => Source::Itself(Why::Unknown),
        }
    }

    /// A stamp for a block that is about to be read; none while a write to it is under way, or where the volume has no
    /// [stamps](Self::stamps).
    #[must_use]
    pub fn stamp(&self, volume: Volume, block: u64) -> Option<Stamp> {
        self.volumes.stamps(volume)?.of(block)
    }

    /// Whether a block is what it was when the stamp was taken.
    #[must_use]
    pub fn holds(&self, volume: Volume, block: u64, stamp: Stamp) -> bool {
        let stamps = self.volumes.stamps(volume);
        stamps.is_some_and(|stamps| stamps.holds(block, stamp))
    }

    /// A block turned out to have a content. `stamp` is from before it was read, or from after it was
    /// written.
    pub fn learned(
        &mut self,
        volume: Volume,
        block: u64,
        content: Content<K>,
        how: How,
        stamp: Stamp,
    ) -> Learned {
        if !self.holds(volume, block, stamp) {
            self.counters.stale += 1;
            return Learned::Stale;
        }
        self.learn(volume, block, content, how)
    }

    /// The same, for a caller that does one thing at a time and needs no stamps.
    pub fn learn(&mut self, volume: Volume, block: u64, content: Content<K>, how: How) -> Learned {
        if !self.dying.is_empty() || !self.condemned.is_empty() {
            self.reclaim(LEARN_STEPS);
        }
        let learned = self.remember(volume, block, content);
        let counters = &mut self.counters;
        *match learned {
            Learned::New => &mut counters.new,
            Learned::Duplicate => &mut counters.duplicate,
            Learned::Again => &mut counters.again,
            Learned::Stale => &mut counters.stale,
            Learned::Refused => &mut counters.refused,
        } += 1;
        if matches!(learned, Learned::New | Learned::Duplicate) {
            *match how {
                How::Read => &mut counters.by_read,
                How::Write => &mut counters.by_write,
                How::Scan => &mut counters.by_scan,
            } += 1;
        }
        learned
    }

    /// A write as a whole, for a caller that does one thing at a time and needs no stamps.
    pub fn overwrite(&mut self, volume: Volume, block: u64) {
        self.unlink(volume, block, Cell::Written);
    }

    /// A block does not hold what is known of it: that is forgotten, and what was planned by it is void.
    pub fn disbelieve(&mut self, volume: Volume, block: u64) {
        self.unlink(volume, block, Cell::Unknown);
        if let Some(stamps) = self.volumes.stamps(volume) {
            stamps.void(block);
        }
    }

    /// A block was trimmed: nothing is known of it, as what it reads as is for the disk to say. For a caller
    /// that does one thing at a time.
    pub fn trimmed(&mut self, volume: Volume, block: u64) {
        self.unlink(volume, block, Cell::Unknown);
    }

    /// What a block holds, as far as that is known.
    #[must_use]
    pub fn content(&self, volume: Volume, block: u64) -> Option<Content<K>> {
        match self.cell(volume, block) {
            Cell::Zero => Some(Content::Zero),
            Cell::Content(content) => {
                self.contents.leader(content)?;
                Some(Content::Key(self.contents.key(content)))
            }
            Cell::Unknown | Cell::Written | Cell::Evicted => None,
        }
    }

    /// Blocks whose content is known, zeroes among them.
    #[must_use]
    pub fn known_blocks(&self) -> u64 {
        self.volumes.known()
    }

    /// Blocks whose content is known, without zeroes.
    #[must_use]
    pub fn blocks_with_contents(&self) -> u64 {
        let entries = self.volumes.entries.iter();
        entries.map(|entry| entry.usage.blocks).sum()
    }

    /// Different contents that are known, zeroes aside.
    #[must_use]
    pub fn contents(&self) -> u64 {
        u64::from(self.contents.len())
    }

    /// Bytes that the map takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.volumes.bytes()
            + self.dying_bytes
            + self.pages.bytes()
            + self.contents.bytes()
            + LISTS_BYTES
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
