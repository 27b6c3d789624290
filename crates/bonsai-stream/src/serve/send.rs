//! Samples into packets, and those out: the two engines.
//!
//! Both cut a sample the same way, so that they differ in their calls alone: *classic* reads and sends
//! packet by packet, *fast* reads a sample as a whole, and sends all packets of one size by one call. Where
//! there is a pacer, both go as far as packets are due, and the timeline holds the rest until the next is.

mod bytes;
mod fast;
mod fate;
mod gate;
mod made;

use std::io;

use bonsai_media::load::Load;
use bonsai_media::packets::aac::{self, Heads};
use bonsai_media::packets::{Cut, How, Piece, most_wanted};
use bonsai_media::rtcp;
use bonsai_media::rtp::{HEADER, Header};
use bonsai_media::seen::Gathering;
use hdrhistogram::Histogram;

use self::bytes::{read, unread};
use self::gate::Gate;
pub(super) use self::made::Made;
use super::connection::Connection;
use super::parts::{Fate, PacketView, ReportView};
use super::ports::Pair;
use super::stream::{MOST, Sink, Stream};
use super::{Engine, Summary};
use crate::clock::now;

/// Bytes before those that are read: for `$`, channel and length, the header, and what a payload begins
/// with.
const ROOM: usize = 4 + HEADER + Heads::MOST;

/// Sound goes out with what is due within so long after it, as far as that fits a packet. A clip is all
/// there, so that nothing waits for it; and of a film's calls two thirds were for its sound. No longer: one
/// that is late besides is still heard within 100 ms.
const TOGETHER_NS: i64 = 60_000_000;

/// The same of a stream that is behind, which waits for its turn besides: what goes out together is heard of
/// that much more seldom.
const TOGETHER_BEHIND_NS: i64 = 40_000_000;

/// A stream is behind whose pictures or sound are later than that, nanoseconds: there is no rate for all, or
/// no processor.
const BEHIND: u64 = 20_000_000;

/// A larger sample is read packet by packet by either engine.
const MOST_WHOLE: u32 = 4 << 20;

/// What became of a sample.
pub(super) enum Step {
    /// It has gone out, or is left out.
    Done,
    /// A socket takes no more for now.
    Blocked,
    /// A sample is being read, which may wait for a disk.
    Reads,
    /// The stream cannot go on.
    Failed(String),
}

/// What streams are sent by.
pub(super) struct Around<'a> {
    pub(super) pairs: &'a [Pair],
    pub(super) connections: &'a mut [Option<Connection>],
    pub(super) load: &'a mut Load,
    pub(super) gathering: &'a mut Gathering,
}

/// What became of a packet.
enum Out {
    Sent,
    Blocked,
    Reads,
    Broken(String),
}

/// Reads and sends, and counts.
pub(super) struct Sender {
    buffer: Vec<u8>,
    frames: Vec<u8>,
    pieces: Vec<(usize, Piece)>,
    /// What is kept of payloads that packetisers have made.
    room: made::Room,
    pub(super) late_us: Histogram<u64>,
    pub(super) tally: Summary,
}

/// What is sent of a sample: its line, where it goes, and the header of its next packet.
#[derive(Clone, Copy)]
struct Bound {
    line: usize,
    sink: Sink,
    header: Header,
}

impl Sender {
    pub(super) fn new() -> Self {
        // A microsecond to an hour, within 1 %.
        let late_us = Histogram::new_with_bounds(1, 3_600_000_000, 2);
        Self {
            buffer: vec![0; ROOM + most_wanted(MOST)],
            frames: Vec::new(),
            pieces: Vec::new(),
            room: made::Room::default(),
            late_us: late_us.expect("bounds of a histogram"),
            tally: Summary::default(),
        }
    }

