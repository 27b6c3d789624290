//! What is known of an image, in a file beside it, so that it need not be gone over again.
//!
//! # Format, version 1 (little-endian)
//! ```text
//! 0   magic "BNSDRIVE"        8
//! 8   version                 4
//! 12  zero                    4
//! 16  of the image: size, inode, seconds and nanoseconds of its change (mtime) and of its
//!     state's change (ctime)  6 times 8
//! 64  runs:
//!     first block 8, blocks 4, kind 4 (0: zeroes, 1: fingerprints of 12 bytes each follow)
//! end BLAKE3 of all before, keyed for this by the group's key: 32
//! ```
//! Whoever has not got the key can neither make one up nor tell what is in it. It is of use as long as the image is what it was: the same
//! file, size and times.
//!
//! # Limits
//! A change behind the server's back that keeps size and times is not seen. Devices have no times, so
//! nothing is kept of them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use bonsai_dedup::drive::{self, Content, How};
use thiserror::Error;

use super::{BLOCK, Fingerprint, Member, SLICE};
use crate::image::Times;

const MAGIC: [u8; 8] = *b"BNSDRIVE";
const VERSION: u32 = 1;
const HEADER: usize = 64;
const MAC: u64 = 32;
/// Blocks of one run, at most.
const RUN: u32 = 4096;
/// What the file's own key is derived for.
const CONTEXT: &str = "bonsai 2026-11 drive key of what is kept";
/// A change within the same step of the file system's clock as the last one would not show.
const STEP: Duration = Duration::from_millis(50);

/// Why what was kept is of no use, or nothing can be kept.
#[derive(Debug, Error)]
pub enum KeptError {
    /// There is nothing.
    #[error("nothing is kept of it")]
    None,
    /// The image is another.
    #[error("the image was changed since")]
    Stale,
    /// It is no such file, a part of it has gone or was changed, or it is of another group or secret.
    #[error("{path}: is damaged, or of another group or user")]
    Damaged {
        /// Of the file.
        path: PathBuf,
    },
    /// What the system says.
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

/// Where it is: the image's name, and `.drive`.
fn path_of(image: &Path) -> PathBuf {
    let mut name: OsString = image.as_os_str().to_owned();
    name.push(".drive");
    name.into()
}

impl Member {
    /// Takes what was kept of the image, and says of how many blocks.
    ///
    /// # Errors
    /// There is nothing that is of use; then nothing was taken.
    pub fn recall(&self) -> Result<u64, KeptError> {
        let path = path_of(self.image.path());
        let times = self.image.times().ok_or(KeptError::None)?;
        let system = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => KeptError::None,
            _ => KeptError::System {
                path: path.clone(),
                source,
            },
        };
        let damaged = || KeptError::Damaged { path: path.clone() };
        let file = File::open(&path).map_err(system)?;
        let length = file.metadata().map_err(system)?.len();
        let body = length
            .checked_sub(MAC + HEADER as u64)
            .ok_or_else(damaged)?;
        let mut header = [0; HEADER];
        (&file).read_exact(&mut header).map_err(system)?;
        let (start, of) = header.split_at(16);
        if start != begin() {
            return Err(damaged());
        }
        if of != stamp(&times) {
            return Err(KeptError::Stale);
        }
        if !is_genuine(&file, length, &self.file_key()).map_err(system)? {
            return Err(damaged());
        }
        let mut rest = BufReader::with_capacity(1 << 20, &file);
        io::Seek::seek(&mut rest, io::SeekFrom::Start(HEADER as u64)).map_err(system)?;
        let mut rest = rest.take(body);
        let mut blocks = 0;
        while let Some(run) = next_run(&mut rest).map_err(|_| damaged())? {
            self.take(&run);
            blocks += u64::from(run.blocks);
        }
        Ok(blocks)
    }

    /// Keeps what is known of the image, if it is still what it was at `since`. Whatever was kept before is replaced
    /// as a whole or not at all.
    ///
    /// # Errors
    /// The image was changed, or those of the system.
    pub fn keep(&self, since: &Times) -> Result<(), KeptError> {
        // Only once its clock has gone on does a later change show.
        let shows = since.latest() + STEP;
        while SystemTime::now() < shows {
            thread::sleep(STEP);
        }
        if self.image.times().as_ref() != Some(since) {
            return Err(KeptError::Stale);
        }
        let path = path_of(self.image.path());
        let mut draft = path.clone().into_os_string();
        draft.push(format!(".{}.part", std::process::id()));
        let draft = PathBuf::from(draft);
        let written = self
            .write(&draft, since)
            .and_then(|()| fs::rename(&draft, &path));
        written.map_err(|source| {
            // It is of no use, and may not even be there.
            let _ = fs::remove_file(&draft);
            KeptError::System { path, source }
        })
    }

    fn write(&self, path: &Path, times: &Times) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options
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
        put(&stamp(times))?;
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
        file.sync_all()
    }

    fn take(&self, run: &Run) {
        let volume = self.volume();
        let mut map = self.sharing.state.map_mut();
        for at in 0..run.blocks {
            let block = run.first + u64::from(at);
            let content = match &run.fingerprints {
                None => Some(Content::Zero),
                Some(of) => of.get(at as usize).map(|of| Content::Key(*of)),
            };
            let stamp = map.stamp(volume, block);
            if let (Some(content), Some(stamp)) = (content, stamp)
                && (block + 1) * BLOCK <= self.image.size()
            {
                map.learned(volume, block, content, How::Scan, stamp);
            }
        }
    }

    fn file_key(&self) -> [u8; 32] {
        blake3::derive_key(CONTEXT, &self.key)
    }
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
        .copied()
        .collect::<Vec<_>>();
    bytes
        .iter_mut()
        .zip(fields)
        .for_each(|(to, from)| *to = from);
    bytes
}

fn stamp(times: &Times) -> Vec<u8> {
    times
        .words()
        .into_iter()
        .flat_map(i64::to_le_bytes)
        .collect()
}

/// Whether the file ends in what its other bytes give with the key.
fn is_genuine(mut file: &File, length: u64, key: &[u8; 32]) -> io::Result<bool> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    let mut mac = blake3::Hasher::new_keyed(key);
    let mut body = BufReader::with_capacity(1 << 20, file).take(length - MAC);
    io::copy(&mut body, &mut mac)?;
    let mut end = [0; blake3::OUT_LEN];
    body.into_inner().read_exact(&mut end)?;
    // The comparison takes as long for each.
    Ok(mac.finalize() == blake3::Hash::from_bytes(end))
}
