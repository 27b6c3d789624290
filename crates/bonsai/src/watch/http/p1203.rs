//! What players saw, as ITU-T P.1203 takes it in mode 0.
//!
//! The format is that of the public description of <https://github.com/itu-p1203/itu-p1203> ("JSON Input
//! Format"): I11 is sound, I13 is pictures, I23 is when nothing moved, in media time, the start first. What
//! computes a score of it has a licence of its own, and is not here.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use bonsai_services::refusal::Refusal;
use bonsai_stream::play::{Film, Logged, Outcome, PlayerReport, Quality, Seen};
use serde::Serialize;

use crate::trace::write_output;

#[derive(Debug, Serialize)]
struct Input {
    #[serde(rename = "I11", skip_serializing_if = "Option::is_none")]
    sound: Option<Track<Sound>>,
    #[serde(rename = "I13")]
    pictures: Track<Pictures>,
    #[serde(rename = "I23")]
    stalls: Stalls,
    #[serde(rename = "IGen")]
    shown: Shown,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Track<T> {
    stream_id: usize,
    segments: Vec<T>,
}

#[derive(Debug, Serialize)]
struct Sound {
    codec: &'static str,
    /// Seconds.
    start: f64,
    duration: f64,
    /// kbit/s.
    bitrate: f64,
}

#[derive(Debug, Serialize)]
struct Pictures {
    codec: &'static str,
    start: f64,
    duration: f64,
    resolution: String,
    bitrate: f64,
    fps: f64,
    representation: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stalls {
    stream_id: usize,
    /// Where in the film, and how long, seconds.
    stalling: Vec<[f64; 2]>,
}

/// A screen of the kind that the standard was made with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    display_size: &'static str,
    viewing_distance: &'static str,
    device: &'static str,
}

/// The folder that files go to.
///
/// # Errors
/// It cannot be made.
pub(super) fn folder(path: &Path) -> anyhow::Result<&Path> {
    let made = fs::create_dir_all(path);
    made.map_err(|error| Refusal::input(format!("--p1203 {}: {error}", path.display())))?;
    Ok(path)
}

/// Writes a file for each player that saw something.
///
/// # Errors
/// The film does not say what is needed, or a file cannot be written.
pub(super) fn write(folder: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let films = || outcome.players.iter().map(|player| outcome.film_of(player));
    let qualities = films()
        .flatten()
        .flat_map(|film| film.qualities.iter().enumerate());
    for (number, quality) in qualities {
        if quality.size.is_none() || quality.fps.is_none() {
            return Err(Refusal::input(format!(
                "--p1203: the playlist does not say how many pixels (RESOLUTION) and pictures a second (FRAME-RATE) \
                 quality {number} has, so nothing was written"
            )));
        }
    }
    for ((number, player), film) in (1..).zip(&outcome.players).zip(films()) {
        if let Some(input) = film.and_then(|film| input(film, player, number)) {
            let path = folder.join(format!("player-{number}.json"));
            let text = serde_json::to_string_pretty(&input)? + "\n";
            write_output(&path, text.as_bytes()).context("--p1203")?;
        }
    }
    Ok(())
}

fn input(film: &Film, player: &PlayerReport, number: usize) -> Option<Input> {
    let seen = player.seen.as_ref()?;
    let log = seen.log.as_ref()?;
    let shown = shown(seen);
    let pictures = shown.iter().filter_map(|(of, start, duration)| {
        let quality = film.qualities.get(of.quality)?;
        let (width, height) = quality.size?;
        Some(Pictures {
            codec: pictures(quality),
            start: *start,
            duration: *duration,
            resolution: format!("{width}x{height}"),
            bitrate: kbps(of.bytes, of.ms),
            fps: quality.fps?,
            representation: of.quality,
        })
    });
    let pictures: Vec<Pictures> = pictures.collect();
    if pictures.is_empty() {
        return None;
    }
    let codec = film.sound.as_ref().map(|of| sound(of.codecs.as_deref()));
    let sound = codec.map(|codec| Track {
        stream_id: number,
        segments: shown
            .iter()
            .map(|(of, start, duration)| Sound {
                codec,
                start: *start,
                duration: *duration,
                bitrate: kbps(of.sound_bytes, of.ms),
            })
            .collect(),
    });
    let start = seen.summary.startup_ms.map(|ms| [0.0, ms / 1e3]);
    let stalls = log.stalls.iter();
    let stalls = stalls.map(|stall| [stall.at_ms / 1e3, stall.ms / 1e3]);
    Some(Input {
        sound,
        pictures: Track {
            stream_id: number,
            segments: pictures,
        },
        stalls: Stalls {
            stream_id: number,
            stalling: start.into_iter().chain(stalls).collect(),
        },
        shown: Shown {
            display_size: "1920x1080",
            viewing_distance: "150cm",
            device: "pc",
        },
    })
}

/// Segments that began to be shown: start and length of what was shown of each, seconds.
fn shown(seen: &Seen) -> Vec<(Logged, f64, f64)> {
    let played_ms = seen.summary.played_ms;
    let mut at_ms = 0.0;
    let mut shown = Vec::new();
    for segment in seen.log.iter().flat_map(|log| &log.segments) {
        let left_ms = played_ms - at_ms;
        if left_ms <= 0.0 {
            break;
        }
        shown.push((*segment, at_ms / 1e3, segment.ms.min(left_ms) / 1e3));
        at_ms += segment.ms;
    }
    shown
}

fn kbps(bytes: u64, ms: f64) -> f64 {
    bytes as f64 * 8.0 / ms
}

/// As the standard's program and its extension name codecs; H.264 where nothing is said.
fn pictures(quality: &Quality) -> &'static str {
    let codecs = quality.codecs.as_deref().unwrap_or_default();
    let has = |names: &[&str]| {
        let mut all = codecs.split(',').map(str::trim);
        all.any(|codec| names.iter().any(|name| codec.starts_with(name)))
    };
    if has(&["hvc1", "hev1"]) {
        "h265"
    } else if has(&["vp09", "vp9"]) {
        "vp9"
    } else if has(&["av01"]) {
        "av1"
    } else {
        "h264"
    }
}

/// AAC-LC where nothing is said.
fn sound(codecs: Option<&str>) -> &'static str {
    let all = codecs.unwrap_or_default().split(',').map(str::trim);
    let mut known = all.filter_map(|codec| match codec {
        "mp4a.40.5" | "mp4a.40.29" => Some("heaac"),
        "ac-3" => Some("ac3"),
        _ => None,
    });
    known.next_back().unwrap_or("aaclc")
}
