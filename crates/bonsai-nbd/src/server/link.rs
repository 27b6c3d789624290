//! The sending side of one connection.
//!
//! # Story
//! A thread that has a reply enqueues it; if no other thread is sending, it takes the *turn* and drains the queue. If the socket
//! would block for longer than a moment, a worker hands the turn to a dedicated thread, so that a slow client, or one that does
//! not receive at all, occupies no worker of an export. The connection's own thread may wait for its client.
//!
//! A client has gone when sending to it fails, or when its socket is closed in both directions (`POLLHUP`), which is looked
//! for in the course of its requests. Then the link is *dead*: what is queued is dropped, and nobody does more for it than the changes
//! that it sent as a whole. A client that only ended its own side still gets its replies.
//!
//! # Invariants
//! 1. Only the holder of the turn writes to the socket.
//! 2. While the queue is not empty, a thread holds the turn.
//! 3. `under_way` counts the requests that are with workers, with the disk, or in the queue. Their memory is reserved in the
//!    connection's [`Account`] before they begin, and given back when they were sent or dropped.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};

use super::budget::{Account, Buffer};
use super::failures::Failures;
use super::inbox::wait;
use super::lock;
use crate::export::Export;
use crate::image::LossCursor;
use crate::protocol::{Replies, Session};

/// Requests of one connection under way, at most.
const MOST_REQUESTS: usize = 256;
/// Replies that go out with one call.
const TOGETHER: usize = 16;
/// How long a worker waits for a client.
const PATIENCE: Duration = Duration::from_millis(20);
/// The socket is looked at after so many bytes of requests: a call for each of the small ones would cost a tenth of them.
const LOOK_BYTES: u64 = 1 << 20;
/// What a request costs beside its bytes, in bytes.
const REQUEST_COST: u64 = 4096;

/// A reply: what stands before the data, and the data.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) head: Vec<u8>,
    pub(super) data: Option<Buffer>,
    /// How much of the data is sent.
    pub(super) length: usize,
    /// Its request is among those under way.
    pub(super) counted: bool,
    /// How much of head and data has gone.
    sent: usize,
}

impl Reply {
    pub(super) fn bytes(head: Vec<u8>, data: Option<Buffer>, length: usize) -> Self {
        Self {
            head,
            data,
            length,
            ..Self::default()
        }
    }

    /// What is still to be sent.
    fn slices(&self) -> [&[u8]; 2] {
        let data = self.data.as_deref().unwrap_or_default();
        let data = data.get(..self.length).unwrap_or_default();
        let skip = self.sent.saturating_sub(self.head.len());
        [
            self.head.get(self.sent..).unwrap_or_default(),
            data.get(skip..).unwrap_or_default(),
        ]
    }

    fn left(&self) -> usize {
        self.slices().iter().map(|bytes| bytes.len()).sum()
    }
}

/// One connection's socket, and the replies that are to go there.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    pub(super) export: Arc<Export>,
    pub(super) session: Session,
    pub(super) account: Arc<Account>,
    pub(super) failures: Arc<Failures>,
    /// Losses of the image that this client was told of.
    losses: LossCursor,
    state: Mutex<State>,
    /// Changed under the lock of `state`.
    dead: AtomicBool,
    /// A request has been answered, the turn is free, or the link is dead.
    change: Condvar,
    /// Bytes of requests since the socket was looked at.
    unseen: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Reply>,
    turn: bool,
    under_way: usize,
}

/// How sending ended.
enum Sent {
    All,
    /// The client takes no more; the rest is to be sent later.
    Full(VecDeque<Reply>),
    Dead(VecDeque<Reply>),
}

