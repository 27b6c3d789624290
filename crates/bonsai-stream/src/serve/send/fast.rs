//! A sample at a time: one read, and one call for all packets of one size.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use bonsai_media::packets::{Cut, h264};
use bonsai_media::rtp::{HEADER, Header};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use super::super::stream::{Sink, Stream};
use super::gate::Gate;
use super::{
    Around, Bound, Out, ROOM, Sender, bound, interleaved, is_observed, observe, read, unread,
};

/// Segments that a kernel takes at once (linux/udp.h: `UDP_MAX_SEGMENTS`), and their bytes.
const SEGMENTS: usize = 64;
pub(super) const TRAIN: usize = 65_000;

impl Sender {
    /// A sample at a time, or as much of it as is due.
    pub(super) fn fast(
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
        while !cut.is_done() && gate.lets(cut.at()) {
            let most = stream.pipeline.payload;
            let (from, len) = cut.wants(most);
            let least = from.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            let to = gate.reach(least, most).min(sample.size());
            let end = ROOM + usize::try_from(to - from).unwrap_or(0);
            if self.buffer.len() < end {
                self.buffer.resize(end, 0);
            }
            if let Err(error) = read(stream, line, (&sample, from), &mut self.buffer[ROOM..end]) {
                return (cut, unread(&error));
            }
            match self.trains(stream, (line, from, to), &mut cut, gate, around) {
                Out::Sent => {}
                out => return (cut, out),
            }
        }
        (cut, Out::Sent)
    }

    /// Sends what is due of what was read: of a sample, from there to there.
    fn trains(
        &mut self,
        stream: &mut Stream,
        (line, from, to): (usize, u32, u32),
        cut: &mut Cut,
        gate: &mut Gate,
        around: &mut Around<'_>,
    ) -> Out {
        let mut bound = bound(stream, line);
        while !cut.is_done() {
            let before = *cut;
            let (is_datagrams, together) = way(stream, bound);
            let most = stream.pipeline.payload;
            if let Err(broken) = self.train(cut, (from, to), gate, (most, together), is_datagrams) {
                *cut = before;
                return Out::Broken(format!("a sample is broken: {broken}"));
            }
            let count = u16::try_from(self.pieces.len()).unwrap_or(0);
            if count == 0 {
                return Out::Sent;
            }
            match self.send_pieces(stream, bound, around) {
                Some(Out::Sent) => {
                    bound.header.sequence = bound.header.sequence.wrapping_add(count);
                }
                Some(out) => {
                    *cut = before;
                    return out;
                }
                None => *cut = before,
            }
        }
        Out::Sent
    }

    /// Sends the pieces that are in the buffer, by one call. `None` where many cannot be sent so: they are
    /// to be sent one by one, from now on.
    pub(super) fn send_pieces(
        &mut self,
        stream: &mut Stream,
        bound: Bound,
        around: &mut Around<'_>,
    ) -> Option<Out> {
        let count = u16::try_from(self.pieces.len()).unwrap_or(0);
        let out = match bound.sink {
            Sink::Datagrams { pair, packets, .. } => {
                let out = self.send_train(bound, around.pairs[pair].raw(), packets);
                match out {
                    Err(error) if count > 1 && is_no_gso(&error) => {
                        // A device without checksums, a way with smaller packets, or an old kernel: as the
                        // other engine does, for this viewer.
                        stream.lanes[bound.line].has_gso = false;
                        return None;
                    }
                    out => self.datagram(out),
                }
            }
            Sink::Interleaved { packets, .. } => {
                self.frame(bound, packets);
                interleaved(stream, around, &self.frames)
            }
        };
        if !matches!(out, Out::Sent) {
            return Some(out);
        }
        let bytes = self
            .pieces
            .iter()
            .map(|(_, piece)| piece.head().len() + piece.len)
            .sum();
        self.count(stream, bound.line, count, bytes);
        if is_observed(stream) {
            for (behind, (start, piece)) in (0_u16..).zip(&self.pieces) {
                let header = nth(bound.header, behind, piece.is_last).bytes();
                let head = [&header[..], piece.head()].concat();
                let body = &self.buffer[*start..*start + piece.len];
                self.tally.uncopied += observe(stream, bound.line, &head, body);
            }
        }
        Some(Out::Sent)
    }

