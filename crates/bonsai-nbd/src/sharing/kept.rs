//! Fingerprints of an image, in a file beside it, so that it need not be scanned again.
//!
//! # Format, version 2 (little-endian)
//! ```text
//! 0   magic "BNSDRIVE"        8
//! 8   version                 4
//! 12  state: 0 is valid, anything else is not    4
//! 16  of the image: size, inode, seconds and nanoseconds of its change (mtime) and of its
//!     state's change (ctime)  6 times 8
//! 64  of the image: device 8, the kernel's boot_id 16, the mount 8 (see `image/identity.rs`)
//! 96  bytes of the image that were scanned: the scan goes on from there    8
//! 104 runs:
//!     first block 8, blocks 4, kind 4 (0: zeroes, 1: fingerprints of 12 bytes each follow)
//! end BLAKE3 of all before with state 0, keyed for this by the group's key: 32
//! ```
//! Without the key it can neither be made up nor read.
//!
//! # Invariants
//! 1. The file is valid only while the image has the bytes that it tells of: before the first change the state is set on
//!    the disk, or the file is removed from it; if neither can be done, the change is refused.
//! 2. It is written only after the image's bytes are on the disk, while the image is guarded, and once its times are so
//!    old that each later change shows.
//! 3. It is believed only of the same file with the same times, under the same kernel and mount, and only if the image was
//!    guarded since these were looked at.
//!
//! # Limits
//! Nothing is kept of devices, which have no times, nor on tmpfs, where a memory map changes none. After a reboot, images are
//! scanned again. A program that writes to a file on XFS by its handle (`XFS_IOC_OPEN_BY_HANDLE`, with CAP_SYS_ADMIN), which
//! is made for leaving times alone, is not seen while no server runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use bonsai_dedup::drive::{self, Content, How};
use thiserror::Error;

use super::{BLOCK, Fingerprint, Member, SLICE};
use crate::image::{Identity, LossCursor, MAGIC, STATE_AT, VALID, is_ours};

const VERSION: u32 = 2;
const SCANNED_AT: usize = 16 + Identity::LEN;
const HEADER: usize = SCANNED_AT + 8;
const MAC: u64 = 32;
/// Blocks of one run, at most.
const RUN: u32 = 4096;
/// What the file's own key is derived for.
const CONTEXT: &str = "bonsai 2026-11 drive key of what is kept";
/// How often times are looked at until they are old enough, and how many times: a clock that was set back would
/// otherwise be waited for.
const STEP: Duration = Duration::from_millis(10);
const STEPS: u32 = 250;

