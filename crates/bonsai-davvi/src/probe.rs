//! What ffprobe says of a source.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::Error;
use crate::tool::{Step, Tool};
use crate::video::{Pace, TICKS};

/// The containers that are taken. What others may name (files, addresses) is never opened.
const FORMATS: &str = "mov,matroska,mpegts,mpeg,avi,flv,ogg,asf,mxf,nut,gxf,dv,ivf";
/// The longest video, s.
const LONGEST: f64 = 86_400.0;
/// The largest pictures, in either direction.
const LARGEST: u32 = 8192;
/// The most bytes of an answer.
const MOST_ANSWER: usize = 4 << 20;

/// Pictures per second that are made: all have a whole number of [`TICKS`].
const PACES: [(u32, u32); 20] = [
    (5, 1),
    (6, 1),
    (8, 1),
    (9, 1),
    (10, 1),
    (12, 1),
    (25, 2),
    (15, 1),
    (16, 1),
    (18, 1),
    (20, 1),
    (24_000, 1001),
    (24, 1),
    (25, 1),
    (30_000, 1001),
    (30, 1),
    (48, 1),
    (50, 1),
    (60_000, 1001),
    (60, 1),
];

/// What is to be imported.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// The stream of pictures.
    pub(crate) pictures: u32,
    /// The stream of sound, if there is any.
    pub(crate) sound: Option<u32>,
    /// Lines, as shown.
    pub(crate) height: u32,
    pub(crate) pace: Pace,
    /// How long it says it is, s, and whether its pictures say so themselves.
    pub(crate) length: f64,
    pub(crate) is_of_pictures: bool,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    streams: Vec<Stream>,
    format: Option<Format>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    index: u32,
    #[serde(default)]
    codec_type: String,
    width: Option<u32>,
    height: Option<u32>,
    avg_frame_rate: Option<String>,
    r_frame_rate: Option<String>,
    duration: Option<String>,
    #[serde(default)]
    disposition: Disposition,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Debug, Default, Deserialize)]
struct Disposition {
    #[serde(default)]
    attached_pic: u8,
}

#[derive(Debug, Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Format {
    duration: Option<String>,
}

/// How a source is named to ffmpeg and ffprobe: as a file, whatever it is called, and of no other kind.
pub(crate) fn opened(path: &Path) -> Vec<OsString> {
    let mut named = OsString::from("file:");
    named.push(path);
    let words = [
        "-protocol_whitelist",
        "file",
        "-format_whitelist",
        FORMATS,
        "-i",
    ];
    words
        .into_iter()
        .map(OsString::from)
        .chain([named])
        .collect()
}

/// Asks what a file is.
pub(crate) fn probe(file: &Path) -> Result<Source, Error> {
    let path = file
        .canonicalize()
        .map_err(|error| no_video(file, &error.to_string()))?;
    if !path.is_file() {
        return Err(no_video(file, "it is no file"));
    }
    let words = [
        "-v",
        "error",
        "-print_format",
        "json",
        "-show_format",
        "-show_streams",
    ];
    let tool = Tool {
        program: "ffprobe",
        arguments: words
            .into_iter()
            .map(OsString::from)
            .chain(opened(&path))
            .collect(),
        folder: None,
        patience: Duration::from_secs(60),
        most: Duration::from_secs(60),
    };
    let mut text = String::new();
    let asked = tool.run(|line| {
        if text.len() < MOST_ANSWER {
            text.push_str(line);
        }
        Step::None
    });
    asked.map_err(|error| match error {
        Error::Program { last_line, .. } => no_video(file, &last_line),
        other => other,
    })?;
    let answer = serde_json::from_str(&text);
    let answer: Answer =
        answer.map_err(|error| no_video(file, &format!("ffprobe answers {error}")))?;
    source(path, &answer).map_err(|why| no_video(file, &why))
}

fn no_video(file: &Path, why: &str) -> Error {
    Error::input(format!("{}: cannot be imported: {why}", file.display()))
}