    /// Sends a line's next sample.
    pub(super) fn sample(
        &mut self,
        stream: &mut Stream,
        line: usize,
        around: &mut Around<'_>,
    ) -> Step {
        if stream.lanes[line].cut.is_none() && self.turns(stream, line, around.load) {
            return Step::Done;
        }
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return Step::Done;
        };
        let at = now();
        let cut = match stream.lanes[line].cut {
            Some(cut) => cut,
            None => {
                let late = stream.timeline.late(line, at);
                self.late_us.saturating_record((late / 1000).max(1));
                self.tally.late_max_ns = self.tally.late_max_ns.max(late);
                around.load.note(stream.ahead.without_disk(late));
                around.gathering.late(late);
                match fate::of(stream, line, late, around) {
                    Ok(Fate::Send) => {}
                    Ok(Fate::Drop) => {
                        self.tally.dropped += 1;
                        stream.timeline.advance(line, at);
                        return Step::Done;
                    }
                    Err(error) => return unread(&error).into(),
                }
                if stream.parts.pacer.is_some() {
                    let room = gate::room(&stream.timeline, line, late);
                    stream.lanes[line].begun = Some((at, room));
                }
                let lane = &mut stream.lanes[line];
                lane.sets_due = lane.sets.is_some() && sample.is_sync();
                lane.skips = false;
                Cut::new(stream.timeline.track(line).how(), sample.size())
            }
        };
        if stream.lanes[line].sets_due {
            match self.sets(stream, line, around) {
                Out::Sent => stream.lanes[line].sets_due = false,
                Out::Blocked => {
                    stream.lanes[line].cut = Some(cut);
                    return Step::Blocked;
                }
                Out::Reads => return Step::Reads,
                Out::Broken(why) => return Step::Failed(why),
            }
        }
        let is_behind = stream.is_later(BEHIND, at);
        if let Some((count, heads)) = together(stream, line, is_behind) {
            return self.sound(stream, line, (count, &heads), cut, around);
        }
        let mut gate = Gate::new(stream, line, &sample, is_behind);
        let is_whole = stream.pipeline.engine == Engine::Fast && sample.size() <= MOST_WHOLE;
        let (cut, out) = match is_whole {
            _ if stream.pipeline.takes(&stream.timeline.track(line).codec) => {
                (cut, self.made(stream, line, &mut gate, around))
            }
            true => self.fast(stream, line, cut, &mut gate, around),
            false => self.classic(stream, line, cut, &mut gate, around),
        };
        match (out, gate.back(stream)) {
            (Out::Sent, Some(later)) => {
                stream.lanes[line].cut = Some(cut);
                stream.timeline.hold(line, later);
                Step::Done
            }
            (Out::Sent, None) => {
                let lane = &mut stream.lanes[line];
                (lane.cut, lane.rest) = (None, None);
                // The next one is due by when this one was begun: the time between its packets is not late.
                let at = lane.begun.take().map_or_else(now, |(at, _)| at);
                stream.timeline.advance(line, at);
                around.gathering.sample(true);
                self.tally.samples += 1;
                Step::Done
            }
            (Out::Blocked, _) => {
                stream.lanes[line].cut = Some(cut);
                Step::Blocked
            }
            (Out::Reads, _) => {
                stream.lanes[line].cut = Some(cut);
                Step::Reads
            }
            (Out::Broken(why), _) => Step::Failed(why),
        }
    }

    /// Goes over to another quality where it is time to; whether another sample is next by that.
    fn turns(&mut self, stream: &mut Stream, line: usize, load: &Load) -> bool {
        let before = stream.lanes[line].quality;
        let is_other = stream.turn(line, load.level().quality());
        if stream.lanes[line].quality != before {
            self.tally.switched += 1;
        }
        is_other
    }

    /// Sends the parameter sets of a line.
    fn sets(&mut self, stream: &mut Stream, line: usize, around: &mut Around<'_>) -> Out {
        let bound = bound(stream, line);
        let Some(sets) = stream.lanes[line].sets.take() else {
            return Out::Sent;
        };
        let end = ROOM + sets.len();
        self.buffer[ROOM..end].copy_from_slice(&sets);
        let piece = (ROOM, &[][..], sets.len(), false);
        stream.lanes[line].sets = Some(sets);
        self.packet(stream, bound, piece, around)
    }

    /// Frames of sound in one packet.
    fn sound(
        &mut self,
        stream: &mut Stream,
        line: usize,
        (count, heads): (usize, &Heads),
        cut: Cut,
        around: &mut Around<'_>,
    ) -> Step {
        let mut len = 0;
        for index in 0..count {
            let sample = stream.timeline.within(line, TOGETHER_NS).nth(index);
            let Some(sample) = sample.copied() else {
                break;
            };
            let from = ROOM + len;
            len += usize::try_from(sample.size()).unwrap_or(0);
            let bytes = &mut self.buffer[from..ROOM + len];
            if let Err(error) = read(stream, line, (&sample, 0), bytes) {
                stream.lanes[line].cut = Some(cut);
                return unread(&error).into();
            }
        }
        let parts = (ROOM, heads.bytes(), len, true);
        match self.packet(stream, bound(stream, line), parts, around) {
            Out::Sent => {
                (stream.lanes[line].cut, stream.lanes[line].begun) = (None, None);
                for _ in 0..count {
                    stream.timeline.advance(line, now());
                }
                self.tally.samples += u64::try_from(count).unwrap_or(0);
                Step::Done
            }
            Out::Blocked => {
                stream.lanes[line].cut = Some(cut);
                Step::Blocked
            }
            Out::Reads => Step::Reads,
            Out::Broken(why) => Step::Failed(why),
        }
    }

    /// Packet by packet: one read, and one call that sends.
    fn classic(
        &mut self,
        stream: &mut Stream,
        line: usize,
        mut cut: Cut,
        gate: &mut Gate,
        around: &mut Around<'_>,
    ) -> (Cut, Out) {
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return (cut, Out::Sent);
        };
        let mut bound = bound(stream, line);
        let most = stream.pipeline.payload;
        while !cut.is_done() && gate.lets(cut.at()) {
            let before = cut;
            let (at, len) = cut.wants(most);
            let bytes = &mut self.buffer[ROOM..ROOM + len];
            if let Err(error) = read(stream, line, (&sample, at), bytes) {
                return (before, unread(&error));
            }
            let piece = match cut.next(bytes, most) {
                Ok(Some(piece)) => piece,
                Ok(None) => continue,
                Err(broken) => {
                    return (before, Out::Broken(format!("a sample is broken: {broken}")));
                }
            };
            let parts = (ROOM + piece.start, piece.head(), piece.len, piece.is_last);
            match self.packet(stream, bound, parts, around) {
                Out::Sent => bound.header.sequence = bound.header.sequence.wrapping_add(1),
                out => return (before, out),
            }
        }
        (cut, Out::Sent)
    }

    /// Sends one packet, whose part of the sample is in the buffer.
    fn packet(
        &mut self,
        stream: &mut Stream,
        bound: Bound,
        (start, head, len, is_last): (usize, &[u8], usize, bool),
        around: &mut Around<'_>,
    ) -> Out {
        let header = Header {
            marker: is_last,
            ..bound.header
        };
        let first = start - head.len() - HEADER;
        let end = start + len;
        self.buffer[first..first + HEADER].copy_from_slice(&header.bytes());
        self.buffer[first + HEADER..start].copy_from_slice(head);
        let out = match bound.sink {
            Sink::Datagrams { pair, packets, .. } => {
                let sent = around.pairs[pair]
                    .packets
                    .send_to(&self.buffer[first..end], packets);
                self.datagram(sent.map(|_| ()))
            }
            Sink::Interleaved { packets, .. } => {
                let length = u16::try_from(end - first).unwrap_or(0).to_be_bytes();
                self.buffer[first - 4..first]
                    .copy_from_slice(&[b'$', packets, length[0], length[1]]);
                interleaved(stream, around, &self.buffer[first - 4..end])
            }
        };
        if let Out::Sent = out {
            self.count(stream, bound.line, 1, end - first - HEADER);
            let (head, body) = (&self.buffer[first..start], &self.buffer[start..end]);
            self.tally.uncopied += observe(stream, bound.line, head, body);
        }
        out
    }

    fn count(&mut self, stream: &mut Stream, line: usize, packets: u16, payload: usize) {
        stream.timeline.sent(line, packets, payload);
        stream.packets += u64::from(packets);
        self.tally.packets += u64::from(packets);
        let bytes = payload + HEADER * usize::from(packets);
        self.tally.bytes += u64::try_from(bytes).unwrap_or(0);
    }

    /// What a socket says of a datagram.
    fn datagram(&mut self, sent: io::Result<()>) -> Out {
        match sent {
            Ok(()) => Out::Sent,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Out::Blocked,
                _ if error.raw_os_error() == Some(nix::libc::ENOBUFS) => Out::Blocked,
                // There is no way for now, or a filter takes it: as if it were lost on the way. A viewer
                // who hears nothing says nothing, and ends by that.
                _ => {
                    self.tally.unsent += 1;
                    Out::Sent
                }
            },
        }
    }

    /// Sends a report of each line, and a farewell where it ends.
    pub(super) fn report(
        &mut self,
        stream: &mut Stream,
        ends: bool,
        unix_ns: u64,
        around: &mut Around<'_>,
    ) {
        let at = now();
        for line in 0..stream.lanes.len() {
            let sent = stream.timeline.report(line, at, unix_ns);
            let mut buffer = [0; 256];
            let Ok(length) = rtcp::write_sent(&mut buffer[4..], &stream.cname, &sent, ends) else {
                continue;
            };
            let view = ReportView {
                track: stream.timeline.number(line),
                bytes: &buffer[4..4 + length],
            };
            for sink in &mut stream.parts.sinks {
                self.tally.uncopied += u64::from(sink.report(&view).is_err());
            }
            match stream.lanes[line].sink {
                Sink::Datagrams { pair, reports, .. } => {
                    // One that is lost is followed by another.
                    let _ = around.pairs[pair]
                        .reports
                        .send_to(&buffer[4..4 + length], reports);
                }
                Sink::Interleaved { reports, .. } => {
                    let [high, low] = u16::try_from(length).unwrap_or(0).to_be_bytes();
                    buffer[..4].copy_from_slice(&[b'$', reports, high, low]);
                    let _ = interleaved(stream, around, &buffer[..4 + length]);
                }
            }
        }
    }
}