/// Why fingerprints that were kept are of no use, or none can be kept.
#[derive(Debug, Error)]
pub enum KeptError {
    /// There is no file.
    #[error("no fingerprints are kept beside it")]
    None,
    /// The image may have other bytes.
    #[error("{0}")]
    Stale(&'static str),
    /// Other programs can change the image.
    #[error("another program has the image open")]
    Unguarded,
    /// Guests write to the image.
    #[error("the image is written to")]
    Busy,
    /// The file is damaged, of another version, group or secret.
    #[error("{path}: is damaged, or of another group, user or version")]
    Damaged {
        /// Of the file.
        path: PathBuf,
    },
    /// An error of the system.
    #[error("{path}: {source}")]
    System {
        /// Of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Blocks with consecutive numbers.
#[derive(Debug, PartialEq)]
pub(super) struct Run {
    first: u64,
    blocks: u32,
    /// `None` for zeroes.
    fingerprints: Option<Vec<Fingerprint>>,
}

impl Member {
    /// Loads the fingerprints that were kept of the image, and says of how many blocks. Requests may be served
    /// meanwhile.
    ///
    /// # Errors
    /// [`KeptError`]; then nothing was loaded.
    pub fn recall(&self) -> Result<u64, KeptError> {
        let recalled = self.recall_runs();
        self.recalling.end();
        if recalled.is_err() {
            self.forget();
        }
        recalled
    }

    /// What was kept of the image is not loaded: changes need not be noted for that.
    pub fn recall_nothing(&self) {
        self.recalling.end();
    }

    fn recall_runs(&self) -> Result<u64, KeptError> {
        let path = self.image.voucher().path().to_owned();
        let system = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => KeptError::None,
            _ => KeptError::System {
                path: path.clone(),
                source,
            },
        };
        let damaged = || KeptError::Damaged { path: path.clone() };
        let (file, valid) = self.image.voucher().open().map_err(system)?;
        let length = file.metadata().map_err(system)?.len();
        let body = length
            .checked_sub(MAC + HEADER as u64)
            .ok_or_else(damaged)?;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).map_err(system)?;
        let (start, rest) = header.split_at(16);
        let (identity, scanned) = rest.split_at(Identity::LEN);
        if start.get(..12) != begin().get(..12) {
            return Err(damaged());
        }
        let Some((of, began)) = self.opened else {
            return Err(KeptError::Unguarded);
        };
        // Changes since the server opened the image are noted by block.
        if !valid {
            return Err(KeptError::Stale("the image was written to since"));
        }
        if identity != of.to_bytes() {
            return Err(stale(identity, &of));
        }
        if !is_genuine(&file, length, &self.file_key()).map_err(system)? {
            return Err(damaged());
        }
        let mut rest = BufReader::with_capacity(1 << 20, &file);
        io::Seek::seek(&mut rest, io::SeekFrom::Start(HEADER as u64)).map_err(system)?;
        let mut rest = rest.take(body);
        let mut blocks = 0;
        while let Some(run) = next_run(&mut rest).map_err(|_| damaged())? {
            if !self.take(&run, began) {
                return Err(KeptError::Unguarded);
            }
            blocks += u64::from(run.blocks);
        }
        let scanned = scanned.first_chunk().copied().map_or(0, u64::from_le_bytes);
        self.known.progress.set_done(scanned.min(self.image.size()));
        Ok(blocks)
    }

    /// Whether what is kept is true of the image.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.image.voucher().is_valid()
    }

