//! Requests of one connection, one after the other as they come.

use std::sync::Arc;

use super::Ended;
use super::batch::Batch;
use super::budget::Buffer;
use super::inbox::Inbox;
use super::link::{Link, Reply};
use super::perform::{
    EXTENTS_BYTES, Job, change, count_read, fail, is_done_for, is_hole, read_reply, refuse,
};
use super::reads::Reads;
use crate::export::{Tried, add};
use crate::protocol::{Command, HEADER_BYTES, Request};
use crate::throttle::{Throttle, Till};

/// Reads up to this size are tried at once, and go to the disk from here. What is larger is left to workers.
const AT_ONCE: usize = 1 << 20;
/// Writes of whole pages up to this size are done at once: a copy into the page cache.
const WRITTEN_AT_ONCE: u32 = 256 << 10;
const PAGE: u64 = 4096;
/// Data of a refused write that is skipped; whoever sends more is sent away.
const MOST_SKIPPED: u32 = 64 << 20;

/// A connection's own thread.
pub(super) struct Serving {
    pub(super) link: Arc<Link>,
    pub(super) inbox: Inbox,
    pub(super) batch: Batch,
    reads: Reads,
    /// Where this thread counts, under a ledger.
    till: Option<Till>,
}

impl Serving {
    pub(super) fn new(link: Arc<Link>, inbox: Inbox, batch: Batch, rings: bool) -> Self {
        Self {
            reads: Reads::new(Arc::clone(&link), rings),
            till: link.export.throttle().map(Throttle::enter),
            batch,
            link,
            inbox,
        }
    }

    /// Serves requests until the client has had enough. What was asked for before is answered. Of a client that has
    /// gone, the changes that it sent as a whole are still made.
    pub(super) fn requests(&mut self) -> Result<(), Ended> {
        loop {
            let Some(header) = self.inbox.bytes().first_chunk::<HEADER_BYTES>() else {
                if !self.fill()? {
                    self.finish()?;
                    return match self.inbox.is_empty() {
                        _ if self.link.is_dead() => Err(Ended::Gone),
                        true => Ok(()),
                        false => Err(Ended::Torn),
                    };
                }
                continue;
            };
            let request = Request::parse(header)?;
            if request.command == Command::Disconnect {
                return self.finish();
            }
            if let Err(error) = request.check(self.link.export.info(), &self.link.session) {
                self.inbox.consume(HEADER_BYTES);
                self.skip(request.payload())?;
                let link = &self.link;
                self.batch
                    .with(link, |out| refuse(link, &request, error, out));
                continue;
            }
            if !is_done_for(&self.link, &request) {
                self.inbox.consume(HEADER_BYTES);
                continue;
            }
            if !self.admit(&request)? {
                return self.finish();
            }
            self.request(request)?;
        }
    }

    fn request(&mut self, request: Request) -> Result<(), Ended> {
        if request.command == Command::Write {
            return match self.write(&request)? {
                true => Ok(()),
                false => Err(Ended::Torn),
            };
        }
        self.inbox.consume(HEADER_BYTES);
        match request.command {
            Command::Read => self.read(&request),
            Command::BlockStatus => match self.reserve(EXTENTS_BYTES)? {
                Some(memory) => self.hand_over(request, Some(memory)),
                None => {
                    self.status_in_place(&request);
                    Ok(())
                }
            },
            Command::Trim | Command::WriteZeroes if self.is_done(&request) => {
                self.change(&request);
                Ok(())
            }
            _ => self.hand_over(request, None),
        }
    }

    /// Answers all that is under way at the disk.
    pub(super) fn finish(&mut self) -> Result<(), Ended> {
        self.batch.send(&self.link);
        self.reads.finish()
    }

    /// Waits for more of the client, and answers what comes from the disk meanwhile; false at the end. What is done is
    /// answered before.
    pub(super) fn fill(&mut self) -> Result<bool, Ended> {
        self.batch.send(&self.link);
        self.inbox.fill(|room| self.reads.receive(room))
    }

    /// Waits until a request is due by the limits of its export, and notes it; false where its client has gone.
    fn admit(&mut self, request: &Request) -> Result<bool, Ended> {
        let throttle = self.link.export.throttle();
        let counted = request.counted().zip(throttle.zip(self.till));
        let Some(((writes, bytes), (throttle, till))) = counted else {
            return Ok(true);
        };
        if let Some(place) = throttle.place(writes, bytes) {
            self.batch.send(&self.link);
            if !throttle.wait(till, &place, |time| self.reads.pause(time)) {
                return Ok(false);
            }
        }
        throttle.count(till, writes, bytes);
        Ok(true)
    }

    /// Reserves memory for a request. While there is none, it waits for requests of its own that are under way; `None`
    /// where there are no such any more: others have it, who are not waited for.
    fn reserve(&mut self, bytes: usize) -> Result<Option<Buffer>, Ended> {
        let mut memory = self.link.account.take(bytes);
        if memory.is_none() {
            // The client may need it to go on.
            self.batch.send(&self.link);
        }
        while memory.is_none() && self.reads.wait_for_one()? {
            memory = self.link.account.take(bytes);
        }
        Ok(memory)
    }

    /// Counts a request as under way, once there are few enough of them.
    fn enter(&mut self) -> Result<(), Ended> {
        while !self.link.enter() {
            self.batch.send(&self.link);
            self.reads.wait_for_one()?;
        }
        Ok(())
    }

