//! Any text as a playlist or a description: refused, or one whose numbers belong together.

use bonsai_stream::play::{Document, Source, Track};
use proptest::prelude::*;
use url::Url;

fn sound(track: &Track) {
    assert!(!track.segments.is_empty());
    for segment in &track.segments {
        assert!((1.0..=86_400_000.0).contains(&segment.ms), "{segment:?}");
        assert!(
            segment
                .header
                .is_none_or(|header| header < track.headers.len())
        );
        assert!(
            segment
                .piece
                .range
                .is_none_or(|(first, last)| first <= last)
        );
    }
}

fn read(text: &[u8]) {
    let base = Url::parse("http://host/films/master.m3u8").expect("an address");
    let Ok(document) = Document::read(text, &base) else {
        return;
    };
    let offer = document.offer();
    assert!((1..=64).contains(&offer.qualities.len()));
    let rates: Vec<f64> = offer
        .qualities
        .iter()
        .filter_map(|(of, _)| of.kbps)
        .collect();
    assert!(rates.is_sorted_by(|a, b| a < b), "{rates:?}");
    let sounds = offer.sound.iter().map(|(_, source)| source);
    for source in offer
        .qualities
        .iter()
        .map(|(_, source)| source)
        .chain(sounds)
    {
        if let Source::Here(track) = source {
            sound(track);
        }
    }
}

/// Lines that matter, good and bad ones.
fn line() -> impl Strategy<Value = String> {
    let number = prop_oneof![Just(0_u64), 1..100_u64, any::<u64>()];
    prop_oneof![
        Just("#EXTM3U".to_owned()),
        Just("#EXT-X-ENDLIST".to_owned()),
        Just("#EXT-X-DISCONTINUITY".to_owned()),
        "[a-z./?%:\\[\\]]{0,12}",
        "#EXT-X-[A-Z-]{0,12}:[A-Z=\",]{0,12}",
        "#EXTINF:[0-9.,a-z-]{0,8}",
        number.clone().prop_map(|n| format!("#EXT-X-BYTERANGE:{n}")),
        (number.clone(), number.clone()).prop_map(|(n, m)| format!("#EXT-X-BYTERANGE:{n}@{m}")),
        number
            .clone()
            .prop_map(|n| format!("#EXT-X-STREAM-INF:BANDWIDTH={n},RESOLUTION=1x1")),
        "#EXT-X-STREAM-INF:BANDWIDTH=[0-9]{1,3},CODECS=\"[a-z,]{0,5}\"?",
        number.prop_map(|n| format!("#EXT-X-MAP:URI=\"i\",BYTERANGE=\"{n}@1\"")),
    ]
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read(&bytes);
        read(&[b"#EXTM3U\n", &bytes[..]].concat());
        read(&[b"<MPD>", &bytes[..]].concat());
    }

    #[test]
    fn any_lines(lines in proptest::collection::vec(line(), 0..30), ends in any::<bool>()) {
        let end = if ends { "\n#EXT-X-ENDLIST" } else { "" };
        read(format!("#EXTM3U\n{}{end}", lines.join("\n")).as_bytes());
    }

    #[test]
    fn a_list_that_is_cut_off_or_changed(at in 0..2_000_usize, byte in any::<u8>()) {
        let list = b"#EXTM3U\n#EXT-X-MAP:URI=\"i.mp4\",BYTERANGE=\"99@0\"\n#EXTINF:2.0,\n#EXT-X-BYTERANGE:9@99\n\
            a.mp4\n#EXTINF:1.5,a, b\n#EXT-X-BYTERANGE:8\na.mp4\n#EXT-X-ENDLIST\n".to_vec();
        read(&list[..at.min(list.len())]);
        let mut changed = list;
        let length = changed.len();
        changed[at % length] = byte;
        read(&changed);
    }

    #[test]
    fn a_description_of_any_numbers(
        scale in any::<u64>(), length in any::<u64>(), first in any::<u64>(), again in any::<i64>(),
        at in any::<u64>(), seconds in "[0-9.E]{0,8}", word in "[A-Za-z$%0-9]{0,12}", listed in any::<bool>(),
    ) {
        let timeline = format!("<SegmentTimeline><S t=\"{at}\" d=\"{length}\" r=\"{again}\"/><S d=\"5\"/></SegmentTimeline>");
        let timeline = if listed { timeline } else { String::new() };
        read(format!(
            "<MPD><Period duration=\"PT{seconds}S\"><AdaptationSet contentType=\"video\">\
             <SegmentTemplate timescale=\"{scale}\" duration=\"{length}\" startNumber=\"{first}\" media=\"{word}$Number$\">\
             {timeline}</SegmentTemplate><Representation id=\"a\" bandwidth=\"5\"/></AdaptationSet></Period></MPD>"
        ).as_bytes());
    }
}

#[test]
fn long_lists_are_read_in_a_time_that_grows_with_them() {
    // Each of these would be looked through to its end, again and again, by a reader that is not careful.
    for (first, line) in [
        ("#EXTM3U\n", "#EXT-X-KEY:a\n"),
        ("#EXTM3U\n", "#EXT-X-MAP:a\n"),
        ("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n", "a\n"),
        (
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n",
            "#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=1,URI=\"a\"\na\n",
        ),
        ("#EXTM3U\n", "#EXT-X-MAP:URI=\"a\"\n#EXTINF:1,\na\n"),
        ("#EXTM3U\n", "#EXTM3U\n"),
        ("<MPD>", "<Period>"),
        ("<MPD>", "<a>"),
        ("<MPD a=\"", "&amp;"),
    ] {
        let mut text = first.to_owned();
        while text.len() < 1 << 20 {
            text.push_str(line);
        }
        read(text.as_bytes());
    }
}
