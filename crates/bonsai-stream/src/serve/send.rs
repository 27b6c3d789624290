//! Samples into packets, and those out: the two engines.
//!
//! Both cut a sample the same way, so that they differ in their calls alone: *classic* reads and sends
//! packet by packet, *fast* reads a sample as a whole, and sends all packets of one size by one call.

mod fast;

use std::io;
use std::os::unix::fs::FileExt as _;

use bonsai_media::load::Load;
use bonsai_media::packets::aac::{self, Heads};
use bonsai_media::packets::{Cut, How, Piece, h264};
use bonsai_media::rtcp;
use bonsai_media::rtp::{HEADER, Header};
use bonsai_media::seen::Gathering;
use hdrhistogram::Histogram;

use super::connection::{BACKLOG, Connection};
use super::handler::{Fate, PacketView, SampleView};
use super::ports::Pair;
use super::root::PEEK;
use super::stream::{MOST, Sink, Stream};
use super::{Engine, Summary};
use crate::clock::now;

/// Bytes before those that are read: for `$`, channel and length, the header, and what a payload begins
/// with.
const ROOM: usize = 4 + HEADER + Heads::MOST;

/// Sound goes out with what is due within so long after it, as far as that fits a packet. A clip is all
/// there, so that nothing waits for it; and of a film's calls two thirds were for its sound.
const TOGETHER_NS: i64 = 100_000_000;

/// A larger sample is read packet by packet by either engine.
const MOST_WHOLE: u32 = 4 << 20;

/// What became of a sample.
pub(super) enum Step {
    /// It has gone out, or is left out.
    Done,
    /// A socket takes no more for now.
    Blocked,
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
    Broken(String),
}

/// Reads and sends, and counts.
pub(super) struct Sender {
    buffer: Vec<u8>,
    frames: Vec<u8>,
    pieces: Vec<(usize, Piece)>,
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
            buffer: vec![0; ROOM + MOST + 8],
            frames: Vec::new(),
            pieces: Vec::new(),
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
                around.load.note(late);
                around.gathering.late(late);
                match self.fate(stream, line, late, around) {
                    Ok(Fate::Send) => {}
                    Ok(Fate::Drop) => {
                        self.tally.dropped += 1;
                        stream.timeline.advance(line, at);
                        return Step::Done;
                    }
                    Err(error) => return Step::Failed(error.to_string()),
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
                Out::Broken(why) => return Step::Failed(why),
            }
        }
        if let Some((count, heads)) = together(stream, line) {
            return self.sound(stream, line, (count, &heads), cut, around);
        }
        let is_whole = stream.pipeline.engine == Engine::Fast && sample.size() <= MOST_WHOLE;
        let (cut, out) = match is_whole {
            true => self.fast(stream, line, cut, around),
            false => self.classic(stream, line, cut, around),
        };
        match out {
            Out::Sent => {
                stream.lanes[line].cut = None;
                stream.timeline.advance(line, now());
                around.gathering.sample(true);
                self.tally.samples += 1;
                Step::Done
            }
            Out::Blocked => {
                stream.lanes[line].cut = Some(cut);
                Step::Blocked
            }
            Out::Broken(why) => Step::Failed(why),
        }
    }

    /// Whether a sample is sent.
    fn fate(
        &mut self,
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
        if is_picture && is_sync {
            stream.lanes[line].left = match level {
                // Where that changes in the middle, what is sent becomes less at once.
                0 | 1 => 0,
                _ => around.load.within(stream.timeline.behind(line)),
            };
        } else if is_picture && self.leaves_out(stream, line, around)? {
            // What a slow viewer misses says nothing of the server.
            if level > 0 {
                around.gathering.sample(false);
            }
            return Ok(Fate::Drop);
        }
        let view = SampleView {
            is_picture,
            is_sync,
            bytes: sample.size(),
            late_ns,
            level,
        };
        let dropped = stream
            .handlers
            .iter_mut()
            .any(|of| of.sample(&view) == Fate::Drop);
        Ok(if dropped { Fate::Drop } else { Fate::Send })
    }

    /// Whether a picture that decoding cannot begin with is left out, as there is no rate for it, or for
    /// one that it is predicted from.
    fn leaves_out(
        &mut self,
        stream: &mut Stream,
        line: usize,
        around: &Around<'_>,
    ) -> io::Result<bool> {
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return Ok(true);
        };
        if stream.lanes[line].skips {
            return Ok(true);
        }
        let mut failed = None;
        let is_needless = around.load.drops(|| {
            let How::H264 { length_size } = stream.timeline.track(line).how() else {
                return None;
            };
            let len = PEEK.min(usize::try_from(sample.size()).unwrap_or(PEEK));
            let bytes = &mut self.buffer[..len];
            failed = stream.file.read_exact_at(bytes, sample.offset).err();
            h264::is_disposable(bytes, length_size)
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if is_needless || around.load.level() < 2 {
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
        for sample in stream.timeline.within(line, TOGETHER_NS).take(count) {
            let from = ROOM + len;
            len += usize::try_from(sample.size()).unwrap_or(0);
            let bytes = &mut self.buffer[from..ROOM + len];
            if let Err(error) = stream.file.read_exact_at(bytes, sample.offset) {
                return Step::Failed(file_error(&error));
            }
        }
        let parts = (ROOM, heads.bytes(), len, true);
        match self.packet(stream, bound(stream, line), parts, around) {
            Out::Sent => {
                stream.lanes[line].cut = None;
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
            Out::Broken(why) => Step::Failed(why),
        }
    }

    /// Packet by packet: one read, and one call that sends.
    fn classic(
        &mut self,
        stream: &mut Stream,
        line: usize,
        mut cut: Cut,
        around: &mut Around<'_>,
    ) -> (Cut, Out) {
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return (cut, Out::Sent);
        };
        let mut bound = bound(stream, line);
        let most = stream.pipeline.payload;
        while !cut.is_done() {
            let before = cut;
            let (at, len) = cut.wants(most);
            let bytes = &mut self.buffer[ROOM..ROOM + len];
            if let Err(error) = stream
                .file
                .read_exact_at(bytes, sample.offset + u64::from(at))
            {
                return (before, Out::Broken(file_error(&error)));
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
            observe(stream, &self.buffer[first..start], &self.buffer[start..end]);
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
            let Ok(length) = rtcp::write_sent(&mut buffer[4..], "bonsai", &sent, ends) else {
                continue;
            };
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
/// each goes alone.
fn together(stream: &Stream, line: usize) -> Option<(usize, Heads)> {
    let is_sound = stream.timeline.track(line).how() == How::Aac;
    if !is_sound || !stream.handlers.is_empty() {
        return None;
    }
    let (mut sizes, mut count, mut bytes) = ([0; aac::TOGETHER], 0, Heads::MOST);
    for sample in stream
        .timeline
        .within(line, TOGETHER_NS)
        .take(aac::TOGETHER)
    {
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
    Bound {
        line,
        sink: stream.lanes[line].sink,
        header: stream.timeline.header(line, 0, false),
    }
}

fn observe(stream: &mut Stream, head: &[u8], body: &[u8]) {
    if stream.handlers.is_empty() {
        return;
    }
    let packet = PacketView {
        now_ns: now(),
        head,
        body,
    };
    for handler in &mut stream.handlers {
        handler.packet(&packet);
    }
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

fn file_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "its file has become shorter".to_owned(),
        _ => format!("its file: {error}"),
    }
}
