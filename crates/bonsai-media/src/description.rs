//! What a server says of a clip: its tracks, in SDP (RFC 8866), as RTSP uses it (RFC 2326, appendix C).

mod plain;

use rtsp_types::Url;
use sdp_types::{Media, Session};

/// A track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// `video`, `audio`, or what else the server calls it.
    pub kind: String,
    /// Its codec, as `H264`.
    pub encoding: String,
    /// The payload type of its packets.
    pub payload_type: u8,
    /// Ticks a second of its timestamps.
    pub clock_rate: u32,
    /// Bits a second that it is to have, where the server says so.
    pub bits_per_sec: Option<u64>,
    /// Where it is set up.
    pub control: Url,
}

/// What a server says of a clip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Where all of it is played.
    pub control: Url,
    /// Its tracks that come by RTP.
    pub tracks: Vec<Track>,
    /// How long it is, nanoseconds, where the server says so.
    pub length_ns: Option<u64>,
}

/// Codecs that a payload type stands for by itself, and their clocks (RFC 3551, tables 4 and 5).
const STATIC: [(u8, &str, u32); 8] = [
    (0, "PCMU", 8000),
    (8, "PCMA", 8000),
    (9, "G722", 8000),
    (10, "L16", 44_100),
    (14, "MPA", 90_000),
    (26, "JPEG", 90_000),
    (32, "MPV", 90_000),
    (33, "MP2T", 90_000),
];

/// More tracks are of no clip: each takes sockets of the viewer.
const MOST: usize = 16;

/// Ticks a second of a payload type that stands for a codec by itself (RFC 3551).
#[must_use]
pub fn clock_of(payload_type: u8) -> Option<u32> {
    let known = STATIC.iter().find(|(number, ..)| *number == payload_type);
    known.map(|(_, _, clock)| *clock)
}

impl Description {
    /// Reads it; `base` is the address that relative ones are taken from.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn read(text: &[u8], base: &Url) -> Result<Self, String> {
        let text = plain::plain(text).ok_or("its description is no SDP")?;
        let session =
            Session::parse(&text).map_err(|error| format!("its description is no SDP: {error}"))?;
        let control = attribute(&session.attributes, "control");
        let control = resolve(base, control)?;
        let length = attribute(&session.attributes, "range").and_then(length);
        let mut tracks = Vec::new();
        for media in &session.medias {
            if media.proto.starts_with("RTP/") {
                tracks.push(track(media, &control)?);
            }
        }
        match tracks.len() {
            0 => return Err("its description has no track that comes by RTP".to_owned()),
            1..=MOST => {}
            many => {
                return Err(format!(
                    "its description has {many} tracks, more than {MOST}"
                ));
            }
        }
        Ok(Self {
            control,
            tracks,
            length_ns: length,
        })
    }
}

fn track(media: &Media, base: &Url) -> Result<Track, String> {
    let kind = media.media.clone();
    let first = media.fmt.split_ascii_whitespace().next();
    let payload_type: u8 = first
        .and_then(|first| first.parse().ok())
        .filter(|number| *number < 128)
        .ok_or_else(|| format!("its {kind} track has no payload type"))?;
    let maps = media.attributes.iter();
    let maps = maps.filter(|of| of.attribute == "rtpmap");
    let mut maps = maps.filter_map(|of| rtpmap(of.value.as_deref()?));
    let map = maps.find(|(number, ..)| *number == payload_type);
    let named = STATIC.iter().find(|(number, ..)| *number == payload_type);
    let (encoding, clock_rate) = match (map, named) {
        (Some((_, encoding, clock)), _) => (encoding, clock),
        (None, Some((_, encoding, clock))) => ((*encoding).to_owned(), *clock),
        (None, None) => {
            return Err(format!(
                "its {kind} track says no clock for payload type {payload_type}"
            ));
        }
    };
    let bandwidth = media.bandwidths.iter().find(|of| of.bwtype == "AS");
    Ok(Track {
        encoding,
        payload_type,
        clock_rate,
        bits_per_sec: bandwidth.map(|of| of.bandwidth.saturating_mul(1000)),
        control: resolve(base, attribute(&media.attributes, "control"))?,
        kind,
    })
}

