//! The rings that a process has, and where their memory is here.

use super::flag;
use super::records::Records;
use super::toll::NO_FD;
use crate::amount::{self, Pages};
use crate::kind;
use crate::seccomp::ask;
use bonsai_calls::Fd;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Rings of a process at a time.
pub(crate) const RINGS: usize = 64;

const FREE: u32 = 0;
const SETTING: u32 = 1;
const LIVE: u32 = 2;

/// `struct io_uring_params`, as words: offsets of the parts that are used here.
pub(super) mod params {
    pub(crate) const WORDS: usize = 30;
    pub(crate) const ENTRIES: usize = 0;
    pub(crate) const RESULTS: usize = 1;
    pub(crate) const FLAGS: usize = 2;
    pub(crate) const FEATURES: usize = 5;
    pub(crate) const SQ_HEAD: usize = 10;
    pub(crate) const SQ_TAIL: usize = 11;
    pub(crate) const SQ_FLAGS: usize = 14;
    pub(crate) const SQ_ARRAY: usize = 16;
    pub(crate) const SQ_ADDRESS: usize = 18;
    pub(crate) const CQ_TAIL: usize = 21;
    pub(crate) const CQ_RESULTS: usize = 25;
    pub(crate) const CQ_ADDRESS: usize = 28;
}

/// `IORING_FEAT_SINGLE_MMAP`.
const ONE_MAPPING: u32 = 1;
const OFFSET_ENTRIES: usize = 0x1000_0000;

/// A ring.
pub(crate) struct Ring {
    state: AtomicU32,
    /// Threads that use its memory here.
    users: AtomicU32,
    /// No descriptor of it is known any more.
    closed: AtomicBool,
    /// Places of threads that it is registered at.
    pub(super) registered: AtomicU32,
    fd: AtomicU32,
    inode: AtomicU64,
    params: [AtomicU32; params::WORDS],
    /// The two rings, and the entries; 0 where they are not mapped.
    rings: AtomicUsize,
    entries: AtomicUsize,
    /// It was to be polled, and is entered by calls instead.
    pub(super) unpolled: AtomicBool,
    /// Results up to here have been looked at, if any were.
    pub(super) seen: AtomicU32,
    pub(super) looked: AtomicBool,
    pub(super) records: Records,
    /// Kinds of the files in its table, a byte each; how many there are, and how many there is room for.
    pub(super) files: AtomicUsize,
    pub(super) files_len: AtomicUsize,
    pub(super) files_room: AtomicUsize,
}

pub(super) static ALL: [Ring; RINGS] = [const {
    Ring {
        state: AtomicU32::new(FREE),
        users: AtomicU32::new(0),
        closed: AtomicBool::new(false),
        registered: AtomicU32::new(0),
        fd: AtomicU32::new(u32::MAX),
        inode: AtomicU64::new(0),
        params: [const { AtomicU32::new(0) }; params::WORDS],
        rings: AtomicUsize::new(0),
        entries: AtomicUsize::new(0),
        unpolled: AtomicBool::new(false),
        seen: AtomicU32::new(0),
        looked: AtomicBool::new(false),
        records: Records::none(),
        files: AtomicUsize::new(0),
        files_len: AtomicUsize::new(0),
        files_room: AtomicUsize::new(0),
    }
}; RINGS];

/// How many were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Ring] {
    ALL.get(..USED.load(Ordering::Acquire)).unwrap_or_default()
}

/// A ring whose memory stays where it is.
pub(crate) struct Held(pub(crate) &'static Ring);

impl core::ops::Deref for Held {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let before = self.0.users.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.0.closed.load(Ordering::SeqCst) {
            self.0.unmap();
        }
    }
}

impl Ring {
    pub(super) fn param(&self, word: usize) -> u32 {
        self.params
            .get(word)
            .map_or(0, |w| w.load(Ordering::Relaxed))
    }

    pub(super) fn has(&self, flags: u32) -> bool {
        self.param(params::FLAGS) & flags != 0
    }

