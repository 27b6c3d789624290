//! Films in fragments (ISO/IEC 14496-12, 8.8): what the boxes behind the movie add to its tables.
//!
//! A movie that announces fragments (`mvex`) says of a part of the film only, often of none.

use std::collections::HashMap;

use mp4_atom::{Tfdt, Tfhd, Trex, Trun};

use super::boxes::{Kind, child, children, read};
use super::samples::{LARGEST, MOST_AT_ONCE, Room, Sample, Table, decode};
use super::{LONGEST_S, MOST_MOVIE, Unreadable};

/// Boxes behind a movie: one of a day, with a fragment a second, has 170,000.
const MOST_BOXES: u32 = 1 << 19;

/// Of a sample's flags, that decoding cannot begin with it (8.8.3.1).
const NON_SYNC: u32 = 1 << 16;

/// A fragment's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where its moof box begins in the file.
    pub at: u64,
    /// The body of that box.
    pub body: Vec<u8>,
}

/// Finds the fragments behind a movie, of which it asks for a header at a time.
#[derive(Clone, Copy, Debug)]
pub struct Fragments {
    at: u64,
    length: u64,
    boxes: u32,
    bytes: u64,
}

impl Fragments {
    /// Behind a movie that ends there, in a file of so many bytes.
    #[must_use]
    pub const fn new(movie_end: u64, length: u64) -> Self {
        Self {
            at: movie_end,
            length,
            boxes: 0,
            bytes: 0,
        }
    }

    /// Where the next header is, and how many bytes to read of it; `None` at the end.
    #[must_use]
    pub fn wants(&self) -> Option<(u64, usize)> {
        let left = self.length.saturating_sub(self.at);
        let len = usize::try_from(left).map_or(16, |left| left.min(16));
        (len >= 8).then_some((self.at, len))
    }

    /// Takes the header; where its box and the body of it begin and how many bytes that has, of a fragment.
    /// A file that is still written ends with a box that does not: that is its end.
    ///
    /// # Errors
    /// There is more of them than is read.
    pub fn found(&mut self, header: &[u8]) -> Result<Option<(u64, u64, usize)>, Unreadable> {
        let left = self.length.saturating_sub(self.at);
        let begins = self.at;
        let Some((kind, head, size)) = read(header, left).filter(|(_, _, size)| *size <= left)
        else {
            self.at = self.length;
            return Ok(None);
        };
        self.at += size;
        self.boxes += 1;
        if kind == *b"moof" {
            self.bytes += size;
        }
        if self.boxes > MOST_BOXES || self.bytes > MOST_MOVIE {
            return Err(Unreadable::ManyFragments(self.boxes, self.bytes));
        }
        let body = usize::try_from(size - head).unwrap_or(0);
        Ok((kind == *b"moof").then_some((begins, begins + head, body)))
    }
}

/// What samples are that say nothing else, by their track.
pub(super) struct Defaults(HashMap<u32, Trex>);

impl Defaults {
    /// Of a movie; `None` of one that has no fragments.
    pub(super) fn read(movie: &[u8]) -> Option<Self> {
        let extends = child(movie, *b"mvex")?;
        let each = children(extends).filter(|(kind, _)| kind == b"trex");
        let each = each.filter_map(|(_, body)| body_of::<Trex>(body).ok());
        Some(Self(each.map(|of| (of.track_id, of)).collect()))
    }
}

/// Decodes the body of a box, of which there may be several.
fn body_of<T: mp4_atom::Atom>(mut body: &[u8]) -> Result<T, String> {
    T::decode_body(&mut body).map_err(|error| error.to_string())
}

/// Where a track's fragments have come to.
struct End<'a> {
    table: &'a mut Table,
    timescale: u32,
    file: u64,
    at_once: u32,
}

/// Adds a track's samples of all fragments to those of its tables; `room` becomes less. Whether the file ends
/// before they do.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn append(
    fragments: &[Fragment],
    (track, defaults): (u32, &Defaults),
    timescale: u32,
    room: &mut Room,
    table: &mut Table,
) -> Result<bool, String> {
    let mut end = End {
        table,
        timescale,
        file: room.bytes,
        at_once: 0,
    };
    for fragment in fragments {
        let mut data_end = fragment.at;
        for (kind, traf) in children(&fragment.body) {
            if kind != *b"traf" {
                continue;
            }
            let head: Tfhd = decode(traf, *b"tfhd")?;
            let base = match head.base_data_offset {
                Some(base) => base,
                None if head.default_base_is_moof => fragment.at,
                None => data_end,
            };
            let this = defaults.0.get(&head.track_id).cloned().unwrap_or_default();
            let is_cut = match head.track_id == track {
                true => end.runs(traf, &head, &this, base, room)?,
                false => false,
            };
            if is_cut {
                return Ok(true);
            }
            data_end = behind(traf, &head, &this, base);
        }
    }
    Ok(false)
}

