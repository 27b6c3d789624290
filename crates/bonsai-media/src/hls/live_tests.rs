use super::*;
use crate::clip::sketch::boxed;

/// A sample description of pictures of 320 by 180.
fn pictures() -> Input {
    let sets = [
        &[
            1, 0x42, 0xc0, 0x1e, 0xff, 0xe1, 0, 4, 0x67, 0x42, 0xc0, 0x1e,
        ][..],
        &[1, 0, 3, 0x68, 0xce, 0x3c],
    ]
    .concat();
    let mut body = vec![0; 78];
    body[24..28].copy_from_slice(&[1, 0x40, 0, 180]);
    body.extend(u32::try_from(sets.len() + 8).expect("small").to_be_bytes());
    body.extend_from_slice(b"avcC");
    body.extend(sets);
    Input {
        media: Media::Video,
        entry: boxed(b"avc1", &body),
        clock_rate: 90_000,
    }
}

fn sound() -> Input {
    Input {
        media: Media::Audio,
        entry: boxed(b"fLaC", &[0; 28]),
        clock_rate: 48_000,
    }
}

/// Pictures of 40 ms with a key each `keys`, shown at the places that `place` gives; and sound beside them.
fn film(live: &mut Live, seconds: i64, keys: i64, place: impl Fn(i64) -> i64) {
    for at in 0..seconds * 25 {
        let picture = Unit {
            bytes: vec![u8::try_from(at % 251).expect("small"); 1000],
            shown: place(at) * 3600,
            is_key: at % keys == 0,
        };
        live.push(0, picture);
        // Frames of 20 ms.
        for frame in [at * 2, at * 2 + 1] {
            let unit = Unit {
                bytes: vec![7; 100],
                shown: frame * 960,
                is_key: true,
            };
            live.push(1, unit);
        }
    }
}

/// Times of decoding and of showing that a header and segments have for the first track.
fn read(bytes: &[u8]) -> Vec<(i64, i64)> {
    let clip = crate::hls::tests::read(bytes);
    let samples = clip.tracks[0].samples();
    samples
        .iter()
        .map(|of| (of.decoded(), of.shown()))
        .collect()
}

/// The segments in the window, as a file.
fn whole(live: &Live) -> Vec<u8> {
    let mut all = live.header(1).expect("a header").to_vec();
    for number in live.first.. {
        let Some(parts) = live.segment(number) else {
            break;
        };
        parts.iter().for_each(|part| all.extend_from_slice(part));
    }
    all
}

#[test]
fn what_comes_is_what_is_played_in_parts_and_segments() {
    let mut live = Live::default();
    assert_eq!(live.begin(&[pictures(), sound()]), [Some(0), Some(1)]);
    film(&mut live, 9, 50, |at| at);
    // Segments of 2 s from a key on; the fifth is open, with parts of 12 pictures.
    assert_eq!(live.next(), (4, 2));
    let list = live.playlist();
    for line in [
        "#EXT-X-TARGETDURATION:2\n",
        "PART-TARGET=0.500000",
        "#EXT-X-MEDIA-SEQUENCE:0\n",
        "#EXTINF:2.000000,\n3.m4s\n",
        "#EXT-X-PART:DURATION=0.480000,URI=\"4.0.m4s\",INDEPENDENT=YES\n",
        "#EXT-X-PART:DURATION=0.480000,URI=\"4.1.m4s\"\n",
        "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"4.2.m4s\"\n",
    ] {
        assert!(list.contains(line), "{line:?}\n{list}");
    }
    assert!(!list.contains("DISCONTINUITY") && !list.contains("4.m4s\n#EXT-X-MAP"));
    let times = read(&whole(&live));
    let begins = BEGINS_NS / SECOND * 90_000;
    let expected = (0..200).map(|at| (begins + at * 3600, begins + at * 3600));
    assert_eq!(times, expected.collect::<Vec<_>>());
    // A segment is its parts, and what is over is gone.
    let parts = live.segment(3).expect("a segment");
    assert_eq!(live.part(3, 0).as_ref(), parts.first());
    assert!(live.part(3, parts.len()).is_none() && live.segment(4).is_none());
    assert!(live.master("live.m3u8").contains("RESOLUTION=320x180"));
}

