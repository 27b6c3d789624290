//! Parameter sets of H.264 in the segments themselves.
//!
//! Files with sample entries `avc1` have the parameter sets in their header alone (ISO/IEC 14496-15, 5.3.3). Players
//! that read the first header of a list and no other would decode segments of another quality by the wrong ones. So the
//! sets of a segment's own header are put in front of its first picture, where decoders take them as they do in
//! `avc3` and in transport streams.
//!
//! Only what is understood all through is changed: one box in another with 32 bits of length, offsets from the
//! fragment, sizes of samples in the run, nothing encrypted. Everything else stays as it is.

use std::ops::Range;

/// The fields of a VisualSampleEntry before its boxes (ISO/IEC 14496-12, 12.1.3).
const VISUAL: usize = 78;

/// So many boxes lie in one: a segment has some for each fragment.
const MOST: usize = 4096;

/// A box: its kind, and where its body is.
type Box4 = ([u8; 4], Range<usize>);

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32_at(bytes, at)?).ok()
}

/// The boxes that lie one after the other in a part of a file; `None` if they do not fill it, or are too many.
fn boxes(bytes: &[u8], within: Range<usize>) -> Option<Vec<Box4>> {
    let mut found = Vec::new();
    let mut at = within.start;
    while at < within.end {
        let length = usize_at(bytes, at)?;
        let kind = bytes.get(at + 4..at + 8)?.try_into().ok()?;
        let end = at.checked_add(length)?;
        if length < 8 || end > within.end || found.len() >= MOST {
            return None;
        }
        found.push((kind, at + 8..end));
        at = end;
    }
    Some(found)
}

fn child(bytes: &[u8], within: &Range<usize>, kind: &[u8; 4]) -> Option<Range<usize>> {
    let all = boxes(bytes, within.clone())?;
    all.into_iter()
        .find(|(of, _)| of == kind)
        .map(|(_, body)| body)
}

/// The number of the track of pictures in a header, and its parameter sets as they stand in samples.
fn parameters(header: &[u8]) -> Option<(u32, Vec<u8>)> {
    let moov = child(header, &(0..header.len()), b"moov")?;
    for (kind, trak) in boxes(header, moov)? {
        if &kind != b"trak" {
            continue;
        }
        let mut within = trak.clone();
        for kind in [b"mdia", b"minf", b"stbl", b"stsd"] {
            within = child(header, &within, kind)?;
        }
        let entries = within.start.checked_add(8)?..within.end;
        let Some(avc1) = child(header, &entries, b"avc1") else {
            continue;
        };
        let boxes_of_it = avc1.start.checked_add(VISUAL)?..avc1.end;
        let config = child(header, &boxes_of_it, b"avcC")?;
        let tkhd = child(header, &trak, b"tkhd")?;
        // Two times before it, of 32 or 64 bits.
        let before = if header.get(tkhd.start)? == &0 {
            12
        } else {
            20
        };
        let track = u32_at(header, tkhd.start + before)?;
        return Some((track, sets(header.get(config)?)?));
    }
    None
}

/// The parameter sets of an AVCDecoderConfigurationRecord (ISO/IEC 14496-15, 5.3.3.1), each with its length.
fn sets(config: &[u8]) -> Option<Vec<u8>> {
    let length = usize::from(config.get(4)? & 3) + 1;
    let mut out = Vec::new();
    let mut at = 5;
    for mask in [0x1f, 0xff] {
        let count = config.get(at)? & mask;
        at += 1;
        for _ in 0..count {
            let size = u16::from_be_bytes(config.get(at..at + 2)?.try_into().ok()?);
            let set = config.get(at + 2..at + 2 + usize::from(size))?;
            out.extend_from_slice(u32::from(size).to_be_bytes().get(4 - length..)?);
            out.extend_from_slice(set);
            at += 2 + usize::from(size);
        }
    }
    // A length of one byte, and a set that is longer.
    let fits = length > 1 || out.len() < 256;
    (fits && !out.is_empty()).then_some(out)
}

/// A run of samples in a fragment.
struct Run {
    is_of_it: bool,
    /// Where its offset stands, and what it is.
    offset: (usize, u32),
    /// Where the size of its first sample stands.
    size: Option<usize>,
}