    /// Cuts the next packets that can be sent together: of one size, but for the last, which may be
    /// smaller; in a connection, all that are left. None that are not due, or go on behind what was read.
    fn train(
        &mut self,
        cut: &mut Cut,
        (from, to): (u32, u32),
        gate: &mut Gate,
        (payload, most): (usize, usize),
        is_datagrams: bool,
    ) -> Result<(), h264::Broken> {
        self.pieces.clear();
        let (mut first, mut bytes) = (0, 0);
        let read = usize::try_from(to - from).unwrap_or(0);
        while !cut.is_done() {
            let before = *cut;
            let (at, len) = cut.wants(payload);
            let start = usize::try_from(at - from).unwrap_or(0);
            if start + len > read || !gate.lets(at) {
                return Ok(());
            }
            let start = ROOM + start;
            let Some(piece) = cut.next(&self.buffer[start..start + len], payload)? else {
                continue;
            };
            let size = HEADER + piece.head().len() + piece.len;
            let is_full = self.pieces.len() >= most || size > first || bytes + size > TRAIN;
            if is_datagrams && !self.pieces.is_empty() && is_full {
                *cut = before;
                return Ok(());
            }
            self.pieces.push((start + piece.start, piece));
            if first == 0 {
                first = size;
            }
            bytes += size;
            if is_datagrams && size < first {
                return Ok(());
            }
        }
        Ok(())
    }

    fn send_train(&self, bound: Bound, socket: i32, to: SocketAddr) -> io::Result<()> {
        let heads: Vec<([u8; HEADER + 4], usize)> = (0_u16..)
            .zip(&self.pieces)
            .map(|(behind, (_, piece))| {
                let mut head = [0; HEADER + 4];
                let length = HEADER + piece.head().len();
                head[..HEADER].copy_from_slice(&nth(bound.header, behind, piece.is_last).bytes());
                head[HEADER..length].copy_from_slice(piece.head());
                (head, length)
            })
            .collect();
        let slices: Vec<IoSlice<'_>> = heads
            .iter()
            .zip(&self.pieces)
            .flat_map(|((head, length), (start, piece))| {
                let body = &self.buffer[*start..*start + piece.len];
                [IoSlice::new(&head[..*length]), IoSlice::new(body)]
            })
            .collect();
        let address = SockaddrStorage::from(to);
        let size = self
            .pieces
            .first()
            .map_or(0, |(_, piece)| HEADER + piece.head().len() + piece.len);
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        let together = [ControlMessage::UdpGsoSegments(&size)];
        let control = if self.pieces.len() > 1 {
            &together[..]
        } else {
            &[]
        };
        sendmsg(socket, &slices, control, MsgFlags::empty(), Some(&address))?;
        Ok(())
    }

    /// All pieces as frames among messages.
    fn frame(&mut self, bound: Bound, channel: u8) {
        self.frames.clear();
        for (behind, (start, piece)) in (0_u16..).zip(&self.pieces) {
            let size = HEADER + piece.head().len() + piece.len;
            let length = u16::try_from(size).unwrap_or(0).to_be_bytes();
            self.frames
                .extend_from_slice(&[b'$', channel, length[0], length[1]]);
            self.frames
                .extend_from_slice(&nth(bound.header, behind, piece.is_last).bytes());
            self.frames.extend_from_slice(piece.head());
            self.frames
                .extend_from_slice(&self.buffer[*start..*start + piece.len]);
        }
    }
}

/// Whether packets go as datagrams, and how many of those together.
pub(super) fn way(stream: &Stream, bound: Bound) -> (bool, usize) {
    match bound.sink {
        Sink::Datagrams { .. } if !stream.lanes[bound.line].has_gso => (true, 1),
        Sink::Datagrams { .. } => (true, SEGMENTS),
        Sink::Interleaved { .. } => (false, SEGMENTS),
    }
}

fn nth(first: Header, behind: u16, marker: bool) -> Header {
    Header {
        marker,
        sequence: first.sequence.wrapping_add(behind),
        ..first
    }
}

fn is_no_gso(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, EIO, EMSGSIZE, EOPNOTSUPP};
    matches!(
        error.raw_os_error(),
        Some(EINVAL | EIO | EMSGSIZE | EOPNOTSUPP)
    )
}
