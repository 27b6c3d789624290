//! A clip in all its qualities, as it is sent to everybody who sees it: one open file for each.

use std::fs::File;
use std::mem::discriminant;
use std::sync::Arc;

use bonsai_media::clip::{Clip, Track};
use bonsai_media::load::{Level, Need};
use bonsai_media::packets;
use bonsai_media::rtsp::server::Found;

use super::loader::Source;
use super::pool::Pool;
use crate::folder::Stamp;

/// Two qualities of a film may be of lengths that are so much apart, nanoseconds.
const APART: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Film {
    pub(super) found: Found,
    /// Below the best.
    pub(super) lower: Arc<[Arc<Clip>]>,
    /// Of each quality, the best first.
    files: Vec<ClipFile>,
    pool: Arc<Pool>,
}

/// An open file of a clip.
#[derive(Debug)]
pub(super) struct ClipFile {
    pub(super) file: Arc<File>,
    /// State of the file when it was opened.
    pub(super) stamp: Stamp,
    /// True where its file system has no disk: no read waits for one.
    pub(super) is_in_memory: bool,
}

impl Film {
    /// Of sources that fit together, the best first, and their files.
    pub(super) fn new(
        sources: &[&Source],
        files: Vec<(Arc<File>, Stamp)>,
        pool: Arc<Pool>,
    ) -> Option<Self> {
        let (best, lower) = sources.split_first()?;
        let version = files.first()?.1.changed.0;
        let of = |(track, need): (&Track, &Need)| match track.codec.is_video() {
            // Pictures are the first track of each.
            true => Need::of(sources.iter().filter_map(|of| of.needs.first().copied())),
            false => *need,
        };
        let needs = best.clip.tracks.iter().zip(&best.needs).map(of);
        let files = files.into_iter().zip(sources);
        let files = files.map(|((file, stamp), source)| ClipFile {
            file,
            stamp,
            is_in_memory: source.is_in_memory,
        });
        Some(Self {
            found: Found {
                clip: Arc::clone(&best.clip),
                version: u64::try_from(version).unwrap_or(0),
                needs: needs.collect(),
            },
            lower: lower.iter().map(|of| Arc::clone(&of.clip)).collect(),
            files: files.collect(),
            pool,
        })
    }

    /// The file of a quality; beyond the lowest, that of the lowest.
    pub(super) fn file(&self, quality: usize) -> &ClipFile {
        &self.files[quality.min(self.files.len() - 1)]
    }

    /// Its qualities, the best first.
    pub(super) fn clips(&self) -> impl Iterator<Item = &Clip> {
        let lower = self.lower.iter().map(Arc::as_ref);
        std::iter::once(self.found.clip.as_ref()).chain(lower)
    }

    /// Whether it is of these files.
    pub(super) fn is_of(&self, stamps: &[Stamp]) -> bool {
        self.files.iter().map(|of| &of.stamp).eq(stamps)
    }

    /// Why a quality cannot be sent any further, if its file is no longer what it was.
    pub(super) fn changed(&self, quality: usize) -> Option<&'static str> {
        let of = self.file(quality);
        match Stamp::known(&of.file) {
            Ok(now) if now.is_as_long_as(&of.stamp) => None,
            Ok(_) => Some("its file has changed"),
            Err(_) => Some("its file cannot be looked at any more"),
        }
    }
}

impl Drop for Film {
    fn drop(&mut self) {
        let files = std::mem::take(&mut self.files);
        if let Some(first) = files.first().map(|of| of.stamp.file) {
            self.pool.close(first, files);
        }
    }
}

/// Whether a file is a lower quality of a clip, below another of it.
///
/// # Errors
/// Why it is none.
pub(super) fn fits(
    best: &Source,
    above: &Source,
    this: &Source,
    payload: usize,
) -> Result<(), String> {
    let (Some(clip), Some(pictures)) = (best.clip.pictures(), this.clip.pictures()) else {
        return Err("it has no track of pictures".to_owned());
    };
    if discriminant(&clip.codec) != discriminant(&pictures.codec) {
        return Err("its pictures are of another codec than those of the clip".to_owned());
    }
    let (length, expected) = (pictures.length_ns(), clip.length_ns());
    if length.abs_diff(expected) > APART {
        let s = |ns: u64| ns as f64 / 1e9;
        return Err(format!(
            "it is {:.1} s long, and the clip {:.1} s; they may be 1 s apart",
            s(length),
            s(expected)
        ));
    }
    let kbits = |of: &Source| {
        let need = of.needs.first();
        need.map_or(0, |need| need.at(Level::BEST)) * 8 / 1000
    };
    if kbits(this) >= kbits(above) {
        return Err(format!(
            "its pictures take {} kbit/s, and those of the quality above it {}; name the larger first",
            kbits(this),
            kbits(above)
        ));
    }
    can_be_begun(this, payload)
}

/// Whether it can be gone over to in the middle.
///
/// # Errors
/// Why not.
pub(super) fn can_be_begun(this: &Source, payload: usize) -> Result<(), String> {
    if !this.begins_anew {
        let why = "decoding cannot begin with some of its key pictures, which are no IDR; encode it with closed \
                   groups of pictures";
        return Err(why.to_owned());
    }
    match this.clip.pictures().map(|track| &track.codec) {
        Some(codec) if !codec.sets().is_empty() => {
            let fit = packets::sets_together(codec, payload).map(|_| ());
            fit.ok_or_else(|| {
                format!("its parameter sets are larger than a packet of {payload} bytes")
            })
        }
        _ => Ok(()),
    }
}
