//! Whether a packet is due: where there is a pacer, or the stream is behind, packets of one sample are not sent
//! all at once.

use bonsai_media::clip::Sample;
use bonsai_media::timeline::Timeline;

use super::super::parts::{PaceView, Pacer};
use super::super::stream::Stream;
use crate::clock::now;

/// Packets that a stream which is behind sends before others have their turn. Where the rate does not suffice
/// for all, whoever waits for whole pictures of all others waits longer the larger these are.
const TURN: u32 = 4;

/// Lets packets of a sample go when they are due; without a pacer, that is now.
pub(super) struct Gate {
    paced: Option<Paced>,
    /// Bytes that may go now, and behind how many.
    turn: u32,
    from: Option<u32>,
    /// When the next packet is due that was held back.
    later: Option<u64>,
}

struct Paced {
    pacer: Box<dyn Pacer>,
    view: PaceView,
    /// When the first packet was sent.
    began: u64,
}

impl Gate {
    /// Of a line's sample, which has been begun. The stream's pacer is with it until it is given back.
    pub(super) fn new(stream: &mut Stream, line: usize, sample: &Sample, is_behind: bool) -> Self {
        let full = u32::try_from(stream.pipeline.payload).unwrap_or(u32::MAX);
        let paced = stream.parts.pacer.take().map(|pacer| {
            let (began, room_ns) = stream.lanes[line].begun.unwrap_or((0, 0));
            let view = PaceView {
                is_picture: stream.lanes[line].is_picture,
                is_sync: sample.is_sync(),
                bytes: sample.size(),
                sent: 0,
                packets: sample.size().div_ceil(full.max(1)),
                room_ns,
            };
            Paced { pacer, view, began }
        });
        let turn = if is_behind {
            full.saturating_mul(TURN)
        } else {
            u32::MAX
        };
        Self {
            paced,
            turn,
            from: None,
            later: None,
        }
    }

    /// Whether the packet is due that comes behind so many bytes of the sample.
    pub(super) fn lets(&mut self, sent: u32) -> bool {
        let from = *self.from.get_or_insert(sent);
        self.later = match sent - from < self.turn {
            true => self.due(sent).filter(|due| *due > now()),
            // Whoever is due earlier comes first.
            false => Some(now()),
        };
        self.later.is_none()
    }

    /// Up to where in the sample packets are due, at least so far.
    pub(super) fn reach(&mut self, least: u32, each: usize) -> u32 {
        let most = self.from.unwrap_or(0).saturating_add(self.turn).max(least);
        let Some(size) = self.paced.as_ref().map(|paced| paced.view.bytes) else {
            return most;
        };
        let (each, at) = (u32::try_from(each.max(1)).unwrap_or(u32::MAX), now());
        let mut reach = least;
        while reach < size && self.due(reach).is_none_or(|due| due <= at) {
            reach = reach.saturating_add(each);
        }
        reach.min(most)
    }

    /// When the packet is due that comes behind so many bytes; `None` for the first, and without a pacer.
    fn due(&mut self, sent: u32) -> Option<u64> {
        let paced = self.paced.as_mut().filter(|_| sent > 0)?;
        paced.view.sent = sent;
        let after = paced.pacer.at(&paced.view).min(paced.view.room_ns);
        Some(paced.began.saturating_add(after))
    }

    /// Gives the pacer back; when the sample goes on, if it was held back.
    pub(super) fn back(self, stream: &mut Stream) -> Option<u64> {
        stream.parts.pacer = self.paced.map(|paced| paced.pacer);
        self.later
    }
}

/// From now, when a line's sample is sent so late, to when the next one is due, nanoseconds; behind the last
/// it is as long as before it.
pub(super) fn room(timeline: &Timeline, line: usize, late_ns: u64) -> u64 {
    let track = timeline.track(line);
    let mut next = timeline.within(line, i64::MAX);
    let last = track.samples().split_last_chunk();
    let (one, other) = match (next.next(), next.next(), last) {
        (Some(this), Some(next), _) => (this, next),
        (_, None, Some((_, [one, other]))) => (one, other),
        _ => return 0,
    };
    let gap = track.decoded_ns(other) - track.decoded_ns(one);
    let gap = u64::try_from(gap).unwrap_or(0);
    // As the timeline catches up.
    gap.saturating_sub(late_ns).max(gap / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(turn: u32) -> Gate {
        Gate {
            paced: None,
            turn,
            from: None,
            later: None,
        }
    }

    #[test]
    fn who_is_behind_goes_on_after_the_others_had_their_turn() {
        let mut gate = gate(4 * 1388);
        assert!(gate.lets(10_000) && gate.lets(10_000 + 4 * 1388 - 1));
        assert!(gate.later.is_none(), "it goes on at once");
        assert!(!gate.lets(10_000 + 4 * 1388));
        assert!(
            gate.later.is_some_and(|at| at <= now()),
            "it waits for nothing else"
        );
        assert_eq!(gate.reach(10_100, 1388), 10_000 + 4 * 1388);
        assert_eq!(gate.reach(20_000, 1388), 20_000, "a packet at least");
    }

    #[test]
    fn who_is_in_time_sends_all_at_once() {
        let mut gate = gate(u32::MAX);
        assert!(gate.lets(0) && gate.lets(u32::MAX - 1));
        assert_eq!(gate.reach(1, 1388), u32::MAX);
    }
}
