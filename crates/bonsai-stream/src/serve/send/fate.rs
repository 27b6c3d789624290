//! Whether a sample is sent, or left out: where its viewer is slow, or there is no rate for it.

use std::io;

use bonsai_media::load::Pictures;
use bonsai_media::packets::h264;

use super::super::connection::BACKLOG;
use super::super::loader::beginning;
use super::super::parts::{Fate, SampleView};
use super::super::stream::{Sink, Stream};
use super::Around;

/// Pictures of a quality that there is no rate for are left out if they are late, where the lower one comes in
/// so long, nanoseconds of the clip: motion stops no longer than that.
const SHORT: u64 = 2_000_000_000;

/// Whether a sample is sent.
pub(super) fn of(
    stream: &mut Stream,
    line: usize,
    late_ns: u64,
    around: &mut Around<'_>,
) -> io::Result<Fate> {
    let Some(sample) = stream.timeline.sample(line).copied() else {
        return Ok(Fate::Drop);
    };
    let (is_picture, is_sync) = (stream.lanes[line].is_picture, sample.is_sync());
    if let Sink::Interleaved { .. } = stream.lanes[line].sink {
        // A viewer who is slow misses something; it does not wait for everything ever later.
        let connection = around
            .connections
            .get(stream.connection)
            .and_then(Option::as_ref);
        if connection.is_some_and(|connection| connection.waiting() > BACKLOG) {
            stream.lanes[line].skips = is_picture;
            return Ok(Fate::Drop);
        }
    }
    let level = around.load.level();
    let until_lower = stream.timeline.until_lower(line).filter(|ns| *ns <= SHORT);
    if is_picture && until_lower.is_some() && around.load.is_late(late_ns) {
        // There is no rate for it, and what there is one for would be as late.
        stream.lanes[line].skips = true;
        around.gathering.sample(false);
        return Ok(Fate::Drop);
    }
    if is_picture && is_sync {
        stream.lanes[line].left = match level.pictures() {
            // Where that changes in the middle, what is sent becomes less at once.
            Pictures::All | Pictures::Needed => 0,
            // What there is a rate for are pictures of the lowest quality.
            Pictures::Keys if stream.timeline.is_turning(line) => 0,
            Pictures::Keys => around.load.within(stream.timeline.behind(line)),
        };
    } else if is_picture && leaves_out(stream, line, around)? {
        // What a slow viewer misses says nothing of the server.
        if level.pictures() > Pictures::All {
            around.gathering.sample(false);
        }
        return Ok(Fate::Drop);
    }
    let view = SampleView {
        is_picture,
        is_sync,
        bytes: sample.size(),
        late_ns,
        level: level.pictures() as u8,
    };
    let dropped = stream
        .handlers
        .iter_mut()
        .any(|of| of.sample(&view) == Fate::Drop);
    Ok(if dropped { Fate::Drop } else { Fate::Send })
}

/// Whether a picture that decoding cannot begin with is left out, as there is no rate for it, or for
/// one that it is predicted from.
fn leaves_out(stream: &mut Stream, line: usize, around: &Around<'_>) -> io::Result<bool> {
    let Some(sample) = stream.timeline.sample(line).copied() else {
        return Ok(true);
    };
    if stream.lanes[line].skips {
        return Ok(true);
    }
    let mut failed = None;
    let is_needless = around.load.drops(|| {
        let (file, track) = (stream.file(line), stream.timeline.track(line));
        let found = beginning(file, track, &sample, h264::is_disposable);
        found.unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if is_needless || around.load.level().pictures() < Pictures::Keys {
        return Ok(is_needless);
    }
    let lane = &mut stream.lanes[line];
    // What is predicted from a picture makes no sense without it.
    match lane.left.checked_sub(sample.size().into()) {
        Some(left) => lane.left = left,
        None => lane.skips = true,
    }
    Ok(lane.skips)
}
