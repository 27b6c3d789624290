use core::net::IpAddr;

use proptest::prelude::*;

use super::sketch::{FRAME, KEYS, Sketch};
use super::*;
use crate::description::Description;

fn clip() -> Clip {
    let sketch = Sketch::new();
    let bytes = u64::try_from(sketch.file.len()).expect("small");
    Clip::read(&sketch.movie, bytes).expect("a clip")
}

/// The movie of a file, found as a server finds it.
fn find(file: &[u8]) -> Result<&[u8], Unreadable> {
    let mut finder = Finder::new(u64::try_from(file.len()).expect("small"));
    loop {
        let (at, len) = finder.wants();
        let at = usize::try_from(at).expect("small");
        if let Some((at, len)) = finder.found(&file[at..at + len])? {
            let at = usize::try_from(at).expect("small");
            return Ok(&file[at..at + len]);
        }
    }
}

#[test]
fn the_movie_of_a_file_is_found_wherever_it_is() {
    let sketch = Sketch::new();
    assert_eq!(find(&sketch.file), Ok(&sketch.movie[..]));
    for (bytes, expected) in [
        (&b""[..], Unreadable::Foreign),
        (b"RIFF____AVI LIST", Unreadable::Foreign),
        (b"\0\0\0\x10ftypisom\0\0\0\0", Unreadable::NoMovie),
        (b"\0\0\0\x04ftypisom\0\0\0\0", Unreadable::Foreign),
    ] {
        assert_eq!(find(bytes), Err(expected), "{bytes:?}");
    }
    let short = &sketch.file[..sketch.file.len() - 1];
    let error = find(short).expect_err("cut off");
    assert!(
        error.to_string().contains("its box moov ends at byte"),
        "{error}"
    );
    // Boxes without a body, one after the other, are no way to keep a server busy.
    let many = b"\0\0\0\x08free".repeat(10_000);
    assert_eq!(find(&many), Err(Unreadable::NoMovie));
}

#[test]
fn samples_are_where_and_when_the_tables_say() {
    let sketch = Sketch::new();
    let clip = clip();
    let [video, audio] = &clip.tracks[..] else {
        panic!("two tracks");
    };
    assert_eq!(
        (video.kind(), video.clock_rate, video.samples().len()),
        ("video", 90_000, 50)
    );
    assert_eq!(
        (audio.kind(), audio.clock_rate, audio.samples().len()),
        ("audio", 48_000, 94)
    );
    assert_eq!(
        (video.how(), audio.how()),
        (How::H264 { length_size: 4 }, How::Aac)
    );
    for (number, sample) in (0..).zip(video.samples()) {
        let at = usize::try_from(sample.offset).expect("small");
        let bytes = &sketch.file[at..][..usize::try_from(sample.size()).expect("small")];
        assert_eq!(bytes, sketch::picture(number));
        assert_eq!(sample.is_sync(), number.is_multiple_of(KEYS));
        // Decoded two pictures of 40 ms before the beginning of the clip, where the edit says so.
        let decoded = (i64::from(number) - 2) * 40_000_000;
        assert_eq!(video.decoded_ns(sample), decoded);
        let shown = decoded + 80_000_000 - 40_000_000 * i64::from(number % 2);
        assert_eq!(video.shown_ns(sample), shown);
        assert_eq!(video.shown_ticks(sample), shown * 9 / 100_000);
    }
    for (number, sample) in (0..).zip(audio.samples()) {
        assert_eq!((sample.size(), sample.is_sync()), (FRAME, true));
        assert_eq!(audio.shown_ticks(sample), (number - 1) * 1024);
    }
    let next = audio
        .samples()
        .windows(2)
        .all(|two| two[1].offset == two[0].offset + u64::from(FRAME));
    assert!(next);
    // 50 pictures of 40 ms less the two before it begins, and 94 frames less one.
    assert_eq!(clip.length_ns, 93 * 1024 * 1_000_000_000 / 48_000);
    assert_eq!(audio.bits_per_sec, u64::from(FRAME) * 8 * 48_000 / 1024);
}

