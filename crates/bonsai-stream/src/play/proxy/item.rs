//! What players ask for, and the playlists that name it.

use std::fmt::Write as _;

use super::super::film::{Offer, Track};

/// A thing that the playlists name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// What a segment is played with, of the quality that was chosen for it.
    Header(usize),
    /// A segment.
    Picture(usize),
    /// What sound is played with.
    SoundHeader(usize),
    /// A segment of sound that is apart.
    Sound(usize),
}

impl Item {
    /// The one of that name: `12.mp4`, `12.init.mp4`, `sound-12.mp4`, `sound-0.init.mp4`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (name, _) = name.rsplit_once('.')?;
        let (name, is_header) = match name.strip_suffix(".init") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (number, is_sound) = match name.strip_prefix("sound-") {
            Some(number) => (number, true),
            None => (name, false),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = number.parse().ok()?;
        Some(match (is_sound, is_header) {
            (false, false) => Self::Picture(number),
            (false, true) => Self::Header(number),
            (true, false) => Self::Sound(number),
            (true, true) => Self::SoundHeader(number),
        })
    }
}

/// How files of a track end, as its first one does. Players go by it (ffmpeg opens no other).
pub(super) fn ending(track: &Track) -> &'static str {
    const KNOWN: [&str; 8] = ["mp4", "m4s", "m4v", "m4a", "cmfv", "cmfa", "ts", "aac"];
    let first = track.segments.first();
    let path = first.map_or("", |first| first.piece.target.path.path());
    let said = path.rsplit_once('.').map_or("", |(_, ending)| ending);
    let known = KNOWN.into_iter().find(|known| *known == said);
    let otherwise = match track.headers.is_empty() {
        true => "ts",
        false => "mp4",
    };
    known.unwrap_or(otherwise)
}

/// The list of a film of one quality and its sound, both of them lists in `folder`.
pub(super) fn master(offer: &Offer, folder: u64) -> String {
    let mut text = "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n".to_owned();
    let _ = writeln!(
        text,
        "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"sound\",NAME=\"sound\",DEFAULT=YES,AUTOSELECT=YES,\
         URI=\"{folder}/sound.m3u8\""
    );
    // Of the highest quality: what can decode that can decode the others.
    let highest = offer.qualities.last().map(|(highest, _)| highest.clone());
    let highest = highest.unwrap_or_default();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is not negative, and a cast holds at both ends"
    )]
    let bits = (highest.kbps.unwrap_or(1.0) * 1e3).ceil() as u64;
    let _ = write!(text, "#EXT-X-STREAM-INF:BANDWIDTH={bits}");
    if let Some(codecs) = highest.codecs.as_deref().filter(|codecs| is_plain(codecs)) {
        let sound = offer
            .sound
            .as_ref()
            .and_then(|(sound, _)| sound.codecs.as_deref());
        let sound =
            sound.filter(|sound| is_plain(sound) && !codecs.contains(',') && *sound != codecs);
        let sound = sound.map(|sound| format!(",{sound}")).unwrap_or_default();
        let _ = write!(text, ",CODECS=\"{codecs}{sound}\"");
    }
    if let Some((width, height)) = highest.size {
        let _ = write!(text, ",RESOLUTION={width}x{height}");
    }
    if let Some(fps) = highest.fps {
        let _ = write!(text, ",FRAME-RATE={fps:.3}");
    }
    let _ = writeln!(text, ",AUDIO=\"sound\"\n{folder}/pictures.m3u8");
    text
}

/// What somebody else wrote stays within its quotes.
fn is_plain(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b".,-_ ".contains(&byte);
    (1..=200).contains(&text.len()) && text.bytes().all(is_word)
}

/// The list of the pictures: all segments of the film, whatever quality each will have.
pub(super) fn pictures(track: &Track, qualities: usize, folder: &str) -> String {
    list(track, &|text, number, ending| {
        let before = number
            .checked_sub(1)
            .and_then(|before| track.segments.get(before));
        let header = track.segments.get(number).and_then(|of| of.header);
        // Each may be of another quality than the one before, and has a header of its own.
        let is_new = qualities > 1 || before.and_then(|before| before.header) != header;
        if header.is_some() && (is_new || number == 0) {
            let _ = writeln!(text, "#EXT-X-MAP:URI=\"{folder}{number}.init.{ending}\"");
        }
        (format!("{folder}{number}"), ending)
    })
}

/// The list of the sound.
pub(super) fn sound(track: &Track) -> String {
    let mut last = None;
    let mut headers = Vec::with_capacity(track.segments.len());
    for segment in &track.segments {
        headers.push(segment.header.filter(|_| segment.header != last));
        last = segment.header;
    }
    list(track, &|text, number, ending| {
        if let Some(header) = headers.get(number).copied().flatten() {
            let _ = writeln!(text, "#EXT-X-MAP:URI=\"sound-{header}.init.{ending}\"");
        }
        (format!("sound-{number}"), ending)
    })
}

type Name<'a> = &'a dyn Fn(&mut String, usize, &'static str) -> (String, &'static str);

