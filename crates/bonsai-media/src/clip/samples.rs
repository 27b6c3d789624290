//! Where the samples of a track are, and when: its tables (ISO/IEC 14496-12, 8.6 and 8.7) put together.

use mp4_atom::{Atom, Co64, Ctts, Stco, Stsc, Stss, Stsz, StszSamples, Stts};

use super::LONGEST_S;
use super::boxes::{Kind, child};

/// As many samples one after the other may be decoded at one time.
pub(super) const MOST_AT_ONCE: u32 = 64;

/// A sample: a picture, or a frame of sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Where in the file it begins.
    pub offset: u64,
    /// Ticks of the file.
    decoded: i64,
    /// Its bytes; in the highest bit whether decoding can begin with it.
    size: u32,
    /// Ticks from when it is decoded to when it is shown.
    after: i32,
}

/// The most bytes of a sample, which is read as a whole: a picture of 8K that is not predicted has fewer.
pub(crate) const LARGEST: u32 = 16 << 20;

/// The highest bit of a size.
const SYNC: u32 = 1 << 31;

impl Sample {
    /// Its bytes.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size & !SYNC
    }

    /// Whether decoding can begin with it.
    #[must_use]
    pub const fn is_sync(&self) -> bool {
        self.size & SYNC != 0
    }

    /// When it is decoded, ticks of its track from the beginning of the film; negative before that.
    #[must_use]
    pub const fn decoded(&self) -> i64 {
        self.decoded
    }

    /// When it is shown, likewise.
    #[must_use]
    pub fn shown(&self) -> i64 {
        self.decoded + i64::from(self.after)
    }

    /// A sample of the file's tables; decoding can begin with it where `is_sync`.
    pub(crate) const fn new(offset: u64, size: u32, is_sync: bool, times: (i64, i32)) -> Self {
        Self {
            offset,
            decoded: times.0,
            size: if is_sync { size | SYNC } else { size },
            after: times.1,
        }
    }

    /// The same bytes at other times; `None` where these are days apart.
    pub(super) fn at(&self, decoded: i64, shown: i64) -> Option<Self> {
        Some(Self {
            decoded,
            after: i32::try_from(shown - decoded).ok()?,
            ..*self
        })
    }
}

/// What is left for samples: bytes of the file, and their number.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) bytes: u64,
    pub(super) samples: usize,
}

/// The samples of a table box, and their bytes and ticks in all.
pub(super) struct Table {
    pub(super) samples: Vec<Sample>,
    pub(super) bytes: u64,
    pub(super) ticks: u64,
}

/// Puts the tables of a track together; `room` becomes less.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn table(stbl: &[u8], timescale: u32, room: &mut Room) -> Result<Table, String> {
    let sizes: Stsz = decode(stbl, *b"stsz")?;
    let count = match &sizes.samples {
        StszSamples::Identical { count, .. } => usize::try_from(*count).unwrap_or(usize::MAX),
        StszSamples::Different { sizes } => sizes.len(),
    };
    let file = room.bytes;
    room.samples = room
        .samples
        .checked_sub(count)
        .ok_or_else(|| format!("there are {count} samples, more than a clip may have"))?;
    let mut times = Times::read(stbl, timescale)?;
    let mut keys = Keys::read(stbl)?;
    let chunks = chunks(stbl)?;
    let runs: Stsc = decode(stbl, *b"stsc")?;
    if runs
        .entries
        .iter()
        .any(|run| run.sample_description_index != 1)
    {
        return Err("it changes its codec in the middle".to_owned());
    }
    let mut run = runs.entries.iter().peekable();
    let mut each = 0;
    let mut table = Table {
        samples: Vec::with_capacity(count.min(1 << 16)),
        bytes: 0,
        ticks: 0,
    };
    'chunks: for (number, chunk) in (1_u32..).zip(chunks) {
        while let Some(next) = run.next_if(|run| run.first_chunk <= number) {
            each = next.samples_per_chunk;
        }
        let mut offset = chunk;
        for _ in 0..each {
            let index = table.samples.len();
            let size = match &sizes.samples {
                _ if index >= count => break 'chunks,
                StszSamples::Identical { size, .. } => *size,
                StszSamples::Different { sizes } => sizes[index],
            };
            let end = offset
                .checked_add(u64::from(size))
                .filter(|end| *end <= file);
            let end =
                end.ok_or_else(|| format!("sample {} is behind the end of the file", index + 1))?;
            table.bytes += u64::from(size);
            if table.bytes > file || size & SYNC != 0 {
                return Err("its samples are larger than the file".to_owned());
            }
            if size > LARGEST {
                return Err(format!(
                    "sample {} has {size} bytes, of {LARGEST} at most",
                    index + 1
                ));
            }
            let (decoded, after) = times.next()?;
            table.samples.push(Sample {
                offset,
                decoded,
                size: if keys.has_next() { size | SYNC } else { size },
                after,
            });
            offset = end;
        }
    }
    if table.samples.len() < count {
        let there = table.samples.len();
        return Err(format!("its chunks have {there} samples of {count}"));
    }
    table.ticks = u64::try_from(times.at).unwrap_or(0);
    // It is kept for as long as somebody may ask for the clip.
    table.samples.shrink_to_fit();
    Ok(table)
}

