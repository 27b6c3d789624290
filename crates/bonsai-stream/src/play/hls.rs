//! HLS playlists (RFC 8216).
//!
//! The library takes most of what it cannot read for a comment, and looks for the end of an attribute on
//! later lines. So lines are looked at one by one before, and only those that matter are given to it.

use std::collections::HashMap;
use std::sync::Arc;

use m3u8_rs::{
    AlternativeMediaType, ByteRange, MasterPlaylist, MediaPlaylist, Playlist, VariantStream,
};
use url::Url;

use super::film::{
    Document, Host, MOST_PIECES, MOST_QUALITIES, Offer, Piece, Quality, Segment, Sound, Source,
    Target, Track, Unreadable, ascending, family, join,
};

/// Tags that say something to a player that shows no pictures.
const TAGS: [&str; 4] = [
    "#EXT-X-ENDLIST",
    "#EXT-X-TARGETDURATION:",
    "#EXT-X-PLAYLIST-TYPE:",
    "#EXT-X-VERSION:",
];

/// One without a value; others begin as it does.
const BREAK: &str = "#EXT-X-DISCONTINUITY";

/// Those with lists of attributes.
const STREAM: &str = "#EXT-X-STREAM-INF:";
const MEDIA: &str = "#EXT-X-MEDIA:";
const MAP: &str = "#EXT-X-MAP:";

/// How segments are encrypted; those with `METHOD=NONE` are not.
const KEY: &str = "#EXT-X-KEY:";

/// What of a text matters.
struct Sifted {
    text: String,
    /// How many qualities it names.
    streams: usize,
    is_encrypted: bool,
}

/// Reads a playlist, which begins with `#EXTM3U`.
pub(super) fn read(text: &str, base: &Url) -> Result<Document, Unreadable> {
    let sifted = sifted(text)?;
    let playlist = m3u8_rs::parse_playlist_res(sifted.text.as_bytes())
        .map_err(|_| Unreadable::new("the playlist cannot be read"))?;
    match playlist {
        Playlist::MasterPlaylist(playlist) => {
            if playlist.variants.len() != sifted.streams {
                return Err(Unreadable::new(
                    "a quality (EXT-X-STREAM-INF) cannot be read",
                ));
            }
            offer(playlist, base).map(|offer| Document::Offer(Arc::new(offer)))
        }
        Playlist::MediaPlaylist(playlist) => {
            let mut track = track(&playlist, base)?;
            track.is_encrypted = sifted.is_encrypted;
            Ok(Document::Track(Arc::new(track)))
        }
    }
}

/// The lines that matter.
fn sifted(text: &str) -> Result<Sifted, Unreadable> {
    let mut sifted = String::with_capacity(text.len() + 1);
    let (mut streams, mut pieces) = (0, 0);
    let mut is_encrypted = false;
    for (number, line) in (1..).zip(text.lines()) {
        let mut line = line.trim();
        let wrong = |why: &str| Unreadable::new(format!("line {number}: {why}"));
        let has_attributes = [STREAM, MEDIA, MAP]
            .iter()
            .find(|tag| line.starts_with(**tag));
        if let Some(tag) = has_attributes {
            line = line.trim_end_matches(',');
            attributes(&line[tag.len()..]).map_err(wrong)?;
            match *tag {
                STREAM => streams += 1,
                MAP if !line.contains("URI=\"") => return Err(wrong("the header has no address")),
                _ => {}
            }
        } else if let Some(range) = line.strip_prefix("#EXT-X-BYTERANGE:") {
            let parts = range.split_once('@').unwrap_or((range, "0"));
            let is_number = |text: &str| text.parse::<u64>().is_ok();
            if !is_number(parts.0) || !is_number(parts.1) {
                return Err(wrong("a range of bytes is written as LENGTH[@FIRST]"));
            }
        } else if let Some(info) = line.strip_prefix("#EXTINF:") {
            // Titles are not needed, and those with commas are not read.
            let seconds = info.split(',').next().unwrap_or_default();
            sifted.push_str("#EXTINF:");
            sifted.push_str(seconds.trim());
            line = ",";
        } else if let Some(key) = line.strip_prefix(KEY) {
            is_encrypted |= !key.split(',').any(|one| one.trim() == "METHOD=NONE");
            continue;
        } else if line.starts_with('#') {
            let matters =
                line == "#EXTM3U" || line == BREAK || TAGS.iter().any(|tag| line.starts_with(tag));
            if !matters {
                continue;
            }
        } else if line.is_empty() {
            continue;
        } else {
            pieces += 1;
            if pieces > MOST_PIECES {
                return Err(wrong("more segments than are played here"));
            }
        }
        sifted.push_str(line);
        sifted.push('\n');
    }
    Ok(Sifted {
        text: sifted,
        streams,
        is_encrypted,
    })
}