fn runs(bytes: &[u8], moof: &Range<usize>, track: u32) -> Option<Vec<Run>> {
    const BASE_IS_GIVEN: u32 = 1;
    const BASE_IS_MOOF: u32 = 0x02_0000;
    let mut runs = Vec::new();
    let trafs = boxes(bytes, moof.clone())?.into_iter();
    let trafs = trafs.filter(|(kind, _)| kind == b"traf");
    for (number, (_, traf)) in trafs.enumerate() {
        let tfhd = child(bytes, &traf, b"tfhd")?;
        // Offsets are from the beginning of the fragment: of the first track as long as nothing else is said, of others
        // where that is said (ISO/IEC 14496-12, 8.8.7).
        let flags = u32_at(bytes, tfhd.start)?;
        if flags & BASE_IS_GIVEN != 0 || (number > 0 && flags & BASE_IS_MOOF == 0) {
            return None;
        }
        let is_of_it = u32_at(bytes, tfhd.start + 4)? == track;
        for (kind, body) in boxes(bytes, traf.clone())? {
            match &kind {
                b"senc" | b"saiz" | b"saio" => return None,
                b"trun" => {}
                _ => continue,
            }
            let flags = u32_at(bytes, body.start)?;
            if flags & 1 == 0 || u32_at(bytes, body.start + 4)? == 0 {
                return None;
            }
            let offset = body.start + 8;
            let first = offset + if flags & 4 == 0 { 4 } else { 8 };
            let size = first + if flags & 0x100 == 0 { 0 } else { 4 };
            runs.push(Run {
                is_of_it,
                offset: (offset, u32_at(bytes, offset)?),
                size: (flags & 0x200 != 0).then_some(size),
            });
        }
    }
    Some(runs)
}