    /// Keeps the fingerprints of the image for the next time, unless it is changed meanwhile. What was kept before is
    /// replaced as a whole or not at all.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn keep(&self) -> Result<(), KeptError> {
        let voucher = self.image.voucher();
        let path = voucher.path().to_owned();
        let system = |source: io::Error| KeptError::System {
            path: path.clone(),
            source,
        };
        let began = self.sharing.state.clock.now();
        if !self.known.guard.is_up() {
            return Err(KeptError::Unguarded);
        }
        if self.image.has_lost_writes() {
            return Err(KeptError::Stale("writes to the image were lost"));
        }
        if self.sharing.state.is_broken() {
            return Err(KeptError::Stale("the server had a fault"));
        }
        let changes = voucher.changes();
        // Fingerprints are of what the page cache has; the disk must have that too.
        if !self.image.is_read_only() {
            let flushed = self.image.flush_for(&LossCursor::default());
            flushed.map_err(|_| KeptError::Stale("writes to the image were lost"))?;
        }
        let identity = self.settled().map_err(system)?;
        let mut draft = path.clone().into_os_string();
        draft.push(".part");
        let draft = PathBuf::from(draft);
        remove_draft(&draft).map_err(system)?;
        let kept = self.write(&draft, &identity).map_err(system);
        let kept = kept.and_then(|file| {
            let same = || {
                let guarded = self.known.guard.is_unbroken_since(&self.image, began);
                guarded && self.image.identity().is_ok_and(|now| now == identity)
            };
            match voucher.put((&draft, file), changes, same) {
                Ok(true) => Ok(()),
                Ok(false) => Err(KeptError::Busy),
                Err(error) => Err(system(error)),
            }
        });
        if kept.is_err() {
            // It is of no use, and may not even be there.
            let _ = fs::remove_file(&draft);
        }
        kept
    }

    /// The image's identity, once its times are so old that a later change shows.
    fn settled(&self) -> io::Result<Identity> {
        for _ in 0..STEPS {
            let now = SystemTime::now();
            let identity = self.image.identity()?;
            if identity.times().would_show_a_change(now) {
                return Ok(identity);
            }
            thread::sleep(STEP);
        }
        Err(io::Error::other(
            "its times are those of now or of the future: a change would not show",
        ))
    }

    fn write(&self, path: &Path, identity: &Identity) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, &file);
        let mut mac = blake3::Hasher::new_keyed(&self.file_key());
        let mut put = |bytes: &[u8]| {
            mac.update(bytes);
            out.write_all(bytes)
        };
        put(&begin())?;
        put(&identity.to_bytes())?;
        put(&self.known.progress.done().to_le_bytes())?;
        let volume = self.volume();
        let state = &self.sharing.state;
        let mut run: Option<Run> = None;
        let (mut slice, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            // The map is held for a slice, and not while the file is written.
            from = state
                .map()
                .known_slice(volume, at, SLICE as usize, &mut slice);
            for mut known in slice.drain(..) {
                while known.blocks > 0 {
                    if run.as_mut().is_some_and(|run| run.add(&mut known)) {
                        continue;
                    }
                    if let Some(whole) = run.replace(Run::of(&mut known)) {
                        put(&whole.bytes())?;
                    }
                }
            }
        }
        if let Some(last) = run {
            put(&last.bytes())?;
        }
        out.write_all(mac.finalize().as_bytes())?;
        out.flush()?;
        drop(out);
        file.sync_all()?;
        Ok(file)
    }

    /// Enters a run, but for blocks that were changed since the server opened the image; false where others may have
    /// changed it.
    fn take(&self, run: &Run, began: u64) -> bool {
        let volume = self.volume();
        let mut map = self.sharing.state.map_mut();
        // With the map held, so that what is forgotten after this is forgotten with these.
        if !self.known.guard.is_up_since(began) {
            return false;
        }
        for at in 0..run.blocks {
            let block = run.first + u64::from(at);
            let content = match &run.fingerprints {
                None => Some(Content::Zero),
                Some(of) => of.get(at as usize).map(|of| Content::Key(*of)),
            };
            let stamp = map.stamp(volume, block);
            if let (Some(content), Some(stamp)) = (content, stamp)
                && (block + 1) * BLOCK <= self.image.size()
                && !self.recalling.is_changed(block)
            {
                map.learned(volume, block, content, How::Scan, stamp);
            }
        }
        true
    }

    fn file_key(&self) -> [u8; 32] {
        blake3::derive_key(CONTEXT, &self.key)
    }
}

fn stale(kept: &[u8], now: &Identity) -> KeptError {
    let now = now.to_bytes();
    let same = kept.get(..48) == now.get(..48);
    KeptError::Stale(match same {
        false => "the image was changed since",
        true => "the machine was started, or the file system mounted, since: times say nothing",
    })
}

impl Run {
    /// A run that begins with blocks, of which it takes as many as it can.
    fn of(known: &mut drive::Known<Fingerprint>) -> Self {
        let mut run = Self {
            first: known.first,
            blocks: 0,
            fingerprints: matches!(known.content, Content::Key(_)).then(Vec::new),
        };
        run.add(known);
        run
    }

    /// Takes the next blocks, as many as it can; false where they are of no such kind, or not the next.
    fn add(&mut self, known: &mut drive::Known<Fingerprint>) -> bool {
        if known.first != self.first + u64::from(self.blocks) || self.blocks == RUN {
            return false;
        }
        let left = u64::from(RUN - self.blocks);
        let taken = match (&mut self.fingerprints, known.content) {
            (None, Content::Zero) => known.blocks.min(left),
            (Some(have), Content::Key(of)) => {
                have.push(of);
                1
            }
            _ => return false,
        };
        self.blocks += u32::try_from(taken).unwrap_or(0);
        known.first += taken;
        known.blocks -= taken;
        true
    }

