//! Whether a sample is sent, or left out: where its viewer is slow, or there is no rate for it.

use std::io;

use bonsai_media::clip::Sample;
use bonsai_media::load::{Level, Pictures};
use bonsai_media::packets;

use super::super::loader::beginning;
use super::super::parts::{Fate, SampleView};
use super::super::stream::{Sink, Stream};
use super::Around;

/// Pictures of a quality that there is no rate for are left out if they are late, where the lower one comes in
/// so long, nanoseconds of the clip: motion stops no longer than that.
const SHORT: u64 = 2_000_000_000;

/// Most of the end of a group of pictures that is left out at once for a viewer who is slow, nanoseconds: motion stops no
/// longer than that.
const TAIL: u64 = 1_000_000_000;

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
    if is_too_slow(stream, line, &sample, around)? {
        stream.is_slow = true;
        return Ok(Fate::Drop);
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
        // A rate that is left is for pictures of the lowest quality.
        let behind = match stream.timeline.is_turning(line) {
            true => 0,
            false => stream.timeline.behind(line),
        };
        (stream.lanes[line].behind, stream.lanes[line].sent) = (behind, 0);
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

/// True where a sample is left out as its viewer takes less than is sent, and too much waits already: first pictures
/// that nothing is predicted from, and the end of each group, the more of it the more waits; then all up to the next
/// that decoding can begin with.
fn is_too_slow(
    stream: &mut Stream,
    line: usize,
    sample: &Sample,
    around: &Around<'_>,
) -> io::Result<bool> {
    let Sink::Interleaved { .. } = stream.lanes[line].sink else {
        return Ok(false);
    };
    let connection = around
        .connections
        .get(stream.connection)
        .and_then(Option::as_ref);
    let Some(connection) = connection else {
        return Ok(false);
    };
    let (waiting, room) = (
        connection.waiting(),
        connection.room(stream.need.at(Level::BEST)),
    );
    let is_picture = stream.lanes[line].is_picture;
    if waiting > room {
        stream.lanes[line].skips = is_picture;
        return Ok(true);
    }
    if waiting <= room / 2 || !is_picture || sample.is_sync() {
        return Ok(false);
    }
    if is_disposable(stream, line, sample)? == Some(true) {
        return Ok(true);
    }
    let tail = stream.timeline.within(line, tail_ns(waiting, room));
    let is_in_tail = tail.skip(1).any(Sample::is_sync);
    stream.lanes[line].skips |= is_in_tail;
    Ok(is_in_tail)
}

/// How much of the end of a group is left out: nothing where half of the room is taken, [`TAIL`] where all of it is. So what a
/// viewer misses comes to rest at what the connection lacks, in pieces that are as short as that lets them be.
fn tail_ns(waiting: usize, room: usize) -> i64 {
    let half = (room / 2).max(1) as u64;
    let over = (waiting as u64).saturating_sub(half).min(half);
    i64::try_from(TAIL / 1000 * over / half * 1000).unwrap_or(0)
}

/// True where nothing is predicted from a picture; `None` where that is not known.
fn is_disposable(stream: &mut Stream, line: usize, sample: &Sample) -> io::Result<Option<bool>> {
    let (quality, track) = (stream.timeline.quality(line), stream.timeline.track(line));
    let (file, ahead) = (stream.film.file(quality), &mut stream.ahead);
    let read = |bytes: &mut [u8], at| ahead.read(file, bytes, at);
    beginning(read, track, sample, packets::is_disposable)
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
    let pictures = around.load.level().pictures();
    if pictures > Pictures::All && is_disposable(stream, line, &sample)? == Some(true) {
        return Ok(true);
    }
    let lane = &mut stream.lanes[line];
    let sent = lane.sent + u64::from(sample.size());
    // What is predicted from a picture makes no sense without it.
    lane.skips = pictures == Pictures::Keys && sent > around.load.within(lane.behind);
    if !lane.skips {
        lane.sent = sent;
    }
    Ok(lane.skips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_group_that_is_left_out_grows_with_what_waits() {
        const ROOM: usize = 8 << 20;
        for (waiting, ms) in [
            (0, 0),
            (ROOM / 2, 0),
            (ROOM * 5 / 8, 250),
            (ROOM * 3 / 4, 500),
            (ROOM, 1000),
            (ROOM * 2, 1000),
        ] {
            assert_eq!(tail_ns(waiting, ROOM), ms * 1_000_000, "{waiting}");
        }
        assert_eq!(tail_ns(2, 0), 1_000_000_000);
    }
}
