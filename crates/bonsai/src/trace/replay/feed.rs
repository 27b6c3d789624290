//! Orders of a trace, made by a thread of their own, so that unpacking holds up no request.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bonsai_trace::{BLOCK, Digest, Error, Op, Request};

use super::check::BYTES;
use crate::cli::TraceReplay;
use crate::trace::opened::trace_again;

/// Orders that are handed over together.
const TOGETHER: usize = 1 << 14;

/// Of those, so many wait at most.
const WAITING: usize = 2;

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) time_ns: u64,
    pub(super) volume: u32,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) op: Op,
    /// Requests of the trace that it ends.
    pub(super) records: u32,
    /// It is not to be sent after all.
    pub(super) is_left_out: bool,
    first: usize,
    count: usize,
}

/// Some orders.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    orders: Vec<Order>,
    contents: Vec<Digest>,
}

impl Chunk {
    /// An order, and what its blocks hold: nothing where that is not known.
    pub(super) fn get(&self, n: usize) -> Option<(Order, &[Digest])> {
        let order = *self.orders.get(n)?;
        let contents = self.contents.get(order.first..order.first + order.count);
        Some((order, contents.unwrap_or_default()))
    }
}

/// The other end of the thread.
#[derive(Debug)]
pub(super) struct Feed(Receiver<Result<Chunk, Error>>);

/// How requests become orders.
#[derive(Debug)]
struct Maker {
    merge: bool,
    reads_only: bool,
    /// Bytes of an order, at most: whole blocks.
    most: u32,
    chunk: Chunk,
}

impl Feed {
    /// Begins.
    pub(super) fn start(path: &Path, args: &TraceReplay, most: u32) -> Self {
        let (to, from) = sync_channel(WAITING);
        let path = path.to_owned();
        let block = u32::try_from(BLOCK).unwrap_or(u32::MAX);
        let maker = Maker {
            merge: args.merge,
            reads_only: args.reads_only,
            most: (most / block).max(1) * block,
            chunk: Chunk::default(),
        };
        std::thread::spawn(move || {
            if let Err(error) = make(&path, maker, &to) {
                // Nobody listens where the engine has given up.
                let _ = to.send(Err(error));
            }
        });
        Self(from)
    }

    /// The next orders; `None` at the end.
    pub(super) fn next(&self) -> Result<Option<Chunk>, Error> {
        self.0.recv().ok().transpose()
    }
}

fn make(path: &Path, mut maker: Maker, to: &SyncSender<Result<Chunk, Error>>) -> Result<(), Error> {
    let mut reader = trace_again(path)?.keeping_fingerprints();
    while let Some(batch) = reader.next_batch()? {
        let batch = batch.clone();
        for request in batch.iter() {
            if maker.take(&request, reader.fingerprints()) {
                let chunk = std::mem::take(&mut maker.chunk);
                let last = maker.keep(chunk);
                if to.send(Ok(last)).is_err() {
                    return Ok(());
                }
            }
        }
    }
    let _ = to.send(Ok(maker.chunk));
    Ok(())
}

impl Maker {
    /// Takes a request in; says whether there are enough.
    fn take(&mut self, request: &Request<'_>, digests: &[Digest]) -> bool {
        let first = self.chunk.contents.len();
        let digest = |content: &u32| digests.get(*content as usize).copied();
        self.chunk
            .contents
            .extend(request.contents.iter().filter_map(digest));
        let count = self.chunk.contents.len() - first;
        let order = Order {
            time_ns: request.time_ns,
            volume: request.volume,
            offset: request.offset,
            length: request.length,
            op: request.op,
            records: 1,
            is_left_out: self.reads_only && request.op != Op::Read,
            first,
            count,
        };
        if self.merge && self.merged(&order) {
            return false;
        }
        self.split(order);
        self.chunk.orders.len() >= TOGETHER
    }