    fn bytes(&self) -> Vec<u8> {
        let of = self.fingerprints.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(16 + 12 * of.len());
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(u32::from(self.fingerprints.is_some()).to_le_bytes());
        bytes.extend(of.iter().flatten().flat_map(|word| word.to_le_bytes()));
        bytes
    }
}

/// The next run; `None` at the end.
pub(super) fn next_run(from: &mut impl Read) -> io::Result<Option<Run>> {
    let mut first = [0; 8];
    match from.read(&mut first)? {
        0 => return Ok(None),
        read => from.read_exact(first.get_mut(read..).unwrap_or_default())?,
    }
    let mut words = [[0; 4]; 2];
    for word in &mut words {
        from.read_exact(word)?;
    }
    let [blocks, kind] = words.map(u32::from_le_bytes);
    let first = u64::from_le_bytes(first);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    if blocks == 0 || blocks > RUN || kind > 1 || first > u64::MAX / BLOCK - u64::from(RUN) {
        return Err(bad());
    }
    let mut of = Vec::new();
    for _ in 0..blocks * kind {
        let mut bytes = [0; 12];
        from.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| words.get(at).map_or(0, |word| u32::from_le_bytes(*word));
        of.push([0, 1, 2].map(word));
    }
    Ok(Some(Run {
        first,
        blocks,
        fingerprints: (kind == 1).then_some(of),
    }))
}

/// Reads bytes that claim to be runs, as fuzzing does; says how many there are.
#[doc(hidden)]
pub fn runs_of(mut bytes: &[u8]) -> io::Result<usize> {
    let mut runs = 0;
    while let Some(run) = next_run(&mut bytes)? {
        let again = next_run(&mut run.bytes().as_slice())?;
        assert_eq!(again.as_ref(), Some(&run));
        runs += 1;
    }
    Ok(runs)
}

fn begin() -> [u8; 16] {
    let mut bytes = [0; 16];
    let fields = MAGIC
        .iter()
        .chain(&VERSION.to_le_bytes())
        .chain(&VALID)
        .copied()
        .collect::<Vec<_>>();
    bytes
        .iter_mut()
        .zip(fields)
        .for_each(|(to, from)| *to = from);
    bytes
}

/// Whether the file ends in what its other bytes give with the key, but for its state.
fn is_genuine(mut file: &File, length: u64, key: &[u8; 32]) -> io::Result<bool> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    let mut mac = blake3::Hasher::new_keyed(key);
    let mut body = BufReader::with_capacity(1 << 20, file).take(length - MAC);
    let (mut start, mut state) = ([0; STATE_AT], VALID);
    body.read_exact(&mut start)?;
    // A change that is begun meanwhile sets the state.
    body.read_exact(&mut state)?;
    mac.update(&start).update(&VALID);
    io::copy(&mut body, &mut mac)?;
    let mut end = [0; blake3::OUT_LEN];
    body.into_inner().read_exact(&mut end)?;
    // The comparison takes as long for each.
    Ok(mac.finalize() == blake3::Hash::from_bytes(end))
}
/// Removes what a server that was killed has left; another file of that name stays.
fn remove_draft(path: &Path) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let there = OpenOptions::new().read(true).custom_flags(flags).open(path);
    match there {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(file) if is_draft(&file) => fs::remove_file(path),
        _ => Err(io::Error::other(format!(
            "{} is in the way",
            path.display()
        ))),
    }
}

fn is_draft(file: &File) -> bool {
    let is_empty = |meta: fs::Metadata| meta.is_file() && meta.len() == 0;
    is_ours(file) || file.metadata().is_ok_and(is_empty)
}
