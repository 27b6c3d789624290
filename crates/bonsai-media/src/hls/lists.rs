//! Playlists (RFC 8216, 4).

use m3u8_rs::{
    AlternativeMedia, AlternativeMediaType, Map, MasterPlaylist, MediaPlaylist, MediaPlaylistType,
    MediaSegment, Resolution, VariantStream,
};

use crate::clip::stored::Media;

use super::{Film, Part, Track, codecs, text};

/// Subtitles beside the film, as a playlist names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Language, or another word that tells these subtitles from others; may be empty.
    pub language: String,
    /// Where their playlist is.
    pub uri: String,
}

/// With headers of segments apart (EXT-X-MAP) for all kinds (RFC 8216, 7).
const VERSION: usize = 7;

const SOUND: &str = "sound";
const SUBTITLES: &str = "subtitles";

impl Film {
    /// The playlist of all tracks. `uri` says where that of a track is.
    #[must_use]
    pub fn master(&self, uri: &dyn Fn(usize) -> String, beside: &[Beside]) -> String {
        let of = |media: Media| {
            let tracks = self.tracks.iter().enumerate();
            tracks.filter(move |(_, track)| track.stored.media == media)
        };
        let video = of(Media::Video).next();
        let sounds: Vec<(usize, &Track)> = of(Media::Audio).collect();
        let mut alternatives: Vec<AlternativeMedia> = Vec::new();
        // Sound alone is a stream of its own.
        if video.is_some() {
            for (index, track) in &sounds {
                let name = name(track, alternatives.len() + 1);
                alternatives.push(AlternativeMedia {
                    default: alternatives.is_empty(),
                    ..alternative(
                        AlternativeMediaType::Audio,
                        SOUND,
                        name,
                        language(track),
                        uri(*index),
                    )
                });
            }
        }
        let texts = of(Media::Text).filter(|(_, track)| text::is_known(track.stored.codec));
        let texts = texts.map(|(index, track)| (language(track), uri(index)));
        let texts = texts.chain(beside.iter().map(|of| {
            let language = (!of.language.is_empty()).then(|| of.language.clone());
            (language, of.uri.clone())
        }));
        let mut has_text = false;
        for (number, (language, uri)) in (1..).zip(texts) {
            has_text = true;
            let name = match &language {
                Some(language) => format!("{language} ({number})"),
                None => format!("Subtitles {number}"),
            };
            alternatives.push(alternative(
                AlternativeMediaType::Subtitles,
                SUBTITLES,
                name,
                language,
                uri,
            ));
        }
        let has_sound = video.is_some() && !sounds.is_empty();
        let main = video.or(sounds.first().copied());
        let variant = main.map(|(index, track)| {
            let beside = sounds.iter().filter(|_| has_sound).map(|(_, track)| track);
            let loudest = beside.clone().map(|track| track.peak()).max().unwrap_or(0);
            let mean = beside
                .clone()
                .map(|track| track.stored.bits_per_sec)
                .max()
                .unwrap_or(0);
            let mut names = vec![track.codecs.clone()];
            for sound in beside {
                if !names.contains(&sound.codecs) {
                    names.push(sound.codecs.clone());
                }
            }
            VariantStream {
                uri: uri(index),
                bandwidth: (track.peak() + loudest).max(1),
                average_bandwidth: Some((track.stored.bits_per_sec + mean).max(1)),
                // A list of which one is missing is worse than none.
                codecs: names
                    .iter()
                    .all(|of| !of.is_empty())
                    .then(|| names.join(",")),
                resolution: codecs::size(&track.stored).map(|(width, height)| Resolution {
                    width: width.into(),
                    height: height.into(),
                }),
                frame_rate: track.frame_rate(),
                audio: has_sound.then(|| SOUND.to_owned()),
                subtitles: has_text.then(|| SUBTITLES.to_owned()),
                ..VariantStream::default()
            }
        });
        written(|text| {
            MasterPlaylist {
                version: Some(VERSION),
                variants: variant.into_iter().collect(),
                independent_segments: true,
                alternatives,
                ..MasterPlaylist::default()
            }
            .write_to(text)
        })
    }

    /// The playlist of a track of pictures or sound; `header` and `segment` say where its files are.
    #[must_use]
    pub fn playlist(
        &self,
        track: usize,
        header: &str,
        segment: &dyn Fn(usize) -> String,
    ) -> Option<String> {
        let parts = &self.tracks.get(track)?.parts;
        let seconds = |part: &Part| (part.ends_ns - part.begins_ns) as f32 / 1e9;
        let longest = parts
            .iter()
            .map(|part| part.ends_ns - part.begins_ns)
            .max()?;
        let longest = u64::try_from(longest).unwrap_or(0);
        let segments = parts.iter().enumerate().map(|(number, part)| MediaSegment {
            uri: segment(number),
            duration: seconds(part),
            map: (number == 0).then(|| Map {
                uri: header.to_owned(),
                ..Map::default()
            }),
            ..MediaSegment::default()
        });
        Some(list(
            longest.div_ceil(1_000_000_000).max(1),
            segments.collect(),
        ))
    }

    /// The playlist of subtitles that are one file.
    #[must_use]
    pub fn text_playlist(&self, uri: &str) -> String {
        let length = self.length_ns();
        let segment = MediaSegment {
            uri: uri.to_owned(),
            duration: length as f32 / 1e9,
            ..MediaSegment::default()
        };
        list(length.div_ceil(1_000_000_000).max(1), vec![segment])
    }
}

fn list(target: u64, segments: Vec<MediaSegment>) -> String {
    written(|text| {
        MediaPlaylist {
            version: Some(VERSION),
            target_duration: target,
            segments,
            end_list: true,
            playlist_type: Some(MediaPlaylistType::Vod),
            independent_segments: true,
            ..MediaPlaylist::default()
        }
        .write_to(text)
    })
}

/// The text of a playlist.
fn written(of: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = of(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn language(track: &Track) -> Option<String> {
    track.stored.language.clone()
}

fn name(track: &Track, number: usize) -> String {
    match language(track) {
        Some(language) => format!("{language} ({number})"),
        None => format!("Sound {number}"),
    }
}

fn alternative(
    media_type: AlternativeMediaType,
    group: &str,
    name: String,
    language: Option<String>,
    uri: String,
) -> AlternativeMedia {
    AlternativeMedia {
        media_type,
        uri: Some(uri),
        group_id: group.to_owned(),
        language,
        name,
        autoselect: true,
        ..AlternativeMedia::default()
    }
}

impl Track {
    /// The most bits a second of a segment.
    fn peak(&self) -> u64 {
        let of = |part: &Part| {
            let ns = u128::try_from(part.ends_ns - part.begins_ns)
                .unwrap_or(0)
                .max(1);
            let bits = u128::from(part.bytes) * 8 * 1_000_000_000 / ns;
            u64::try_from(bits).unwrap_or(u64::MAX)
        };
        self.parts.iter().map(of).max().unwrap_or(0)
    }

    /// Pictures a second, to three places.
    fn frame_rate(&self) -> Option<f64> {
        if self.stored.media != Media::Video || self.stored.end == 0 {
            return None;
        }
        let rate = self.stored.samples.len() as f64 * f64::from(self.stored.timescale)
            / self.stored.end as f64;
        Some((rate * 1000.0).round() / 1000.0)
    }
}
