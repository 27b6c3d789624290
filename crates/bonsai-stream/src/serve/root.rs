//! The folder with the clips: nothing outside it is opened, and what its files say is kept.
//!
//! What is not known of a file is read by threads beside the loop ([`super::loader`]), and asked for again
//! when it has been. That a file is still the same is looked at each time.

mod openings;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::task::Poll;

use bonsai_media::rtsp::server::{Path, Refusal};
use rtsp_types::StatusCode;

use crate::clock::now;
use crate::folder::{Folder, Stamp};

pub(super) use self::openings::OPENINGS;
use self::openings::Opening;
use super::film::{self, Film};
use super::loader::{Bad, Came, Candidate, Loaded, Loader, Source, Unread};
use super::lower::Lower;
use super::mounts::Mounts;
use super::pool::FileId;

/// Bytes of tables that are kept. Those of an hour take 8 MB.
const KEPT: usize = 256 << 20;

/// What each file counts for at the least, whatever it says.
const EACH: usize = 4 << 10;

/// How long it is believed that a disk cannot be read, or that a file is being written, nanoseconds.
const PASSING: u64 = 1_000_000_000;

/// What has been told of files, so that it is told once; behind so many, all may be told again.
const TOLD: usize = 1024;

/// The thing that a pending request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A clip to be opened,
    Clip(String),
    /// a file to be read,
    File(FileId),
    /// or another of a file system, as many of which wait as may.
    Room(u64),
}

/// What a file says, or why it says nothing.
#[derive(Debug)]
struct Kept {
    stamp: Stamp,
    said: Result<Arc<Source>, Broken>,
    bytes: usize,
    /// The last request that it was for.
    used: u64,
    read_at: u64,
    /// Whether it has been found as it was read,
    is_seen: bool,
    /// or had changed before that when it was read the last time, too.
    is_moving: bool,
    /// As long as somebody sees it.
    file: Weak<File>,
    film: Weak<Film>,
}

/// A file that is being read.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// As of what is kept.
    used: u64,
    is_moving: bool,
}

#[derive(Clone, Debug)]
struct Broken {
    status: StatusCode,
    why: String,
    /// Until when that is believed.
    until: u64,
}

/// A file that is there and no lower quality of a clip.
#[derive(Debug)]
pub(super) struct Unfit {
    pub(super) clip: String,
    pub(super) file: String,
    pub(super) why: String,
}

/// How a clip is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) path: &'a Path,
    /// What its lower qualities are called.
    pub(super) lower: &'a [Lower],
    /// Bytes of payload.
    pub(super) payload: usize,
    /// When the request came: it is answered by files that were opened after that.
    pub(super) since: u64,
}

impl Kept {
    /// Whether it was read a moment ago.
    fn is_recent(&self) -> bool {
        now() < self.read_at + PASSING
    }
}

/// The folder.
#[derive(Debug)]
pub(super) struct Root {
    folder: Arc<Folder>,
    mounts: Mounts,
    loader: Loader,
    openings: HashMap<String, Opening>,
    kept: HashMap<FileId, Kept>,
    bytes: usize,
    most_bytes: usize,
    uses: u64,
    /// What is being read.
    asked: HashMap<FileId, Asked>,
    /// File systems of which nothing more can be asked for, as far as is known.
    full: HashSet<u64>,
    /// Things that the pending request waits for.
    awaited: Vec<Awaited>,
    told: HashSet<(String, String)>,
    /// What is still to be told.
    pub(super) unfit: Vec<Unfit>,
    /// Clips, and what of each is not sent.
    pub(super) left_out: Vec<(String, String)>,
}