    /// Puts an order to the one before, where that is of the same instant, volume and kind, and ends where it begins.
    fn merged(&mut self, order: &Order) -> bool {
        let Some(last) = self.chunk.orders.last_mut() else {
            return false;
        };
        let same = (last.time_ns, last.volume, last.op) == (order.time_ns, order.volume, order.op)
            && matches!(order.op, Op::Read | Op::Write)
            && last.offset + u64::from(last.length) == order.offset
            && (last.count == 0) == (order.count == 0);
        let length = last.length.checked_add(order.length);
        match length.filter(|length| same && *length <= self.most) {
            Some(length) => {
                last.length = length;
                last.count += order.count;
                last.records += 1;
                true
            }
            None => false,
        }
    }

    /// Adds an order, in pieces where it is of more than a server takes.
    fn split(&mut self, order: Order) {
        let moves = matches!(order.op, Op::Read | Op::Write);
        let mut left = order;
        while moves && left.length > self.most {
            let blocks = match left.count {
                0 => 0,
                _ => self.most as usize / BYTES,
            };
            self.chunk.orders.push(Order {
                length: self.most,
                count: blocks,
                records: 0,
                ..left
            });
            left.offset += u64::from(self.most);
            left.length -= self.most;
            left.first += blocks;
            left.count -= blocks;
        }
        self.chunk.orders.push(left);
    }

    /// The last order stays, as the next request may belong to it.
    fn keep(&mut self, mut chunk: Chunk) -> Chunk {
        if let Some(last) = chunk.orders.pop() {
            self.chunk.contents = chunk.contents.split_off(last.first);
            self.chunk.orders.push(Order { first: 0, ..last });
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(most: u32) -> Maker {
        Maker {
            merge: true,
            reads_only: false,
            most,
            chunk: Chunk::default(),
        }
    }

    fn request(time_ns: u64, block: u64, contents: &[u32]) -> Request<'_> {
        Request {
            time_ns,
            volume: 0,
            offset: block * BLOCK,
            length: 4096 * u32::try_from(contents.len().max(1)).expect("few"),
            op: Op::Read,
            contents,
        }
    }

    fn digests() -> Vec<Digest> {
        (0..100).map(|n| Digest([n; 16])).collect()
    }

    fn orders(of: &Chunk) -> Vec<(u64, u32, usize, u32)> {
        let all = of.orders.iter();
        all.map(|of| (of.offset / BLOCK, of.length / 4096, of.count, of.records))
            .collect()
    }

    #[test]
    fn requests_of_one_instant_that_follow_each_other_are_one() {
        let mut maker = maker(4 * 4096);
        let requests: [(u64, u64, &[u32]); 8] = [
            (1, 5, &[1]),
            (1, 6, &[2]),
            (1, 8, &[3]),
            (2, 9, &[4]),
            (2, 10, &[]),
            (3, 11, &[5, 6]),
            (3, 13, &[7, 8]),
            (3, 15, &[9]),
        ];
        for (time, block, contents) in requests {
            maker.take(&request(time, block, contents), &digests());
        }
        let expected = [
            (5, 2, 2, 2),
            (8, 1, 1, 1),
            (9, 1, 1, 1),
            (10, 1, 0, 1),
            (11, 4, 4, 2),
            (15, 1, 1, 1),
        ];
        assert_eq!(orders(&maker.chunk), expected);
        let (_, contents) = maker.chunk.get(4).expect("an order");
        assert_eq!(contents, [5, 6, 7, 8].map(|n| Digest([n; 16])));
    }

    #[test]
    fn what_a_server_does_not_take_goes_in_pieces_and_chunks_end_anywhere() {
        let mut maker = maker(2 * 4096);
        maker.take(&request(1, 0, &[1, 2, 3, 4, 5]), &digests());
        let pieces = [(0, 2, 2, 0), (2, 2, 2, 0), (4, 1, 1, 1)];
        assert_eq!(orders(&maker.chunk), pieces);
        let chunk = std::mem::take(&mut maker.chunk);
        let sent = maker.keep(chunk);
        assert_eq!(orders(&sent), pieces[..2]);
        maker.take(&request(1, 5, &[6]), &digests());
        assert_eq!(orders(&maker.chunk), [(4, 2, 2, 2)]);
        let (_, contents) = maker.chunk.get(0).expect("an order");
        assert_eq!(contents, [Digest([5; 16]), Digest([6; 16])]);
    }
}
