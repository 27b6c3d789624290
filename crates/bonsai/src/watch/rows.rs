//! What each viewer saw, a line for each track.

use std::path::Path;

use bonsai_host::Output;
use bonsai_services::refusal::Refusal;
use bonsai_stream::watch::{Outcome, TrackReport, ViewerReport};
use serde::Serialize;

use crate::trace::output_error;

/// A line; of a viewer without tracks the rest is empty.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Row<'a> {
    viewer: usize,
    came_ns: u64,
    failure: Option<&'a str>,
    kind: Option<&'a str>,
    encoding: Option<&'a str>,
    expected: Option<u64>,
    received: Option<u64>,
    lost: Option<u64>,
    duplicates: Option<u64>,
    reordered: Option<u64>,
    strays: Option<u64>,
    bytes: Option<u64>,
    startup_ns: Option<u64>,
    elapsed_ns: Option<u64>,
    gap_max_ns: Option<u64>,
    gap_p50_ns: Option<u64>,
    gap_p99_ns: Option<u64>,
    gaps_over_400_ms: Option<u64>,
    jitter_packets_mean_ns: Option<f64>,
    jitter_packets_max_ns: Option<f64>,
    jitter_pictures_mean_ns: Option<f64>,
    jitter_pictures_max_ns: Option<f64>,
    lag_ns: Option<f64>,
    lag_max_ns: Option<f64>,
    late_packets: Option<u64>,
    pace: Option<f64>,
    dropped_here: Option<u64>,
    paper: Option<bool>,
    honest: Option<bool>,
    jitter_decoded_mean_ns: Option<f64>,
    jitter_decoded_max_ns: Option<f64>,
    video: usize,
    url: &'a str,
}

/// The file that lines go to.
///
/// # Errors
/// It cannot be written.
pub(super) fn create(path: &Path) -> anyhow::Result<Output> {
    let created = Output::create(path);
    created.map_err(|error| Refusal::input(format!("--csv {}", bonsai_host::sentence(&error))))
}

/// Writes all of them.
///
/// # Errors
/// The file takes no more.
pub(super) fn write(file: Output, outcome: &Outcome, addresses: &[String]) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(file);
    for (number, viewer) in outcome.viewers.iter().enumerate() {
        let row = || of_viewer(number, viewer, addresses);
        if viewer.tracks.is_empty() {
            writer.serialize(row())?;
        }
        for track in &viewer.tracks {
            writer.serialize(of_track(row(), track))?;
        }
    }
    let file = writer.into_inner().map_err(|error| error.into_error())?;
    file.commit().map_err(output_error)
}

/// The address of a video, by its number.
pub(super) fn address(addresses: &[String], video: usize) -> &str {
    let place = video.checked_sub(1);
    let address = place.and_then(|place| addresses.get(place));
    address.map_or("", String::as_str)
}

fn of_viewer<'a>(number: usize, viewer: &'a ViewerReport, addresses: &'a [String]) -> Row<'a> {
    Row {
        viewer: number,
        came_ns: viewer.came_ns,
        failure: viewer.failure.as_deref(),
        video: viewer.video,
        url: address(addresses, viewer.video),
        ..Row::default()
    }
}

fn of_track<'a>(row: Row<'a>, track: &'a TrackReport) -> Row<'a> {
    let of = &track.stream;
    Row {
        kind: Some(&track.kind),
        encoding: Some(&track.encoding),
        expected: Some(of.expected),
        received: Some(of.received),
        lost: Some(of.lost),
        duplicates: Some(of.duplicates),
        reordered: Some(of.reordered),
        strays: Some(of.strays),
        bytes: Some(of.bytes),
        startup_ns: of.startup_ns,
        elapsed_ns: Some(of.elapsed_ns),
        gap_max_ns: Some(of.gap_max_ns),
        gap_p50_ns: Some(of.gap_p50_ns),
        gap_p99_ns: Some(of.gap_p99_ns),
        gaps_over_400_ms: Some(of.gaps_over_400_ms),
        jitter_packets_mean_ns: Some(of.jitter_packets.mean_ns),
        jitter_packets_max_ns: Some(of.jitter_packets.max_ns),
        jitter_pictures_mean_ns: Some(of.jitter_pictures.mean_ns),
        jitter_pictures_max_ns: Some(of.jitter_pictures.max_ns),
        lag_ns: Some(of.lag_ns),
        lag_max_ns: Some(of.lag_max_ns),
        late_packets: Some(of.late_packets),
        pace: Some(of.pace),
        dropped_here: Some(of.dropped_here),
        paper: Some(track.verdict.paper),
        honest: Some(track.verdict.honest),
        jitter_decoded_mean_ns: Some(of.jitter_decoded.mean_ns),
        jitter_decoded_max_ns: Some(of.jitter_decoded.max_ns),
        ..row
    }
}
