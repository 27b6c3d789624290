//! Boxes before the samples of fragmented MP4 (ISO/IEC 14496-12, 8.8): the header of a track, and the head of a segment.
//!
//! Fields are written by mp4-atom. The sample description and the track header are copied from the file as they are: a
//! description that is taken apart and put together again would lose fields that the library does not know.

use mp4_atom::{
    Decode as _, Dinf, Dref, DrefEntry, Encode, FourCC, Ftyp, Hdlr, Mdhd, Mfhd, Moof, Mvhd, Smhd,
    Stco, Stsc, Stsz, Stts, Tfdt, Tfhd, Tkhd, Traf, Trex, Trun, TrunEntry, Url, Vmhd,
};

use crate::clip::Sample;
use crate::clip::stored::{Media, Stored};

use super::codecs;

/// Flags of samples (8.8.3.1): decoding can begin with it and nothing else is needed for it; or it can not.
const KEY: u32 = 2 << 24;
const OTHER: u32 = 1 << 24 | 1 << 16;

/// Bytes of a header with a long length.
const LONG: u64 = 16;

/// A box around its parts.
fn boxed(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let size = 8 + parts.iter().map(|part| part.len()).sum::<usize>();
    // A description has a megabyte at most.
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    let mut bytes = [&size.to_be_bytes()[..], kind].concat();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// A box of the library; nothing where its values do not fit in it.
fn made(of: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    match of.encode(&mut bytes) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// Tracks with their numbers in a file.
fn numbered<T>(tracks: impl IntoIterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    (1..).zip(tracks)
}

/// The header of tracks: a file without samples that says that fragments follow.
pub(super) fn header(tracks: &[&Stored]) -> Vec<u8> {
    let four = |kind: &[u8; 4]| FourCC::new(kind);
    let beginning = made(&Ftyp {
        major_brand: four(b"iso6"),
        minor_version: 0,
        compatible_brands: vec![four(b"iso6"), four(b"mp41")],
    });
    let movie = made(&Mvhd {
        creation_time: 0,
        modification_time: 0,
        timescale: 1000,
        duration: 0,
        rate: 1.into(),
        volume: 1.into(),
        matrix: mp4_atom::Matrix::default(),
        next_track_id: u32::try_from(tracks.len() + 1).unwrap_or(u32::MAX),
    });
    let (mut traks, mut defaults) = (Vec::new(), Vec::new());
    for (track_id, track) in numbered(tracks) {
        let header = track_header(track_id, track);
        traks.extend(boxed(b"trak", &[&header, &media(track)]));
        defaults.extend(made(&Trex {
            track_id,
            default_sample_description_index: 1,
            default_sample_duration: 0,
            default_sample_size: 0,
            default_sample_flags: 0,
        }));
    }
    let extends = boxed(b"mvex", &[&defaults]);
    let movie = boxed(b"moov", &[&movie, &traks, &extends]);
    [beginning, movie].concat()
}

/// The track's header with its size and matrix, and a number and a length that are right here.
fn track_header(track_id: u32, track: &Stored) -> Vec<u8> {
    let read = boxed(b"tkhd", &[&track.header]);
    let read = Tkhd::decode(&mut &read[..]).unwrap_or_else(|_| {
        let (width, height) = codecs::size(track).unwrap_or_default();
        Tkhd {
            width: width.into(),
            height: height.into(),
            ..Tkhd::default()
        }
    });
    made(&Tkhd {
        track_id,
        duration: 0,
        alternate_group: 0,
        enabled: true,
        in_movie: true,
        ..read
    })
}

fn media(track: &Stored) -> Vec<u8> {
    let header = made(&Mdhd {
        creation_time: 0,
        modification_time: 0,
        timescale: track.timescale,
        duration: 0,
        language: track.language.clone().unwrap_or_else(|| "und".to_owned()),
    });
    let (kind, name, of_kind) = match track.media {
        Media::Video => (b"vide", "video", made(&Vmhd::default())),
        Media::Audio | Media::Text => (b"soun", "sound", made(&Smhd::default())),
    };
    let handler = made(&Hdlr {
        handler: FourCC::new(kind),
        name: name.to_owned(),
    });
    let place = made(&Dinf {
        dref: Dref {
            entries: vec![DrefEntry::Url(Url::default())],
        },
    });
    let (codec, entry) = codecs::entry(track);
    let entry = boxed(&codec, &[&entry]);
    // Version, flags, and that there is one.
    let description = boxed(b"stsd", &[&[0, 0, 0, 0, 0, 0, 0, 1], &entry]);
    let table = boxed(
        b"stbl",
        &[
            &description,
            &made(&Stts::default()),
            &made(&Stsc::default()),
            &made(&Stsz::default()),
            &made(&Stco::default()),
        ],
    );
    let information = boxed(b"minf", &[&of_kind, &place, &table]);
    boxed(b"mdia", &[&header, &handler, &information])
}

/// The samples of a track in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) samples: &'a [Sample],
    /// Added to all times.
    pub(super) shift: i64,
    /// When the sample behind the last is decoded.
    pub(super) next: i64,
}

impl Run<'_> {
    fn bytes(&self) -> u64 {
        self.samples.iter().map(|of| u64::from(of.size())).sum()
    }

    fn traf(&self, track_id: u32) -> Option<Traf> {
        let until = self
            .samples
            .iter()
            .skip(1)
            .map(Sample::decoded)
            .chain([self.next]);
        let entry = |(sample, until): (&Sample, i64)| {
            Some(TrunEntry {
                duration: Some(u32::try_from((until - sample.decoded()).max(0)).ok()?),
                size: Some(sample.size()),
                flags: Some(if sample.is_sync() { KEY } else { OTHER }),
                cts: Some(sample.shown() - sample.decoded()),
            })
        };
        let entries = self.samples.iter().zip(until).map(entry);
        let entries: Vec<TrunEntry> = entries.collect::<Option<_>>()?;
        let begins = self.samples.first()?.decoded() + self.shift;
        Some(Traf {
            tfhd: Tfhd {
                track_id,
                default_base_is_moof: true,
                ..Tfhd::default()
            },
            tfdt: Some(Tfdt {
                base_media_decode_time: u64::try_from(begins).ok()?,
            }),
            trun: vec![Trun {
                data_offset: Some(0),
                samples: entries.into(),
            }],
            ..Traf::default()
        })
    }
}

