//! Reads that go to another block with the same content, when the page cache has that one.
//!
//! # Story
//! One map ([`bonsai_dedup::drive`]) knows what blocks of all images hold, as far as they were read, written or
//! gone over. A read of pages that the page cache has never comes here. Of others, the read is *planned*: blocks one after the
//! other that come from the same place are a run. A run goes to the leaders of its blocks only if all
//! of these are resident (asked by `cachestat`, which has no effect), and if the whole is no more than
//! [`MOST_RUNS`] runs; else blocks are read where they are, in one piece. Where contents are elsewhere, the
//! kernel reads nothing ahead; see `led.rs` and `ahead.rs`. Once a block is learned to be a duplicate it leads, and the one that led before is taken out of the page
//! cache: memory has a content once.
//!
//! # Invariants
//! 1. What was read of a leader is given away only if, after it was read, the stamps of both blocks still hold: neither was
//!    written, forgotten or found to hold something else since the map had them in one stack.
//! 2. A change begins in the stamps of its volume, then its blocks are taken out of the map, then its bytes move, then it
//!    ends in the stamps, also where it fails. Of changes that overlap nothing is learned.
//! 3. What is learned waits in a queue of bounded bytes; what does not fit is not learned.
//! 4. What the map says of an image, and what an image has for others, is used only while no other program can have
//!    changed that image (see `guard.rs`), and only if no write to the leader is known to be lost (see `image/flush.rs`).
//! 5. Keys of groups are made of a secret that is the server's, or its user's, alone: no fingerprint can be made up,
//!    and equal contents of two groups have different ones.
//!
//! # Locks
//! The map is behind a sharded lock: readers (plans of reads, surveys, the writer of the index file) do not exclude each other, and
//! each writes to a word of its own shard, so that redirected reads scale with cores. It is locked exclusively to enter what was
//! learned, to take out blocks that are about to be written, and to reclaim what was forgotten: for a bounded number of steps
//! each time, never for a system call. Stamps are atomic counters of one volume; they are checked without the lock
//! ([`bonsai_dedup::drive::Stamps`]):
//! - A change is counted before the map is asked whether it knows the blocks. Whoever learns checks stamps under the exclusive lock. So
//!   either the block is entered first, and the change finds it and takes it out; or the change counts first, and nothing is entered.
//! - A reader takes stamps while it plans, reads bytes, and compares stamps. Fences on both sides order the counters with the bytes: a
//!   reader that got a byte of a change sees that it began.
//!
//! # Limits
//! Blocks of 4 KiB that begin at multiples of that. Images of which the kernel grants no lease share only if the operator
//! vouches for them; then a change that the kernel does not report is noticed by the times of the image, within a second,
//! and only where the server did not write itself meanwhile.

mod ahead;
mod follow;
mod guard;
mod images;
mod kept;
mod known;
mod learn;
mod led;
mod plan;
mod proof;
mod scan;
mod secret;
mod seen;
mod survey;

pub use guard::Guarding;
pub use kept::{KeptError, runs_of};
pub(crate) use plan::Plan as ReadPlan;
pub use scan::{ScanPhase, ScanProgress, Scanned};
pub use secret::Secret;
pub use survey::{CacheShares, GroupShares, survey};

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use bonsai_dedup::drive::{Config, Content, DriveMap, Group, How, Stamp, Volume};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use crate::export::add;
use crate::image::{Identity, Image, LeaseError};
use ahead::Ahead;
use guard::{Clock, Guard, LeaseKeeper};
use images::Images;
use known::Known;
use learn::{Learner, Lesson, Queue};
use led::Led;
use seen::Recalling;

/// Steps for which the map is held exclusively at once: some hundred microseconds.
const SLICE: u32 = 4096;
/// A block, in bytes.
pub const BLOCK: u64 = 4096;

/// Runs of one read, at most: each costs a system call.
pub const MOST_RUNS: usize = 8;

/// 96 bits: of 2^28 different contents (a tebibyte) two have the same with a chance of 2^-41, and the
/// map takes 2 bytes less for each of its blocks than with 128.
type Fingerprint = [u32; 3];
type Map = DriveMap<Fingerprint>;

