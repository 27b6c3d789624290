//! Segments put together again are the film that they were cut from.

use proptest::prelude::*;

use super::*;
use crate::clip::sketch::{Order, Shape, Sketch};
use crate::clip::{Clip, Finder, Fragments};

fn sketch(shape: Shape) -> (Sketch, Film) {
    let sketch = Sketch::of(&shape);
    let film = Film::read(&sketch.movie, &[], sketch.file.len() as u64).expect("a film");
    (sketch, film)
}

/// The bytes of a track's header and of all its segments.
fn put_together(file: &[u8], film: &Film, track: usize) -> Vec<u8> {
    let mut all = film.header(track).expect("a header");
    for number in 0.. {
        let Some(segment) = film.segment(track, number) else {
            break;
        };
        let begins = all.len() as u64;
        all.extend_from_slice(&segment.head);
        for (offset, bytes) in &segment.ranges {
            let offset = usize::try_from(*offset).expect("small");
            all.extend_from_slice(&file[offset..][..usize::try_from(*bytes).expect("small")]);
        }
        assert_eq!(all.len() as u64 - begins, segment.bytes());
    }
    all
}

/// The clip in a file in fragments.
pub(super) fn read(file: &[u8]) -> Clip {
    let length = file.len() as u64;
    let mut finder = Finder::new(length);
    let (at, bytes) = loop {
        let (at, bytes) = finder.wants();
        let at = usize::try_from(at).expect("small");
        if let Some(found) = finder.found(&file[at..][..bytes]).expect("an MP4") {
            break found;
        }
    };
    let movie = &file[usize::try_from(at).expect("small")..][..bytes];
    let mut walk = Fragments::new(at + bytes as u64, length);
    let mut fragments = Vec::new();
    while let Some((at, bytes)) = walk.wants() {
        let at = usize::try_from(at).expect("small");
        if let Some((at, body, bytes)) = walk.found(&file[at..][..bytes]).expect("boxes") {
            let body = usize::try_from(body).expect("small");
            let body = file[body..][..bytes].to_vec();
            fragments.push(Fragment { at, body });
        }
    }
    Clip::read_with(movie, &fragments, length).expect("a clip")
}

/// Bytes, times and kinds of a track's samples.
fn samples(track: &crate::clip::Track, file: &[u8]) -> Vec<(Vec<u8>, i64, i64, bool)> {
    let of = |sample: &Sample| {
        let at = usize::try_from(sample.offset).expect("small");
        let bytes = file[at..][..usize::try_from(sample.size()).expect("small")].to_vec();
        (bytes, sample.decoded(), sample.shown(), sample.is_sync())
    };
    track.samples().iter().map(of).collect()
}

#[test]
fn segments_put_together_are_the_film() {
    for order in [Order::Early, Order::Shown, Order::Pairs] {
        for (pictures, keys) in [(50, 10), (300, 50), (301, 7), (400, 400), (260, 130)] {
            let shape = Shape {
                pictures,
                keys,
                order,
                ..Shape::default()
            };
            let (sketch, film) = sketch(shape);
            let whole = Clip::read(&sketch.movie, sketch.file.len() as u64).expect("a clip");
            for (index, track) in whole.tracks.iter().enumerate() {
                let again = put_together(&sketch.file, &film, index);
                let clip = read(&again);
                let cut = samples(&clip.tracks[0], &again);
                let uncut = samples(track, &sketch.file);
                assert_eq!(cut.len(), uncut.len(), "{shape:?} {index}");
                let shift = cut[0].1 - uncut[0].1;
                for (number, (cut, uncut)) in cut.iter().zip(&uncut).enumerate() {
                    assert_eq!(cut.0, uncut.0, "{shape:?} {index} {number}");
                    assert_eq!(
                        (cut.1, cut.2),
                        (uncut.1 + shift, uncut.2 + shift),
                        "{shape:?} {index} {number}"
                    );
                    assert_eq!(cut.3, uncut.3, "{shape:?} {index} {number}");
                    assert!(cut.1 >= 0 && cut.2 >= 0, "{shape:?} {index} {number}");
                }
                // A tick of the track is the most that tracks are moved differently by.
                let stored = &film.tracks[index].stored;
                let off = stored.ns(shift) - film.lead_ns;
                assert!(
                    (0..=stored.ns(1)).contains(&off),
                    "{shape:?} {index}: {off}"
                );
            }
        }
    }
}

#[test]
fn segments_begin_with_key_pictures_and_follow_each_other() {
    let shape = Shape {
        pictures: 1000,
        keys: 30,
        ..Shape::default()
    };
    let (_, film) = sketch(shape);
    for track in &film.tracks {
        let mut at = (0, 0);
        for part in &track.parts {
            assert_eq!((part.first, part.begins_ns), at);
            assert!(part.end > part.first && part.ends_ns > part.begins_ns);
            if track.stored.media == Media::Video {
                assert!(track.stored.samples[part.first].is_sync());
            }
            at = (part.end, part.ends_ns);
        }
        assert_eq!(at.0, track.stored.samples.len());
    }
    // 40 s of pictures with a key each 1.2 s are cut each 4.8 s.
    assert_eq!(film.tracks[0].parts.len(), 9);
}

