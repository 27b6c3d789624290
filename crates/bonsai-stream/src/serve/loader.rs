//! Clips are opened and their tables read by threads beside the loop: tables may be large and a disk slow or hung,
//! and streams of other clips go on meanwhile.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bonsai_media::clip::{Clip, Codec, Sample, Track, Unreadable};
use bonsai_media::load::Need;
use bonsai_media::packets;

use super::pool::{FileId, Mailbox, Pool};
use super::stream::MOST;
use crate::folder::{Folder, Stamp, Unfound};
use crate::tables::{self, TablesError};

/// Of a sample, what tells what kind of picture it is.
const PEEK: usize = 128;

/// Clips of one file system that wait to be opened or read.
pub(super) const QUEUE: usize = 64;

/// Of pictures that decoding is said to begin with, so many are looked at.
const LOOKED_AT: usize = 8;

/// What a file says.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) clip: Arc<Clip>,
    /// What each of its tracks needs.
    pub(super) needs: Vec<Need>,
    /// Whether all that is decoded behind its key pictures can be without what was before them.
    pub(super) begins_anew: bool,
    /// True where the file system of the file has no disk.
    pub(super) is_in_memory: bool,
}

/// Why a file says nothing.
#[derive(Debug)]
pub(super) enum Bad {
    Clip(Unreadable),
    Disk(io::Error),
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) stamp: Stamp,
    pub(super) said: Result<Source, Bad>,
}

/// A file of the folder, open, and its state when it was opened.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) file: Arc<File>,
    pub(super) stamp: Stamp,
}

/// Names of a clip and of its lower qualities, the best first, and the files that they name.
pub(super) type Names = Vec<(String, Result<Candidate, Unfound>)>;

/// Something that was opened or read.
#[derive(Debug)]
pub(super) enum Came {
    /// A clip, and its files.
    Opened(String, Names),
    Loaded(Vec<Loaded>),
}

/// Why files are not opened or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// As many of that file system wait as may: they are asked for again when another is done.
    Full(u64),
    /// No thread is there, and none can be started.
    Over,
}

/// Has clips opened and read by the threads of a pool.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) pool: Arc<Pool>,
    mail: Arc<Mailbox<(u64, Came)>>,
    /// Clips of each file system that wait, or are being opened or read.
    waiting: HashMap<u64, usize>,
}

impl Loader {
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new(pool: Arc<Pool>) -> io::Result<Self> {
        Ok(Self {
            pool,
            mail: Arc::new(Mailbox::new()?),
            waiting: HashMap::new(),
        })
    }

    /// Opens the files of a clip, which is on that device as far as is known.
    ///
    /// # Errors
    /// The pool takes none, now or ever.
    pub(super) fn open(
        &mut self,
        folder: &Arc<Folder>,
        (clip, names): (String, Vec<String>),
        device: u64,
    ) -> Result<(), Unread> {
        let folder = Arc::clone(folder);
        // A name is opened once at a time: its number is that of no other.
        let file = (device, hash(&clip));
        self.ask(file, move || {
            let mut found = Names::new();
            for name in names {
                let opened = folder.file(&name).map(|opened| Candidate {
                    file: Arc::new(opened.file),
                    stamp: opened.stamp,
                });
                let is_none = found.is_empty() && opened.is_err();
                found.push((name, opened));
                // Without the clip itself there are no lower qualities.
                if is_none {
                    break;
                }
            }
            Came::Opened(clip, found)
        })
    }

    /// Reads files that belong together.
    ///
    /// # Errors
    /// It cannot, now or ever.
    pub(super) fn read(&mut self, files: Vec<Candidate>) -> Result<(), Unread> {
        let Some(first) = files.first().map(|of| of.stamp.file) else {
            return Ok(());
        };
        self.ask(first, move || {
            let loaded = files.iter().map(|of| Loaded {
                stamp: of.stamp,
                // One that it cannot cope with is no reason to read no others.
                said: catch_unwind(AssertUnwindSafe(|| read(of)))
                    .unwrap_or_else(|_| Err(Bad::Disk(io::Error::other("reading it fails")))),
            });
            Came::Loaded(loaded.collect())
        })
    }

    fn ask(
        &mut self,
        file: FileId,
        work: impl FnOnce() -> Came + Send + 'static,
    ) -> Result<(), Unread> {
        let waiting = self.waiting.entry(file.0).or_default();
        if *waiting >= QUEUE {
            return Err(Unread::Full(file.0));
        }
        let mail = Arc::clone(&self.mail);
        let work = move || mail.put((file.0, work()));
        let asked = self.pool.run(file, Box::new(work));
        asked.map_err(|_| Unread::Over)?;
        *waiting += 1;
        Ok(())
    }

    /// Takes what was done since the last time, and of which device; the descriptor can be read when there is some.
    pub(super) fn take(&mut self) -> Vec<(u64, Came)> {
        let all = self.mail.take();
        for (device, _) in &all {
            if let Some(waiting) = self.waiting.get_mut(device) {
                *waiting -= 1;
                if *waiting == 0 {
                    self.waiting.remove(device);
                }
            }
        }
        all
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl AsFd for Loader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mail.as_fd()
    }
}

fn read(opened: &Candidate) -> Result<Source, Bad> {
    let bytes = opened.stamp.bytes;
    let tables = tables::of(&opened.file, bytes).map_err(|why| match why {
        TablesError::Clip(why) => Bad::Clip(why),
        TablesError::Disk(error) => Bad::Disk(error),
    })?;
    let clip = Clip::read_with(&tables.movie, &tables.fragments, bytes).map_err(Bad::Clip)?;
    let file = &*opened.file;
    let needs = clip.needs(MOST, |track, sample| {
        // What cannot be read is said when it is to be sent.
        let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at);
        let found = beginning(read, track, sample, packets::is_disposable);
        found.unwrap_or_default()
    });
    let is_anew = |track: &Track| {
        let keys = track.samples().iter().skip(1).filter(|of| of.is_sync());
        let mut keys = keys.take(LOOKED_AT);
        keys.all(|of| {
            let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at);
            let found = beginning(read, track, of, packets::begins_anew);
            found.unwrap_or_default() != Some(false)
        })
    };
    let begins_anew = clip.pictures().is_none_or(is_anew);
    Ok(Source {
        clip: Arc::new(clip),
        needs,
        begins_anew,
        is_in_memory: is_in_memory(file),
    })
}

/// The kind of a picture by its beginning, which `read` reads.
///
/// # Errors
/// It cannot be read.
pub(super) fn beginning(
    read: impl FnOnce(&mut [u8], u64) -> io::Result<()>,
    track: &Track,
    sample: &Sample,
    of: impl Fn(&[u8], &Codec) -> Option<bool>,
) -> io::Result<Option<bool>> {
    if !track.codec.is_video() {
        return Ok(None);
    }
    let mut bytes = [0; PEEK];
    let length = PEEK.min(usize::try_from(sample.size()).unwrap_or(PEEK));
    read(&mut bytes[..length], sample.offset)?;
    Ok(of(&bytes[..length], &track.codec))
}

/// True where a file is in memory whatever is read of it (statfs(2): tmpfs, ramfs).
fn is_in_memory(file: &File) -> bool {
    const KINDS: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let kind = rustix::fs::fstatfs(file).map_or(0, |known| known.f_type);
    KINDS.iter().any(|of| i64::from(*of) == kind & 0xffff_ffff)
}
