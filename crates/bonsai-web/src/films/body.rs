//! The bytes of a segment: its head, and its samples where they lie in the file.

use std::future::poll_fn;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use bonsai_media::hls::Segment;
use futures_util::stream::try_unfold;

use crate::file::Reading;

use super::shelf::Known;

/// Bytes that are read at a time.
const PIECE: u64 = 64 << 10;

/// A segment that is sent, and how far that has come.
struct Sending {
    known: Arc<Known>,
    head: Vec<u8>,
    /// Ranges that are left, last first.
    ranges: Vec<(u64, u64)>,
    /// Name in the log, where it ends before its end.
    name: String,
    reading: Reading,
}

/// A segment of a film. It is sent as its file was when its tables were read, or not to its end.
pub(super) fn of(known: Arc<Known>, segment: Segment, name: String, reading: Reading) -> Body {
    let mut ranges = segment.ranges;
    ranges.reverse();
    let sending = Sending {
        known,
        head: segment.head,
        ranges,
        name,
        reading,
    };
    Body::from_stream(try_unfold(sending, next))
}

async fn next(mut sending: Sending) -> io::Result<Option<(Bytes, Sending)>> {
    if !sending.head.is_empty() {
        let head = Bytes::from(std::mem::take(&mut sending.head));
        return Ok(Some((head, sending)));
    }
    let Some(piece) = piece(&mut sending.ranges) else {
        return Ok(None);
    };
    let bytes: u64 = piece.iter().map(|(_, bytes)| bytes).sum();
    let house = Arc::clone(&sending.reading.house);
    let turn = house
        .pace
        .as_ref()
        .and_then(|pace| pace.take(usize::try_from(bytes).unwrap_or(0)));
    let turn = match turn {
        Some(mut turn) => {
            poll_fn(|context| turn.poll(context)).await;
            Some(turn)
        }
        None => None,
    };
    let known = Arc::clone(&sending.known);
    let read = tokio::task::spawn_blocking(move || read(&known, &piece)).await;
    match read.map_err(io::Error::other).and_then(|read| read) {
        Ok(read) => {
            if let Some(mut turn) = turn {
                turn.used(read.len());
            }
            house.tally.bytes.fetch_add(bytes, Ordering::Relaxed);
            Ok(Some((Bytes::from(read), sending)))
        }
        Err(error) => {
            house.cut_short(sending.reading.peer, &format!("{}: {error}", sending.name));
            Err(error)
        }
    }
}

/// The next ranges of [`PIECE`] bytes in all, taken from the end of the list.
fn piece(ranges: &mut Vec<(u64, u64)>) -> Option<Vec<(u64, u64)>> {
    let (mut piece, mut room) = (Vec::new(), PIECE);
    while room > 0
        && let Some((offset, bytes)) = ranges.pop()
    {
        let here = bytes.min(room);
        piece.push((offset, here));
        room -= here;
        if here < bytes {
            ranges.push((offset + here, bytes - here));
        }
    }
    (!piece.is_empty()).then_some(piece)
}

fn read(known: &Known, piece: &[(u64, u64)]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (offset, length) in piece {
        let from = bytes.len();
        bytes.resize(from + usize::try_from(*length).unwrap_or(0), 0);
        known
            .opened
            .file
            .read_exact_at(&mut bytes[from..], *offset)?;
    }
    known.is_the_same()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{PIECE, piece};

    #[test]
    fn pieces_are_all_of_the_ranges_in_order() {
        let all = [
            (10, 5),
            (100, PIECE),
            (7, 0),
            (1_000_000, 3 * PIECE + 1),
            (0, 1),
        ];
        let mut left = all.to_vec();
        left.reverse();
        let mut taken = Vec::new();
        while let Some(piece) = piece(&mut left) {
            let sum: u64 = piece.iter().map(|(_, bytes)| bytes).sum();
            assert!(sum <= PIECE && (sum == PIECE || left.is_empty()));
            taken.extend(piece);
        }
        let bytes = |ranges: &[(u64, u64)]| -> Vec<u64> {
            ranges
                .iter()
                .flat_map(|(at, bytes)| *at..at + bytes)
                .collect()
        };
        assert_eq!(bytes(&taken), bytes(&all));
    }
}
