//! What there is to play: qualities, and where the pieces of each are.

use std::sync::Arc;

use bonsai_media::adapt::{self, Ladder};
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use serde::Serialize;
use url::Url;

use super::{dash, hls};

/// A playlist or a description has no more bytes than that.
pub const MOST_BYTES: usize = 4 << 20;

/// A film has no more pieces than that, those of all qualities together: more than a day of two-second
/// segments in four of them.
pub(super) const MOST_PIECES: usize = 200_000;

/// What repeats is looked for among so many: a list may be made of things that never do.
const LAST: usize = 32;

/// And no more qualities.
pub(super) const MOST_QUALITIES: usize = 64;

/// What a text says.
#[derive(Clone, Debug)]
pub enum Document {
    /// Which qualities there are.
    Offer(Arc<Offer>),
    /// Where the pieces of one are.
    Track(Arc<Track>),
}

/// Why a text is no film.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub(super) String);

impl Unreadable {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl Document {
    /// Reads a playlist (HLS: RFC 8216) or a description (DASH: ISO/IEC 23009-1) that was fetched from
    /// `base`.
    ///
    /// # Errors
    /// It is neither, or one that is not played here; the text says why.
    pub fn read(bytes: &[u8], base: &Url) -> Result<Self, Unreadable> {
        if bytes.len() > MOST_BYTES {
            return Err(too_long());
        }
        let none = || {
            Unreadable::new(
                "it is no playlist: name an HLS playlist (.m3u8, which begins with #EXTM3U) or a DASH description (.mpd, XML)",
            )
        };
        // A film itself, most often.
        let text = std::str::from_utf8(bytes).map_err(|_| none())?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        if text.starts_with("#EXTM3U") {
            hls::read(text, base)
        } else if text.starts_with('<') {
            dash::read(text, base).map(|offer| Self::Offer(Arc::new(offer)))
        } else {
            Err(none())
        }
    }
}

impl Document {
    /// What there is to choose from: of a track, itself.
    #[must_use]
    pub fn offer(self) -> Arc<Offer> {
        match self {
            Self::Offer(offer) => offer,
            Self::Track(track) => Arc::new(Offer {
                qualities: vec![(Quality::default(), Source::Here(track))],
                sound: None,
            }),
        }
    }
}

pub(super) fn too_long() -> Unreadable {
    Unreadable::new(format!("it has more than {} MiB", MOST_BYTES >> 20))
}

/// Qualities, from the lowest bitrate to the highest, and sound that is fetched apart.
#[derive(Clone, Debug)]
pub struct Offer {
    /// At least one.
    pub qualities: Vec<(Quality, Source)>,
    /// If it is not in the same files.
    pub sound: Option<(Sound, Source)>,
}

impl Offer {
    /// Bitrates as a ladder has them, kbit/s. What a single list carries is known at the end only.
    pub(super) fn kbps(&self) -> Vec<f64> {
        let qualities = self.qualities.iter();
        qualities.map(|(of, _)| of.kbps.unwrap_or(1.0)).collect()
    }
}

/// What is said of a quality.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// Bitrate, sound and all, kbit/s; unknown of a playlist that stands alone.
    pub kbps: Option<f64>,
    /// Width and height, pixels.
    pub size: Option<(u64, u64)>,
    /// Pictures a second.
    pub fps: Option<f64>,
    /// Codecs, as RFC 6381 names them.
    pub codecs: Option<String>,
}

/// How pictures are coded, what most players have first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Avc,
    Hevc,
    Dolby,
    Av1,
    Vp9,
    Vp8,
}

/// The family that codecs name (RFC 6381), if one is known here.
pub(super) fn family(codecs: Option<&str>) -> Option<Family> {
    codecs?.split(',').find_map(|codec| {
        let codec = codec.trim();
        Some(match codec.split_once('.').map_or(codec, |(of, _)| of) {
            "avc1" | "avc3" => Family::Avc,
            "hvc1" | "hev1" => Family::Hevc,
            "dvh1" | "dvhe" | "dva1" | "dvav" => Family::Dolby,
            "av01" => Family::Av1,
            "vp09" | "vp9" => Family::Vp9,
            "vp08" | "vp8" => Family::Vp8,
            _ => return None,
        })
    })
}

/// What is said of sound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sound {
    /// Codecs, as RFC 6381 names them.
    pub codecs: Option<String>,
}

/// Where a track is.
#[derive(Clone, Debug)]
pub enum Source {
    /// Its playlist is there.
    At(Url),
    /// It is here.
    Here(Arc<Track>),
}

