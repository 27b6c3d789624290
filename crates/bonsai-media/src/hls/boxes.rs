//! What goes before samples in fragmented MP4 (ISO/IEC 14496-12, 8.8): the header of a track, and the head of a segment.
//!
//! Fields are written by mp4-atom. The sample description and the track header are copied from the file as they are: a
//! description that is taken apart and put together again would lose what the library does not know.

use mp4_atom::{
    Decode as _, Dinf, Dref, DrefEntry, Encode, FourCC, Ftyp, Hdlr, Mdhd, Mfhd, Moof, Mvhd, Smhd,
    Stco, Stsc, Stsz, Stts, Tfdt, Tfhd, Tkhd, Traf, Trex, Trun, TrunEntry, Url, Vmhd,
};

use crate::clip::Sample;
use crate::clip::stored::{Media, Stored};

use super::codecs;

/// The number of the only track in a playlist's files.
const TRACK: u32 = 1;

/// Flags of samples (8.8.3.1): decoding can begin with it and nothing else is needed for it; or it can not.
const KEY: u32 = 2 << 24;
const OTHER: u32 = 1 << 24 | 1 << 16;

/// Bytes of a header with a long length.
const LONG: u64 = 16;

/// A box around what is in it.
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

/// The header of a track: a file without samples that says that fragments follow.
pub(super) fn header(track: &Stored) -> Vec<u8> {
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
        next_track_id: TRACK + 1,
    });
    let extends = boxed(
        b"mvex",
        &[&made(&Trex {
            track_id: TRACK,
            default_sample_description_index: 1,
            default_sample_duration: 0,
            default_sample_size: 0,
            default_sample_flags: 0,
        })],
    );
    let trak = boxed(b"trak", &[&track_header(track), &media(track)]);
    let movie = boxed(b"moov", &[&movie, &trak, &extends]);
    [beginning, movie].concat()
}

/// The track's header with its size and matrix, and a number and a length that are right here.
fn track_header(track: &Stored) -> Vec<u8> {
    let read = boxed(b"tkhd", &[&track.header]);
    let read = Tkhd::decode(&mut &read[..]).unwrap_or_default();
    made(&Tkhd {
        track_id: TRACK,
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

/// What goes before the samples of a segment, which is the one of that number; `None` where times or sizes fit in no box.
/// `shift` is added to all times, and the last sample is decoded until `next`.
pub(super) fn head(samples: &[Sample], sequence: u32, shift: i64, next: i64) -> Option<Vec<u8>> {
    let begins = samples.first()?.decoded() + shift;
    let until = samples.iter().skip(1).map(Sample::decoded).chain([next]);
    let entry = |(sample, until): (&Sample, i64)| {
        let lasts = u32::try_from((until - sample.decoded()).max(0)).ok()?;
        Some(TrunEntry {
            duration: Some(lasts),
            size: Some(sample.size()),
            flags: Some(if sample.is_sync() { KEY } else { OTHER }),
            cts: Some(sample.shown() - sample.decoded()),
        })
    };
    let entries: Vec<TrunEntry> = samples
        .iter()
        .zip(until)
        .map(entry)
        .collect::<Option<_>>()?;
    let mut moof = Moof {
        mfhd: Mfhd {
            sequence_number: sequence,
        },
        traf: vec![Traf {
            tfhd: Tfhd {
                track_id: TRACK,
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
        }],
    };
    let data: u64 = samples.iter().map(|of| u64::from(of.size())).sum();
    let data_head = match u32::try_from(data + 8) {
        Ok(size) => [&size.to_be_bytes()[..], b"mdat"].concat(),
        Err(_) => [
            &1_u32.to_be_bytes()[..],
            b"mdat",
            &(data + LONG).to_be_bytes(),
        ]
        .concat(),
    };
    // How long the head is does not change with what it says of that.
    let size = made(&moof).len() + data_head.len();
    moof.traf[0].trun[0].data_offset = Some(i32::try_from(size).ok()?);
    let mut head = Vec::with_capacity(size);
    moof.encode(&mut head).ok()?;
    head.extend_from_slice(&data_head);
    Some(head)
}
