//! What files say is read by threads beside the loop: a movie's tables may be large and a disk slow, and what
//! is due of others does not wait for them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bonsai_media::clip::{Clip, Codec, Finder, Fragment, Fragments, Sample, Track, Unreadable};
use bonsai_media::load::Need;
use bonsai_media::packets;

use super::pool::{Mailbox, Pool};
use super::stream::MOST;
use crate::folder::{Opened, Stamp};

/// Of a sample, what tells what kind of picture it is.
const PEEK: usize = 128;

/// Clips of one file system that wait to be read.
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

/// Why files are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// As many of that file system wait as may: they are asked for again when one of it has been read.
    Full(u64),
    /// There is no thread, and none can be started.
    Over,
}

/// Has clips read by the threads of a pool.
#[derive(Debug)]
pub(super) struct Loader {
    pool: Arc<Pool>,
    mail: Arc<Mailbox<(u64, Vec<Loaded>)>>,
    /// Clips of each file system that wait, or are being read.
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

    /// Reads files that belong together.
    ///
    /// # Errors
    /// It cannot, now or ever.
    pub(super) fn ask(&mut self, files: Vec<Opened>) -> Result<(), Unread> {
        let Some(first) = files.first().map(|of| of.stamp.file) else {
            return Ok(());
        };
        let waiting = self.waiting.entry(first.0).or_default();
        if *waiting >= QUEUE {
            return Err(Unread::Full(first.0));
        }
        let mail = Arc::clone(&self.mail);
        let work = move || {
            let loaded: Vec<Loaded> = files
                .iter()
                .map(|opened| Loaded {
                    stamp: opened.stamp,
                    // One that it cannot cope with is no reason to read no others.
                    said: catch_unwind(AssertUnwindSafe(|| read(opened)))
                        .unwrap_or_else(|_| Err(Bad::Disk(io::Error::other("reading it fails")))),
                })
                .collect();
            drop(files);
            mail.put((first.0, loaded));
        };
        let asked = self.pool.run(first, Box::new(work));
        asked.map_err(|_| Unread::Over)?;
        *waiting += 1;
        Ok(())
    }

    /// Files that have been read since the last time; its descriptor can be read when there is some.
    pub(super) fn take(&mut self) -> Vec<Loaded> {
        let mut all = Vec::new();
        for (device, loaded) in self.mail.take() {
            all.extend(loaded);
            if let Some(waiting) = self.waiting.get_mut(&device) {
                *waiting -= 1;
                if *waiting == 0 {
                    self.waiting.remove(&device);
                }
            }
        }
        all
    }
}

impl AsFd for Loader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mail.as_fd()
    }
}

fn read(opened: &Opened) -> Result<Source, Bad> {
    let clip = movie(opened)?;
    let file = &opened.file;
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

/// What a picture is, by its beginning, which is read so.
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

fn movie(opened: &Opened) -> Result<Clip, Bad> {
    let mut finder = Finder::new(opened.stamp.bytes);
    let mut header = [0; 16];
    loop {
        let (at, len) = finder.wants();
        opened
            .file
            .read_exact_at(&mut header[..len], at)
            .map_err(Bad::Disk)?;
        if let Some((at, len)) = finder.found(&header[..len]).map_err(Bad::Clip)? {
            let mut movie = vec![0; len];
            opened
                .file
                .read_exact_at(&mut movie, at)
                .map_err(Bad::Disk)?;
            let end = at + u64::try_from(len).unwrap_or(0);
            let found = match Clip::has_fragments(&movie) {
                true => fragments(opened, end)?,
                false => Vec::new(),
            };
            return Clip::read_with(&movie, &found, opened.stamp.bytes).map_err(Bad::Clip);
        }
    }
}

/// The fragments behind a movie.
fn fragments(opened: &Opened, movie_end: u64) -> Result<Vec<Fragment>, Bad> {
    let mut walk = Fragments::new(movie_end, opened.stamp.bytes);
    let mut found = Vec::new();
    let mut header = [0; 16];
    while let Some((at, len)) = walk.wants() {
        let header = &mut header[..len];
        opened.file.read_exact_at(header, at).map_err(Bad::Disk)?;
        let Some((at, body, len)) = walk.found(header).map_err(Bad::Clip)? else {
            continue;
        };
        let mut bytes = vec![0; len];
        let read = opened.file.read_exact_at(&mut bytes, body);
        read.map_err(Bad::Disk)?;
        found.push(Fragment { at, body: bytes });
    }
    Ok(found)
}
