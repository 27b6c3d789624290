//! Clips of videos, one after the other, as playlists.
//!
//! A *clip* is some segments of a video that follow each other; a *show* is clips. The whole of a
//! video is a show of one clip. A *track* of a show is one of its qualities (`720p`) or its sound
//! (`audio`). Where the videos of a show have different qualities, each clip is shown in the best of
//! its own that is no better than that of the track.

mod dash;
mod files;

use std::collections::BTreeSet;

use m3u8_rs::{
    AlternativeMedia, AlternativeMediaType, Map, MasterPlaylist, MediaPlaylist, MediaPlaylistType,
    MediaSegment, Resolution, VariantStream,
};

use crate::video::{SAMPLES, SOUND, TICKS};
use crate::{Error, Name, Quality, Video};

/// The version of HLS that is written: with EXT-X-MAP for files that are not of pictures alone (RFC 8216, 7).
const VERSION: usize = 7;

/// Segments of a video that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Of which.
    pub video: &'a Video,
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl<'a> Clip<'a> {
    /// All of a video.
    #[must_use]
    pub const fn whole(video: &'a Video) -> Self {
        Self {
            video,
            first: 0,
            count: video.segments,
        }
    }

    /// How long it is, ms.
    #[must_use]
    pub fn milliseconds(&self) -> u64 {
        self.video.milliseconds(self.first, self.count)
    }
}

/// Clips, one after the other.
#[derive(Clone, Debug)]
pub struct Show<'a> {
    clips: Vec<Clip<'a>>,
}

/// Where the folder of a video is, for whoever reads the playlist: empty, or with a slash at its end.
type Place<'p> = &'p dyn Fn(&Name) -> String;

impl<'a> Show<'a> {
    /// Of these clips; those without segments are left out, and none goes past the end of its video.
    #[must_use]
    pub fn new(clips: Vec<Clip<'a>>) -> Self {
        let within = clips.into_iter().map(|clip| Clip {
            count: clip
                .count
                .min(clip.video.segments.saturating_sub(clip.first)),
            ..clip
        });
        Self {
            clips: within.filter(|clip| clip.count > 0).collect(),
        }
    }

    /// What is shown, one after the other.
    #[must_use]
    pub fn clips(&self) -> &[Clip<'a>] {
        &self.clips
    }

    /// How long it is, ms.
    #[must_use]
    pub fn milliseconds(&self) -> u64 {
        self.clips.iter().map(Clip::milliseconds).sum()
    }

    /// Its tracks: qualities, best first, then the sound.
    #[must_use]
    pub fn tracks(&self) -> Vec<String> {
        let heights = self
            .heights()
            .into_iter()
            .map(|height| format!("{height}p"));
        heights.chain([SOUND.to_owned()]).collect()
    }

    /// The lines of its qualities, best first, each of which differs from the one before in some clip.
    fn heights(&self) -> Vec<u32> {
        let of_clips = self.clips.iter().flat_map(|clip| &clip.video.qualities);
        let all: BTreeSet<u32> = of_clips.map(|quality| quality.height).collect();
        let mut heights: Vec<u32> = Vec::new();
        let mut last = Vec::new();
        for height in all.into_iter().rev() {
            let chosen: Vec<u32> = self
                .chosen(height)
                .iter()
                .map(|quality| quality.height)
                .collect();
            if chosen != last {
                heights.push(height);
                last = chosen;
            }
        }
        heights
    }

