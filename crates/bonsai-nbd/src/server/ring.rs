//! Reads that the disk is needed for, many at once, without a thread for each (`io_uring(7)`).
//!
//! # Story
//! The connection's thread enters what the page cache has not got, and goes on. When it has nothing else to do it waits
//! for its client and for the disk at once: one call gives the disk all that was entered, and takes all that has come.
//!
//! # Invariants
//! 1. Memory and files of a read that was entered stay until the kernel has given it back: also when the connection
//!    ends, and when the thread panics.
//! 2. Memory of a read is reserved before it is entered (`budget.rs`), and requests under way are counted (`link.rs`).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::budget::Buffer;
use crate::export::Reading;
use crate::image::Piece;
use crate::protocol::Request;

/// Pieces of one request have numbers below this.
const PIECES: usize = 16;
/// Entered, but not given to the kernel.
const ENTRIES: u32 = 256;
/// Bytes that are entered before the kernel is given them, unless the ring is waited for before: so much is worth a call, and the
/// disk is busy while the next requests are looked at.
const SUBMITTED: usize = 128 << 10;
/// What a completion of the socket's readiness is marked with.
const SOCKET: u64 = u64::MAX;

/// A read that is under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) reading: Reading,
    pub(super) data: Buffer,
    pieces: Vec<Piece>,
    left: usize,
    /// Something of it has not come as it was asked for.
    pub(super) failed: bool,
}

pub(super) struct Ring {
    uring: IoUring,
    /// By the upper bits of what completions are marked with.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// The kernel tells when the socket has something.
    asked: bool,
    /// Bytes that were entered since the kernel was given anything.
    entered: usize,
}

/// How long to wait for a completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Patience {
    None,
    Until(Duration),
    Forever,
}

impl Ring {
    /// # Errors
    /// The kernel has no rings, or none for this process.
    pub(super) fn new() -> io::Result<Self> {
        // One thread enters, and what has come is looked at when it asks: it is not interrupted (Linux 6.1).
        let quiet = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES);
        let uring = quiet.or_else(|_| IoUring::new(ENTRIES))?;
        // To wait for some time (Linux 5.11).
        if !uring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            uring,
            flights: Vec::new(),
            free: Vec::new(),
            asked: false,
            entered: 0,
        })
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.flights.len() == self.free.len()
    }

    /// Enters a read; `data` is of its length, and given back if it could not be entered.
    pub(super) fn enter(
        &mut self,
        request: Request,
        reading: Reading,
        (mut data, pieces): (Buffer, Vec<Piece>),
    ) -> Result<(), Buffer> {
        let fit = pieces.iter().all(|of| of.start + of.length <= data.len());
        if pieces.is_empty() || pieces.len() > PIECES || !fit {
            return Err(data);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let entry = |(number, piece): (usize, &Piece)| {
            let into = data.get_mut(piece.start..).unwrap_or_default().as_mut_ptr();
            let length = u32::try_from(piece.length).unwrap_or(u32::MAX);
            opcode::Read::new(Fd(piece.image.file().as_raw_fd()), into, length)
                .offset(piece.offset)
                .build()
                .user_data((slot * PIECES + number) as u64)
        };
        let entries: Vec<_> = pieces.iter().enumerate().map(entry).collect();
        self.entered += pieces.iter().map(|of| of.length).sum::<usize>();
        let flight = Flight {
            request,
            reading,
            data,
            left: pieces.len(),
            pieces,
            failed: false,
        };
        if let Some(place) = self.flights.get_mut(slot) {
            *place = Some(flight);
        }
        for entry in &entries {
            // SAFETY: memory and file are in the flight that is in its slot, and leave it only when all of its
            // pieces have come back (`take`), or never (`drop`). Pieces lie within the memory, as was
            // checked, which is mapped and does not move with the flight.
            let pushed = unsafe { self.push(entry) };
            if !pushed && let Some(Some(flight)) = self.flights.get_mut(slot) {
                flight.left -= 1;
                flight.failed = true;
            }
        }
        match self.land(slot) {
            Some(flight) => Err(flight.data),
            None => {
                self.submit_much();
                Ok(())
            }
        }
    }

    fn submit_much(&mut self) {
        if self.entered >= SUBMITTED {
            self.entered = 0;
            // What is not taken stays entered; who waits hears of what is wrong.
            let _ = self.uring.submit();
        }
    }

    /// Takes a flight out of its slot that nothing more comes of.
    fn land(&mut self, slot: usize) -> Option<Flight> {
        let flight = self.flights.get_mut(slot)?.take_if(|of| of.left == 0)?;
        self.free.push(slot);
        Some(flight)
    }

    /// # Safety
    /// What the entry points to stays until it has come back.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: as the caller says.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        // It is full: the kernel is given what was entered.
        if endured(self.uring.submit()).is_err() {
            return false;
        }
        // SAFETY: as the caller says.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// Has the kernel tell when the socket has something.
    pub(super) fn ask(&mut self, socket: BorrowedFd<'_>) {
        if !self.asked {
            let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLIN as u32);
            let entry = entry.build().user_data(SOCKET);
            // SAFETY: it points to nothing; the kernel takes its own reference to the file.
            self.asked = unsafe { self.push(&entry) };
        }
    }

    /// Gives the kernel what was entered, and waits for something to come, from the disk or the socket. Also what has come
    /// is only handed over to who asks for it.
    pub(super) fn wait(&mut self, patience: Patience) -> io::Result<()> {
        self.entered = 0;
        let time = match patience {
            Patience::Forever => return endured(self.uring.submit_and_wait(1)),
            Patience::None => Timespec::new(),
            Patience::Until(time) => Timespec::from(time),
        };
        let submitter = self.uring.submitter();
        endured(submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time)))
    }

    /// A read that has come back as a whole.
    pub(super) fn take(&mut self) -> Option<Flight> {
        loop {
            let completion = self.uring.completion().next()?;
            let mark = completion.user_data();
            if mark == SOCKET {
                self.asked = false;
                continue;
            }
            let mark = usize::try_from(mark).unwrap_or(usize::MAX);
            let (slot, number) = (mark / PIECES, mark % PIECES);
            if let Some(Some(flight)) = self.flights.get_mut(slot) {
                let wanted = flight.pieces.get(number).map(|of| of.length);
                flight.failed |= usize::try_from(completion.result()).ok() != wanted;
                flight.left -= 1;
            }
            if let Some(flight) = self.land(slot) {
                return Some(flight);
            }
        }
    }
}

/// An error that a ring does not go on after; what was not taken just now stays entered.
fn endured(done: io::Result<usize>) -> io::Result<()> {
    match done.map_err(|error| (error.raw_os_error(), error)) {
        Err((Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) | Ok(_) => Ok(()),
        Err((_, error)) => Err(error),
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.wait(Patience::Forever).is_err() {
                // The kernel may still write there.
                std::mem::take(&mut self.flights).leak();
                return;
            }
            while self.take().is_some() {}
        }
    }
}