#[test]
fn playing_begins_with_the_picture_before_from_which_decoding_can() {
    let clip = clip();
    assert_eq!(clip.seek(&[0, 1], 0), (0, vec![0, 0]));
    assert_eq!(clip.seek(&[0, 1], 390_000_000), (0, vec![0, 0]));
    // Picture 10 is shown at 400 ms; frame 20 begins there or after it: 19 frames of 21.3 ms.
    assert_eq!(clip.seek(&[0, 1], 400_000_000), (400_000_000, vec![10, 20]));
    assert_eq!(clip.seek(&[0, 1], 799_999_999), (400_000_000, vec![10, 20]));
    assert_eq!(
        clip.seek(&[1, 0], 1_900_000_000),
        (1_600_000_000, vec![76, 40])
    );
    // Sound alone begins where it is told to.
    assert_eq!(clip.seek(&[1], 410_000_000), (410_000_000, vec![21]));
    assert_eq!(clip.seek(&[1], u64::MAX).1, [94]);
}

#[test]
fn a_description_is_read_as_it_was_meant() {
    let announced = Announced {
        name: "a/clip\r\nm=audio",
        version: 12,
        address: IpAddr::from([127, 0, 0, 1]),
    };
    let text = clip().describe(&announced);
    let url = rtsp_types::Url::parse("rtsp://host/a/clip.mp4/").expect("an address");
    let read = Description::read(&text, &url).expect("a description");
    assert_eq!(read.length_ns, Some(1_984_000_000));
    let [video, audio] = &read.tracks[..] else {
        panic!("{read:?}");
    };
    assert_eq!(video.control.as_str(), "rtsp://host/a/clip.mp4/track1");
    assert_eq!(
        (&*video.encoding, video.payload_type, video.clock_rate),
        ("H264", 96, 90_000)
    );
    assert_eq!(
        (&*audio.encoding, audio.payload_type),
        ("mpeg4-generic", 97)
    );
    let text = String::from_utf8(text).expect("text");
    for part in [
        "c=IN IP4 0.0.0.0\r\n",
        "a=rtpmap:97 mpeg4-generic/48000/2\r\n",
        "profile-level-id=42C01E;sprop-parameter-sets=Z0LAHg==,aM48\r\n",
        "sizelength=13;indexlength=3;indexdeltalength=3;config=1190\r\n",
        "b=AS:75\r\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// A clip of a movie in which that text stands for the other.
fn changed(from: &[u8], to: &[u8]) -> Result<Clip, Unreadable> {
    let sketch = Sketch::new();
    let mut movie = sketch.movie;
    let mut at = 0;
    while let Some(found) = movie[at..]
        .windows(from.len())
        .position(|window| window == from)
    {
        movie[at + found..][..to.len()].copy_from_slice(to);
        at += found + to.len();
    }
    Clip::read(&movie, u64::try_from(sketch.file.len()).expect("small"))
}

#[test]
fn what_cannot_be_sent_is_said() {
    // Of a track that is broken the other is sent, and what is not is named.
    let told = |from: &[u8], to: &[u8]| {
        let clip = changed(from, to).expect("the other track");
        let told: Vec<String> = clip.left_out.iter().map(ToString::to_string).collect();
        assert_eq!((clip.tracks.len(), told.len()), (1, 1), "{told:?}");
        told.concat()
    };
    assert_eq!(Clip::read(&[], 0), Err(Unreadable::NoTrack));
    let both = changed(b"stco", b"xxxx")
        .expect_err("none is left")
        .to_string();
    assert_eq!(
        both,
        "none of its tracks can be sent: video track 1 (avc1): it has no stco; \
         audio track 2 (mp4a): it has no stco"
    );
    let zeroes = b"stsz\0\0\0\0\0\0\0\0";
    assert!(told(zeroes, b"stsz\0\0\0\0\0\0\xff\xff").contains("behind the end"));
    assert!(
        told(
            b"stts\0\0\0\0\0\0\0\x01\0\0\0\x32",
            b"stts\0\0\0\0\0\0\0\x01\0\0\0\x09"
        )
        .contains("fewer")
    );
    assert!(
        told(
            b"stsc\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x0a",
            b"stsc\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x09"
        )
        .contains("its chunks have 45 samples of 50")
    );
    // A frame of 1024 ticks that takes no time at all.
    assert!(told(&[0, 0, 4, 0], &[0, 0, 0, 0]).contains("at one time"));
    assert_eq!(
        told(b"avc1", b"vp09"),
        "video track 1 (vp09): this codec is not sent by RTP"
    );
    assert_eq!(
        told(b"esds", b"xxxx"),
        "audio track 2 (mp4a): its sound has no esds"
    );
    assert_eq!(changed(b"trak", b"free"), Err(Unreadable::NoTrack));
}

#[test]
fn a_movie_that_announces_fragments_is_never_served_without_them() {
    let sketch = Sketch::new();
    let movie = [&sketch.movie[..], &sketch::boxed(b"mvex", &[])].concat();
    let bytes = u64::try_from(sketch.file.len()).expect("small");
    assert_eq!(Clip::read(&movie, bytes), Err(Unreadable::Fragmented));
    assert!(Clip::has_fragments(&movie) && !Clip::has_fragments(&sketch.movie));
    // A fragment more: a sample of 100 bytes at the beginning of the file, in the first track.
    let head = sketch::boxed(b"tfhd", &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let run = [0, 0, 3, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 100];
    let run = sketch::boxed(b"trun", &run);
    let body = sketch::boxed(b"traf", &[head, run].concat());
    let clip = Clip::read_with(&movie, &[Fragment { at: 0, body }], bytes).expect("a clip");
    let [video, audio] = &clip.tracks[..] else {
        panic!("two tracks");
    };
    assert_eq!((video.samples().len(), audio.samples().len()), (51, 94));
    let last = video.samples()[50];
    assert_eq!((last.offset, last.size(), last.is_sync()), (0, 100, true));
    assert_eq!(video.decoded_ns(&last), (50 - 2) * 40_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Bytes of a real movie are changed, and what is read of it still holds together.
    #[test]
    fn any_change_of_a_movie_does_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let sketch = Sketch::new();
        let mut movie = sketch.movie;
        for (at, to) in changes {
            let at = at.index(movie.len());
            movie[at] = to;
        }
        if let Some(end) = end {
            movie.truncate(end.index(movie.len()));
        }
        let bytes = u64::try_from(sketch.file.len()).expect("small");
        if let Ok(clip) = Clip::read(&movie, bytes) {
            prop_assert!(!clip.tracks.is_empty());
            for track in &clip.tracks {
                let samples = track.samples();
                prop_assert!(samples.len() <= MOST_SAMPLES);
                for two in samples.windows(2) {
                    prop_assert!(track.decoded_ns(&two[0]) <= track.decoded_ns(&two[1]));
                }
                for sample in samples {
                    prop_assert!(sample.offset + u64::from(sample.size()) <= bytes);
                    let _ = (track.shown_ns(sample), track.shown_ticks(sample));
                }
            }
            let all: Vec<usize> = (0..clip.tracks.len()).collect();
            let (_, firsts) = clip.seek(&all, clip.length_ns / 2);
            for (first, track) in firsts.into_iter().zip(&clip.tracks) {
                prop_assert!(first <= track.samples().len());
            }
            let announced = Announced { name: "clip", version: 1, address: IpAddr::from([127, 0, 0, 1]) };
            let url = rtsp_types::Url::parse("rtsp://host/clip").expect("an address");
            Description::read(&clip.describe(&announced), &url).expect("what is written is read");
        }
    }

    #[test]
    fn any_bytes_are_no_movie_and_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = find(&bytes);
        let _ = Clip::read(&bytes, 400);
    }
}