    /// The quality of each clip that a track of so many lines has.
    fn chosen(&self, height: u32) -> Vec<&'a Quality> {
        let of_clip = |clip: &Clip<'a>| {
            let mut qualities = clip.video.qualities.iter();
            let fits = qualities.find(|quality| quality.height <= height);
            fits.or(clip.video.qualities.last())
        };
        self.clips.iter().filter_map(of_clip).collect()
    }

    /// The HLS playlist of all tracks; `uri` says where that of a track is.
    ///
    /// # Errors
    /// None in practice: nothing is written but to memory.
    pub fn master(&self, uri: &dyn Fn(&str) -> String) -> Result<String, Error> {
        let sounds = || self.clips.iter().map(|clip| &clip.video.sound);
        let sound = AlternativeMedia {
            media_type: AlternativeMediaType::Audio,
            uri: Some(uri(SOUND)),
            group_id: SOUND.to_owned(),
            name: SOUND.to_owned(),
            default: true,
            autoselect: true,
            channels: Some("2".to_owned()),
            ..AlternativeMedia::default()
        };
        let variants = self.heights().into_iter().map(|height| {
            let chosen = self.chosen(height);
            let codecs: BTreeSet<&str> = chosen
                .iter()
                .map(|quality| quality.codec.as_str())
                .chain(sounds().map(|sound| sound.codec.as_str()))
                .collect();
            let most = |of: fn(&Quality) -> u64| {
                chosen.iter().map(|quality| of(quality)).max().unwrap_or(0)
            };
            let paces = self.clips.iter().map(|clip| clip.video.pace.per_second());
            VariantStream {
                uri: uri(&format!("{height}p")),
                bandwidth: most(|quality| quality.peak_bits)
                    + sounds().map(|sound| sound.peak_bits).max().unwrap_or(0),
                average_bandwidth: Some(
                    most(|quality| quality.mean_bits)
                        + sounds().map(|sound| sound.mean_bits).max().unwrap_or(0),
                ),
                codecs: Some(codecs.into_iter().collect::<Vec<_>>().join(",")),
                resolution: Some(Resolution {
                    width: most(|quality| quality.width.into()),
                    height: most(|quality| quality.height.into()),
                }),
                // RFC 8216, 4.3.4.2: the highest, with three decimals.
                frame_rate: Some((paces.fold(0.0, f64::max) * 1000.0).round() / 1000.0),
                audio: Some(SOUND.to_owned()),
                ..VariantStream::default()
            }
        });
        let playlist = MasterPlaylist {
            version: Some(VERSION),
            independent_segments: true,
            variants: variants.collect(),
            alternatives: vec![sound],
            ..MasterPlaylist::default()
        };
        written(|bytes| playlist.write_to(bytes))
    }

    /// The HLS playlist of a track; `None` if it has no such track.
    ///
    /// # Errors
    /// None in practice: nothing is written but to memory.
    pub fn media(&self, track: &str, place: Place<'_>) -> Result<Option<String>, Error> {
        let chosen: Vec<String> = if track == SOUND {
            vec![SOUND.to_owned(); self.clips.len()]
        } else {
            let height = self
                .heights()
                .into_iter()
                .find(|height| track == format!("{height}p"));
            let Some(height) = height else {
                return Ok(None);
            };
            self.chosen(height)
                .iter()
                .map(|quality| quality.name())
                .collect()
        };
        let mut segments = Vec::new();
        for (i, (clip, folder)) in self.clips.iter().zip(chosen).enumerate() {
            let folder = format!("{}{folder}/", place(&clip.video.name));
            for number in clip.first..clip.first + clip.count {
                let is_first = number == clip.first;
                segments.push(MediaSegment {
                    uri: format!("{folder}{number:05}.mp4"),
                    duration: seconds(clip.video, track, number),
                    discontinuity: is_first && i > 0,
                    map: is_first.then(|| Map {
                        uri: format!("{folder}init.mp4"),
                        byte_range: None,
                        other_attributes: std::collections::HashMap::new(),
                    }),
                    ..MediaSegment::empty()
                });
            }
        }
        let longest = segments
            .iter()
            .map(|segment| segment.duration)
            .fold(0.0, f32::max);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is 0 to 120"
        )]
        let target_duration = longest.round().max(1.0) as u64;
        let playlist = MediaPlaylist {
            version: Some(VERSION),
            target_duration,
            segments,
            end_list: true,
            playlist_type: Some(MediaPlaylistType::Vod),
            independent_segments: true,
            ..MediaPlaylist::default()
        };
        written(|bytes| playlist.write_to(bytes)).map(Some)
    }

    /// The DASH description (ISO/IEC 23009-1), a period for each clip.
    ///
    /// # Errors
    /// None in practice: nothing is written but to memory.
    pub fn mpd(&self, place: Place<'_>) -> Result<String, Error> {
        dash::mpd(&self.clips, place)
    }
}

