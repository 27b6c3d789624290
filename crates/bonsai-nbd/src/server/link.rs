//! The way back to one client: replies of several threads over one socket.
//!
//! # Story
//! Whoever has a reply puts it into the queue. If nobody sends, he takes the *turn*: he sends what is in the queue
//! until it is empty. A worker that cannot send on gives the turn to a thread made for that, so that no client
//! that is slow, or does not read at all, keeps workers of an export.
//!
//! # Invariants
//! 1. Only who holds the turn writes to the socket.
//! 2. While the queue is not empty, somebody holds the turn.
//! 3. `under_way` counts the requests, and `bytes` their memory, that are with workers or in the queue.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};

use super::inbox::wait;
use super::{Ended, lock};
use crate::export::Export;
use crate::image::LossCursor;
use crate::protocol::{Replies, Session};

/// Requests of one connection that are with workers, at most.
const MOST_REQUESTS: usize = 256;
/// Their memory, at most, beside that of one request.
const MOST_BYTES: usize = 64 << 20;
/// Replies that go out with one call.
const TOGETHER: usize = 16;
/// How long a worker waits for a client.
const PATIENCE: Duration = Duration::from_millis(20);

/// A reply: what stands before the data, and the data.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) head: Vec<u8>,
    pub(super) data: Vec<u8>,
    /// How much of the data is sent.
    pub(super) length: usize,
    /// What was counted when its request came; `None` for what no worker did.
    pub(super) counted: Option<usize>,
}

/// One connection's socket, and the replies that are to go there.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    pub(super) export: Arc<Export>,
    pub(super) session: Session,
    /// Losses of the image that this client was told of.
    losses: LossCursor,
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Reply>,
    turn: bool,
    dead: bool,
    under_way: usize,
    bytes: usize,
}

/// How sending ended.
enum Sent {
    All,
    /// The client takes no more; the rest is to be sent later.
    Full(VecDeque<Reply>),
    Dead,
}

impl Link {
    pub(super) fn new(socket: OwnedFd, export: Arc<Export>, session: Session) -> Self {
        Self {
            socket,
            losses: export.image().loss_cursor(),
            export,
            session,
            state: Mutex::default(),
            room: Condvar::new(),
        }
    }

    /// Has on the disk what was written before; of a loss, each client is told once.
    pub(super) fn flush(&self) -> io::Result<()> {
        let done = self.export.image().flush_for(&self.losses);
        if done.is_err() {
            self.export.lost();
        }
        done
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) const fn replies(&self) -> Replies {
        Replies::of(&self.session)
    }

    /// Counts a request that goes to workers, once there is room for it.
    pub(super) fn enter(&self, bytes: usize) {
        let mut state = lock(&self.state);
        while state.under_way >= MOST_REQUESTS || state.bytes > MOST_BYTES {
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.under_way += 1;
        state.bytes += bytes;
    }

    /// Whether a request could go to workers without waiting.
    pub(super) fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.under_way < MOST_REQUESTS && state.bytes <= MOST_BYTES
    }

