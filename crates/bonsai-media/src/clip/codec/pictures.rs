//! Pictures: H.264 and H.265, and how they are turned.

use mp4_atom::{Avcc, Hvcc};

use super::super::Codec;
use super::super::samples::decode;

/// Bytes of an entry before its boxes.
const VISUAL: usize = 78;

/// Parameter sets of H.265, in the order that decoders take them: of the video, sequences and pictures
/// (ITU-T H.265, table 7-1).
const SETS: [u8; 3] = [32, 33, 34];

pub(super) fn h264(entry: &[u8]) -> Result<Codec, String> {
    let boxes = entry.get(VISUAL..).unwrap_or_default();
    let read: Avcc = decode(boxes, *b"avcC")?;
    let sets = read.sequence_parameter_sets.into_iter();
    let sets = sets.chain(read.picture_parameter_sets);
    Ok(Codec::H264 {
        length_size: length_size(read.length_size)?,
        profile: [
            read.avc_profile_indication,
            read.profile_compatibility,
            read.avc_level_indication,
        ],
        sets: sets.filter(|set| !set.is_empty()).collect(),
    })
}

pub(super) fn h265(entry: &[u8]) -> Result<Codec, String> {
    let boxes = entry.get(VISUAL..).unwrap_or_default();
    let read: Hvcc = decode(boxes, *b"hvcC")?;
    let of = |kind: u8| {
        let arrays = read
            .arrays
            .iter()
            .filter(move |array| array.nal_unit_type == kind);
        arrays.flat_map(|array| array.nalus.iter().filter(|set| set.len() > 2).cloned())
    };
    Ok(Codec::H265 {
        length_size: length_size(read.length_size_minus_one + 1)?,
        layers: read.num_temporal_layers,
        sets: SETS.into_iter().flat_map(of).collect(),
    })
}

fn length_size(bytes: u8) -> Result<u8, String> {
    match bytes {
        1 | 2 | 4 => Ok(bytes),
        _ => Err(format!("its units have lengths of {bytes} bytes")),
    }
}

/// What a track's matrix does with its pictures, which nothing carries in RTP or SDP that players know; `None`
/// where they are shown as they are.
pub(super) fn turned(matrix: [i32; 9]) -> Option<String> {
    const ONE: i32 = 1 << 16;
    const MINUS: i32 = -ONE;
    let [a, b, _, c, d, ..] = matrix;
    let how = match (a, b, c, d) {
        // A matrix of zeroes is none.
        (0, 0, 0, 0) | (ONE, 0, 0, ONE) => return None,
        (0, ONE, MINUS, 0) => "turned by 90 degrees clockwise",
        (MINUS, 0, 0, MINUS) => "turned by 180 degrees",
        (0, MINUS, ONE, 0) => "turned by 270 degrees clockwise",
        _ => "turned or mirrored",
    };
    Some(format!(
        "its pictures are to be {how}, which RTP does not say: players show them as they lie in the file"
    ))
}

#[cfg(test)]
mod tests {
    use super::turned;

    #[test]
    fn a_turn_is_told_and_none_is_not() {
        const ONE: i32 = 1 << 16;
        let turn = |[a, b, c, d]: [i32; 4]| turned([a, b, 0, c, d, 0, 0, 0, 1 << 30]);
        assert_eq!(turn([ONE, 0, 0, ONE]), None);
        assert_eq!(turn([0; 4]), None);
        for (matrix, words) in [
            ([0, ONE, -ONE, 0], "90 degrees clockwise"),
            ([-ONE, 0, 0, -ONE], "180 degrees"),
            ([0, -ONE, ONE, 0], "270 degrees clockwise"),
            ([-ONE, 0, 0, ONE], "mirrored"),
        ] {
            let told = turn(matrix).expect("it is told");
            assert!(told.contains(words), "{told}");
        }
    }
}