impl Root {
    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: &std::path::Path, loader: Loader) -> io::Result<Self> {
        Ok(Self {
            folder: Arc::new(Folder::open(path)?),
            mounts: Mounts::new(path),
            loader,
            openings: HashMap::new(),
            kept: HashMap::new(),
            bytes: 0,
            most_bytes: KEPT,
            uses: 0,
            asked: HashMap::new(),
            full: HashSet::new(),
            awaited: Vec::new(),
            told: HashSet::new(),
            unfit: Vec::new(),
            left_out: Vec::new(),
        })
    }

    /// What tells that something was read.
    pub(super) const fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Takes in what was opened and read; what requests may have waited for of it.
    pub(super) fn loaded(&mut self) -> Vec<Awaited> {
        let mut came = Vec::new();
        for (device, what) in self.loader.take() {
            if self.full.remove(&device) {
                came.push(Awaited::Room(device));
            }
            match what {
                Came::Opened(clip, names) => {
                    if let Some(opening) = self.openings.get_mut(&clip) {
                        (opening.names, opening.used) = (Some(names), now());
                    }
                    came.push(Awaited::Clip(clip));
                }
                Came::Loaded(all) => {
                    for loaded in all {
                        came.push(Awaited::File(loaded.stamp.file));
                        self.keep(loaded);
                    }
                }
            }
        }
        came
    }

    /// Things that the pending request waits for.
    pub(super) fn awaited(&mut self) -> Vec<Awaited> {
        std::mem::take(&mut self.awaited)
    }

    /// True where what a request waits for cannot be asked for until something of its file system has been read.
    pub(super) fn is_full(&self, awaits: &[Awaited]) -> bool {
        let mut awaits = awaits.iter();
        awaits.any(|of| matches!(of, Awaited::Room(device) if self.full.contains(device)))
    }

    /// A clip in its qualities; pending while its files are read.
    ///
    /// # Errors
    /// There is none, it leads out of the root, or it cannot be sent.
    pub(super) fn find(&mut self, wanted: &Wanted<'_>) -> Poll<Result<Arc<Film>, Refusal>> {
        let clip = wanted.path.to_string();
        if !self.is_open(&clip, wanted)? {
            return Poll::Pending;
        }
        let files = self.files(&clip)?;
        self.uses += 1;
        // All are looked at, so that none of them makes room for another.
        let said: Vec<_> = files.iter().map(|(_, of)| self.said(of.stamp)).collect();
        let Some(sources) = said.into_iter().collect::<Option<Vec<_>>>() else {
            self.ask(files)?;
            return Poll::Pending;
        };
        let first = &sources[0];
        let best = match first {
            Ok(source) => Arc::clone(source),
            Err(broken) => {
                let why = format!("{}: {}", files[0].0, broken.why);
                return Poll::Ready(Err(Refusal::new(broken.status, why)));
            }
        };
        for part in &best.clip.left_out {
            self.left_out(&files[0].0, &part.to_string());
        }
        let chosen = self.choose(&best, &files, sources, wanted.payload);
        Poll::Ready(self.film(&files, &chosen))
    }

    /// Has those of the files read that are neither known nor being read.
    fn ask(&mut self, files: Vec<(String, Candidate)>) -> Result<(), Refusal> {
        let mut unknown: Vec<Candidate> = files.into_iter().map(|(_, of)| of).collect();
        unknown.retain(|of| self.said(of.stamp).is_none());
        let files = unknown.iter().map(|of| Awaited::File(of.stamp.file));
        self.awaited = files.collect();
        // One that has changed since it was asked for is asked for again when that is known.
        unknown.retain(|of| !self.asked.contains_key(&of.stamp.file));
        let asked: Vec<(FileId, Asked)> = unknown
            .iter()
            .map(|of| (of.stamp.file, self.asked_for(of.stamp)))
            .collect();
        if asked.is_empty() {
            return Ok(());
        }
        match self.loader.read(unknown) {
            Ok(()) => self.asked.extend(asked),
            Err(why) => self.unread(why)?,
        }
        Ok(())
    }

    /// A request waits for room, or is told that nothing is read.
    fn unread(&mut self, why: Unread) -> Result<(), Refusal> {
        match why {
            Unread::Full(device) => {
                self.full.insert(device);
                self.awaited = vec![Awaited::Room(device)];
                Ok(())
            }
            Unread::Over => {
                let why = "there is no thread to read clips";
                Err(Refusal::new(StatusCode::InternalServerError, why))
            }
        }
    }

    fn asked_for(&self, stamp: Stamp) -> Asked {
        let before = self.kept.get(&stamp.file);
        let is_moving = before.is_some_and(|of| of.stamp != stamp && !of.is_seen && of.is_recent());
        Asked {
            used: self.uses,
            is_moving,
        }
    }

    /// Which of the files are qualities of the clip, the first of them.
    fn choose(
        &mut self,
        best: &Source,
        files: &[(String, Candidate)],
        sources: Vec<Result<Arc<Source>, Broken>>,
        payload: usize,
    ) -> Vec<(usize, Arc<Source>)> {
        let mut chosen: Vec<(usize, Arc<Source>)> = Vec::new();
        let alone = match files.len() > 1 && best.clip.pictures().is_some() {
            true => film::can_be_begun(best, payload).err(),
            false => None,
        };
        for (index, source) in sources.into_iter().enumerate() {
            let why = match (source, chosen.last()) {
                (Ok(source), None) => {
                    chosen.push((index, source));
                    continue;
                }
                (Ok(source), Some((_, above))) => {
                    let fits = match &alone {
                        Some(why) => Err(format!("the clip itself cannot be gone back to: {why}")),
                        None => film::fits(best, above, &source, payload),
                    };
                    match fits {
                        Ok(()) => {
                            chosen.push((index, source));
                            continue;
                        }
                        Err(why) => why,
                    }
                }
                (Err(broken), _) => broken.why,
            };
            self.unfit(&files[0].0, &files[index].0, &why);
        }
        chosen
    }

    /// The film of those files, which is one for all who see it.
    fn film(
        &mut self,
        files: &[(String, Candidate)],
        chosen: &[(usize, Arc<Source>)],
    ) -> Result<Arc<Film>, Refusal> {
        let gone = || Refusal::new(StatusCode::InternalServerError, "its file is gone");
        let stamps: Vec<Stamp> = chosen
            .iter()
            .map(|(index, _)| files[*index].1.stamp)
            .collect();
        let first = stamps.first().ok_or_else(gone)?.file;
        let seen = self.kept.get(&first).and_then(|kept| kept.film.upgrade());
        if let Some(film) = seen.filter(|film| film.is_of(&stamps)) {
            return Ok(film);
        }
        let mut shared = Vec::new();
        for (index, _) in chosen {
            let of = &files[*index].1;
            let kept = self.kept.get_mut(&of.stamp.file).ok_or_else(gone)?;
            let file = kept.file.upgrade().unwrap_or_else(|| Arc::clone(&of.file));
            kept.file = Arc::downgrade(&file);
            shared.push((file, of.stamp));
        }
        let sources: Vec<&Source> = chosen.iter().map(|(_, source)| &**source).collect();
        let film = Film::new(&sources, shared, Arc::clone(&self.loader.pool));
        let film = Arc::new(film.ok_or_else(gone)?);
        if let Some(kept) = self.kept.get_mut(&first) {
            kept.film = Arc::downgrade(&film);
        }
        Ok(film)
    }

    /// What a file says, as far as that is known.
    fn said(&mut self, stamp: Stamp) -> Option<Result<Arc<Source>, Broken>> {
        if let Some(asked) = self.asked.get_mut(&stamp.file) {
            asked.used = self.uses;
        }
        let kept = self.kept.get_mut(&stamp.file)?;
        kept.used = self.uses;
        if kept.stamp != stamp {
            // It is not read again and again as long as somebody writes it.
            let is_moving = kept.is_moving && !kept.is_seen && kept.is_recent();
            return is_moving.then(|| {
                Err(Broken {
                    status: StatusCode::ServiceUnavailable,
                    why: "it is being written".to_owned(),
                    until: 0,
                })
            });
        }
        kept.is_seen = true;
        let is_passing = |broken: &Broken| broken.until <= now();
        match kept.said.as_ref().is_err_and(is_passing) {
            true => None,
            false => Some(kept.said.clone()),
        }
    }

    fn keep(&mut self, loaded: Loaded) {
        let file = loaded.stamp.file;
        let said = loaded.said.map(Arc::new).map_err(|bad| match bad {
            Bad::Clip(why) => Broken {
                status: StatusCode::UnsupportedMediaType,
                why: why.to_string(),
                until: u64::MAX,
            },
            Bad::Disk(error) => Broken {
                status: StatusCode::InternalServerError,
                why: error.to_string(),
                until: now() + PASSING,
            },
        });
        let bytes = EACH + said.as_ref().map_or(0, |source| source.clip.memory());
        let asked = self.asked.remove(&file);
        let kept = Kept {
            stamp: loaded.stamp,
            said,
            bytes,
            used: asked.map_or(self.uses, |of| of.used),
            read_at: now(),
            is_seen: false,
            is_moving: asked.is_some_and(|of| of.is_moving),
            file: Weak::new(),
            film: Weak::new(),
        };
        self.bytes += bytes;
        if let Some(before) = self.kept.insert(file, kept) {
            self.bytes -= before.bytes;
        }
        self.make_room();
    }

    /// What was not asked for for longest makes room. The files of the last request stay, as it needs
    /// all of them at once, however large they are.
    fn make_room(&mut self) {
        while self.bytes > self.most_bytes {
            let last = self.kept.values().map(|kept| kept.used).max();
            let others = self.kept.iter().filter(|(_, of)| Some(of.used) != last);
            let oldest = others.min_by_key(|(_, of)| of.used);
            let Some(oldest) = oldest.map(|(file, _)| *file) else {
                return;
            };
            if let Some(gone) = self.kept.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }

    /// Whether something has not been told of a file yet.
    fn is_new(&mut self, file: &str, why: &str) -> bool {
        if self.told.len() >= TOLD {
            self.told.clear();
        }
        self.told.insert((file.to_owned(), why.to_owned()))
    }

    fn left_out(&mut self, clip: &str, what: &str) {
        if self.is_new(clip, what) {
            self.left_out.push((clip.to_owned(), what.to_owned()));
        }
    }

    fn unfit(&mut self, clip: &str, file: &str, why: &str) {
        if self.is_new(file, why) {
            self.unfit.push(Unfit {
                clip: clip.to_owned(),
                file: file.to_owned(),
                why: why.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
