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
//! 1. What was read of a leader is given away only if, after it was read, the map still says that
//!    the block has the leader's content, and nobody had begun to write to the leader.
//! 2. A change is told to the map before its bytes move, and after they did, also where it fails.
//! 3. What is learned waits in a queue of bounded bytes; what does not fit is not learned.
//! 4. What the map says of an image, and what an image has for others, is used only while no other program can have
//!    changed that image (see `guard.rs`), and only if no write to the leader is known to be lost (see `image/flush.rs`).
//! 5. Keys of groups are made of a secret that is the server's, or its user's, alone: no fingerprint can be made up,
//!    and equal contents of two groups have different ones.
//!
//! # Limits
//! Blocks of 4 KiB that begin at multiples of that. Images of which the kernel grants no lease share only if the operator
//! vouches for them; then a change that the kernel does not report is noticed by the times of the image, within a second,
//! and only where the server did not write itself meanwhile.

mod ahead;
mod follow;
mod guard;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use bonsai_dedup::drive::{Config, Content, DriveMap, Group, How, Stamp, Volume};

use crate::export::add;
use crate::image::{Identity, Image, LeaseError};
use ahead::Ahead;
use guard::{Clock, Guard, LeaseKeeper};
use known::Known;
use learn::Learner;
use led::Led;
use seen::Recalling;

/// For so many blocks of a change the map is held at once, half a millisecond at most: those of the largest write.
const SLICE: u64 = 8192;
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
    map: Mutex<Map>,
    /// By number of the volume.
    images: RwLock<Vec<Arc<Known>>>,
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
            map: Mutex::new(Map::new(Config::bounded(max_bytes))),
            images: RwLock::default(),
            clock: Clock::default(),
            max_bytes,
        });
        Ok(Arc::new(Self {
            learner: Learner::start(Arc::clone(&state))?,
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
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to each block, and lets others have the map after each [`SLICE`] of them: a guest that discards its whole
    /// disk is not to hold up the others.
    fn in_slices(&self, blocks: Range<u64>, mut to: impl FnMut(&mut Map, u64)) {
        let mut start = blocks.start;
        while start < blocks.end {
            if start > blocks.start {
                thread::sleep(Duration::from_micros(1));
            }
            let end = blocks.end.min(start + SLICE);
            let mut map = self.map();
            (start..end).for_each(|block| to(&mut map, block));
            start = end;
        }
    }

    fn add(&self, group: Group, image: &Arc<Image>, guarding: Guarding) -> Option<Arc<Known>> {
        let mut images = self.images.write().unwrap_or_else(PoisonError::into_inner);
        let volume = self.map().add_volume(group)?;
        let known = Arc::new(Known::new(image, volume, guarding));
        // Numbers are given out in order.
        images.push(Arc::clone(&known));
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
        let images = self.images.read().unwrap_or_else(PoisonError::into_inner);
        images.clone()
    }

    fn known(&self, volume: Volume) -> Option<Arc<Known>> {
        let images = self.images.read().unwrap_or_else(PoisonError::into_inner);
        images.get(volume.index()).cloned()
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
        self.known.problem()
    }

    /// Whether the kernel keeps all other programs from changing the image.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(&self.known.guard, Guard::Lease(_) if self.known.guard.is_up())
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
        let blocks = offset / BLOCK..(offset + length).div_ceil(BLOCK);
        let state = &self.sharing.state;
        self.recalling.note(&blocks);
        state.in_slices(blocks.clone(), |map, block| map.writing(volume, block));
        let done = change();
        let mut learn = Vec::new();
        state.in_slices(blocks, |map, block| {
            let stamp = map.written(volume, block);
            let inside = block * BLOCK >= offset && (block + 1) * BLOCK <= offset + length;
            match (stamp, written) {
                (Some(stamp), Written::Zeroes)
                    if inside && done.is_ok() && self.known.is_believed() =>
                {
                    map.learned(volume, block, Content::Zero, How::Write, stamp);
                }
                (Some(stamp), Written::Bytes(_)) if inside && done.is_ok() => {
                    learn.push((block, stamp));
                }
                _ => {}
            }
        });
        if let Written::Bytes(bytes) = written {
            self.learn(volume, offset, bytes, &learn, How::Write);
        }
        done
    }

    /// Has blocks learned that lie in `bytes`, which begin at `offset`.
    fn learn(&self, volume: Volume, offset: u64, bytes: &[u8], blocks: &[(u64, Stamp)], how: How) {
        if blocks.is_empty() || !self.known.is_believed() {
            return;
        }
        // What there is no room for is not copied.
        let room = self.sharing.learner.room();
        let lessons = blocks.iter().take(room).map_while(|&(block, stamp)| {
            let start = usize::try_from(block * BLOCK - offset).unwrap_or(usize::MAX);
            let bytes = bytes.get(start..)?.get(..4096)?;
            let key = (self.key, stamp, how);
            Some(learn::Lesson::new(volume, block, bytes, key))
        });
        let taken = self.sharing.learner.push(lessons.collect());
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
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_huge_change_lets_others_have_the_map() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 30).expect("made long");
        let image = Arc::new(Image::open(file.path(), false).expect("an image"));
        let secret = Secret::random().expect("random bytes");
        let sharing = Sharing::new(64 << 20, false, secret).expect("a thread");
        let member = sharing.member(&image, "g", Guarding::Trust).expect("room");
        let change = |range| member.change(range, Written::Zeroes, || Ok(()));
        // What is known of it goes away block by block.
        for start in (0..1 << 30).step_by(1 << 22) {
            change((start, 1 << 22)).expect("changed");
        }
        assert_eq!(sharing.extent().known_blocks, (1 << 30) / BLOCK);
        let mut seen = BTreeSet::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let changed = change((0, 1 << 30));
                done.store(true, Ordering::SeqCst);
                changed.expect("changed");
            });
            while !done.load(Ordering::SeqCst) {
                seen.insert(sharing.extent().known_blocks);
            }
        });
        // Of 32 slices.
        assert!(seen.len() > 8, "{seen:?}");
    }
}
