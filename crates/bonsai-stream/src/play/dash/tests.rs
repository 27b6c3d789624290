//! Descriptions, good and bad ones.

use super::*;
use crate::play::film::Document;

fn offer(text: &str) -> Result<Arc<Offer>, Unreadable> {
    let base = Url::parse("http://host/films/a/manifest.mpd").expect("an address");
    match Document::read(text.as_bytes(), &base)? {
        Document::Offer(offer) => Ok(offer),
        Document::Track(_) => panic!("a track"),
    }
}

fn paths(source: &Source) -> Vec<String> {
    let Source::Here(track) = source else {
        panic!("{source:?}");
    };
    let all = track
        .headers
        .iter()
        .chain(track.segments.iter().map(|of| &of.piece));
    all.map(|piece| piece.target.path.to_string()).collect()
}

const TWO: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT7.000000S" minBufferTime="PT2S">
<Period id="0" start="PT0.000000S" duration="PT4.000000S"><BaseURL>../media/a/</BaseURL>
<AdaptationSet contentType="video" mimeType="video/mp4" segmentAlignment="true" startWithSAP="1">
<SegmentTemplate timescale="360000" duration="720000" startNumber="2" presentationTimeOffset="1440000"
 initialization="$RepresentationID$/init.mp4" media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="720p" codecs="avc3.64001f" bandwidth="4000000" width="1280" height="720" frameRate="25"/>
<Representation id="360p" codecs="avc3.64001e" bandwidth="800000" width="640" height="360" frameRate="30000/1001"/>
</AdaptationSet>
<AdaptationSet contentType="audio" mimeType="audio/mp4">
<SegmentTemplate timescale="360000" duration="720000" startNumber="2"
 initialization="$RepresentationID$/init.mp4" media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="audio" codecs="mp4a.40.2" bandwidth="96000" audioSamplingRate="48000"/></AdaptationSet></Period>
<Period id="1" start="PT4.000000S" duration="PT3.000000S"><BaseURL>../media/b/</BaseURL>
<AdaptationSet contentType="video" mimeType="video/mp4">
<SegmentTemplate timescale="360000" duration="720000" startNumber="8" initialization="$RepresentationID$/init.mp4"
 media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="240p" codecs="avc3.64001e" bandwidth="400000" width="426" height="240" frameRate="25"/>
</AdaptationSet></Period></MPD>"#;

#[test]
fn periods_follow_each_other() {
    let offer = offer(TWO).expect("read");
    let rates: Vec<_> = offer.qualities.iter().map(|(of, _)| of.kbps).collect();
    assert_eq!(rates, [Some(800.0), Some(4000.0)]);
    assert!((offer.qualities[0].0.fps.expect("a pace") - 29.97).abs() < 0.01);
    assert_eq!(
        paths(&offer.qualities[1].1),
        [
            "/films/media/a/720p/init.mp4",
            "/films/media/b/240p/init.mp4",
            "/films/media/a/720p/00002.mp4",
            "/films/media/a/720p/00003.mp4",
            "/films/media/b/240p/00008.mp4",
            "/films/media/b/240p/00009.mp4",
        ]
    );
    let Source::Here(track) = &offer.qualities[1].1 else {
        panic!("elsewhere");
    };
    assert_eq!(track.durations_ms(), [2000.0, 2000.0, 2000.0, 1000.0]);
    assert_eq!(track.segments[3].header, Some(1));
    let (sound, source) = offer.sound.as_ref().expect("sound");
    assert_eq!(sound.codecs.as_deref(), Some("mp4a.40.2"));
    assert_eq!(paths(source).len(), 3);
}

#[test]
fn segments_are_listed_as_ffmpeg_lists_them() {
    let text = r#"<MPD type="static" mediaPresentationDuration="PT0H0M5.5S"><Period>
<AdaptationSet contentType="video"><Representation id="0" mimeType="video/mp4" bandwidth="500000">
<SegmentTemplate timescale="1000" initialization="i-$RepresentationID$.m4s" media="c-$RepresentationID$-$Time$-$Number%03d$.m4s" startNumber="1">
<SegmentTimeline><S t="0" d="2000" r="1"/><S d="1500"/></SegmentTimeline></SegmentTemplate></Representation></AdaptationSet></Period></MPD>"#;
    let offer = offer(text).expect("read");
    assert_eq!(
        paths(&offer.qualities[0].1),
        [
            "/films/a/i-0.m4s",
            "/films/a/c-0-0-001.m4s",
            "/films/a/c-0-2000-002.m4s",
            "/films/a/c-0-4000-003.m4s"
        ]
    );
}