/// The pieces of one quality, or of the sound, in order.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// At least one.
    pub segments: Vec<Segment>,
    /// What some segments need to be played with (`EXT-X-MAP`, initialization segments).
    pub headers: Vec<Piece>,
    /// Whether some of it needs a key (`EXT-X-KEY`, `ContentProtection`).
    pub is_encrypted: bool,
    /// Whether some of it is in files of WebM, and not in those of MP4 or in transport streams.
    pub is_webm: bool,
}

impl Track {
    /// How long each segment is, ms.
    #[must_use]
    pub fn durations_ms(&self) -> Vec<f64> {
        self.segments.iter().map(|segment| segment.ms).collect()
    }

    /// The ladder of these bitrates, kbit/s, with its segments. What is usual is their median: a last one
    /// that is short changes nothing.
    pub(super) fn ladder(&self, kbps: Vec<f64>) -> Result<Ladder, adapt::Error> {
        let durations = self.durations_ms();
        let mut sorted = durations.clone();
        sorted.sort_by(f64::total_cmp);
        let usual_ms = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        Ladder::new(usual_ms, kbps, None)?.with_durations(durations)
    }

    /// The number of a header, a new one if it is not among the last.
    pub(super) fn header(&mut self, piece: Piece) -> usize {
        let last = self.headers.iter().enumerate().rev().take(LAST);
        let known = last.into_iter().find(|(_, known)| **known == piece);
        match known {
            Some((number, _)) => number,
            None => {
                self.headers.push(piece);
                self.headers.len() - 1
            }
        }
    }
}

/// A segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Where it is.
    pub piece: Piece,
    /// Which header it is played with, of its track.
    pub header: Option<usize>,
    /// How long it is, ms.
    pub ms: f64,
    /// Whether times or kinds of media do not go on from the one before (`EXT-X-DISCONTINUITY`, a new period).
    pub breaks: bool,
}

/// A file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which.
    pub target: Target,
    /// Its first and last byte, if it is a part.
    pub range: Option<(u64, u64)>,
}

/// What is asked for, and of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub host: Arc<Host>,
    /// What of it.
    pub path: PathAndQuery,
}

/// A server, as addresses name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, without brackets.
    pub name: String,
    /// Port.
    pub port: u16,
    /// As requests name it.
    pub header: HeaderValue,
}

impl Target {
    /// Of an address. Hosts that were seen before are taken from `known`.
    ///
    /// # Errors
    /// It is no address of HTTP; the text says which it is.
    pub fn of(url: &Url, known: &mut Vec<Arc<Host>>) -> Result<Self, Unreadable> {
        let wrong = |why: &str| Unreadable::new(format!("{:?}: {why}", short(url.as_str())));
        match url.scheme() {
            "http" => {}
            "https" => {
                return Err(wrong("https is not supported: write an http address"));
            }
            _ => return Err(wrong("write an http address")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("names and passwords are not sent"));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| wrong("it names no host"))?;
        let port = url.port_or_known_default().unwrap_or(80);
        let name = host.trim_matches(['[', ']']);
        let is_it = |known: &&Arc<Host>| known.name == name && known.port == port;
        let host = match known.iter().rev().take(LAST).find(is_it) {
            Some(host) => host.clone(),
            None => {
                let header = match url.port() {
                    Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
                    None => HeaderValue::try_from(host),
                };
                let host = Arc::new(Host {
                    name: name.to_owned(),
                    port,
                    header: header.map_err(|_| wrong("its host cannot be asked for"))?,
                });
                known.push(host.clone());
                host
            }
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let path = PathAndQuery::try_from(path);
        Ok(Self {
            host,
            path: path.map_err(|_| wrong("its path cannot be asked for"))?,
        })
    }
}

/// The beginning of what somebody else wrote.
pub(super) fn short(text: &str) -> &str {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// An address as one writes it, next to another.
///
/// # Errors
/// It is none.
pub(super) fn join(base: &Url, uri: &str) -> Result<Url, Unreadable> {
    let joined = base.join(uri);
    joined.map_err(|error| Unreadable::new(format!("{:?} is no address: {error}", short(uri))))
}

/// Qualities from the lowest bitrate to the highest; of those of one bitrate, the first.
pub(super) fn ascending<T>(qualities: &mut Vec<(Quality, T)>) {
    let kbps = |of: &(Quality, T)| of.0.kbps.unwrap_or(0.0);
    qualities.sort_by(|a, b| kbps(a).total_cmp(&kbps(b)));
    qualities.dedup_by(|b, a| kbps(a).total_cmp(&kbps(b)).is_eq());
}