/// What all images of a server share.
#[derive(Debug)]
pub struct Sharing {
    state: Arc<State>,
    learner: Learner,
    secret: Secret,
    groups: Mutex<HashMap<String, Group>>,
    verify: bool,
    leases: LeaseKeeper,
    /// Reads of all images that needed the disk.
    disk_reads: AtomicU64,
}

#[derive(Debug)]
struct State {
    map: ShardedLock<Map>,
    images: Images,
    queue: Arc<Queue>,
    clock: Clock,
    max_bytes: usize,
}

/// One image's part.
#[derive(Debug)]
pub struct Member {
    sharing: Arc<Sharing>,
    image: Arc<Image>,
    known: Arc<Known>,
    group: Group,
    group_name: String,
    key: [u8; 32],
    ahead: Ahead,
    led: Led,
    /// The image when the server opened it, if it was guarded then, and the time of guards.
    opened: Option<(Identity, u64)>,
    recalling: Recalling,
    /// What became of reads.
    pub counters: Shared,
}

/// What became of reads that came to the map, in blocks unless said otherwise.
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes that were read from the page cache in another block's place.
    pub redirected_bytes: AtomicU64,
    /// Reads that needed no disk, as all of them was elsewhere or zero.
    pub saved: AtomicU64,
    /// Bytes that were answered as zeroes.
    pub zero_bytes: AtomicU64,
    /// Not redirected: nothing is known of the block.
    pub unknown: AtomicU64,
    /// Not redirected: it is the leader, or has no duplicate.
    pub leads: AtomicU64,
    /// Not redirected: the page cache has not got the leader either.
    pub cold: AtomicU64,
    /// Not redirected: the read would have become too many.
    pub split: AtomicU64,
    /// Not redirected in the end: somebody wrote meanwhile.
    pub raced: AtomicU64,
    /// Not redirected in the end: what was found was not what the map said.
    pub wrong: AtomicU64,
    /// Blocks that were not learned, as too many waited.
    pub dropped: AtomicU64,
}

/// What the map is, for all images together.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Blocks whose content is known.
    pub known_blocks: u64,
    /// Different contents of these.
    pub contents: u64,
    /// Bytes of the map.
    pub bytes: usize,
    /// Its most.
    pub max_bytes: usize,
}

impl Sharing {
    /// Nothing known.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn new(max_bytes: usize, verify: bool, secret: Secret) -> io::Result<Arc<Self>> {
        let state = Arc::new(State {
            map: ShardedLock::new(Map::new(Config::bounded(max_bytes))),
            images: Images::default(),
            queue: Arc::default(),
            clock: Clock::default(),
            max_bytes,
        });
        Ok(Arc::new(Self {
            learner: Learner::start(&state)?,
            leases: LeaseKeeper::start(Arc::clone(&state))?,
            state,
            disk_reads: AtomicU64::new(0),
            secret,
            groups: Mutex::default(),
            verify,
        }))
    }

    /// An image of a group.
    ///
    /// # Errors
    /// [`MemberError`]: the image has to be served without sharing then.
    pub fn member(
        self: &Arc<Self>,
        image: &Arc<Image>,
        group: &str,
        guarding: Guarding,
    ) -> Result<Member, MemberError> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        let number = *groups.entry(group.to_owned()).or_insert(Group(count));
        drop(groups);
        let known = self
            .state
            .add(number, image, guarding)
            .ok_or(MemberError::Full)?;
        if let Guard::Lease(lease) = &known.guard {
            match lease.take(&known, &self.state, self.leases.owner()) {
                Err(error) if !error.is_temporary() => return Err(error.into()),
                _ => self.leases.wake(),
            }
        }
        // The time comes first: a lease that is taken again after it is a later one.
        let now = self.state.clock.now();
        let opened = image.identity().ok().filter(|_| known.guard.is_up());
        let opened = opened.map(|identity| (identity, now));
        image.read_ahead(false);
        Ok(Member {
            sharing: Arc::clone(self),
            image: Arc::clone(image),
            known,
            group: number,
            group_name: group.to_owned(),
            key: self.secret.group(group),
            ahead: Ahead::default(),
            led: Led::default(),
            opened,
            recalling: Recalling::new(image.size().div_ceil(BLOCK)),
            counters: Shared::default(),
        })
    }

    fn disk_reads(&self) -> u64 {
        self.disk_reads.load(Ordering::Relaxed)
    }

    /// What the map is now.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let map = self.state.map();
        Extent {
            known_blocks: map.known_blocks(),
            contents: map.contents(),
            bytes: map.bytes(),
            max_bytes: self.state.max_bytes,
        }
    }
}