#[test]
fn what_cannot_be_played_is_refused_in_words() {
    let one = |period: &str, template: &str, word: &str| {
        format!(
            "<MPD {word}><Period {period}><AdaptationSet contentType=\"video\">{template}\
             <Representation id=\"v\" bandwidth=\"1000\"/></AdaptationSet></Period></MPD>"
        )
    };
    let long = "duration=\"PT10S\"";
    let good = "<SegmentTemplate media=\"$Number$\" duration=\"2\"/>";
    for (text, words) in [
        ("<MPD>".to_owned(), "no DASH"),
        ("<MPD/>".to_owned(), "no period"),
        (one(long, good, "type=\"dynamic\""), "live"),
        (one("", good, ""), "how long a period"),
        (
            one(
                long,
                "<SegmentTemplate media=\"$Number$\" duration=\"2\" startNumber=\"18446744073709551615\"/>",
                "",
            ),
            "counted from 18446744073709551615",
        ),
        (one("duration=\"10\"", good, ""), "no duration"),
        (one("duration=\"PTNaNS\"", good, ""), "no duration"),
        (one(long, "", ""), "SegmentTemplate"),
        (
            one(long, "<SegmentTemplate media=\"$Number$\"/>", ""),
            "how long segments",
        ),
        (
            one(long, "<SegmentTemplate media=\"$No$\" duration=\"2\"/>", ""),
            "template of names",
        ),
        (
            one(
                long,
                "<SegmentTemplate media=\"$Number\" duration=\"2\"/>",
                "",
            ),
            "template of names",
        ),
        (
            one(
                long,
                "<SegmentTemplate media=\"$Number$\" duration=\"1\" timescale=\"90000\"/>",
                "",
            ),
            "shorter than 1 ms",
        ),
        (
            one(
                "duration=\"PT999999S\"",
                "<SegmentTemplate media=\"$Number$\" duration=\"1\" timescale=\"100\"/>",
                "",
            ),
            "more segments",
        ),
        (
            one(
                long,
                "<SegmentTemplate media=\"$Number$\"><SegmentTimeline><S d=\"1\" r=\"9999999999\"/></SegmentTimeline></SegmentTemplate>",
                "",
            ),
            "more segments",
        ),
        (
            format!("<MPD><Period {long}><AdaptationSet contentType=\"text\"/></Period></MPD>"),
            "no pictures",
        ),
    ] {
        let error = offer(&text).expect_err(&text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    offer(&one(long, good, "")).expect("read");
}

#[test]
fn qualities_are_of_one_codec_and_in_files_that_most_players_have() {
    let set = |kind: &str, codecs: &str, bits: u64, more: &str| {
        format!(
            "<AdaptationSet mimeType=\"{kind}\" codecs=\"{codecs}\"><SegmentTemplate duration=\"2\" \
             media=\"{bits}-$Number$\"/>{more}<Representation id=\"{bits}\" bandwidth=\"{bits}000\"/></AdaptationSet>"
        )
    };
    let mpd = |sets: &[String]| {
        let text = format!(
            "<MPD mediaPresentationDuration=\"PT4S\"><Period>{}</Period></MPD>",
            sets.concat()
        );
        offer(&text).expect("read")
    };
    let read = mpd(&[
        set("video/webm", "vp09.00.10.08", 100, ""),
        set("video/mp4", "avc1.64001e", 300, ""),
        set("video/mp4", "av01.0.04M.08", 200, ""),
        set("video/mp4", "avc3.64001e", 400, ""),
        set("audio/webm", "opus", 50, ""),
        set("audio/mp4", "mp4a.40.2", 60, ""),
    ]);
    let rates: Vec<_> = read.qualities.iter().map(|(of, _)| of.kbps).collect();
    assert_eq!(rates, [Some(300.0), Some(400.0)]);
    let (sound, _) = read.sound.as_ref().expect("sound");
    assert_eq!(sound.codecs.as_deref(), Some("mp4a.40.2"));
    let track = |offer: Arc<Offer>| match &offer.qualities[0].1 {
        Source::Here(track) => track.clone(),
        Source::At(_) => panic!("elsewhere"),
    };
    let open = track(read);
    assert!(!open.is_webm && !open.is_encrypted);
    assert!(track(mpd(&[set("video/webm", "vp9", 100, "")])).is_webm);
    let key = "<ContentProtection schemeIdUri=\"urn:a\" value=\"cenc\"><pssh>AA==</pssh></ContentProtection>\
               <ContentProtection schemeIdUri=\"urn:b\"/>";
    let closed = set("video/mp4", "avc1.64001e", 300, key);
    assert!(track(mpd(&[closed])).is_encrypted);
}