    /// Answers at once what the page cache has, and has the disk begin with the rest.
    fn read(&mut self, request: &Request) -> Result<(), Ended> {
        let link = Arc::clone(&self.link);
        let length = request.length as usize;
        if length == 0 {
            let replies = link.replies();
            self.batch
                .with(&link, |out| replies.read_nothing(request.cookie, out));
            return Ok(());
        }
        let header = link.replies().read_header_bytes();
        if !self.batch.fits(header + length) {
            return self.read_large(request);
        }
        let room = self.batch.room(&link, header + length);
        let (head, into) = room.split_at_mut(header);
        match link.export.read_now(into, request.offset) {
            Ok(Tried::Done) => {
                let replies = link.replies();
                replies.read_header(request.cookie, request.offset, request.length, head);
                self.batch.advance(&link, header + length);
                count_read(&link.export, request.length);
                add(&link.export.counters.at_once, 1);
            }
            Ok(tried) => match self.reserve(length)? {
                Some(memory) => self.read_later(request, tried, memory)?,
                None => self.read_in_parts(request)?,
            },
            Err(error) => self
                .batch
                .with(&link, |out| fail(&link, request, &error, out)),
        }
        Ok(())
    }

    /// The same for a read that does not fit into the batch.
    fn read_large(&mut self, request: &Request) -> Result<(), Ended> {
        let Some(mut memory) = self.reserve(request.length as usize)? else {
            return self.read_in_parts(request);
        };
        if memory.len() > AT_ONCE {
            return self.hand_over(*request, Some(memory));
        }
        let link = &self.link;
        match link.export.read_now(&mut memory, request.offset) {
            Ok(Tried::Done) => {
                add(&link.export.counters.at_once, 1);
                let reply = read_reply(link, request, memory);
                self.send(reply);
                Ok(())
            }
            Ok(tried) => self.read_later(request, tried, memory),
            Err(error) => {
                self.batch
                    .with(link, |out| fail(link, request, &error, out));
                Ok(())
            }
        }
    }

    fn send(&mut self, reply: Reply) {
        self.batch.send(&self.link);
        self.link.send_reply(reply);
    }

    /// Has the disk begin with a read, or a worker where that cannot be.
    fn read_later(&mut self, request: &Request, tried: Tried, memory: Buffer) -> Result<(), Ended> {
        let Tried::Cold(reading) = tried else {
            return self.hand_over(*request, Some(memory));
        };
        self.enter()?;
        if let Err(memory) = self.reads.begin(*request, reading, memory) {
            self.push(*request, Some(memory));
        }
        Ok(())
    }

    /// Writes at once what is a copy into the page cache, and leaves the rest to workers. False where the
    /// client went before all of the data was there.
    fn write(&mut self, request: &Request) -> Result<bool, Ended> {
        let length = request.length as usize;
        let whole = (request.offset | u64::from(request.length)).is_multiple_of(PAGE);
        let at_once = whole && !request.fua() && request.length <= WRITTEN_AT_ONCE;
        if at_once && self.inbox.fits(HEADER_BYTES + length) {
            while self.inbox.bytes().len() < HEADER_BYTES + length {
                if !self.fill()? {
                    return Ok(false);
                }
            }
            let payload = self.inbox.bytes().get(HEADER_BYTES..HEADER_BYTES + length);
            let link = &self.link;
            let done = change(link, request, payload.unwrap_or_default());
            self.inbox.consume(HEADER_BYTES + length);
            self.batch.with(link, |out| match &done {
                Ok(()) => link.replies().done(request.cookie, out),
                Err(error) => fail(link, request, error, out),
            });
            return Ok(true);
        }
        self.inbox.consume(HEADER_BYTES);
        if length == 0 {
            self.hand_over(*request, None)?;
            return Ok(true);
        }
        let Some(mut payload) = self.reserve(length)? else {
            return self.write_in_parts(request);
        };
        let taken = self.inbox.take(&mut payload);
        let mut rest = payload.get_mut(taken..).unwrap_or_default();
        while !rest.is_empty() {
            self.batch.send(&self.link);
            let read = self.reads.receive(rest)?;
            if read == 0 {
                return Ok(false);
            }
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        self.hand_over(*request, Some(payload))?;
        Ok(true)
    }

    /// Whether the disk has nothing to do for a trim, or for zeroes.
    fn is_done(&self, request: &Request) -> bool {
        self.link.export.info().discard
            && request.length > 0
            && !request.fua()
            && !request.no_hole()
            && is_hole(self.link.export.image(), request)
    }

    /// Does at once what the disk has nothing to do for.
    fn change(&mut self, request: &Request) {
        let link = &self.link;
        let done = change(link, request, &[]);
        self.batch.with(link, |out| match &done {
            Ok(()) => link.replies().done(request.cookie, out),
            Err(error) => fail(link, request, error, out),
        });
    }

    /// Gives a request to the workers of its export.
    fn hand_over(&mut self, request: Request, memory: Option<Buffer>) -> Result<(), Ended> {
        self.enter()?;
        self.push(request, memory);
        Ok(())
    }

    /// The same with one that is counted already.
    fn push(&self, request: Request, memory: Option<Buffer>) {
        self.link.export.pool.push(Job {
            link: Arc::clone(&self.link),
            request,
            memory,
        });
    }

    /// Skips the data of a write that is refused.
    fn skip(&mut self, bytes: u32) -> Result<(), Ended> {
        if bytes > MOST_SKIPPED {
            return Err(Ended::TooLong(bytes));
        }
        let mut left = bytes as usize;
        loop {
            let here = left.min(self.inbox.bytes().len());
            self.inbox.consume(here);
            left -= here;
            if left == 0 {
                return Ok(());
            }
            if !self.fill()? {
                return Err(Ended::Torn);
            }
        }
    }
}
