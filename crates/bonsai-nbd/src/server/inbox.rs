//! What has come from a client and is not used yet.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Ended;
use super::budget::Buffer;

/// Bytes between `start` and `end`.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Buffer,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) const fn new(bytes: Buffer) -> Self {
        Self {
            bytes,
            start: 0,
            end: 0,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Whether so many bytes fit at all.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        bytes <= self.bytes.len()
    }

    /// Takes more, as `receive` has it; false at the end of what comes.
    pub(super) fn fill(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> Result<usize, Ended>,
    ) -> Result<bool, Ended> {
        if self.start > 0 && self.end > self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        let read = receive(room)?;
        self.end += read;
        Ok(read > 0)
    }

    /// Waits for more, but no longer than until `deadline`.
    pub(super) fn fill_until(
        &mut self,
        socket: BorrowedFd<'_>,
        deadline: Instant,
        patience: Duration,
    ) -> Result<bool, Ended> {
        wait(socket, PollFlags::IN, deadline).map_err(|()| Ended::Slow(patience))?;
        self.fill(|room| receive(socket, room))
    }

    /// Takes up to `into.len()` bytes that have come, and says how many.
    pub(super) fn take(&mut self, into: &mut [u8]) -> usize {
        let taken = into.len().min(self.end - self.start);
        let from = self.bytes().get(..taken).unwrap_or_default();
        into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        self.consume(taken);
        taken
    }
}

/// Waits for some bytes.
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Ended> {
    loop {
        match recv(socket, &mut *into, RecvFlags::empty()) {
            Ok((read, _)) => return Ok(read),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes some bytes if they are there.
pub(super) fn receive_now(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<Option<usize>, Ended> {
    match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
        Ok((read, _)) => Ok(Some(read)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits for an event; `Err` when it is too late.
pub(super) fn wait(socket: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> Result<(), ()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(());
        }
        let left = Timespec::try_from(left).map_err(|_| ())?;
        match poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&left)) {
            Ok(0) => return Err(()),
            // Errors of the socket show in what comes next.
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) => return Ok(()),
        }
    }
}