fn list(track: &Track, name: Name<'_>) -> String {
    let longest = track.durations_ms().into_iter().fold(1e3, f64::max);
    let ending = ending(track);
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:{:.0}\n#EXT-X-PLAYLIST-TYPE:VOD\n\
         #EXT-X-INDEPENDENT-SEGMENTS\n",
        (longest / 1e3).ceil()
    );
    for (number, segment) in track.segments.iter().enumerate() {
        if segment.breaks {
            text.push_str("#EXT-X-DISCONTINUITY\n");
        }
        let (name, ending) = name(&mut text, number, ending);
        let _ = writeln!(text, "#EXTINF:{:.6},\n{name}.{ending}", segment.ms / 1e3);
    }
    text.push_str("#EXT-X-ENDLIST\n");
    text
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::super::super::film::Document;
    use super::*;

    fn document(text: &str) -> Document {
        let base = Url::parse("http://host/a/master.m3u8").expect("an address");
        Document::read(text.as_bytes(), &base).expect("a playlist")
    }

    #[test]
    fn each_segment_has_a_header_of_its_own() {
        let Document::Track(track) = document(
            "#EXTM3U\n#EXT-X-MAP:URI=\"i.mp4\"\n#EXTINF:2.0,\n0.mp4\n#EXTINF:2.5,\n1.mp4\n\
             #EXT-X-DISCONTINUITY\n#EXT-X-MAP:URI=\"j.mp4\"\n#EXTINF:1,\n2.mp4\n#EXT-X-ENDLIST\n",
        ) else {
            panic!("it is a track");
        };
        let text = pictures(&track, 2, "7/");
        assert_eq!(
            text,
            "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:3\n#EXT-X-PLAYLIST-TYPE:VOD\n\
             #EXT-X-INDEPENDENT-SEGMENTS\n\
             #EXT-X-MAP:URI=\"7/0.init.mp4\"\n#EXTINF:2.000000,\n7/0.mp4\n\
             #EXT-X-MAP:URI=\"7/1.init.mp4\"\n#EXTINF:2.500000,\n7/1.mp4\n\
             #EXT-X-DISCONTINUITY\n#EXT-X-MAP:URI=\"7/2.init.mp4\"\n#EXTINF:1.000000,\n7/2.mp4\n\
             #EXT-X-ENDLIST\n"
        );
        // Of one quality it goes on until there is another.
        assert_eq!(pictures(&track, 1, "").matches("EXT-X-MAP").count(), 2);
        let heard = sound(&track);
        assert_eq!(heard.matches("EXT-X-MAP").count(), 2);
        assert!(
            heard.contains("\"sound-1.init.mp4\"\n#EXTINF:1.000000,\nsound-2.mp4"),
            "{heard}"
        );
        document(&text);
        document(&heard);
    }

    #[test]
    fn a_transport_stream_has_no_headers() {
        let Document::Track(track) = document("#EXTM3U\n#EXTINF:2,\n0.ts?x=1\n#EXT-X-ENDLIST\n")
        else {
            panic!("it is a track");
        };
        let text = pictures(&track, 3, "1/");
        assert!(
            !text.contains("MAP") && text.contains("\n1/0.ts\n"),
            "{text}"
        );
    }

    #[test]
    fn what_stands_in_the_master_is_of_the_highest_quality() {
        let offer = document(
            "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"a\",URI=\"a.m3u8\"\n\
             #EXT-X-STREAM-INF:BANDWIDTH=900000,CODECS=\"avc3.1,mp4a.40.2\",AUDIO=\"a\"\n1.m3u8\n\
             #EXT-X-STREAM-INF:BANDWIDTH=1900000,CODECS=\"avc3.2,mp4a.40.2\",RESOLUTION=64x36,AUDIO=\"a\"\n2.m3u8\n",
        )
        .offer();
        let text = master(&offer, 4);
        assert!(
            text.ends_with(
                "URI=\"4/sound.m3u8\"\n#EXT-X-STREAM-INF:BANDWIDTH=1900000,CODECS=\"avc3.2,mp4a.40.2\",\
                 RESOLUTION=64x36,AUDIO=\"sound\"\n4/pictures.m3u8\n"
            ),
            "{text}"
        );
        assert_eq!(document(&text).offer().qualities.len(), 1);
        assert!(!is_plain("avc1\",URI=\"x") && !is_plain("a\nb"));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, item) in [
            ("12.mp4", Some(Item::Picture(12))),
            ("12.init.mp4", Some(Item::Header(12))),
            ("0.ts", Some(Item::Picture(0))),
            ("sound-3.m4s", Some(Item::Sound(3))),
            ("sound-0.init.mp4", Some(Item::SoundHeader(0))),
            ("sound-.mp4", None),
            (".mp4", None),
            ("+1.mp4", None),
            ("12", None),
            ("x.mp4", None),
            ("99999999999999999999999.mp4", None),
        ] {
            assert_eq!(Item::named(name), item, "{name}");
        }
    }
}