/// How many frames of sound go out together, if there are several; where handlers decide of each sample,
/// or a packetiser makes its payloads, each goes alone.
fn together(stream: &Stream, line: usize, is_behind: bool) -> Option<(usize, Heads)> {
    let track = stream.timeline.track(line);
    let is_alone = !stream.handlers.is_empty() || stream.pipeline.takes(&track.codec);
    if track.how() != How::Aac || is_alone {
        return None;
    }
    let (mut sizes, mut count, mut bytes) = ([0; aac::TOGETHER], 0, Heads::MOST);
    let within = match is_behind {
        true => TOGETHER_BEHIND_NS,
        false => TOGETHER_NS,
    };
    for sample in stream.timeline.within(line, within).take(aac::TOGETHER) {
        bytes += usize::try_from(sample.size()).ok()?;
        if bytes > stream.pipeline.payload {
            break;
        }
        sizes[count] = sample.size();
        count += 1;
    }
    let heads = Heads::of(&sizes[..count]).filter(|_| count > 1)?;
    Some((count, heads))
}

/// Where a line's packets go, and the header of its next.
fn bound(stream: &Stream, line: usize) -> Bound {
    let (lane, mut header) = (&stream.lanes[line], stream.timeline.header(line, 0, false));
    header.timestamp = lane.rest.unwrap_or(header.timestamp);
    Bound {
        line,
        sink: lane.sink,
        header,
    }
}