#[test]
fn playlists_say_what_a_player_needs() {
    let shape = Shape {
        pictures: 300,
        keys: 50,
        ..Shape::default()
    };
    let (_, film) = sketch(shape);
    let beside = [Beside {
        language: "en".to_owned(),
        uri: "s0.m3u8".to_owned(),
    }];
    let master = film.master(&|track| format!("{track}.m3u8"), &beside);
    for line in [
        "#EXT-X-MEDIA:TYPE=AUDIO,URI=\"1.m3u8\",GROUP-ID=\"sound\"",
        "TYPE=SUBTITLES,URI=\"s0.m3u8\",GROUP-ID=\"subtitles\",LANGUAGE=\"en\"",
        "CODECS=\"avc1.42c01e,mp4a.40.2\"",
        "FRAME-RATE=25",
        "\n0.m3u8",
    ] {
        assert!(master.contains(line), "{line}\n{master}");
    }
    let list = film
        .playlist(0, "0.mp4", &|number| format!("0-{number}.m4s"))
        .expect("a list");
    let list = m3u8_rs::parse_media_playlist_res(list.as_bytes()).expect("a playlist");
    assert!(list.end_list);
    assert_eq!(list.segments.len(), 3);
    let sum: f32 = list.segments.iter().map(|of| of.duration).sum();
    assert!((sum - 12.0).abs() < 0.05, "{sum}");
    assert!(
        list.segments
            .iter()
            .all(|of| of.duration <= list.target_duration as f32)
    );
    assert_eq!(
        list.segments[0].map.as_ref().expect("a header").uri,
        "0.mp4"
    );
    assert!(film.playlist(9, "", &|_| String::new()).is_none());
    assert!(
        film.segment(0, 3).is_none() && film.segment(9, 0).is_none() && film.header(9).is_none()
    );
}

#[test]
fn subtitles_of_each_kind_become_cues() {
    let srt = "\u{feff}1\r\n00:00:01,500 --> 00:00:02,000\r\nOne <i>two</i>\r\nthree --> four\r\n\r\n\
               nonsense\r\n\r\n2\r\n01:00:03,25 --> 01:00:04\r\nLast";
    assert_eq!(
        text::of_srt(srt),
        "00:00:01.500 --> 00:00:02.000\nOne <i>two</i>\nthree --&gt; four\n\n\
         01:00:03.250 --> 01:00:04.000\nLast\n\n"
    );
    assert_eq!(
        text::of_vtt("WEBVTT - x\nKind: y\n\n\n00:01.000 --> 00:02.000\na\n"),
        "00:01.000 --> 00:02.000\na\n"
    );
    assert_eq!(text::of_vtt("nonsense"), "");
    let sample = [&[0, 5][..], b"a<b\r\nstyl"].concat();
    assert_eq!(
        text::cue(*b"tx3g", &sample, (0, 1500)),
        "00:00:00.000 --> 00:00:01.500\na&lt;b\n\n"
    );
    assert_eq!(
        text::cue(*b"tx3g", &[0, 6, 0xfe, 0xff, 0, 0x61, 0, 0x62], (0, 1)),
        "00:00:00.000 --> 00:00:00.001\nab\n\n"
    );
    for empty in [&[][..], &[0, 0], &[0, 200]] {
        assert_eq!(text::cue(*b"tx3g", empty, (0, 1)), "");
    }
    assert_eq!(
        text::heading(80_000_000),
        "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:7200\n\n"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Bytes of a real movie are changed: what is cut of it lies in the file, and holds together.
    #[test]
    fn any_change_of_a_movie_is_cut_within_its_file(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let sketch = Sketch::new();
        let mut movie = sketch.movie;
        for (at, to) in changes {
            let at = at.index(movie.len());
            movie[at] = to;
        }
        let bytes = sketch.file.len() as u64;
        if let Ok(film) = Film::read(&movie, &[], bytes) {
            let _ = film.master(&|track| track.to_string(), &[]);
            for track in 0..film.tracks.len() {
                let _ = (film.cues(track), film.header(track));
                let _ = film.playlist(track, "", &|number| number.to_string());
                for number in 0..film.tracks[track].parts.len() {
                    // Times that fit in no box are refused.
                    let Some(segment) = film.segment(track, number) else {
                        continue;
                    };
                    let sum: u64 = segment.ranges.iter().map(|(_, bytes)| bytes).sum();
                    prop_assert_eq!(sum, film.tracks[track].parts[number].bytes);
                    for (offset, length) in segment.ranges {
                        prop_assert!(offset + length <= bytes);
                    }
                }
            }
        }
    }
}
