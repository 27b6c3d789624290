//! Any bytes as what a web server sends for a film: a playlist (HLS) or a description (DASH).
#![no_main]

use bonsai_stream::play::{Document, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let base = bonsai_media::rtsp::Url::parse("http://127.0.0.1/films/master.m3u8");
    let Ok(document) = Document::read(bytes, &base.expect("an address")) else {
        return;
    };
    let offer = document.offer();
    assert!((1..=64).contains(&offer.qualities.len()));
    let rates: Vec<f64> = offer.qualities.iter().filter_map(|(of, _)| of.kbps).collect();
    assert!(rates.is_sorted_by(|a, b| a < b));
    let sounds = offer.sound.iter().map(|(_, source)| source);
    for source in offer.qualities.iter().map(|(_, source)| source).chain(sounds) {
        let Source::Here(track) = source else {
            continue;
        };
        assert!(!track.segments.is_empty());
        for segment in &track.segments {
            assert!((1.0..=86_400_000.0).contains(&segment.ms));
            assert!(segment.header.is_none_or(|header| header < track.headers.len()));
            assert!(segment.piece.range.is_none_or(|(first, last)| first <= last));
        }
    }
});
