//! The boxes of MP4 files (ISO/IEC 14496-12, 4.2), as far as segments have to be judged and named.

/// What a header says of its pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pictures {
    /// As in RFC 6381: `avc3.64001f`.
    pub(crate) codec: String,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// The kinds of the outermost boxes; `None` unless they fill the file exactly.
fn outermost(bytes: &[u8]) -> Option<Vec<[u8; 4]>> {
    let mut kinds = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (size, after) = rest.split_first_chunk::<4>()?;
        let (kind, after) = after.split_first_chunk::<4>()?;
        let size = match u32::from_be_bytes(*size) {
            1 => u64::from_be_bytes(*after.first_chunk::<8>()?),
            size => u64::from(size),
        };
        let size = usize::try_from(size).ok().filter(|size| *size >= 8)?;
        rest = rest.get(size..)?;
        kinds.push(*kind);
    }
    Some(kinds)
}

/// Whether these are a whole header: what a player has to know before the first segment.
pub(crate) fn is_header(bytes: &[u8]) -> bool {
    outermost(bytes).is_some_and(|kinds| {
        kinds.first() == Some(b"ftyp") && kinds.contains(b"moov") && !kinds.contains(b"moof")
    })
}

/// Whether these are whole fragments, without a header.
pub(crate) fn is_media(bytes: &[u8]) -> bool {
    outermost(bytes).is_some_and(|kinds| {
        kinds.contains(b"moof")
            && kinds
                .last()
                .is_some_and(|last| last == b"mdat" || last == b"mfra")
            && !kinds.contains(b"moov")
    })
}

/// Moves fragments to a later time, in units of their track: what `tfdt` and `sidx` say (14496-12, 8.8.12
/// and 8.16.3, both in version 1). `false` if there is no time to move, or it is too late.
pub(crate) fn delay(media: &mut [u8], by: u64) -> bool {
    // From the name of the box to its time: version and flags, and of sidx two fields more.
    let boxes: [(&[u8], usize); 2] = [(b"tfdt\x01", 8), (b"sidx\x01", 16)];
    let mut moved = 0;
    for (name, offset) in boxes {
        let end = media.windows(4).position(|window| window == b"mdat");
        let mut at = 0;
        while let Some(found) = find(&media[at..end.unwrap_or(media.len())], name) {
            at += found + offset;
            let Some(time) = media
                .get_mut(at..)
                .and_then(|rest| rest.first_chunk_mut::<8>())
            else {
                return false;
            };
            let Some(later) = u64::from_be_bytes(*time).checked_add(by) else {
                return false;
            };
            *time = later.to_be_bytes();
            moved += usize::from(name.starts_with(b"tfdt"));
        }
    }
    moved > 0
}

fn find(bytes: &[u8], name: &[u8]) -> Option<usize> {
    bytes.windows(name.len()).position(|window| window == name)
}

/// What a header says of its pictures (ISO/IEC 14496-15, 5.4.2: sample entries of AVC).
pub(crate) fn pictures(header: &[u8]) -> Option<Pictures> {
    let after = |kind: &[u8; 4]| {
        let at = header.windows(4).position(|window| window == kind)?;
        header.get(at + 4..)
    };
    let (name, entry) = match after(b"avc3") {
        Some(entry) => ("avc3", entry),
        None => ("avc1", after(b"avc1")?),
    };
    // 6 bytes reserved, the data reference, 16 bytes reserved (14496-12, 12.1.3.2).
    let size = entry.get(24..28)?;
    let record = after(b"avcC")?.get(..4)?;
    Some(Pictures {
        codec: format!("{name}.{:02x}{:02x}{:02x}", record[1], record[2], record[3]),
        width: u32::from(u16::from_be_bytes([size[0], size[1]])),
        height: u32::from(u16::from_be_bytes([size[2], size[3]])),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len() + 8).expect("small");
        [&size.to_be_bytes()[..], kind, content].concat()
    }

    #[test]
    fn what_is_cut_off_is_no_segment() {
        let whole = [
            one(b"styp", b"msdh"),
            one(b"moof", b"x"),
            one(b"mdat", b"pictures"),
        ]
        .concat();
        assert!(is_media(&whole));
        for end in 0..whole.len() {
            assert!(!is_media(&whole[..end]), "{end}");
        }
        assert!(!is_media(&[whole.clone(), vec![0]].concat()));
        assert!(!is_header(&whole));
        let header = [one(b"ftyp", b"iso5"), one(b"moov", b"")].concat();
        assert!(is_header(&header) && !is_media(&header));
        assert!(!is_media(&[header, whole].concat()));
    }

    #[test]
    fn a_header_names_its_pictures() {
        let entry = [
            &[0; 24][..],
            &640_u16.to_be_bytes(),
            &360_u16.to_be_bytes(),
            &[0; 50],
            &one(b"avcC", &[1, 0x64, 0, 0x1f, 0xff]),
        ];
        let header = one(b"moov", &one(b"avc3", &entry.concat()));
        let found = pictures(&header).expect("pictures");
        assert_eq!(found.codec, "avc3.64001f");
        assert_eq!((found.width, found.height), (640, 360));
        assert_eq!(pictures(&header[..60]), None);
    }

    #[test]
    fn fragments_are_moved_to_a_later_time() {
        let time = |time: u64| [&[1, 0, 0, 0][..], &time.to_be_bytes()].concat();
        let mut media = [
            one(b"moof", &one(b"tfdt", &time(7))),
            one(b"mdat", b"tfdt\x01 pictures"),
        ]
        .concat();
        assert!(delay(&mut media, 1 << 40));
        assert_eq!(media[20..28], (7_u64 + (1 << 40)).to_be_bytes());
        assert!(media.ends_with(b"tfdt\x01 pictures"));
        assert!(!delay(&mut media, u64::MAX));
        assert!(!delay(&mut one(b"moof", b"tfdt\x01"), 1));
        assert!(!delay(&mut one(b"mdat", b""), 1));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = delay(&mut [b"tfdt\x01", &bytes[..]].concat(), 1);
            let _ = (is_header(&bytes), is_media(&bytes), pictures(&bytes));
            let _ = pictures(&[b"avc1", &bytes[..]].concat());
        }
    }
}