fn runs(traf: &[u8]) -> impl Iterator<Item = Result<Trun, String>> {
    let of = |(kind, body): (Kind, &[u8])| (kind == *b"trun").then(|| body_of::<Trun>(body));
    children(traf).filter_map(of)
}

/// Where a fragment's data of a track ends.
fn behind(traf: &[u8], head: &Tfhd, this: &Trex, base: u64) -> u64 {
    let default = head.default_sample_size.unwrap_or(this.default_sample_size);
    let mut at = base;
    for run in runs(traf).map_while(Result::ok) {
        if let Some(offset) = run.data_offset {
            at = base.saturating_add_signed(offset.into());
        }
        let bytes: u64 = match &run.samples {
            mp4_atom::TrunSamples::Inherited { count, .. } => {
                u64::from(*count) * u64::from(default)
            }
            mp4_atom::TrunSamples::Explicit(entries) => {
                let sizes = entries.iter().map(|of| of.size.unwrap_or(default));
                sizes.map(u64::from).sum()
            }
        };
        at = at.saturating_add(bytes);
    }
    at
}

impl End<'_> {
    fn runs(
        &mut self,
        traf: &[u8],
        head: &Tfhd,
        this: &Trex,
        base: u64,
        room: &mut Room,
    ) -> Result<bool, String> {
        if head.sample_description_index.is_some_and(|index| index > 1) {
            return Err("it changes its codec in the middle".to_owned());
        }
        let (duration, size, flags) = (
            head.default_sample_duration
                .unwrap_or(this.default_sample_duration),
            head.default_sample_size.unwrap_or(this.default_sample_size),
            head.default_sample_flags
                .unwrap_or(this.default_sample_flags),
        );
        if let Ok(time) = decode::<Tfdt>(traf, *b"tfdt") {
            // Time never goes back.
            self.table.ticks = self.table.ticks.max(time.base_media_decode_time);
        }
        let mut offset = base;
        for run in runs(traf) {
            let run = run?;
            if let Some(from) = run.data_offset {
                offset = base.saturating_add_signed(from.into());
            }
            let left = room.samples.checked_sub(run.samples.len());
            room.samples = left.ok_or("there are more samples than a clip may have")?;
            for entry in &run.samples {
                let size = entry.size.unwrap_or(size);
                let is_sync = entry.flags.unwrap_or(flags) & NON_SYNC == 0;
                let duration = entry.duration.unwrap_or(duration);
                let end = offset.saturating_add(u64::from(size));
                if end > self.file {
                    return Ok(true);
                }
                self.push((offset, size, is_sync), duration, entry.cts.unwrap_or(0))?;
                offset = end;
            }
        }
        Ok(false)
    }

    fn push(
        &mut self,
        (offset, size, is_sync): (u64, u32, bool),
        duration: u32,
        after: i64,
    ) -> Result<(), String> {
        let number = self.table.samples.len() + 1;
        if size > LARGEST {
            return Err(format!(
                "sample {number} has {size} bytes, of {LARGEST} at most"
            ));
        }
        self.table.bytes += u64::from(size);
        if self.table.bytes > self.file {
            return Err("its samples are larger than the file".to_owned());
        }
        self.at_once = if duration == 0 { self.at_once + 1 } else { 0 };
        if self.at_once > MOST_AT_ONCE {
            return Err(format!(
                "more than {MOST_AT_ONCE} samples are decoded at one time"
            ));
        }
        let at = self.table.ticks;
        let longest = LONGEST_S * u64::from(self.timescale);
        self.table.ticks = at.saturating_add(duration.into());
        if self.table.ticks > longest {
            return Err(format!("it is longer than {LONGEST_S} seconds"));
        }
        // As in ctts, offsets below 0 may stand in a box of version 0.
        let after = match u32::try_from(after) {
            Ok(after) => after.cast_signed(),
            Err(_) => i32::try_from(after).unwrap_or(0),
        };
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        let sample = Sample::new(offset, size, is_sync, (at, after));
        self.table.samples.push(sample);
        Ok(())
    }
}