impl State {
    /// Whether a thread has panicked while it changed the map: nothing of it is believed any more.
    fn is_broken(&self) -> bool {
        self.map.is_poisoned()
    }

    /// The map, for reading: many threads have it at once, each with a lock of its own shard.
    fn map(&self) -> ShardedLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map, exclusively: for a bounded number of steps.
    fn map_mut(&self) -> ShardedLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with what `to` does from a block on, until it says that there is no more, and lets others have the map after
    /// each [`SLICE`] of steps: a guest that discards its whole disk is not to hold up the others.
    fn in_slices(&self, start: u64, mut to: impl FnMut(&mut Map, u64) -> Option<u64>) {
        let mut from = to(&mut self.map_mut(), start);
        while let Some(at) = from {
            thread::sleep(Duration::from_micros(1));
            from = to(&mut self.map_mut(), at);
        }
    }

    /// Takes out what is known of blocks that are about to be changed. The change has begun in the stamps of the volume, so
    /// that nothing new is learned of them.
    fn forget_blocks(&self, volume: Volume, blocks: &Range<u64>) {
        if !self.map().knows_any(volume, blocks.clone()) {
            return;
        }
        self.in_slices(blocks.start, |map, at| {
            let next = map.forget_range(volume, at..blocks.end, SLICE);
            (next < blocks.end).then_some(next)
        });
    }

    /// Forgets all that is known of a volume, at once; its memory comes back by and by. What was planned or read before is
    /// not learned any more.
    fn forget_volume(&self, volume: Volume) {
        self.map_mut().forget_volume(volume);
        self.queue.tidy();
    }

    fn add(&self, group: Group, image: &Arc<Image>, guarding: Guarding) -> Option<Arc<Known>> {
        let mut map = self.map_mut();
        let volume = map.add_volume(group)?;
        let stamps = map.stamps(volume)?;
        drop(map);
        let known = Arc::new(Known::new(image, (volume, stamps), guarding));
        self.images.put(volume, Arc::clone(&known))?;
        Some(known)
    }

    /// Takes blocks out of the page cache whose contents others lead, who were read just now: who asks for one gets
    /// it from there, and memory has it once. Where the kernel reads ahead it would fetch them again.
    fn give_up(&self, blocks: &[(Volume, u64)]) {
        let mut blocks = blocks.iter().copied().peekable();
        while let Some((volume, first)) = blocks.next() {
            let mut count = 1;
            while blocks.next_if_eq(&(volume, first + count)).is_some() {
                count += 1;
            }
            let known = self.known(volume);
            if let Some(known) = known.filter(|known| known.image.is_read_exactly()) {
                // What stays there is only memory.
                let _ = known.image.forget(first * BLOCK, count * BLOCK);
            }
        }
    }

    fn images(&self) -> Vec<Arc<Known>> {
        self.images.all().cloned().collect()
    }

    fn known(&self, volume: Volume) -> Option<&Arc<Known>> {
        self.images.get(volume)
    }
}