impl Link {
    pub(super) fn new(
        socket: OwnedFd,
        (export, session): (Arc<Export>, Session),
        account: Arc<Account>,
        failures: Arc<Failures>,
    ) -> Self {
        Self {
            socket,
            losses: export.image().loss_cursor(),
            export,
            session,
            account,
            failures,
            state: Mutex::default(),
            dead: AtomicBool::new(false),
            change: Condvar::new(),
            unseen: AtomicU64::new(0),
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

    /// Counts a request as under way; false where there are too many.
    pub(super) fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        let has_room = state.under_way < MOST_REQUESTS;
        state.under_way += usize::from(has_room);
        has_room
    }

    /// Waits for a request to be answered, or for a reply of the connection's own thread to be sent; false where there is
    /// nothing to wait for.
    pub(super) fn wait_for_one(&self) -> bool {
        let state = lock(&self.state);
        let before = (state.under_way, state.queue.len());
        if before.0 == 0 && !state.turn {
            return false;
        }
        let same = |state: &mut State| {
            (state.under_way, state.queue.len()) == before && (before.0 > 0 || state.turn)
        };
        let waited = self.change.wait_while(state, same);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Waits until nothing is under way.
    pub(super) fn drain(&self) {
        while self.wait_for_one() {}
    }

    /// Sends what the connection's own thread has; it waits for its client. Nothing is sent over a dead link.
    pub(super) fn send(&self, bytes: &[u8]) {
        let mut state = lock(&self.state);
        if state.turn
            && let Some(mut copy) = self.account.take(bytes.len())
        {
            // It cannot go out now, and may have to wait for long: it takes its place in the queue.
            copy.copy_from_slice(bytes);
            state
                .queue
                .push_back(Reply::bytes(Vec::new(), Some(copy), bytes.len()));
            return;
        }
        let free = self.change.wait_while(state, |state| state.turn);
        state = free.unwrap_or_else(PoisonError::into_inner);
        if self.is_dead() {
            return;
        }
        state.turn = true;
        drop(state);
        if send_all(self.socket(), bytes).is_err() {
            self.die();
        }
        self.send_queue(None);
    }

    /// Sends a reply of the connection's own thread; it waits for its client.
    pub(super) fn send_reply(&self, reply: Reply) {
        if self.enqueue([reply]) {
            self.send_queue(None);
        }
    }

    /// Sends what workers or the disk have done. It waits for no client.
    pub(super) fn reply(self: &Arc<Self>, replies: impl IntoIterator<Item = Reply>) {
        if self.enqueue(replies) {
            self.send_queue(Some(self));
        }
    }

    /// Puts replies into the queue; true where the caller has the turn now.
    fn enqueue(&self, replies: impl IntoIterator<Item = Reply>) -> bool {
        let mut state = lock(&self.state);
        state.queue.extend(replies);
        !std::mem::replace(&mut state.turn, true)
    }

    /// Whether nobody is there any more: it is dead, or the other side has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_dead() || self.has(PollFlags::RDHUP)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Whether somebody may still take the reply to a request of so many bytes; if not, the link is dead from now on.
    pub(super) fn is_wanted(&self, bytes: u64) -> bool {
        if self.is_dead() {
            return false;
        }
        let cost = bytes + REQUEST_COST;
        if self.unseen.fetch_add(cost, Ordering::Relaxed) + cost < LOOK_BYTES {
            return true;
        }
        self.unseen.store(0, Ordering::Relaxed);
        let has_gone = self.has(PollFlags::empty());
        if has_gone {
            self.die();
        }
        !has_gone
    }

    /// Whether the socket has an event now. Closed in both directions and errors always are (poll(2)).
    fn has(&self, event: PollFlags) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.socket, event)];
        poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Ends the connection from this side.
    pub(super) fn die(&self) {
        let state = lock(&self.state);
        self.dead.store(true, Ordering::Relaxed);
        drop(state);
        // It fails where the connection has ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.change.notify_all();
    }

    /// Sends the queue, by the holder of the turn. `worker` is given by threads that must not wait
    /// for a client.
    fn send_queue(&self, worker: Option<&Arc<Self>>) {
        loop {
            let mut state = lock(&self.state);
            if self.is_dead() {
                let dropped = std::mem::take(&mut state.queue);
                self.uncount(&mut state, &dropped);
            }
            if state.queue.is_empty() {
                state.turn = false;
                self.change.notify_all();
                return;
            }
            let count = state.queue.len().min(TOGETHER);
            let batch: VecDeque<Reply> = state.queue.drain(..count).collect();
            drop(state);
            match self.send_batch(batch, worker.is_some()) {
                Sent::All => {}
                Sent::Dead(rest) => {
                    self.uncount(&mut lock(&self.state), &rest);
                    self.die();
                }
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
        while !batch.is_empty() {
            let parts = batch.iter().flat_map(Reply::slices);
            let slices: Vec<_> = parts
                .filter(|bytes| !bytes.is_empty())
                .map(IoSlice::new)
                .collect();
            let sent = sendmsg(
                &self.socket,
                &slices,
                &mut SendAncillaryBuffer::default(),
                flags,
            );
            drop(slices);
            match sent {
                Ok(sent) => self.take_sent(&mut batch, sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let soon = Instant::now() + PATIENCE;
                    if wait(self.socket(), PollFlags::OUT, soon).is_err() {
                        return Sent::Full(batch);
                    }
                }
                Err(_) => return Sent::Dead(batch),
            }
        }
        Sent::All
    }

    /// Takes replies out that have gone as a whole, and notes how much of the next one has.
    fn take_sent(&self, batch: &mut VecDeque<Reply>, mut sent: usize) {
        let mut done = VecDeque::new();
        while let Some(first) = batch.front_mut() {
            let left = first.left();
            if sent < left {
                first.sent += sent;
                break;
            }
            sent -= left;
            done.extend(batch.pop_front());
        }
        // Their memory first: who is told that they were sent may want it.
        done.iter_mut().for_each(|reply| drop(reply.data.take()));
        self.uncount(&mut lock(&self.state), &done);
    }

    /// Those are under way no longer.
    fn uncount(&self, state: &mut State, replies: &VecDeque<Reply>) {
        state.under_way -= replies.iter().filter(|reply| reply.counted).count();
        self.change.notify_all();
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