/// The part of a segment before its samples, which is the one of that number: those of the first track, then those of the
/// next. A track without samples is left out; `None` where times or sizes fit in no box.
pub(super) fn head(runs: &[Run<'_>], sequence: u32) -> Option<Vec<u8>> {
    let full = || numbered(runs).filter(|(_, run)| !run.samples.is_empty());
    let traf = full().map(|(track_id, run)| run.traf(track_id));
    let mut moof = Moof {
        mfhd: Mfhd {
            sequence_number: sequence,
        },
        traf: traf.collect::<Option<_>>()?,
    };
    let data: u64 = runs.iter().map(Run::bytes).sum();
    let data_head = match u32::try_from(data + 8) {
        Ok(size) => [&size.to_be_bytes()[..], b"mdat"].concat(),
        Err(_) => [
            &1_u32.to_be_bytes()[..],
            b"mdat",
            &(data + LONG).to_be_bytes(),
        ]
        .concat(),
    };
    // The length of the head does not change with what it says of that.
    let size = made(&moof).len() + data_head.len();
    let mut offset = u64::try_from(size).ok()?;
    for (traf, (_, run)) in moof.traf.iter_mut().zip(full()) {
        traf.trun[0].data_offset = Some(i32::try_from(offset).ok()?);
        offset += run.bytes();
    }
    let mut head = Vec::with_capacity(size);
    moof.encode(&mut head).ok()?;
    head.extend_from_slice(&data_head);
    Some(head)
}