/// `96 H264/90000`: its number, codec and clock.
fn rtpmap(text: &str) -> Option<(u8, String, u32)> {
    let (number, rest) = text.trim().split_once(' ')?;
    let mut parts = rest.trim().split('/');
    let encoding = parts.next()?.to_owned();
    let clock = parts
        .next()?
        .trim()
        .parse()
        .ok()
        .filter(|clock| *clock > 0)?;
    Some((number.parse().ok()?, encoding, clock))
}

/// `npt=0-596.48`: how long that is.
fn length(range: &str) -> Option<u64> {
    let (_, end) = range.trim().strip_prefix("npt=")?.split_once('-')?;
    let seconds: f64 = end.trim().parse().ok()?;
    let ns = seconds * 1e9;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is in range"
    )]
    (ns > 0.0 && ns < 1e18).then_some(ns as u64)
}

fn attribute<'a>(of: &'a [sdp_types::Attribute], name: &str) -> Option<&'a str> {
    let mut named = of.iter().filter(|of| of.attribute == name);
    named.find_map(|of| of.value.as_deref())
}

/// An address, absolute or relative; `*` and none are the base itself.
fn resolve(base: &Url, control: Option<&str>) -> Result<Url, String> {
    let control = control.map(str::trim).filter(|control| *control != "*");
    let Some(control) = control else {
        return Ok(base.clone());
    };
    if let Ok(absolute) = Url::parse(control) {
        return Ok(absolute);
    }
    // Servers mean "below it", also where the base has no slash at its end (RFC 2326, C.1.1, says as in
    // RFC 1808, by which the last part of such a base would be replaced).
    let mut below = base.clone();
    if !below.path().ends_with('/') {
        let path = format!("{}/", below.path());
        below.set_path(&path);
    }
    let joined = below.join(control);
    joined.map_err(|error| format!("its description has no good address ({control}): {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: &str = "v=0\r\n\
        o=- 1 1 IN IP4 127.0.0.1\r\n\
        s=clip\r\n\
        t=0 0\r\n\
        a=control:*\r\n\
        a=range:npt=0-30.025\r\n\
        m=video 0 RTP/AVP 96\r\n\
        b=AS:1921\r\n\
        a=rtpmap:96 H264/90000\r\n\
        a=control:track1\r\n\
        m=audio 0 RTP/AVP 97\r\n\
        a=rtpmap:97 mpeg4-generic/48000/2\r\n\
        a=control:rtsp://other/clip/track2\r\n\
        m=application 0 RTP/AVP 0\r\n";

    fn base(text: &str) -> Url {
        Url::parse(text).expect("an address")
    }

    #[test]
    fn tracks_are_read() {
        for at in ["rtsp://host:8554/clip", "rtsp://host:8554/clip/"] {
            let read = Description::read(LIVE.as_bytes(), &base(at)).expect("read");
            assert_eq!(read.length_ns, Some(30_025_000_000));
            let [video, audio, last] = &read.tracks[..] else {
                panic!("{read:?}");
            };
            assert_eq!(video.control.as_str(), "rtsp://host:8554/clip/track1");
            assert_eq!((video.clock_rate, &*video.encoding), (90_000, "H264"));
            assert_eq!(
                (video.payload_type, video.bits_per_sec),
                (96, Some(1_921_000))
            );
            assert_eq!(audio.control.as_str(), "rtsp://other/clip/track2");
            assert_eq!((audio.clock_rate, &*audio.kind), (48_000, "audio"));
            assert_eq!((last.clock_rate, &*last.encoding), (8000, "PCMU"));
        }
    }

    #[test]
    fn what_cannot_be_played_is_said() {
        let head = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n";
        for (text, words) in [
            ("hello", "no SDP"),
            (head, "no track"),
            (&*format!("{head}m=video 0 RTP/AVP 96\r\n"), "no clock"),
            (
                &*format!("{head}m=video 0 RTP/AVP x\r\n"),
                "no payload type",
            ),
            (
                &*format!("{head}m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/0\r\n"),
                "no clock",
            ),
            (
                &*format!("{head}{}", "m=video 0 RTP/AVP 33\r\n".repeat(17)),
                "17 tracks, more than 16",
            ),
        ] {
            let error = Description::read(text.as_bytes(), &base("rtsp://h/c")).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
