//! What files say is read by threads of its own: a movie's tables may be large and a disk slow, and what
//! is due of others does not wait for them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bonsai_media::clip::{Clip, Codec, Finder, Fragment, Fragments, Sample, Track, Unreadable};
use bonsai_media::load::Need;
use bonsai_media::packets;
use rustix::event::{EventfdFlags, eventfd};

use crate::folder::{Opened, Stamp};

use super::stream::MOST;

/// Of a sample, what tells what kind of picture it is.
const PEEK: usize = 128;

/// Clips that wait to be read.
pub(super) const QUEUE: usize = 64;

/// Threads that read them: a file that hangs, which is read once however many ask for it, takes one of them.
const THREADS: usize = 8;

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
    /// As many wait as may: they are asked for again when something has been read.
    Full,
    /// Nothing is read any more.
    Over,
}

/// The threads.
#[derive(Debug)]
pub(super) struct Loader {
    jobs: SyncSender<Vec<Opened>>,
    shelf: Arc<Shelf>,
}

/// What has been read and not taken, and what tells of it.
#[derive(Debug)]
struct Shelf {
    loaded: Mutex<Vec<Loaded>>,
    bell: OwnedFd,
    is_over: AtomicBool,
}

impl Loader {
    /// Starts them. They end with this one, each when it has read what it is at.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start() -> io::Result<Self> {
        let (loader, jobs) = Self::idle()?;
        loader.run(jobs)?;
        Ok(loader)
    }

    /// One that reads nothing as long as it does not run, and what it is asked for.
    pub(super) fn idle() -> io::Result<(Self, Receiver<Vec<Opened>>)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shelf = Arc::new(Shelf {
            loaded: Mutex::default(),
            bell: eventfd(0, flags)?,
            is_over: AtomicBool::new(false),
        });
        let (jobs, asked) = sync_channel(QUEUE);
        Ok((Self { jobs, shelf }, asked))
    }

    pub(super) fn run(&self, jobs: Receiver<Vec<Opened>>) -> io::Result<()> {
        let jobs = Arc::new(Mutex::new(jobs));
        for index in 0..THREADS {
            let (shelf, jobs) = (Arc::clone(&self.shelf), Arc::clone(&jobs));
            let thread = thread::Builder::new().name("clips".to_owned());
            match thread.spawn(move || shelf.fill(&jobs)) {
                Err(error) if index == 0 => return Err(error),
                // The threads that there are do it.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Reads files that belong together.
    ///
    /// # Errors
    /// It cannot, now or ever.
    pub(super) fn ask(&self, files: Vec<Opened>) -> Result<(), Unread> {
        self.jobs.try_send(files).map_err(|error| match error {
            TrySendError::Full(_) => Unread::Full,
            TrySendError::Disconnected(_) => Unread::Over,
        })
    }

    /// What has been read since the last time; its descriptor can be read when there is some.
    pub(super) fn take(&self) -> Vec<Loaded> {
        let _ = rustix::io::read(&self.shelf.bell, &mut [0; 8]);
        std::mem::take(&mut *self.shelf.loaded())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shelf.is_over.store(true, Ordering::Relaxed);
    }
}

impl AsFd for Loader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shelf.bell.as_fd()
    }
}

impl Shelf {
    fn loaded(&self) -> std::sync::MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, jobs: &Mutex<Receiver<Vec<Opened>>>) {
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(files) = next() {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
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
            self.loaded().extend(loaded);
            // A count that is full wakes, too.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
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