/// Whether anybody looks at packets.
fn is_observed(stream: &Stream) -> bool {
    !stream.handlers.is_empty() || !stream.parts.sinks.is_empty()
}

/// Shows a packet to handlers and sinks; how many of these do not take it.
fn observe(stream: &mut Stream, line: usize, head: &[u8], body: &[u8]) -> u64 {
    if !is_observed(stream) {
        return 0;
    }
    let packet = PacketView {
        now_ns: now(),
        track: stream.timeline.number(line),
        head,
        body,
    };
    for handler in &mut stream.handlers {
        handler.packet(&packet);
    }
    let sinks = stream.parts.sinks.iter_mut();
    let taken = sinks.map(|sink| sink.packet(&packet));
    taken.map(|taken| u64::from(taken.is_err())).sum()
}

fn interleaved(stream: &Stream, around: &mut Around<'_>, bytes: &[u8]) -> Out {
    let connection = around
        .connections
        .get_mut(stream.connection)
        .and_then(Option::as_mut);
    // One that came later may have its place.
    let Some(connection) = connection.filter(|of| of.peer == stream.peer) else {
        return Out::Broken("its connection is gone".to_owned());
    };
    match connection.send(bytes, now()) {
        Ok(()) => Out::Sent,
        Err(error) => Out::Broken(format!("its connection: {error}")),
    }
}

impl From<Out> for Step {
    fn from(out: Out) -> Self {
        match out {
            Out::Sent => Self::Done,
            Out::Blocked => Self::Blocked,
            Out::Reads => Self::Reads,
            Out::Broken(why) => Self::Failed(why),
        }
    }
}