/// A segment with the parameter sets of its header in front of its first picture; `None` if it needs none, or is
/// not understood.
pub(super) fn with_parameters(header: &[u8], segment: &[u8]) -> Option<Vec<u8>> {
    let (track, sets) = parameters(header)?;
    let more = u32::try_from(sets.len()).ok()?;
    let all = boxes(segment, 0..segment.len())?;
    let (_, moof) = all.iter().find(|(kind, _)| kind == b"moof")?;
    let runs = runs(segment, moof, track)?;
    let first = runs.iter().find(|run| run.is_of_it)?;
    let at = (moof.start - 8).checked_add(usize::try_from(first.offset.1).ok()?)?;
    let (_, mdat) = all
        .iter()
        .find(|(kind, body)| kind == b"mdat" && body.contains(&at))?;
    let mut changed: Vec<(usize, u32)> = Vec::new();
    let mut grow = |field: usize| {
        changed.push((field, u32_at(segment, field)?.checked_add(more)?));
        Some(())
    };
    grow(first.size?)?;
    grow(mdat.start - 8)?;
    for run in runs.iter().filter(|run| run.offset.1 > first.offset.1) {
        grow(run.offset.0)?;
    }
    // An index says how long what comes first is (8.16.3). One behind is of other fragments.
    let before = all.iter().take_while(|(kind, _)| kind != b"moof");
    for (_, sidx) in before.filter(|(kind, _)| kind == b"sidx") {
        let times = if segment.get(sidx.start)? == &0 {
            8
        } else {
            16
        };
        let count = sidx.start + 12 + times;
        let length = count + 4;
        if u32_at(segment, count)? & 0xffff == 0 {
            continue;
        }
        if length + 4 > sidx.end {
            return None;
        }
        grow(length)?;
    }
    if changed.iter().any(|(field, _)| *field + 4 > at) {
        return None;
    }
    let mut out = Vec::with_capacity(segment.len() + sets.len());
    out.extend_from_slice(&segment[..at]);
    out.extend_from_slice(&sets);
    out.extend_from_slice(&segment[at..]);
    for (field, value) in changed {
        out[field..field + 4].copy_from_slice(&value.to_be_bytes());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets are from the fragment.
    const MOOF: u32 = 0x02_0000;

    fn a_box(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let length = u32::try_from(body.len() + 8).expect("short");
        [&length.to_be_bytes()[..], kind, &body].concat()
    }

    fn words(all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn header(entry: &[u8; 4]) -> Vec<u8> {
        let config = a_box(
            b"avcC",
            &[&[1, 100, 0, 12, 0xff, 0xe1, 0, 3, 7, 8, 9, 1, 0, 2, 4, 5]],
        );
        let entry = a_box(entry, &[&[0; VISUAL], &config]);
        let stsd = a_box(b"stsd", &[&words(&[0, 1]), &entry]);
        let stbl = a_box(b"stbl", &[&stsd]);
        let minf = a_box(b"minf", &[&stbl]);
        let mdia = a_box(b"mdia", &[&minf]);
        let tkhd = a_box(b"tkhd", &[&words(&[0, 0, 0, 7, 0])]);
        let trak = a_box(b"trak", &[&tkhd, &mdia]);
        a_box(b"moov", &[&trak])
    }

    /// Pictures of 4 and 2 bytes, and sound of 3 behind them.
    fn segment(base: u32) -> Vec<u8> {
        fragment(base, 1)
    }

    /// The same, with so many parts in its index.
    fn fragment(base: u32, parts_of_index: u32) -> Vec<u8> {
        let moof = |offset: u32| {
            let run = |flags: u32, offset: u32, samples: &[u32]| {
                let count = u32::try_from(samples.len()).expect("few");
                a_box(b"trun", &[&words(&[flags, count, offset]), &words(samples)])
            };
            let pictures = [
                a_box(b"tfhd", &[&words(&[base, 7])]),
                run(0x201, offset, &[4, 2]),
            ];
            let sound = [
                a_box(b"tfhd", &[&words(&[base & !1, 8])]),
                run(0x201, offset + 6, &[3]),
            ];
            let parts = [
                a_box(b"traf", &[&pictures.concat()]),
                a_box(b"traf", &[&sound.concat()]),
            ];
            a_box(b"moof", &[&parts.concat()])
        };
        let length = u32::try_from(moof(0).len()).expect("short");
        let index = [&[0, 1, 1000, 0, 0, parts_of_index][..], &[55, 1000, 0]];
        let index = &index[..if parts_of_index > 0 { 2 } else { 1 }];
        let index = a_box(b"sidx", &[&words(&index.concat())]);
        [index, moof(length + 8), a_box(b"mdat", &[b"PICTpiSND"])].concat()
    }

    #[test]
    fn the_sets_of_a_header_stand_before_the_first_picture() {
        let before = segment(MOOF);
        let after = with_parameters(&header(b"avc1"), &before).expect("changed");
        let sets = [0, 0, 0, 3, 7, 8, 9, 0, 0, 0, 2, 4, 5];
        assert_eq!(after.len(), before.len() + sets.len());
        let all = boxes(&after, 0..after.len()).expect("whole boxes");
        let (_, mdat) = all.last().expect("some");
        assert_eq!(&after[mdat.clone()], [&sets[..], b"PICTpiSND"].concat());
        let runs = runs(&after, &all[1].1, 7).expect("runs");
        let start = all[1].1.start - 8;
        let offset = |run: &Run| start + usize::try_from(run.offset.1).expect("short");
        assert_eq!(offset(&runs[0]), mdat.start);
        assert_eq!(&after[offset(&runs[1])..], b"SND");
        let size = |run: &Run| u32_at(&after, run.size.expect("known"));
        assert_eq!((size(&runs[0]), size(&runs[1])), (Some(17), Some(3)));
        assert_eq!(u32_at(&after, all[0].1.start + 24), Some(55 + 13));
    }

    #[test]
    fn an_index_grows_where_it_is_of_the_first_fragment() {
        let head = header(b"avc1");
        // Nothing in it: what stands behind it stays.
        let empty = fragment(MOOF, 0);
        let after = with_parameters(&head, &empty).expect("changed");
        let all = boxes(&after, 0..after.len()).expect("whole boxes");
        assert_eq!(all.len(), 3);
        assert_eq!(after[..all[0].1.end], empty[..all[0].1.end]);
        // Two fragments, each with its index.
        let one = segment(MOOF);
        let after = with_parameters(&head, &one.repeat(2)).expect("changed");
        let first = with_parameters(&head, &one).expect("changed");
        assert_eq!(after, [first, one].concat());
    }

    #[test]
    fn what_needs_none_or_is_not_understood_stays_as_it_is() {
        let good = segment(MOOF);
        assert_eq!(with_parameters(&header(b"avc3"), &good), None);
        assert_eq!(with_parameters(&header(b"avc1"), &segment(1)), None);
        assert_eq!(with_parameters(&header(b"avc1"), &segment(0)), None);
        assert_eq!(with_parameters(&header(b"avc1"), b"\0\0\0\x01mdat"), None);
        let many = [good.clone(), a_box(b"free", &[]).repeat(MOST)].concat();
        assert_eq!(with_parameters(&header(b"avc1"), &many), None);
        // Whatever is cut off or overwritten: no panic, and no more than the sets are added.
        let head = header(b"avc1");
        for at in 0..good.len() {
            let _ = with_parameters(&head, &good[..at]);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Some(out) = with_parameters(&head, &bad) {
                    assert_eq!(out.len(), good.len() + 13);
                }
            }
        }
        for at in 0..head.len() {
            let _ = with_parameters(&head[..at], &good);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = head.clone();
                bad[at] = byte;
                let _ = with_parameters(&bad, &good);
            }
        }
    }
}
