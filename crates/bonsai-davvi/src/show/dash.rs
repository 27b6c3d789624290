//! DASH (ISO/IEC 23009-1): a period for each clip, its segments named by their number.

use quick_xml::se::to_string_with_root;
use serde::{Deserialize, Serialize};

use super::{Clip, Place};
use crate::video::{SAMPLES, SOUND, TICKS};
use crate::{Error, Video};

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Mpd {
    #[serde(rename = "@xmlns")]
    xmlns: String,
    #[serde(rename = "@profiles")]
    profiles: String,
    #[serde(rename = "@type")]
    kind: String,
    #[serde(rename = "@mediaPresentationDuration")]
    length: String,
    #[serde(rename = "@minBufferTime")]
    buffer: String,
    #[serde(rename = "Period")]
    periods: Vec<Period>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Period {
    #[serde(rename = "@id")]
    id: String,
    #[serde(rename = "@start")]
    start: String,
    #[serde(rename = "@duration")]
    length: String,
    #[serde(rename = "BaseURL")]
    base: String,
    #[serde(rename = "AdaptationSet")]
    sets: Vec<Set>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Set {
    #[serde(rename = "@contentType")]
    content: String,
    #[serde(rename = "@mimeType")]
    mime: String,
    #[serde(rename = "@segmentAlignment")]
    is_aligned: bool,
    #[serde(rename = "@startWithSAP")]
    starts_with: u8,
    #[serde(rename = "SegmentTemplate")]
    template: Template,
    #[serde(rename = "Representation")]
    representations: Vec<Representation>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Template {
    #[serde(rename = "@timescale")]
    timescale: u32,
    #[serde(rename = "@duration")]
    length: u32,
    #[serde(rename = "@startNumber")]
    first: u32,
    #[serde(rename = "@presentationTimeOffset")]
    offset: u64,
    #[serde(rename = "@initialization")]
    header: String,
    #[serde(rename = "@media")]
    media: String,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Representation {
    #[serde(rename = "@id")]
    id: String,
    #[serde(rename = "@codecs")]
    codecs: String,
    #[serde(rename = "@bandwidth")]
    bits: u64,
    #[serde(rename = "@width", skip_serializing_if = "Option::is_none")]
    width: Option<u32>,
    #[serde(rename = "@height", skip_serializing_if = "Option::is_none")]
    height: Option<u32>,
    #[serde(rename = "@frameRate", skip_serializing_if = "Option::is_none")]
    pace: Option<String>,
    #[serde(rename = "@audioSamplingRate", skip_serializing_if = "Option::is_none")]
    samples: Option<u32>,
    #[serde(
        rename = "AudioChannelConfiguration",
        skip_serializing_if = "Option::is_none"
    )]
    channels: Option<Channels>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Channels {
    #[serde(rename = "@schemeIdUri")]
    scheme: String,
    #[serde(rename = "@value")]
    value: u8,
}

pub(super) fn mpd(clips: &[Clip<'_>], place: Place<'_>) -> Result<String, Error> {
    let mut start = 0;
    let periods = clips.iter().enumerate().map(|(i, clip)| {
        let ticks = clip.video.ticks(clip.first, clip.count);
        let mut base = place(&clip.video.name);
        if base.is_empty() {
            // Without one, ffmpeg looks for segments in the wrong folder.
            base.push_str("./");
        }
        let period = Period {
            id: format!("{i}"),
            start: time(start),
            length: time(ticks),
            base,
            sets: sets(clip),
        };
        start += ticks;
        period
    });
    let periods: Vec<Period> = periods.collect();
    let longest = clips
        .iter()
        .map(|clip| clip.video.segment_ticks())
        .max()
        .unwrap_or(0);
    let mpd = Mpd {
        xmlns: "urn:mpeg:dash:schema:mpd:2011".to_owned(),
        profiles: "urn:mpeg:dash:profile:isoff-live:2011".to_owned(),
        kind: "static".to_owned(),
        length: time(start),
        buffer: time(u64::from(longest)),
        periods,
    };
    let text = to_string_with_root("MPD", &mpd);
    let text = text.map_err(|error| Error::Input(format!("an MPD cannot be written: {error}")))?;
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}\n"
    ))
}

fn sets(clip: &Clip<'_>) -> Vec<Set> {
    let video = clip.video;
    let set = |content: &str, representations| Set {
        content: content.to_owned(),
        mime: format!("{content}/mp4"),
        is_aligned: true,
        starts_with: 1,
        template: Template {
            timescale: TICKS,
            length: video.segment_ticks(),
            first: clip.first,
            // Segments keep the time that they have in the whole of their video.
            offset: video.starts_s * u64::from(TICKS)
                + u64::from(clip.first) * u64::from(video.segment_ticks()),
            header: "$RepresentationID$/init.mp4".to_owned(),
            media: "$RepresentationID$/$Number%05d$.mp4".to_owned(),
        },
        representations,
    };
    vec![
        set("video", pictures(video)),
        set("audio", vec![sound(video)]),
    ]
}

fn pictures(video: &Video) -> Vec<Representation> {
    let pace = match (video.pace.over, video.pace.under) {
        (over, 1) => format!("{over}"),
        (over, under) => format!("{over}/{under}"),
    };
    let qualities = video.qualities.iter().map(|quality| Representation {
        id: quality.name(),
        codecs: quality.codec.clone(),
        bits: quality.peak_bits,
        width: Some(quality.width),
        height: Some(quality.height),
        pace: Some(pace.clone()),
        samples: None,
        channels: None,
    });
    qualities.collect()
}

fn sound(video: &Video) -> Representation {
    Representation {
        id: SOUND.to_owned(),
        codecs: video.sound.codec.clone(),
        bits: video.sound.peak_bits,
        width: None,
        height: None,
        pace: None,
        samples: Some(SAMPLES),
        channels: Some(Channels {
            scheme: "urn:mpeg:dash:23003:3:audio_channel_configuration:2011".to_owned(),
            value: 2,
        }),
    }
}

/// As xs:duration, to the microsecond.
fn time(ticks: u64) -> String {
    let us = ticks * 1_000_000 / u64::from(TICKS);
    format!("PT{}.{:06}S", us / 1_000_000, us % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::tests::video;

    #[test]
    fn each_clip_is_a_period() {
        let (a, b) = (video("a"), video("b"));
        let clip = |video, first, count| Clip {
            video,
            first,
            count,
        };
        let clips = [clip(&a, 2, 2), clip(&b, 8, 2)];
        let text = mpd(&clips, &|name| format!("../media/{name}/")).expect("written");
        let read: Mpd = quick_xml::de::from_str(&text).expect("an MPD");
        assert_eq!(read.length, "PT7.000000S");
        assert_eq!(read.periods.len(), 2);
        assert_eq!(read.periods[1].start, "PT4.000000S");
        assert_eq!(read.periods[1].length, "PT3.000000S");
        assert_eq!(read.periods[1].base, "../media/b/");
        let set = &read.periods[0].sets[0];
        assert_eq!(
            (set.template.first, set.template.offset),
            (2, 2 * 2 * u64::from(TICKS))
        );
        assert_eq!(set.template.length, 2 * TICKS);
        assert_eq!(set.representations.len(), 2);
        assert_eq!(set.representations[0].id, "720p");
        assert_eq!(set.representations[0].pace.as_deref(), Some("25"));
        assert_eq!(read.periods[0].sets[1].mime, "audio/mp4");
        let alone = mpd(&[Clip::whole(&a)], &|_| String::new()).expect("written");
        assert!(
            alone.contains("<BaseURL>./</BaseURL>")
                && alone.contains("xmlns=\"urn:mpeg:dash:schema:mpd:2011\"")
        );
    }
}
