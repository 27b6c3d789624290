//! Which limits by path a file is under, remembered for a moment: a server opens the same
//! files again and again, and asking for a path takes as long as reading a small one.
//!
//! # Invariants
//! 1. An answer is for one file that has one name, in one mount, under the limits of one
//!    epoch; and for as long as the file has not changed: `rename` and `link` change it.
//!    One that has changed just now is not remembered, as its clock may not have ticked since.
//! 2. It lasts for a tenth of a second: that a folder above has been renamed, which does not
//!    change the file, is noticed after that.
//! 3. Whoever cannot write or read an answer asks for the path.

use crate::kind::{self, Looked};
use crate::look::bits;
use crate::paths::Path;
use crate::seccomp::ask;
use crate::sequence::Sequence;
use crate::sys;
use bonsai_calls::Fd;
use bonsai_ledger::{LOOK_AGAIN_NS, Segment};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How long an answer lasts, and how long ago a file must have changed, ns.
const LASTS: u64 = LOOK_AGAIN_NS / 10;

/// Files that are remembered at a time, at most.
const FILES: usize = 512;

/// Words of an answer: those of a file, until when it is, and the limits.
const WORDS: usize = 6;

/// What was found.
#[repr(C, align(64))]
struct Answer {
    sequence: Sequence,
    /// The limits that it is about.
    epoch: AtomicU32,
    words: [AtomicU64; WORDS],
}

static ANSWERS: [Answer; FILES] = [const {
    Answer {
        sequence: Sequence::new(),
        epoch: AtomicU32::new(0),
        words: [const { AtomicU64::new(0) }; WORDS],
    }
}; FILES];

/// What tells a file of one name from every other: device, number, mount, and when it was
/// changed last (ns of the clock on the wall).
pub(crate) type Key = [u64; 4];

const AT_EMPTY_PATH: usize = 0x1000;
/// What `stat` says, and the mount.
const WANTED: usize = 0x17ff;
const CLOCK_REALTIME: usize = 0;

/// The same as [`kind::look_all`], and the key of a file whose answer can be remembered.
pub(crate) fn look(fd: usize) -> (Looked, [u64; 3], Option<Key>) {
    // `struct statx`.
    let mut of = [0_u64; 32];
    // A filter may not know the call.
    let asked = {
        let (empty, to) = (c"".as_ptr(), of.as_mut_ptr());
        // SAFETY: an empty path, and as many bytes as a `struct statx` has.
        let answer = unsafe { ask!(Statx, fd, empty, AT_EMPTY_PATH, WANTED, to) };
        answer == 0
    };
    if !asked || of[0] & WANTED as u64 != WANTED as u64 {
        let (looked, words) = kind::look_all(fd);
        return (looked, words, None);
    }
    let low = |word: u64| word & 0xffff_ffff;
    let (names, mode, number, mount) = (low(of[2]), of[3] >> 32 & 0xffff, of[4], of[18]);
    let (major, minor) = (low(of[17]), of[17] >> 32);
    // As `fstat` has it.
    let device = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    let changed = of[12].wrapping_mul(1_000_000_000) + low(of[13]);
    #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
    let looked = Looked::of(mode as u32);
    kind::remember(fd, looked.kind);
    let key = (looked.kind == Fd::File && names == 1).then_some([device, number, mount, changed]);
    (looked, [device, number, names], key)
}

/// Of limits by path, `asked`, those that a descriptor is under.
pub(crate) fn fitting(
    segment: &Segment,
    fd: usize,
    names: u64,
    key: Option<&Key>,
    (asked, epoch): (u64, u32),
) -> u64 {
    let now = sys::now();
    if let Some(under) = key.and_then(|key| place(key).read(key, epoch, now)) {
        return under;
    }
    let Some(path) = Path::of_descriptor(segment, fd, names) else {
        return 0;
    };
    let mut under = 0;
    for bucket in bits(asked) {
        if let Some(label) = segment.labels.get(bucket)
            && let Some(part) = label.scope().path
        {
            under |= u64::from(path.fits(label, part)) << bucket;
        }
    }
    if let Some(key) = key
        && is_old(key)
    {
        place(key).write(key, epoch, now.saturating_add(LASTS), under);
    }
    under
}

/// Limits by path, of `narrowed`.
pub(crate) fn by_path(segment: &Segment, narrowed: u64) -> u64 {
    let has = |bucket: &usize| {
        let label = segment.labels.get(*bucket);
        label.is_some_and(|label| label.scope().path.is_some())
    };
    bits(narrowed)
        .filter(has)
        .fold(0, |all, bucket| all | 1 << bucket)
}

/// Whether a file has not changed just now.
fn is_old([.., changed]: &Key) -> bool {
    let mut time = [0_u64; 2];
    // SAFETY: writes the two words.
    let told = unsafe { ask!(ClockGettime, CLOCK_REALTIME, time.as_mut_ptr()) };
    let [seconds, ns] = time;
    let now = seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
    told == 0 && changed.saturating_add(LASTS) < now
}

fn place(key: &Key) -> &'static Answer {
    let [device, number, mount, _] = key;
    let mixed = (number ^ device.rotate_left(32) ^ mount.rotate_left(16))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &ANSWERS[(mixed >> 32) as usize % FILES]
}

impl Answer {
    fn read(&self, key: &Key, epoch: u32, now: u64) -> Option<u64> {
        let (of_epoch, words) = self.sequence.read(|| {
            let mut words = [0; WORDS];
            for (to, from) in words.iter_mut().zip(&self.words) {
                *to = from.load(Ordering::Relaxed);
            }
            (self.epoch.load(Ordering::Relaxed), words)
        })?;
        let [of @ .., until, under] = words;
        (of_epoch == epoch && of == *key && now < until).then_some(under)
    }

    /// Writes, if nobody else does just now.
    fn write(&self, key: &Key, epoch: u32, until: u64, under: u64) {
        self.sequence.write(|| {
            self.epoch.store(epoch, Ordering::Relaxed);
            let values = key.iter().chain([&until, &under]);
            for (word, value) in self.words.iter().zip(values) {
                word.store(*value, Ordering::Relaxed);
            }
        });
    }
}
