//! Films with tables that have been read; the least used go where there is no room.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use bonsai_media::clip::{Clip, LeftOut};
use bonsai_media::hls::{Film, text};
use bonsai_stream::folder::{Opened, Stamp};
use bonsai_stream::tables::{self, TablesError};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::Refused;
use crate::file::is_still;

/// Bytes of tables that are kept. Those of a film of two hours take 12 MB.
const KEPT: usize = 256 << 20;

/// Least size that a film counts with, bytes.
const EACH: usize = 64 << 10;

/// Tables of films that are read at a time.
const AT_A_TIME: usize = 2;

/// Bytes of a sample of subtitles at most.
const MOST_CUE: u32 = 64 << 10;

/// A film, and the file that it is in.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) film: Film,
    pub(super) opened: Opened,
}

impl Known {
    fn bytes(&self) -> usize {
        self.film.memory().max(EACH)
    }

    /// An error if its file is no longer as it was.
    pub(super) fn is_the_same(&self) -> io::Result<()> {
        is_still(&self.opened.file, self.opened.stamp)
    }
}

#[derive(Debug, Default)]
struct Kept {
    films: HashMap<String, (Arc<Known>, u64)>,
    bytes: usize,
    uses: u64,
}

/// The shelf.
#[derive(Debug)]
pub(super) struct Shelf {
    kept: Mutex<Kept>,
    places: Arc<Semaphore>,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl Shelf {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A film with tables that were read of the file as it is now.
    fn found(&self, path: &str, stamp: Stamp) -> Option<Arc<Known>> {
        let mut kept = self.kept();
        kept.uses += 1;
        let uses = kept.uses;
        let (known, used) = kept.films.get_mut(path)?;
        (known.opened.stamp == stamp).then(|| {
            *used = uses;
            Arc::clone(known)
        })
    }

    /// The film in a file that was opened just now.
    ///
    /// # Errors
    /// The file is no film, or cannot be read.
    pub(super) async fn get(&self, path: &str, opened: Opened) -> Result<Arc<Known>, Refused> {
        if let Some(known) = self.found(path, opened.stamp) {
            return Ok(known);
        }
        let place = self.place().await?;
        // Another request may have had it read meanwhile.
        if let Some(known) = self.found(path, opened.stamp) {
            return Ok(known);
        }
        let known = Arc::new(read_in(place, move || read(opened)).await?);
        self.keep(path, &known);
        Ok(known)
    }

    /// The tracks of a film, and those that are not sent, by each way.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) async fn facts(&self, known: Arc<Known>) -> Result<Facts, Refused> {
        read_in(self.place().await?, move || facts(&known)).await
    }

    /// A place among those that read tables at a time.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.map_err(|error| Refused::broken("the file cannot be read", &error))
    }

    fn keep(&self, path: &str, known: &Arc<Known>) {
        let mut kept = self.kept();
        kept.uses += 1;
        let uses = kept.uses;
        kept.bytes += known.bytes();
        let before = kept
            .films
            .insert(path.to_owned(), (Arc::clone(known), uses));
        kept.bytes -= before.map_or(0, |(before, _)| before.bytes());
        while kept.bytes > KEPT && kept.films.len() > 1 {
            let oldest = kept.films.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else {
                break;
            };
            let gone = kept.films.remove(&oldest);
            kept.bytes -= gone.map_or(0, |(gone, _)| gone.bytes());
        }
    }
}

/// Reads tables; the place is kept until that is done, also where its request is gone.
async fn read_in<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    read: impl FnOnce() -> Result<T, TablesError> + Send + 'static,
) -> Result<T, Refused> {
    let work = move || {
        let read = read();
        drop(place);
        read
    };
    super::blocking(work).await?.map_err(|error| match error {
        TablesError::Clip(why) => Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why.to_string()),
        TablesError::Disk(error) => Refused::broken("the file cannot be read", &error),
    })
}

fn read(opened: Opened) -> Result<Known, TablesError> {
    let tables = tables::read(&opened)?;
    let film = Film::read(&tables.movie, &tables.fragments, opened.stamp.bytes)?;
    let known = Known { film, opened };
    known.is_the_same()?;
    Ok(known)
}

/// A film in a sentence or two for each way to it.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    /// True if some of it is sent over RTSP.
    is_over_rtsp: bool,
    /// Parts not sent over RTSP, or not as they are: tracks and their codecs, turns, edits.
    not_over_rtsp: Vec<String>,
    /// Parts that are not there as HLS.
    not_as_hls: Vec<String>,
}

/// Reads the tables again: what streams make of them is kept nowhere here.
fn facts(known: &Known) -> Result<Facts, TablesError> {
    let tables = tables::read(&known.opened)?;
    known.is_the_same()?;
    let clip = Clip::read_with(&tables.movie, &tables.fragments, known.opened.stamp.bytes);
    let words = |of: &[LeftOut]| of.iter().map(ToString::to_string).collect();
    Ok(Facts {
        is_over_rtsp: clip.is_ok(),
        not_over_rtsp: match &clip {
            Ok(clip) => words(&clip.left_out),
            Err(why) => vec![why.to_string()],
        },
        not_as_hls: words(&known.film.left_out),
    })
}

/// The subtitles of a track as cues of WebVTT; `None` where it is no track of subtitles.
///
/// # Errors
/// The subtitles cannot be read.
pub(super) fn cues(known: &Known, track: usize) -> io::Result<Option<String>> {
    let Some((codec, cues)) = known.film.cues(track) else {
        return Ok(None);
    };
    let mut all = String::new();
    for cue in cues.iter().filter(|cue| cue.bytes <= MOST_CUE) {
        let mut sample = vec![0; usize::try_from(cue.bytes).unwrap_or(0)];
        known.opened.file.read_exact_at(&mut sample, cue.offset)?;
        all += &text::cue(codec, &sample, (cue.begins_ms, cue.ends_ms));
    }
    known.is_the_same()?;
    Ok(Some(all))
}