fn source(path: PathBuf, answer: &Answer) -> Result<Source, String> {
    let of = |kind: &'static str| {
        let streams = answer.streams.iter();
        streams
            .filter(move |stream| stream.codec_type == kind && stream.disposition.attached_pic == 0)
    };
    let pictures = of("video").next().ok_or("it has no pictures")?;
    let (width, height) = (pictures.width.unwrap_or(0), pictures.height.unwrap_or(0));
    if width < 2 || height < crate::ladder::LOWEST || width > LARGEST || height > LARGEST {
        return Err(format!(
            "its pictures are {width}x{height}: from 16 lines to {LARGEST} are taken"
        ));
    }
    let mut turned = pictures
        .side_data_list
        .iter()
        .filter_map(|data| data.rotation);
    let is_turned = turned
        .next_back()
        .is_some_and(|angle| (angle.abs() % 180.0 - 90.0).abs() < 1.0);
    let seconds = |text: &Option<String>| {
        let number = text.as_ref()?.parse::<f64>().ok()?;
        (number.is_finite() && number > 0.0).then_some(number)
    };
    let own = seconds(&pictures.duration);
    let whole = answer
        .format
        .as_ref()
        .and_then(|format| seconds(&format.duration));
    let length = own.or(whole).ok_or("it does not say how long it is")?;
    if length > LONGEST {
        return Err(format!("it is {length:.0} s long: a day is the most"));
    }
    Ok(Source {
        path,
        pictures: pictures.index,
        sound: of("audio").next().map(|stream| stream.index),
        height: if is_turned { width } else { height },
        pace: pace(pictures),
        length,
        is_of_pictures: own.is_some(),
    })
}

/// The pace that is nearest to that of a stream; 25 a second where it has none.
fn pace(stream: &Stream) -> Pace {
    let ratio = |text: &Option<String>| {
        let (over, under) = text.as_ref()?.split_once('/')?;
        let ratio = over.parse::<f64>().ok()? / under.parse::<f64>().ok()?;
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    };
    let asked = ratio(&stream.avg_frame_rate).or_else(|| ratio(&stream.r_frame_rate));
    let asked = asked.unwrap_or(25.0);
    let distance =
        |(over, under): &(u32, u32)| (f64::from(*over) / f64::from(*under) - asked).abs();
    let nearest = PACES
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let (over, under) = nearest.copied().unwrap_or((25, 1));
    debug_assert_eq!(TICKS * under % over, 0, "a whole number of ticks");
    Pace { over, under }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Source, String> {
        let answer: Answer = serde_json::from_str(text).expect("an answer");
        source(PathBuf::from("/x"), &answer)
    }

    #[test]
    fn pictures_and_sound_are_found() {
        let found = asked(
            r#"{"streams": [
                {"index": 0, "codec_type": "video", "width": 500, "height": 500, "disposition": {"attached_pic": 1}},
                {"index": 1, "codec_type": "audio", "duration": "90.0"},
                {"index": 2, "codec_type": "video", "width": 1920, "height": 1080, "avg_frame_rate": "2997/100",
                 "side_data_list": [{"side_data_type": "Display Matrix", "rotation": -90}]}
            ], "format": {"duration": "91.5"}}"#,
        );
        let found = found.expect("a source");
        assert_eq!(
            (found.pictures, found.sound, found.height),
            (2, Some(1), 1920)
        );
        assert_eq!((found.pace.over, found.pace.under), (30_000, 1001));
        assert!((found.length - 91.5).abs() < 1e-9 && !found.is_of_pictures);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        for (text, why) in [
            ("{}", "no pictures"),
            (
                r#"{"streams": [{"index": 0, "codec_type": "audio"}]}"#,
                "no pictures",
            ),
            (
                r#"{"streams": [{"index": 0, "codec_type": "video", "width": 9000, "height": 90}]}"#,
                "9000x90",
            ),
            (
                r#"{"streams": [{"index": 0, "codec_type": "video", "width": 90, "height": 90}]}"#,
                "how long",
            ),
            (
                r#"{"streams": [{"index": 0, "codec_type": "video", "width": 90, "height": 90, "duration": "1e9"}]}"#,
                "a day",
            ),
        ] {
            let said = asked(text).expect_err(text);
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn every_pace_has_a_whole_number_of_ticks() {
        for (over, under) in PACES {
            assert_eq!(TICKS * under % over, 0, "{over}/{under}");
        }
    }
}