    /// Waits until nothing is under way.
    pub(super) fn drain(&self) {
        let mut state = lock(&self.state);
        while state.under_way > 0 || state.turn {
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends what the connection's own thread has; it waits for its client.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        let mut state = lock(&self.state);
        if state.dead {
            return Err(Errno::PIPE.into());
        }
        if state.turn {
            // It cannot go out now, and may have to wait for long: it takes its place in the queue.
            let reply = Reply {
                head: bytes.to_vec(),
                ..Reply::default()
            };
            state.queue.push_back(reply);
            while state.turn && state.queue.len() >= MOST_REQUESTS {
                state = self
                    .room
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            return Ok(());
        }
        state.turn = true;
        drop(state);
        let sent = send_all(self.socket(), bytes);
        if sent.is_err() {
            self.die();
        }
        self.send_queue(None);
        Ok(sent?)
    }

    /// Sends what has come from the disk. It waits for no client.
    pub(super) fn reply(self: &Arc<Self>, replies: impl IntoIterator<Item = Reply>) {
        let mut state = lock(&self.state);
        state.queue.extend(replies);
        if state.turn {
            return;
        }
        state.turn = true;
        drop(state);
        self.send_queue(Some(self));
    }

    /// Whether the other side has gone.
    pub(super) fn is_over(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut fds, Some(&now));
        lock(&self.state).dead || ready.is_ok_and(|count| count > 0)
    }

    /// Ends the connection from this side.
    pub(super) fn die(&self) {
        lock(&self.state).dead = true;
        // It fails where the connection has ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends the queue, by whoever holds the turn. `worker` is given by those who must not wait
    /// for a client.
    fn send_queue(&self, worker: Option<&Arc<Self>>) {
        loop {
            let mut state = lock(&self.state);
            if state.dead {
                let dropped: Vec<Reply> = state.queue.drain(..).collect();
                self.left(&mut state, &dropped);
            }
            if state.queue.is_empty() {
                state.turn = false;
                self.room.notify_all();
                return;
            }
            let count = state.queue.len().min(TOGETHER);
            let batch: VecDeque<Reply> = state.queue.drain(..count).collect();
            drop(state);
            match self.send_batch(batch, worker.is_some()) {
                Sent::All => {}
                Sent::Dead => self.die(),
                Sent::Full(rest) => {
                    let mut state = lock(&self.state);
                    for reply in rest.into_iter().rev() {
                        state.queue.push_front(reply);
                    }
                    drop(state);
                    // Only workers are told that it is full.
                    if let Some(link) = worker {
                        link.hand_on();
                        return;
                    }
                }
            }
        }
    }

    /// Gives the turn to a thread that may wait for the client.
    fn hand_on(self: &Arc<Self>) {
        let link = Arc::clone(self);
        let thread = thread::Builder::new().name("nbd-slow".to_owned());
        if thread.spawn(move || link.send_queue(None)).is_err() {
            self.die();
            self.send_queue(None);
        }
    }

    /// Sends some replies, and gives back what was left over.
    fn send_batch(&self, mut batch: VecDeque<Reply>, impatient: bool) -> Sent {
        let flags = match impatient {
            true => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            false => SendFlags::NOSIGNAL,
        };
        // Of the first reply, what has gone already.
        let mut gone = 0;
        while !batch.is_empty() {
            let slices = slices(&batch, gone);
            let sent = sendmsg(
                &self.socket,
                &slices,
                &mut SendAncillaryBuffer::default(),
                flags,
            );
            match sent {
                Ok(sent) => gone = self.take_sent(&mut batch, gone + sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let soon = Instant::now() + PATIENCE;
                    if wait(self.socket(), PollFlags::OUT, soon).is_err() {
                        shorten(&mut batch, gone);
                        return Sent::Full(batch);
                    }
                }
                Err(_) => {
                    let left: Vec<Reply> = batch.into_iter().collect();
                    self.left(&mut lock(&self.state), &left);
                    return Sent::Dead;
                }
            }
        }
        Sent::All
    }

    /// Takes replies out that have gone as a whole, and says how much of the next one has.
    fn take_sent(&self, batch: &mut VecDeque<Reply>, mut gone: usize) -> usize {
        let mut done = Vec::new();
        while let Some(first) = batch.front() {
            let whole = first.head.len() + first.length;
            if gone < whole {
                break;
            }
            gone -= whole;
            done.extend(batch.pop_front());
        }
        let mut state = lock(&self.state);
        self.left(&mut state, &done);
        drop(state);
        for reply in done {
            if !reply.data.is_empty() {
                self.export.pool.give_back(reply.data);
            }
        }
        gone
    }

    /// Those are under way no longer.
    fn left(&self, state: &mut State, replies: &[Reply]) {
        for bytes in replies.iter().filter_map(|reply| reply.counted) {
            state.under_way -= 1;
            state.bytes -= bytes;
        }
        self.room.notify_all();
    }
}

fn slices(batch: &VecDeque<Reply>, gone: usize) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::with_capacity(2 * batch.len());
    let mut skip = gone;
    for reply in batch {
        let data = reply.data.get(..reply.length).unwrap_or_default();
        for bytes in [reply.head.as_slice(), data] {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            if skipped < bytes.len() {
                slices.push(IoSlice::new(bytes.get(skipped..).unwrap_or_default()));
            }
        }
    }
    slices
}

/// Leaves out of the first reply what has gone.
fn shorten(batch: &mut VecDeque<Reply>, gone: usize) {
    if let Some(first) = batch.front_mut() {
        let head = gone.min(first.head.len());
        first.head.drain(..head);
        let data = gone - head;
        if data > 0 {
            first.data.drain(..data);
            first.length -= data;
        }
    }
}

/// Sends all of it, and waits for the client.
pub(super) fn send_all(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