/// How long a segment of a track is, s.
fn seconds(video: &Video, track: &str, number: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 120 s")]
    let of_pictures = || video.ticks(number, 1) as f64 / f64::from(TICKS);
    let of_sound = |samples: &u32| f64::from(*samples) / f64::from(SAMPLES);
    let seconds = match video.sound.samples.get(number as usize) {
        Some(samples) if track == SOUND => of_sound(samples),
        _ => of_pictures(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "a microsecond is enough")]
    let seconds = ((seconds * 1e6).round() / 1e6) as f32;
    seconds
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let failed = |why: String| Error::Input(format!("a playlist cannot be written: {why}"));
    write(&mut bytes).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use m3u8_rs::Playlist;

    use super::*;
    use crate::video::tests::video;

    fn master(text: &str) -> MasterPlaylist {
        match m3u8_rs::parse_playlist_res(text.as_bytes()) {
            Ok(Playlist::MasterPlaylist(playlist)) => playlist,
            other => panic!("{other:?}: {text}"),
        }
    }

    fn media(text: &str) -> MediaPlaylist {
        match m3u8_rs::parse_playlist_res(text.as_bytes()) {
            Ok(Playlist::MediaPlaylist(playlist)) => playlist,
            other => panic!("{other:?}: {text}"),
        }
    }

    #[test]
    fn a_whole_video_is_a_show() {
        let video = video("a");
        let show = Show::new(vec![Clip::whole(&video)]);
        assert_eq!(show.tracks(), ["720p", "360p", "audio"]);
        let all = master(
            &show
                .master(&|track| format!("{track}.m3u8"))
                .expect("written"),
        );
        assert!(all.independent_segments);
        assert_eq!(all.variants.len(), 2);
        assert_eq!(all.variants[0].uri, "720p.m3u8");
        assert_eq!(all.variants[0].bandwidth, 4_100_000);
        assert_eq!(all.variants[1].average_bandwidth, Some(696_000));
        assert_eq!(
            all.variants[0].codecs.as_deref(),
            Some("avc3.64001f,mp4a.40.2")
        );
        assert_eq!(all.alternatives[0].uri.as_deref(), Some("audio.m3u8"));
        let text = show
            .media("720p", &|_| String::new())
            .expect("written")
            .expect("a track");
        let list = media(&text);
        assert_eq!(
            (list.segments.len(), list.target_duration, list.end_list),
            (10, 2, true)
        );
        assert_eq!(list.segments[9].uri, "720p/00009.mp4");
        assert!((list.segments[9].duration - 1.0).abs() < 1e-6);
        assert_eq!(
            list.segments[0].map.as_ref().expect("a header").uri,
            "720p/init.mp4"
        );
        assert!(list.segments.iter().all(|segment| !segment.discontinuity));
        assert_eq!(
            show.media("480p", &|_| String::new()).expect("written"),
            None
        );
    }

    #[test]
    fn clips_of_several_videos_follow_each_other() {
        let (a, mut b) = (video("a"), video("b"));
        b.qualities.remove(0);
        b.qualities[0].height = 240;
        let clip = |video, first, count| Clip {
            video,
            first,
            count,
        };
        let show = Show::new(vec![
            clip(&a, 2, 2),
            clip(&b, 9, 5),
            clip(&a, 0, 0),
            clip(&a, 99, 1),
        ]);
        assert_eq!(show.milliseconds(), 5000);
        // 240p would be the same as 360p: there is nothing lower of the first, and nothing else of the second.
        assert_eq!(show.tracks(), ["720p", "360p", "audio"]);
        let place = |name: &Name| format!("../media/{name}/");
        let list = media(
            &show
                .media("720p", &place)
                .expect("written")
                .expect("a track"),
        );
        let uris: Vec<&str> = list
            .segments
            .iter()
            .map(|segment| segment.uri.as_str())
            .collect();
        assert_eq!(
            uris,
            [
                "../media/a/720p/00002.mp4",
                "../media/a/720p/00003.mp4",
                "../media/b/240p/00009.mp4"
            ]
        );
        let breaks: Vec<bool> = list
            .segments
            .iter()
            .map(|segment| segment.discontinuity)
            .collect();
        assert_eq!(breaks, [false, false, true]);
        let map = |i: usize| list.segments[i].map.as_ref().expect("a header").uri.clone();
        assert_eq!(map(0), "../media/a/720p/init.mp4");
        assert_eq!(map(2), "../media/b/240p/init.mp4");
        assert!((list.segments[2].duration - 1.0).abs() < 1e-6);
    }
}