/// When samples are decoded and shown, one after the other.
struct Times {
    at: i64,
    longest: i64,
    deltas: std::vec::IntoIter<mp4_atom::SttsEntry>,
    /// How many samples are as far from the next, and how far.
    delta: (u32, i64),
    offsets: Option<std::vec::IntoIter<mp4_atom::CttsEntry>>,
    offset: (u32, i32),
    at_once: u32,
}

impl Times {
    fn read(stbl: &[u8], timescale: u32) -> Result<Self, String> {
        let deltas: Stts = decode(stbl, *b"stts")?;
        let offsets = match child(stbl, *b"ctts") {
            Some(_) => Some(decode::<Ctts>(stbl, *b"ctts")?.entries.into_iter()),
            None => None,
        };
        let longest = LONGEST_S * u64::from(timescale);
        Ok(Self {
            at: 0,
            longest: i64::try_from(longest).unwrap_or(i64::MAX),
            deltas: deltas.entries.into_iter(),
            delta: (0, 0),
            offsets,
            offset: (0, 0),
            at_once: 0,
        })
    }

    /// When the next is decoded, and how long after that it is shown.
    fn next(&mut self) -> Result<(i64, i32), String> {
        while self.delta.0 == 0 {
            let next = self.deltas.next();
            let next = next.ok_or("its stts has times of fewer samples than it has")?;
            self.delta = (next.sample_count, i64::from(next.sample_delta));
        }
        self.delta.0 -= 1;
        let at = self.at;
        self.at += self.delta.1;
        self.at_once = if self.delta.1 == 0 {
            self.at_once + 1
        } else {
            0
        };
        if self.at > self.longest {
            return Err(format!("it is longer than {LONGEST_S} seconds"));
        }
        if self.at_once > MOST_AT_ONCE {
            return Err(format!(
                "more than {MOST_AT_ONCE} samples are decoded at one time"
            ));
        }
        let Some(offsets) = &mut self.offsets else {
            return Ok((at, 0));
        };
        while self.offset.0 == 0 {
            let next = offsets.next();
            let next = next.ok_or("its ctts has times of fewer samples than it has")?;
            // Writers put offsets below 0 into boxes of version 0 as well, where they are unsigned.
            let offset = u32::try_from(next.sample_offset).map(u32::cast_signed);
            let offset = offset.or_else(|_| i32::try_from(next.sample_offset));
            let offset = offset.map_err(|_| "a sample is shown days after it is decoded")?;
            self.offset = (next.sample_count, offset);
        }
        self.offset.0 -= 1;
        Ok((at, self.offset.1))
    }
}

/// Which samples decoding can begin with, one after the other: all, or those that are listed.
struct Keys {
    listed: Option<std::iter::Peekable<std::vec::IntoIter<u32>>>,
    number: u32,
}

impl Keys {
    fn read(stbl: &[u8]) -> Result<Self, String> {
        let listed = match child(stbl, *b"stss") {
            Some(_) => Some(
                decode::<Stss>(stbl, *b"stss")?
                    .entries
                    .into_iter()
                    .peekable(),
            ),
            None => None,
        };
        Ok(Self { listed, number: 0 })
    }

    fn has_next(&mut self) -> bool {
        self.number += 1;
        let Some(listed) = &mut self.listed else {
            return true;
        };
        while listed.next_if(|number| *number < self.number).is_some() {}
        listed.peek() == Some(&self.number)
    }
}

/// Where chunks begin.
fn chunks(stbl: &[u8]) -> Result<Vec<u64>, String> {
    if child(stbl, *b"co64").is_some() {
        return Ok(decode::<Co64>(stbl, *b"co64")?.entries);
    }
    let short: Stco = decode(stbl, *b"stco")?;
    Ok(short.entries.into_iter().map(u64::from).collect())
}

/// A box that is there once, by its name. What stands behind its fields is passed over.
pub(super) fn decode<T: Atom>(body: &[u8], kind: Kind) -> Result<T, String> {
    let name = String::from_utf8_lossy(&kind).into_owned();
    let mut bytes = child(body, kind).ok_or_else(|| format!("it has no {name}"))?;
    T::decode_body(&mut bytes).map_err(|error| format!("its {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::sketch::boxed;
    use super::Times;

    #[test]
    fn offsets_below_0_are_read_in_either_version() {
        for version in [0, 1] {
            let times = boxed(b"stts", &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 10]);
            let mut offsets = vec![version, 0, 0, 0, 0, 0, 0, 2];
            for offset in [-10_i32, 30] {
                offsets.extend([0, 0, 0, 1]);
                offsets.extend(offset.to_be_bytes());
            }
            let stbl = [times, boxed(b"ctts", &offsets)].concat();
            let mut times = Times::read(&stbl, 100).expect("times");
            assert_eq!(times.next(), Ok((0, -10)));
            assert_eq!(times.next(), Ok((10, 30)));
        }
    }
}