    /// A word of its rings, at the offset that a parameter says.
    pub(super) fn word(&self, param: usize) -> &'static AtomicU32 {
        let at = self.rings.load(Ordering::Relaxed) + self.param(param) as usize;
        // SAFETY: mapped while it is held; the kernel says where its words are.
        unsafe { &*(at as *const AtomicU32) }
    }

    /// The address of its results, or of the array of its entries.
    pub(super) fn array(&self, param: usize) -> usize {
        self.rings.load(Ordering::Relaxed) + self.param(param) as usize
    }

    pub(super) fn entries_at(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Bytes of an entry, and of a result.
    pub(super) fn widths(&self) -> (usize, usize) {
        let double = |flag: u32| usize::from(self.has(flag));
        (
            64 << double(flag::WIDE_ENTRIES),
            16 << double(flag::WIDE_RESULTS),
        )
    }

    /// Bytes of its rings, and of its entries.
    fn lengths(&self) -> (usize, usize) {
        let (entry, result) = self.widths();
        let entries = self.param(params::ENTRIES) as usize;
        let results = self.param(params::RESULTS) as usize;
        let array = match self.has(flag::NO_ARRAY) {
            true => 0,
            false => self.param(params::SQ_ARRAY) as usize + 4 * entries,
        };
        let results = self.param(params::CQ_RESULTS) as usize + result * results;
        (array.max(results), entry * entries)
    }

    /// Keeps its memory where it is; maps it if need be. `None` for a ring that is about
    /// to go, or cannot be looked into.
    pub(super) fn hold(
        &'static self,
        segment: &Segment,
        fd: usize,
        pages: &mut Pages,
    ) -> Option<Held> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let held = Held(self);
        if self.closed.load(Ordering::SeqCst) || self.param(params::FLAGS) & !flag::KNOWN != 0 {
            return None;
        }
        if self.rings.load(Ordering::Acquire) == 0 && !self.map(segment, fd) {
            return None;
        }
        let (rings, entries) = self.lengths();
        // Memory of the program's own may be gone.
        if self.has(flag::OWN_MEMORY)
            && !(amount::readable(self.rings.load(Ordering::Relaxed), rings, pages)
                && amount::readable(self.entries_at(), entries, pages))
        {
            return None;
        }
        Some(held)
    }

    fn map(&self, segment: &Segment, fd: usize) -> bool {
        let (rings_len, entries_len) = self.lengths();
        self.records.make(self.param(params::RESULTS) as usize);
        if self.has(flag::OWN_MEMORY) {
            let address =
                |word: usize| u64::from(self.param(word)) | u64::from(self.param(word + 1)) << 32;
            let [rings, entries] = [params::CQ_ADDRESS, params::SQ_ADDRESS]
                .map(|word| usize::try_from(address(word)).unwrap_or(0));
            self.entries.store(entries, Ordering::Relaxed);
            self.rings.store(rings, Ordering::Release);
            return true;
        }
        if fd == NO_FD || self.param(params::FEATURES) & ONE_MAPPING == 0 {
            return false;
        }
        segment.watch_closing();
        // SAFETY: new mappings, MAP_SHARED; what they are not needed for goes again.
        unsafe {
            let rings = ask!(Mmap, 0, rings_len, 3, 1, fd, 0);
            let entries = ask!(Mmap, 0, entries_len, 1, 1, fd, OFFSET_ENTRIES);
            let (Ok(rings), Ok(entries)) = (usize::try_from(rings), usize::try_from(entries))
            else {
                for (at, len) in [(rings, rings_len), (entries, entries_len)] {
                    if at > 0 {
                        ask!(Munmap, at, len);
                    }
                }
                return false;
            };
            let first =
                self.entries
                    .compare_exchange(0, entries, Ordering::AcqRel, Ordering::Relaxed);
            if first.is_err() {
                // Another thread maps it at this moment; it stays with one of each.
                ask!(Munmap, entries, entries_len);
            }
            let first = self
                .rings
                .compare_exchange(0, rings, Ordering::AcqRel, Ordering::Relaxed);
            if first.is_err() {
                ask!(Munmap, rings, rings_len);
            }
        }
        true
    }

    fn unmap(&self) {
        let (rings_len, entries_len) = self.lengths();
        let rings = self.rings.swap(0, Ordering::AcqRel);
        let entries = self.entries.swap(0, Ordering::AcqRel);
        if self.has(flag::OWN_MEMORY) {
            return;
        }
        for (at, len) in [(rings, rings_len), (entries, entries_len)] {
            if at != 0 {
                // SAFETY: what `map` has mapped, and nobody holds.
                unsafe { ask!(Munmap, at, len) };
            }
        }
    }

    /// Whether no number of the process is known that it has.
    pub(super) fn is_nameless(&self) -> bool {
        self.fd.load(Ordering::Relaxed) == u32::MAX
    }

    /// The program's last known descriptor of it is gone.
    pub(super) fn close(&self) {
        self.fd.store(u32::MAX, Ordering::Relaxed);
        if self.registered.load(Ordering::Relaxed) > 0 {
            return;
        }
        self.closed.store(true, Ordering::SeqCst);
        if self.users.load(Ordering::SeqCst) == 0 {
            self.unmap();
        }
    }

    /// Makes it another ring, or the same of another size.
    pub(super) fn set(&self, words: &[u32; params::WORDS]) {
        for (to, from) in self.params.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Its size has changed (`IORING_REGISTER_RESIZE_RINGS`).
    pub(super) fn resize(&self, words: &[u32; params::WORDS]) {
        let flags = self.param(params::FLAGS);
        self.unmap();
        self.set(words);
        if let Some(word) = self.params.get(params::FLAGS) {
            word.store(flags, Ordering::Relaxed);
        }
    }

    fn free_files(&self) {
        self.files_len.store(0, Ordering::Release);
        let at = self.files.swap(0, Ordering::AcqRel);
        let room = self.files_room.swap(0, Ordering::Relaxed);
        if at != 0 {
            // SAFETY: what `register` has mapped; the ring has no users.
            unsafe { ask!(Munmap, at, room) };
        }
    }
}

