//! What the engine and this share in a process: `bonsai-preload/src/attach/running.rs`
//! has the other side.

use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use super::AttachError;
use super::maps::Object;

/// "BONSAI running\0" and the version of what follows.
const MAGIC: [u8; 16] = *b"BONSAI running\0\x01";

/// Objects, and bytes of a path, of the program's name, and of an object's name.
const OBJECTS: usize = 96;
const PATH: usize = 512;
const PROGRAM: usize = 64;
const NAME: usize = 40;

const RUN: u64 = 16;
const PATCHES: u64 = 24;
const COUNT: u64 = 32;
const PATCHED: u64 = 40;
const ACTIVE: u64 = 48;
const SEGMENT: u64 = 56;
const REASON: u64 = 64;
const TWINS: u64 = 72;
const STACK: u64 = 80;
const FREE: u64 = 88;
const READS_BASE: u64 = 104;
const GIVEN: u64 = 112;

/// What a run is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want {
    Attach = 0,
    Detach = 1,
    Again = 2,
}

/// The most sites.
pub(crate) const SITES: usize = 2048;

/// A site that the engine has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Where the jump is.
    pub(crate) at: u64,
    pub(crate) old: [u8; 8],
    pub(crate) new: [u8; 8],
    /// Bytes between that and the `syscall`.
    pub(crate) back: u64,
    /// Whether they are moved; a comparison belongs to the site otherwise.
    pub(crate) moved: bool,
}

impl Patch {
    const LEN: usize = 32;

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk()?;
        let (old, rest) = rest.split_first_chunk()?;
        let (new, rest) = rest.split_first_chunk()?;
        let (back, rest) = rest.split_first_chunk()?;
        Some(Self {
            at: u64::from_le_bytes(*at),
            old: *old,
            new: *new,
            back: u32::from_le_bytes(*back).into(),
            moved: rest.first() == Some(&1),
        })
    }
}

/// The shared part, in a process's memory.
#[derive(Debug)]
pub(crate) struct Shared {
    memory: Arc<File>,
    at: u64,
}

impl Shared {
    /// Finds it within the engine's data.
    pub(crate) fn find(memory: &Arc<File>, data: Range<u64>) -> Option<Self> {
        let mut bytes = vec![0; usize::try_from(data.end - data.start).ok()?];
        memory.read_exact_at(&mut bytes, data.start).ok()?;
        let aligned = bytes.chunks_exact(8).enumerate();
        let at = aligned
            .filter(|(_, word)| *word == &MAGIC[..8])
            .map(|(i, _)| i * 8)
            .find(|at| bytes.get(at + 8..at + 16) == Some(&MAGIC[8..]))?;
        Some(Self {
            memory: Arc::clone(memory),
            at: data.start + at as u64,
        })
    }

    fn word(&self, offset: u64) -> Result<u64, AttachError> {
        let mut bytes = [0; 8];
        let read = self.memory.read_exact_at(&mut bytes, self.at + offset);
        read.map_err(|error| AttachError::system("its memory", error))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AttachError> {
        let written = self.memory.write_all_at(bytes, self.at + offset);
        written.map_err(|error| AttachError::system("its memory", error))
    }

    /// Where it runs.
    pub(crate) fn entry(&self) -> Result<u64, AttachError> {
        self.word(RUN)
    }

    /// Where the twins of sites are.
    pub(crate) fn twins(&self) -> Result<u64, AttachError> {
        self.word(TWINS)
    }

    /// The top of its stack.
    pub(crate) fn stack(&self) -> Result<u64, AttachError> {
        self.word(STACK)
    }

    /// Where the ledger is mapped; 0 before that.
    pub(crate) fn segment(&self) -> Result<u64, AttachError> {
        self.word(SEGMENT)
    }

    /// Whether it has looked for sites: whoever mapped it may have been killed before.
    pub(crate) fn has_looked(&self) -> Result<bool, AttachError> {
        Ok(self.word(COUNT)? != 0)
    }

    /// Whether the sites are patched, or the process is in the ledger: whoever did that
    /// may have been killed between the two.
    pub(crate) fn is_in_use(&self) -> Result<bool, AttachError> {
        Ok(self.is_patched()? || self.word(ACTIVE)? != 0)
    }

    /// Whether the sites are patched.
    pub(crate) fn is_patched(&self) -> Result<bool, AttachError> {
        Ok(self.word(PATCHED)? != 0)
    }

    pub(crate) fn set_patched(&self, patched: bool) -> Result<(), AttachError> {
        self.write(PATCHED, &u64::from(patched).to_le_bytes())
    }

    /// The number of a `bonsai_ledger::Reason`.
    pub(crate) fn reason(&self) -> Result<u32, AttachError> {
        Ok(u32::try_from(self.word(REASON)?).unwrap_or(0))
    }

    /// Says where things are: twins, the top of the stack, the ledger, free memory.
    pub(crate) fn place(
        &self,
        [twins, stack, ledger]: [u64; 3],
        free: Range<u64>,
    ) -> Result<(), AttachError> {
        for (offset, place) in [
            (TWINS, twins),
            (STACK, stack),
            (SEGMENT, ledger),
            (FREE, free.start),
            (FREE + 8, free.end),
        ] {
            self.write(offset, &place.to_le_bytes())?;
        }
        Ok(())
    }

    /// Says what there is.
    pub(crate) fn give(
        &self,
        ledger: &Path,
        program: &str,
        objects: &[Object],
        reads_base: bool,
    ) -> Result<(), AttachError> {
        let ledger = ledger.as_os_str().as_bytes();
        if ledger.len() >= PATH {
            return Err(AttachError::LongPath);
        }
        let mut bytes = padded(ledger, PATH);
        bytes.extend(padded(program.as_bytes(), PROGRAM));
        let objects = objects
            .get(..OBJECTS.min(objects.len()))
            .unwrap_or_default();
        for object in objects {
            for word in [object.base, object.headers, object.count] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(padded(object.name.as_bytes(), NAME));
        }
        self.write(READS_BASE, &u64::from(reads_base).to_le_bytes())?;
        self.write(GIVEN + 8, &bytes)?;
        self.write(GIVEN, &(objects.len() as u64).to_le_bytes())
    }

    /// The sites that it has found.
    pub(crate) fn patches(&self) -> Result<Vec<Patch>, AttachError> {
        let count = usize::try_from(self.word(COUNT)?).unwrap_or(0).min(SITES);
        let mut bytes = vec![0; count * Patch::LEN];
        let read = self.memory.read_exact_at(&mut bytes, self.word(PATCHES)?);
        read.map_err(|error| AttachError::system("its memory", error))?;
        Ok(bytes
            .chunks_exact(Patch::LEN)
            .filter_map(Patch::parse)
            .collect())
    }
}

/// Text of that length, with a zero byte at its end at least.
fn padded(text: &[u8], len: usize) -> Vec<u8> {
    let mut text = text
        .get(..text.len().min(len - 1))
        .unwrap_or_default()
        .to_vec();
    text.resize(len, 0);
    text
}