impl Member {
    /// The name of its group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group_name
    }

    /// What the map is now, of all images.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.sharing.extent()
    }

    fn volume(&self) -> Volume {
        self.known.volume
    }

    /// How often everything was forgotten, as somebody else wrote to the image.
    #[must_use]
    pub fn outside_writes(&self) -> u64 {
        self.known.outside.load(Ordering::Relaxed)
    }

    /// Why nothing is redirected to or from the image now; `None` while no other program can change it.
    #[must_use]
    pub fn unguarded(&self) -> Option<String> {
        match self.sharing.state.is_broken() {
            true => Some(
                "the server has a fault: a thread ended while it changed what is known of the images; nothing is shared until \
                 the server is started anew"
                    .to_owned(),
            ),
            false => self.known.problem(),
        }
    }

    /// Whether what is known of the image may be used, and more be learned.
    fn is_believed(&self) -> bool {
        !self.sharing.state.is_broken() && self.known.is_believed()
    }

    /// Whether the kernel keeps all other programs from changing the image.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(&self.known.guard, Guard::Lease(_) if self.known.guard.is_up())
    }

    /// When the guard of the image was last taken, if it is held.
    pub(crate) fn guarded_since(&self) -> Option<u64> {
        self.known.guard.since()
    }

    /// Does what changes bytes, with the map told before and after. Of a write, `bytes` are what was written;
    /// of zeroes there are none.
    ///
    /// # Errors
    /// Those of the change.
    pub(crate) fn change(
        &self,
        (offset, length): (u64, u64),
        written: Written<'_>,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let volume = self.volume();
        let end = offset + length;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        // Those that are changed as a whole.
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        let (state, stamps) = (&self.sharing.state, &self.known.stamps);
        let is_wide = !matches!(written, Written::Bytes(_));
        // Before the change counts: who sees that it has begun or ended finds it noted.
        self.recalling.note(&blocks);
        let begun = stamps.begin(blocks.clone(), is_wide);
        state.forget_blocks(volume, &blocks);
        let done = change();
        let ended = stamps.end(begun);
        done?;
        match written {
            Written::Bytes(bytes) => {
                let learn = whole.filter_map(|block| Some((block, ended.stamp(block)?)));
                let learn: Vec<_> = learn.collect();
                self.learn(volume, offset, bytes, &learn, How::Write);
            }
            Written::Zeroes if !whole.is_empty() => state.in_slices(whole.start, |map, at| {
                // With the map held, so that what is forgotten after this is forgotten with these.
                let guarded = self.is_believed();
                let mut learn = || map.learned_zeroes(volume, &ended, at..whole.end, SLICE);
                guarded.then(&mut learn).flatten()
            }),
            Written::Zeroes | Written::Unknown => {}
        }
        Ok(())
    }

    /// Has blocks learned that lie in `bytes`, which begin at `offset`.
    fn learn(&self, volume: Volume, offset: u64, bytes: &[u8], blocks: &[(u64, Stamp)], how: How) {
        if blocks.is_empty() || !self.is_believed() {
            return;
        }
        // What there is no room for is not copied.
        let learner = &self.sharing.learner;
        let room = learner.room().min(blocks.len());
        if room == 0 {
            add(&self.counters.dropped, blocks.len() as u64);
            return;
        }
        let (mut numbers, mut copies) = learner.memory();
        copies.reserve(room * 4096);
        for &(block, stamp) in blocks.iter().take(room) {
            let start = usize::try_from(block * BLOCK - offset).unwrap_or(usize::MAX);
            let Some(of) = bytes.get(start..).and_then(|rest| rest.get(..4096)) else {
                break;
            };
            numbers.push((block, stamp));
            copies.extend_from_slice(of);
        }
        let taken = learner.push(Lesson {
            volume,
            key: self.key,
            how,
            blocks: numbers,
            bytes: copies,
        });
        let (taken, left) = blocks.split_at(taken);
        taken
            .iter()
            .for_each(|&(block, _)| self.known.seen.add(block));
        add(&self.counters.dropped, left.len() as u64);
    }

    /// Whether the kernel has told that somebody else wrote to the image, since this was asked last. All that was known
    /// of it is forgotten then.
    pub(crate) fn look(&self) -> bool {
        self.known.look(&self.sharing.state);
        self.known.told()
    }

    /// Forgets all that is known of the image: somebody else wrote to it, or what was written is lost.
    pub(crate) fn forget(&self) {
        self.known.forget(&self.sharing.state);
    }

    /// The same, and counts it as somebody else's doing.
    pub(crate) fn forget_outside(&self) {
        self.image.note_foreign_change();
        add(&self.known.outside, 1);
        self.forget();
    }
}

/// Why an image cannot share.
#[derive(Debug, Error)]
pub enum MemberError {
    /// The map has no room for one more image.
    #[error("the map has no room for another image; --memory gives it more")]
    Full,
    /// Other programs could change it unseen.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// What a change leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written<'a> {
    Bytes(&'a [u8]),
    Zeroes,
    Unknown,
}

/// The content of a block, by its group's key.
fn content(key: &[u8; 32], bytes: &[u8]) -> Content<Fingerprint> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Content::Zero;
    }
    let hash = blake3::keyed_hash(key, bytes);
    let (words, _) = hash.as_bytes().as_chunks::<4>();
    let word = |at: usize| words.get(at).map_or(0, |word| u32::from_le_bytes(*word));
    Content::Key([0, 1, 2].map(word))
}

#[cfg(test)]
mod tests;
