//! A sample at a time: one read, and one call for all packets of one size.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;

use bonsai_media::packets::{Cut, h264};
use bonsai_media::rtp::{HEADER, Header};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use super::super::stream::{Sink, Stream};
use super::{Around, Bound, Out, ROOM, Sender, bound, file_error, interleaved, observe};

/// Segments that a kernel takes at once (linux/udp.h: `UDP_MAX_SEGMENTS`), and their bytes.
const SEGMENTS: usize = 64;
const TRAIN: usize = 65_000;

impl Sender {
    /// A sample at a time.
    pub(super) fn fast(
        &mut self,
        stream: &mut Stream,
        line: usize,
        mut cut: Cut,
        around: &mut Around<'_>,
    ) -> (Cut, Out) {
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return (cut, Out::Sent);
        };
        let size = usize::try_from(sample.size()).unwrap_or(0);
        let needed = ROOM + size;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        let whole = &mut self.buffer[ROOM..needed];
        if let Err(error) = stream.file.read_exact_at(whole, sample.offset) {
            return (cut, Out::Broken(file_error(&error)));
        }
        let mut bound = bound(stream, line);
        while !cut.is_done() {
            let before = cut;
            let is_datagrams = matches!(bound.sink, Sink::Datagrams { .. });
            let most = stream.pipeline.payload;
            let together = match bound.sink {
                Sink::Datagrams { .. } if !stream.lanes[line].has_gso => 1,
                _ => SEGMENTS,
            };
            if let Err(broken) = self.train(&mut cut, needed, (most, together), is_datagrams) {
                return (before, Out::Broken(format!("a sample is broken: {broken}")));
            }
            let count = u16::try_from(self.pieces.len()).unwrap_or(0);
            let out = match bound.sink {
                _ if count == 0 => Out::Sent,
                Sink::Datagrams { pair, packets, .. } => {
                    let out = self.send_train(bound, around.pairs[pair].raw(), packets);
                    match out {
                        Err(error) if together > 1 && count > 1 && is_no_gso(&error) => {
                            // A device without checksums, a way with smaller packets, or an old kernel: as the
                            // other engine does, for this viewer.
                            stream.lanes[line].has_gso = false;
                            cut = before;
                            continue;
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
                return (before, out);
            }
            let bytes = self
                .pieces
                .iter()
                .map(|(_, piece)| piece.head().len() + piece.len)
                .sum();
            self.count(stream, line, count, bytes);
            if !stream.handlers.is_empty() {
                for (behind, (start, piece)) in (0_u16..).zip(&self.pieces) {
                    let header = nth(bound.header, behind, piece.is_last).bytes();
                    let head = [&header[..], piece.head()].concat();
                    observe(stream, &head, &self.buffer[*start..*start + piece.len]);
                }
            }
            bound.header.sequence = bound.header.sequence.wrapping_add(count);
        }
        (cut, Out::Sent)
    }

    /// Cuts the next packets that can be sent together: of one size, but for the last, which may be
    /// smaller; in a connection, all that are left.
    fn train(
        &mut self,
        cut: &mut Cut,
        end: usize,
        (payload, most): (usize, usize),
        is_datagrams: bool,
    ) -> Result<(), h264::Broken> {
        self.pieces.clear();
        let (mut first, mut bytes) = (0, 0);
        while !cut.is_done() {
            let before = *cut;
            let (at, len) = cut.wants(payload);
            let start = ROOM + usize::try_from(at).unwrap_or(0);
            let wanted = &self.buffer[start..(start + len).min(end)];
            let Some(piece) = cut.next(wanted, payload)? else {
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