/// Whether a list of attributes ends where its line does.
fn attributes(list: &str) -> Result<(), &'static str> {
    let mut is_quoted = false;
    for part in list.split(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    }) {
        if !part.contains('=') {
            return Err("an attribute is written as NAME=VALUE");
        }
    }
    match is_quoted {
        true => Err("a quote is not closed"),
        false => Ok(()),
    }
}

fn offer(playlist: MasterPlaylist, base: &Url) -> Result<Offer, Unreadable> {
    let mut variants = playlist.variants;
    if variants.iter().any(|variant| variant.resolution.is_some()) {
        variants.retain(|variant| !is_sound_alone(variant));
    }
    // Nobody goes from one codec to another while a film plays.
    let coded = |variant: &VariantStream| family(variant.codecs.as_deref());
    let best = variants.iter().filter_map(coded).min();
    variants.retain(|variant| coded(variant).is_none_or(|of| Some(of) == best));
    if variants.is_empty() {
        return Err(Unreadable::new("it names no quality (EXT-X-STREAM-INF)"));
    }
    if variants.len() > MOST_QUALITIES {
        return Err(Unreadable::new(format!(
            "it names more than {MOST_QUALITIES} qualities"
        )));
    }
    // The mean where all have one: the peak is what a buffer is for.
    let means = variants.iter().map(|variant| variant.average_bandwidth);
    let has_means = means.clone().all(|mean| mean.is_some_and(|mean| mean > 0));
    let mut qualities = Vec::new();
    for variant in &variants {
        if variant.uri.is_empty() {
            return Err(Unreadable::new("a quality has no address"));
        }
        let mean = variant.average_bandwidth.filter(|_| has_means);
        let bits = mean.unwrap_or(variant.bandwidth);
        if bits == 0 {
            return Err(Unreadable::new("a quality has a BANDWIDTH of 0"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a bitrate")]
        let kbps = bits as f64 / 1e3;
        let quality = Quality {
            kbps: Some(kbps),
            size: variant.resolution.map(|size| (size.width, size.height)),
            fps: variant.frame_rate,
            codecs: variant.codecs.clone(),
        };
        qualities.push((quality, Source::At(join(base, &variant.uri)?)));
    }
    ascending(&mut qualities);
    // All qualities have the same sound, as far as one hears here.
    let group = variants.iter().find_map(|variant| variant.audio.as_deref());
    let mut sounds: Vec<_> = playlist
        .alternatives
        .iter()
        .filter(|media| {
            media.media_type == AlternativeMediaType::Audio
                && Some(media.group_id.as_str()) == group
        })
        .collect();
    sounds.sort_by_key(|media| !media.default);
    // Without an address it is in the files of the pictures.
    let address = sounds.first().and_then(|media| media.uri.as_deref());
    let sound = address.map(|uri| {
        let codecs = variants.iter().find_map(|variant| variant.codecs.as_ref());
        let sound = Sound {
            codecs: codecs.cloned(),
        };
        Ok((sound, Source::At(join(base, uri)?)))
    });
    Ok(Offer {
        qualities,
        sound: sound.transpose()?,
    })
}

/// Apple's lists have one for those who cannot have pictures.
fn is_sound_alone(variant: &VariantStream) -> bool {
    let is_sound = |codec: &str| {
        let codec = codec.trim();
        ["mp4a", "ac-3", "ec-3", "opus", "Opus", "fLaC"]
            .iter()
            .any(|sound| codec.starts_with(sound))
    };
    let codecs = variant.codecs.as_deref();
    variant.resolution.is_none() && codecs.is_some_and(|all| all.split(',').all(is_sound))
}

fn track(playlist: &MediaPlaylist, base: &Url) -> Result<Track, Unreadable> {
    if playlist.segments.is_empty() {
        return Err(Unreadable::new("it names no segment"));
    }
    if !playlist.end_list {
        return Err(Unreadable::new(
            "it has no end (EXT-X-ENDLIST): live streams, and lists that are cut off, are not played",
        ));
    }
    let mut hosts: Vec<Arc<Host>> = Vec::new();
    // Where the last part of each file ended: the next one may begin there.
    let mut ends: HashMap<&str, u64> = HashMap::new();
    let mut track = Track::default();
    let mut header = None;
    for (number, segment) in playlist.segments.iter().enumerate() {
        if let Some(map) = &segment.map {
            let target = Target::of(&join(base, &map.uri)?, &mut hosts)?;
            let range = map.byte_range.as_ref().map(|range| part(range, 0));
            let piece = Piece {
                target,
                range: range.transpose()?,
            };
            header = Some(track.header(piece));
        }
        let ms = f64::from(segment.duration) * 1e3;
        if !(1.0..=86_400_000.0).contains(&ms) {
            return Err(Unreadable::new(format!(
                "segment {number} lasts {} s (EXTINF): it has to be from 1 ms to a day",
                segment.duration
            )));
        }
        let range = match &segment.byte_range {
            Some(range) => {
                let begins = ends.get(segment.uri.as_str()).copied().unwrap_or(0);
                let range = part(range, begins)?;
                ends.insert(&segment.uri, range.1 + 1);
                Some(range)
            }
            None => None,
        };
        let target = Target::of(&join(base, &segment.uri)?, &mut hosts)?;
        track.segments.push(Segment {
            piece: Piece { target, range },
            header,
            ms,
            breaks: segment.discontinuity,
        });
    }
    Ok(track)
}

/// First and last byte.
fn part(range: &ByteRange, begins: u64) -> Result<(u64, u64), Unreadable> {
    let first = range.offset.unwrap_or(begins);
    let last = first
        .checked_add(range.length)
        .and_then(|end| end.checked_sub(1));
    let last = last.filter(|last| range.length > 0 && *last < u64::MAX);
    let last = last.ok_or_else(|| {
        Unreadable::new(format!("a range of {} bytes from {first}", range.length))
    })?;
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Result<Document, Unreadable> {
        let base = Url::parse("http://host:8080/films/a/master.m3u8").expect("an address");
        Document::read(text.as_bytes(), &base)
    }

    fn an_offer(text: &str) -> Arc<Offer> {
        match document(text) {
            Ok(Document::Offer(offer)) => offer,
            other => panic!("{other:?}"),
        }
    }

    fn a_track(text: &str) -> Arc<Track> {
        match document(text) {
            Ok(Document::Track(track)) => track,
            other => panic!("{other:?}"),
        }
    }

    fn asked(piece: &Piece) -> String {
        let host = piece.target.host.header.to_str().expect("text");
        let range = piece.range.map(|(first, last)| format!(" {first}-{last}"));
        format!("{host}{}{}", piece.target.path, range.unwrap_or_default())
    }

    #[test]
    fn qualities_ascend_and_sound_is_apart() {
        let offer = an_offer(
            "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n\
             #EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"other, one\",URI=\"other.m3u8\"\n\
             #EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"audio\",DEFAULT=YES,URI=\"../audio.m3u8\"\n\
             #EXT-X-STREAM-INF:BANDWIDTH=4100000,AVERAGE-BANDWIDTH=3000000,CODECS=\"avc3.64001f,mp4a.40.2\",\
             RESOLUTION=1280x720,FRAME-RATE=25.000,AUDIO=\"a\"\n720p.m3u8\n\
             #EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=1,URI=\"i.m3u8\"\n\
             #EXT-X-STREAM-INF:BANDWIDTH=900000,AVERAGE-BANDWIDTH=696000,CODECS=\"avc3.64001e,mp4a.40.2\",\
             RESOLUTION=640x360,FRAME-RATE=25.000,AUDIO=\"a\"\nhttp://other/360p.m3u8?x=1\n\
             #EXT-X-STREAM-INF:BANDWIDTH=64000,AVERAGE-BANDWIDTH=64000,CODECS=\"mp4a.40.2\",AUDIO=\"a\"\naudio.m3u8",
        );
        let of: Vec<_> = offer
            .qualities
            .iter()
            .map(|(quality, source)| (quality.kbps, quality.size, source))
            .collect();
        assert_eq!((of[0].0, of[0].1), (Some(696.0), Some((640, 360))));
        assert_eq!((of[1].0, of[1].1), (Some(3000.0), Some((1280, 720))));
        assert_eq!(of.len(), 2, "one is of sound alone");
        assert!(matches!(of[0].2, Source::At(url) if url.as_str() == "http://other/360p.m3u8?x=1"));
        assert!(
            matches!(of[1].2, Source::At(url) if url.as_str() == "http://host:8080/films/a/720p.m3u8")
        );
        assert!(
            matches!(&offer.sound, Some((_, Source::At(url))) if url.path() == "/films/audio.m3u8")
        );
    }

    #[test]
    fn qualities_are_of_one_codec() {
        let offer = an_offer(
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=3,CODECS=\"mp4a.40.2,avc1.64001f\"\n3.m3u8\n\
             #EXT-X-STREAM-INF:BANDWIDTH=2,CODECS=\"hvc1.1.6.L93.B0,mp4a.40.2\"\n2.m3u8\n\
             #EXT-X-STREAM-INF:BANDWIDTH=1,CODECS=\"avc3.64001e\"\n1.m3u8\n",
        );
        let kbps: Vec<_> = offer.qualities.iter().map(|(of, _)| of.kbps).collect();
        assert_eq!(kbps, [Some(0.001), Some(0.003)]);
    }

    #[test]
    fn a_track_says_whether_it_needs_a_key() {
        for (key, is_encrypted) in [
            ("METHOD=AES-128,URI=\"k\"", true),
            ("METHOD=SAMPLE-AES", true),
            ("METHOD=NONE", false),
        ] {
            let track = a_track(&format!(
                "#EXTM3U\n#EXT-X-KEY:{key}\n#EXTINF:2,\n0.ts\n#EXT-X-ENDLIST\n"
            ));
            assert_eq!(track.is_encrypted, is_encrypted, "{key}");
        }
    }

    #[test]
    fn segments_keep_their_headers_and_ranges() {
        let track = a_track(
            "#EXTM3U\r\n#EXT-X-TARGETDURATION:2\r\n#EXT-X-MAP:URI=\"init.mp4\"\r\n#EXTINF:2.0,\r\n0.mp4\r\n\
             #EXTINF:2,A title, of two parts\r\n1.mp4\r\n#EXT-X-DISCONTINUITY\r\n#EXT-X-CUE-OUT\r\n\
             #EXT-X-MAP:URI=\"/b/init.mp4\",BYTERANGE=\"100@0\"\r\n#EXTINF:1.5,\r\n#EXT-X-BYTERANGE:50@100\r\n/b/all.mp4\r\n\
             #EXTINF:1.5,\r\n#EXT-X-BYTERANGE:60\r\n/b/all.mp4\r\n#EXT-X-ENDLIST",
        );
        let all: Vec<String> = track.segments.iter().map(|of| asked(&of.piece)).collect();
        assert_eq!(
            all,
            [
                "host:8080/films/a/0.mp4",
                "host:8080/films/a/1.mp4",
                "host:8080/b/all.mp4 100-149",
                "host:8080/b/all.mp4 150-209"
            ]
        );
        let headers: Vec<_> = track.segments.iter().map(|of| of.header).collect();
        assert_eq!(headers, [Some(0), Some(0), Some(1), Some(1)]);
        let breaks: Vec<_> = track.segments.iter().map(|of| of.breaks).collect();
        assert_eq!(breaks, [false, false, true, false]);
        assert_eq!(asked(&track.headers[1]), "host:8080/b/init.mp4 0-99");
        assert_eq!(track.durations_ms(), [2000.0, 2000.0, 1500.0, 1500.0]);
        let transport = a_track("#EXTM3U\n#EXTINF:2,\n0.ts\n#EXT-X-ENDLIST\n");
        assert_eq!(transport.segments[0].header, None);
    }

    #[test]
    fn what_cannot_be_played_is_refused_in_words() {
        for (text, words) in [
            ("", "no playlist"),
            ("<html>", "no DASH"),
            ("#EXTM3U\n", "no segment"),
            ("#EXTM3U\n#EXTINF:2,\n0.ts\n", "no end"),
            ("#EXTM3U\n#EXTINF:x,\n0.ts\n#EXT-X-ENDLIST", "lasts 0 s"),
            (
                "#EXTM3U\n#EXTINF:2,\nhttps://a/0.ts\n#EXT-X-ENDLIST",
                "https is not",
            ),
            (
                "#EXTM3U\n#EXTINF:2,\nhttp://a:b:c/\n#EXT-X-ENDLIST",
                "no address",
            ),
            ("#EXTM3U\n#EXT-X-BYTERANGE:9-1\n#EXTINF:2,\n0.ts", "line 2"),
            (
                "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:0\n0.ts\n#EXT-X-ENDLIST",
                "0 bytes",
            ),
            (
                "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:9@18446744073709551615\n0.ts\n#EXT-X-ENDLIST",
                "9 bytes",
            ),
            (
                "#EXTM3U\n#EXT-X-MAP:URI=\"a\n#EXTINF:2,\n0.ts",
                "line 2: a quote",
            ),
            ("#EXTM3U\n#EXT-X-MAP:URI\n#EXTINF:2,\n0.ts", "NAME=VALUE"),
            (
                "#EXTM3U\n#EXT-X-MAP:BYTERANGE=\"1@1\"\n#EXTINF:2,\n0.ts",
                "no address",
            ),
            (
                "#EXTM3U\n#EXT-X-STREAM-INF:RESOLUTION=1x1\na.m3u8\n",
                "cannot be read",
            ),
            (
                "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=0\na.m3u8\n",
                "BANDWIDTH of 0",
            ),
            ("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n", "no address"),
            (
                "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na\n#EXT-X-STREAM-INF:BANDWIDTH=x\nb\n",
                "cannot be read",
            ),
        ] {
            let error = document(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let base = Url::parse("http://host/").expect("an address");
        Document::read(b"#EXTM3U\n\xff", &base).expect_err("no UTF-8");
        Document::read(&vec![b'#'; super::super::film::MOST_BYTES + 1], &base)
            .expect_err("too long");
    }
}
