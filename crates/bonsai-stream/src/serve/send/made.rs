//! Payloads that a packetiser makes, which is given a sample as a whole: sent packet by packet, or all of one
//! size by one call, as the engine does it.

use std::cell::Cell;
use std::rc::Rc;

use bonsai_media::clip::Sample;
use bonsai_media::packets::{Payloads, Piece, Whole};
use bonsai_media::rtp::HEADER;

use super::super::Engine;
use super::super::stream::Stream;
use super::fast::{TRAIN, way};
use super::gate::Gate;
use super::{Around, Bound, Out, ROOM, Sender, bound, read, unread};

/// Bytes of payloads that are kept, of all streams together, while their next packet is not due or a socket
/// takes no more. What has no room is made again.
const KEPT: usize = 64 << 20;

/// What is kept of all streams.
pub(in super::super) type Room = Rc<Cell<usize>>;

/// A sample some of whose payloads have gone.
#[derive(Debug)]
pub(in super::super) struct Made {
    pub(in super::super) gone: usize,
    /// All of them, and their part of the room.
    kept: Option<(Payloads, Share)>,
}

#[derive(Debug)]
struct Share {
    of: Room,
    bytes: usize,
}

impl Share {
    /// A part of the room, if there is as much.
    fn take(of: &Room, bytes: usize) -> Option<Self> {
        let all = of.get().checked_add(bytes).filter(|all| *all <= KEPT)?;
        of.set(all);
        let of = Rc::clone(of);
        Some(Self { of, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.set(self.of.get() - self.bytes);
    }
}

impl Sender {
    /// Sends a sample that the stream's packetiser takes, as far as it is due.
    pub(super) fn made(
        &mut self,
        stream: &mut Stream,
        line: usize,
        gate: &mut Gate,
        around: &mut Around<'_>,
    ) -> Out {
        let Some(sample) = stream.timeline.sample(line).copied() else {
            return Out::Sent;
        };
        let (mut gone, kept) = match stream.lanes[line].payloads.take() {
            Some(made) => (made.gone, made.kept),
            None => (0, None),
        };
        let (payloads, share) = match kept {
            Some((payloads, share)) => (payloads, Some(share)),
            None => match payloads(stream, line, &sample) {
                Ok(payloads) => (payloads, None),
                Err(out) => {
                    let kept = None;
                    stream.lanes[line].payloads = (gone > 0).then(|| Box::new(Made { gone, kept }));
                    return out;
                }
            },
        };
        let out = self.go_on(
            stream,
            (line, &sample),
            (&payloads, &mut gone),
            gate,
            around,
        );
        if gone < payloads.len() {
            let share = share.or_else(|| Share::take(&self.room, payloads.bytes()));
            let kept = share.map(|share| (payloads, share));
            stream.lanes[line].payloads = Some(Box::new(Made { gone, kept }));
        }
        out
    }

    fn go_on(
        &mut self,
        stream: &mut Stream,
        (line, sample): (usize, &Sample),
        (payloads, gone): (&Payloads, &mut usize),
        gate: &mut Gate,
        around: &mut Around<'_>,
    ) -> Out {
        let mut bound = bound(stream, line);
        while *gone < payloads.len() {
            let room = match stream.pipeline.engine {
                Engine::Classic => (true, 1),
                Engine::Fast => way(stream, bound),
            };
            self.gather(sample, (payloads, *gone), gate, room);
            let count = self.pieces.len();
            let out = match stream.pipeline.engine {
                _ if count == 0 => return Out::Sent,
                Engine::Classic => Some(self.send_first(stream, bound, around)),
                Engine::Fast => self.send_pieces(stream, bound, around),
            };
            match out {
                Some(Out::Sent) => {}
                Some(out) => return out,
                None => continue,
            }
            *gone += count;
            let count = u16::try_from(count).unwrap_or(0);
            bound.header.sequence = bound.header.sequence.wrapping_add(count);
        }
        Out::Sent
    }

    /// Puts the next payloads into the buffer that are due and can be sent together.
    fn gather(
        &mut self,
        sample: &Sample,
        (payloads, gone): (&Payloads, usize),
        gate: &mut Gate,
        (is_datagrams, most): (bool, usize),
    ) {
        self.pieces.clear();
        let (mut first, mut bytes, mut start) = (0, 0, ROOM);
        while let Some(payload) = payloads.get(gone + self.pieces.len()) {
            let index = gone + self.pieces.len();
            let size = HEADER + payload.len();
            // In a connection they need not be of one size.
            let is_other = is_datagrams && (self.pieces.len() >= most || size > first);
            let is_full = !self.pieces.is_empty() && (is_other || bytes + size > TRAIN);
            if is_full || !gate.lets(share(sample.size(), payloads, index)) {
                return;
            }
            let end = start + payload.len();
            if self.buffer.len() < end {
                self.buffer.resize(end, 0);
            }
            self.buffer[start..end].copy_from_slice(payload);
            let is_last = index + 1 == payloads.len();
            self.pieces
                .push((start, Piece::bare(payload.len(), is_last)));
            if first == 0 {
                first = size;
            }
            (bytes, start) = (bytes + size, end);
            if is_datagrams && size < first {
                return;
            }
        }
    }

    /// Sends the one payload that is in the buffer.
    fn send_first(&mut self, stream: &mut Stream, bound: Bound, around: &mut Around<'_>) -> Out {
        match self.pieces.first().copied() {
            None => Out::Sent,
            Some((start, piece)) => {
                let parts = (start, &[][..], piece.len, piece.is_last);
                self.packet(stream, bound, parts, around)
            }
        }
    }
}

/// The payloads of a sample.
fn payloads(stream: &mut Stream, line: usize, sample: &Sample) -> Result<Payloads, Out> {
    let mut bytes = vec![0; usize::try_from(sample.size()).unwrap_or(0)];
    read(stream, line, (sample, 0), &mut bytes).map_err(|error| unread(&error))?;
    let mut payloads = Payloads::default();
    let most = stream.pipeline.payload;
    let whole = Whole {
        codec: &stream.timeline.track(line).codec,
        bytes: &bytes,
        is_sync: sample.is_sync(),
        most,
    };
    if let Some(packetiser) = &stream.pipeline.packetiser {
        packetiser
            .payloads(&whole, &mut payloads)
            .map_err(|why| Out::Broken(format!("its packetiser: {why}")))?;
    }
    // It may be a program's.
    let wrong = payloads
        .iter()
        .map(<[u8]>::len)
        .find(|len| !(1..=most).contains(len));
    match wrong {
        None => Ok(payloads),
        Some(len) => Err(Out::Broken(format!(
            "its packetiser made a payload of {len} bytes, where 1 to {most} go in a packet"
        ))),
    }
}

/// Of a sample's bytes, as many as there are payloads before one of them.
fn share(size: u32, payloads: &Payloads, index: usize) -> u32 {
    let (before, all) = (payloads.before(index) as u64, payloads.bytes() as u64);
    let share = u64::from(size) * before / all.max(1);
    u32::try_from(share).unwrap_or(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_all_streams_is_bounded() {
        let room = Room::default();
        let mut shares: Vec<Share> = (0..4).map_while(|_| Share::take(&room, KEPT / 4)).collect();
        assert_eq!((shares.len(), room.get()), (4, KEPT));
        assert!(Share::take(&room, 1).is_none() && Share::take(&room, usize::MAX).is_none());
        shares.pop();
        assert_eq!(room.get(), KEPT / 4 * 3);
        assert!(Share::take(&room, 1).is_some());
        drop(shares);
        assert_eq!(room.get(), 0);
    }
}