/// The inode of a descriptor: of a ring, each has its own (Linux 5.13 and later).
fn inode_of(fd: usize) -> u64 {
    let mut stat = [0_u64; 18];
    // SAFETY: struct stat has 144 bytes.
    unsafe { ask!(Fstat, fd, stat.as_mut_ptr()) };
    stat[1]
}

/// Remembers a ring that was just made. `None` where there is no room.
pub(super) fn learn(fd: usize, words: &[u32; params::WORDS]) -> Option<&'static Ring> {
    let take = |ring: &Ring, from: u32| {
        ring.state
            .compare_exchange(from, SETTING, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let fresh = ALL.iter().position(|ring| take(ring, FREE));
    let index = fresh.or_else(|| {
        ALL.iter().position(|ring| {
            ring.closed.load(Ordering::SeqCst)
                && ring.users.load(Ordering::SeqCst) == 0
                && take(ring, LIVE)
        })
    })?;
    USED.fetch_max(index + 1, Ordering::AcqRel);
    let ring = ALL.get(index)?;
    ring.unmap();
    ring.records.free();
    ring.free_files();
    ring.set(words);
    ring.looked.store(false, Ordering::Relaxed);
    ring.unpolled.store(false, Ordering::Relaxed);
    ring.registered.store(0, Ordering::Relaxed);
    ring.inode.store(
        if fd == NO_FD { 0 } else { inode_of(fd) },
        Ordering::Relaxed,
    );
    ring.fd
        .store(u32::try_from(fd).unwrap_or(u32::MAX), Ordering::Relaxed);
    ring.closed.store(false, Ordering::SeqCst);
    ring.state.store(LIVE, Ordering::Release);
    if fd != NO_FD {
        kind::look(fd);
    }
    Some(ring)
}

/// The ring that a descriptor is of.
pub(super) fn find(segment: &Segment, fd: usize, pages: &mut Pages) -> Option<Held> {
    let fd = fd & 0xffff_ffff;
    let is = |ring: &&Ring| {
        ring.state.load(Ordering::Acquire) == LIVE && ring.fd.load(Ordering::Relaxed) as usize == fd
    };
    let known = used().iter().find(is);
    // Whatever closes a descriptor or gives one out forgets its kind.
    if let Some(ring) = known
        && kind::known(fd) == Some(Fd::Other)
        && let Some(held) = ring.hold(segment, fd, pages)
    {
        return Some(held);
    }
    let inode = inode_of(fd);
    if let Some(ring) = known
        && ring.inode.load(Ordering::Relaxed) != inode
    {
        ring.close();
    }
    // By another number, or after a child that shares this memory has closed its own.
    let same = |ring: &&Ring| {
        ring.state.load(Ordering::Acquire) == LIVE && ring.inode.load(Ordering::Relaxed) == inode
    };
    let ring = used().iter().find(same).filter(|_| inode != 0)?;
    if ring.closed.load(Ordering::SeqCst) {
        let alone = ring
            .state
            .compare_exchange(LIVE, SETTING, Ordering::AcqRel, Ordering::Relaxed);
        if alone.is_err() {
            return None;
        }
        if ring.users.load(Ordering::SeqCst) == 0 {
            ring.unmap();
            ring.closed.store(false, Ordering::SeqCst);
        }
        ring.state.store(LIVE, Ordering::Release);
    }
    ring.fd
        .store(u32::try_from(fd).unwrap_or(u32::MAX), Ordering::Relaxed);
    kind::look(fd);
    ring.hold(segment, fd, pages)
}

/// Whether the memory of a descriptor's ring is mapped here.
pub(super) fn is_mapped(fd: usize) -> bool {
    let fd = fd & 0xffff_ffff;
    let is = |ring: &Ring| ring.fd.load(Ordering::Relaxed) as usize == fd;
    let mut mapped = used().iter().filter(|ring| is(ring));
    mapped.any(|ring| ring.rings.load(Ordering::Relaxed) != 0)
}

/// Descriptors from `first` to `last` are about to be closed.
pub(crate) fn closed(first: usize, last: usize) {
    for ring in used() {
        let fd = ring.fd.load(Ordering::Relaxed);
        if fd != u32::MAX && (first..=last).contains(&(fd as usize)) {
            ring.close();
        }
    }
}

/// In a forked child: what is under way is its parent's.
pub(super) fn inherit() {
    for ring in used() {
        ring.users.store(0, Ordering::SeqCst);
        ring.looked.store(false, Ordering::Relaxed);
        ring.records.clear();
    }
}
