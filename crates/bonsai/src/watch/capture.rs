//! Streams of a capture file.

use std::fs::File;
use std::path::Path;

use bonsai_media::meter::Thresholds;
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::capture::{Capture, ClockBy, read};
use serde_json::json;

use super::summary::ms;
use crate::cli::Watch;
use crate::output::{count, finish, print, print_json, table};

/// `bonsai watch --capture FILE`.
///
/// # Errors
/// It is no capture, or cannot be read.
pub(super) fn run(path: &Path, args: &Watch) -> anyhow::Result<u8> {
    let wrong = |why: String| Refusal::input(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let thresholds = Thresholds::default();
    let clocks = args.clock.iter().copied().collect();
    let capture = read(file, &clocks, &thresholds).map_err(|error| wrong(error.to_string()))?;
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "capture": path,
            "thresholds": thresholds,
            "found": capture,
        });
        print_json(&document, false)?;
    } else {
        print(&text(path, &capture))?;
    }
    Ok(u8::from(capture.streams.is_empty()))
}

fn text(path: &Path, capture: &Capture) -> String {
    let mut text = format!(
        "{}: {} in {}{}\n",
        path.display(),
        count(capture.streams.len() as u64, "stream", "streams"),
        count(capture.frames, "frame", "frames"),
        if capture.is_cut_off {
            ", cut off in the last"
        } else {
            ""
        },
    );
    if capture.unread > 0 {
        text.push_str(&format!(
            "{} not read: of links that are not known, or without a time\n",
            count(capture.unread, "frame", "frames")
        ));
    }
    if capture.streams.is_empty() {
        return text;
    }
    let header = [
        "from",
        "to",
        "SSRC",
        "type",
        "clock",
        "packets",
        "lost",
        "again",
        "reordered",
        "max. gap",
        "jitter",
        "max. jitter",
        "max. lag",
        "pace",
        "short of",
    ];
    let mut table = table(&header, &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    let mut guessed = false;
    for one in &capture.streams {
        let of = &one.stream;
        let is_guess = one.clock_by == ClockBy::Packets;
        guessed |= is_guess;
        let broken = one.verdict.broken.iter().map(|of| of.word());
        table.add_row(vec![
            one.from.to_string(),
            one.to.to_string(),
            format!("{:08x}", one.ssrc),
            one.payload_type.to_string(),
            format!("{}{}", one.clock_rate, if is_guess { "?" } else { "" }),
            of.received.to_string(),
            of.lost.to_string(),
            of.duplicates.to_string(),
            of.reordered.to_string(),
            ms(of.gap_max_ns as f64),
            ms(of.jitter_decoded.mean_ns),
            ms(of.jitter_decoded.max_ns),
            ms(of.lag_max_ns),
            format!("{:.3}", of.pace),
            broken.collect::<Vec<_>>().join(", "),
        ]);
    }
    text.push_str(&finish(&table));
    if guessed {
        text.push_str(
            "?: guessed by how fast timestamps go; jitter, lag and pace rest on it (--clock TYPE=RATE)\n",
        );
    }
    text
}