#[test]
fn pictures_out_of_order_are_decoded_before_they_are_shown() {
    let mut live = Live::default();
    live.begin(&[pictures(), sound()]);
    // I P b b P b b ..., with a key each 49.
    film(&mut live, 11, 49, |at| match (at % 49, at % 49 % 3) {
        (0, _) => at,
        (_, 1) => at + 2,
        _ => at - 1,
    });
    let list = live.playlist();
    assert!(!list.contains("#EXT-X-PART"), "{list}");
    let times = read(&whole(&live));
    assert!(times.len() >= 190, "{}", times.len());
    for two in times.windows(2) {
        assert!(two[0].0 < two[1].0, "{two:?}");
    }
    assert!(times.iter().all(|(decoded, shown)| decoded <= shown));
    let mut shown: Vec<i64> = times.iter().map(|(_, shown)| *shown).collect();
    shown.sort_unstable();
    assert!(shown.windows(2).all(|two| two[1] - two[0] == 3600));
}

#[test]
fn a_source_that_comes_back_goes_on_behind_a_break() {
    let mut live = Live::default();
    live.begin(&[pictures(), sound()]);
    film(&mut live, 5, 50, |at| at);
    live.end();
    let (before, _) = live.next();
    assert_eq!(before, 3);
    live.begin(&[pictures(), sound()]);
    film(&mut live, 5, 50, |at| at);
    let list = live.playlist();
    assert_eq!(list.matches("#EXT-X-DISCONTINUITY\n").count(), 1, "{list}");
    assert_eq!(list.matches("#EXT-X-MAP").count(), 1, "{list}");
    let times = read(&whole(&live));
    assert!(times.windows(2).all(|two| two[0].0 < two[1].0));
    // The window goes on, and counts the break when it is over.
    film(&mut live, 40, 50, |at| at + 125);
    assert!(live.segments.len() <= SEGMENTS + 1);
    let list = live.playlist();
    assert!(list.contains("#EXT-X-DISCONTINUITY-SEQUENCE:1\n"), "{list}");
    assert!(!list.contains("#EXT-X-DISCONTINUITY\n"), "{list}");
}

#[test]
fn a_source_without_keys_or_with_too_much_is_bounded() {
    let mut live = Live::default();
    live.begin(&[pictures()]);
    let unit = |at: i64, bytes: usize, is_key| Unit {
        bytes: vec![0; bytes],
        shown: at * 3600,
        is_key,
    };
    // Nothing before the first key.
    assert!(!live.push(0, unit(0, 10, false)) && live.next() == (0, 0));
    live.push(0, unit(1, 10, true));
    for at in 2..25 * 100 {
        live.push(0, unit(at, 10, false));
    }
    assert!(live.whole() >= 3);
    for at in 2500..3000 {
        live.push(0, unit(at, 1 << 20, false));
    }
    let bytes: usize = live.segments.iter().map(Segment::bytes).sum();
    assert!(bytes <= WINDOW_BYTES + LARGEST_BYTES + (2 << 20), "{bytes}");
    assert!(!live.push(
        0,
        unit(3000, usize::try_from(LARGEST).expect("small") + 1, true)
    ));
    assert!(!live.push(7, unit(3000, 1, true)));
    // Neither pictures out of order, which are in no parts, nor sound without pictures fill the memory.
    let mut live = Live::default();
    live.begin(&[pictures(), sound()]);
    live.push(0, unit(0, 10, true));
    live.push(0, unit(2, 10, false));
    for at in 3..400 {
        live.push(0, unit(at - 2 * (at % 2), 1 << 20, false));
        assert!(
            live.pending <= LARGEST_BYTES + (2 << 20),
            "{}",
            live.pending
        );
    }
    for at in 0..2000 {
        live.push(1, unit(at, 1 << 17, true));
        assert!(
            live.pending <= LARGEST_BYTES + (2 << 20),
            "{}",
            live.pending
        );
    }
    assert!(live.whole() >= 3);
    // Slow pictures are in no parts.
    let mut live = Live::default();
    live.begin(&[pictures()]);
    for at in 0..50 {
        live.push(0, unit(at * 5, 10, at % 10 == 0));
    }
    assert!(live.has_begun() && !live.playlist().contains("#EXT-X-PART"));
}
