//! What each player saw, a line for each.

use bonsai_host::Output;
use bonsai_stream::play::{Outcome, PlayerReport};
use serde::Serialize;

use crate::trace::output_error;
use crate::watch::rows::address;

/// A line; of a player that saw nothing the rest is empty.
#[derive(Debug, Default, Serialize)]
struct Row<'a> {
    viewer: usize,
    came_ns: u64,
    failure: Option<&'a str>,
    startup_ms: Option<f64>,
    played_ms: Option<f64>,
    stalls: Option<u64>,
    stall_ms: Option<f64>,
    rebuffer_ratio: Option<f64>,
    mean_kbps: Option<f64>,
    mean_segment_kbps: Option<f64>,
    switches_up: Option<u64>,
    switches_down: Option<u64>,
    mean_switch_kbps: Option<f64>,
    least_level_ms: Option<f64>,
    segment_p50_ms: Option<f64>,
    segment_p95_ms: Option<f64>,
    segment_p99_ms: Option<f64>,
    segment_max_ms: Option<f64>,
    fetched: Option<u64>,
    abandoned: Option<u64>,
    failed: Option<u64>,
    bytes: Option<f64>,
    wasted_bytes: Option<f64>,
    connections: Option<u64>,
    quality: Option<usize>,
    score: Option<f64>,
    top: Option<bool>,
    video: usize,
    url: &'a str,
}

/// Writes all of them.
///
/// # Errors
/// The file takes no more.
pub(super) fn write(file: Output, outcome: &Outcome, addresses: &[String]) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(file);
    for (number, player) in outcome.players.iter().enumerate() {
        writer.serialize(row(number, player, addresses))?;
    }
    let file = writer.into_inner().map_err(|error| error.into_error())?;
    file.commit().map_err(output_error)
}

fn row<'a>(number: usize, player: &'a PlayerReport, addresses: &'a [String]) -> Row<'a> {
    let row = Row {
        viewer: number,
        came_ns: player.came_ns,
        failure: player.failure.as_deref(),
        video: player.video,
        url: address(addresses, player.video),
        ..Row::default()
    };
    let Some(seen) = &player.seen else {
        return row;
    };
    let of = &seen.summary;
    Row {
        startup_ms: of.startup_ms,
        played_ms: Some(of.played_ms),
        stalls: Some(of.stalls),
        stall_ms: Some(of.stall_ms),
        rebuffer_ratio: Some(of.rebuffer_ratio),
        mean_kbps: Some(of.mean_kbps),
        mean_segment_kbps: Some(seen.mean_segment_kbps),
        switches_up: Some(of.switches_up),
        switches_down: Some(of.switches_down),
        mean_switch_kbps: of.mean_switch_kbps(),
        least_level_ms: of.least_level_ms,
        segment_p50_ms: Some(seen.times.p50_ms),
        segment_p95_ms: Some(seen.times.p95_ms),
        segment_p99_ms: Some(seen.times.p99_ms),
        segment_max_ms: Some(seen.times.max_ms),
        fetched: Some(of.fetched),
        abandoned: Some(of.abandoned),
        failed: Some(of.failed),
        bytes: Some(of.bits / 8.0),
        wasted_bytes: Some(of.wasted_bits / 8.0),
        connections: Some(seen.connections),
        quality: Some(seen.quality),
        score: seen.score,
        top: Some(player.is_top()),
        ..row
    }
}
