//! Requests of one connection, one after the other as they come.

use std::sync::Arc;

use super::Ended;
use super::batch::Batch;
use super::inbox::Inbox;
use super::link::Link;
use super::perform::{Job, change, count_read, fail, is_hole, refuse};
use super::reads::Reads;
use super::ring::Patience;
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
    link: Arc<Link>,
    inbox: Inbox,
    batch: Batch,
    reads: Reads,
    /// Where this thread counts, under a ledger.
    till: Option<Till>,
}

impl Serving {
    pub(super) fn new(link: Arc<Link>, inbox: Inbox, rings: bool) -> Self {
        Self {
            reads: Reads::new(Arc::clone(&link), rings),
            till: link.export.throttle().map(Throttle::enter),
            batch: Batch::new(AT_ONCE),
            link,
            inbox,
        }
    }

    /// Serves requests until the client has had enough. What was asked for before is answered.
    pub(super) fn requests(&mut self) -> Result<(), Ended> {
        loop {
            let Some(header) = self.inbox.bytes().first_chunk::<HEADER_BYTES>() else {
                if !self.fill()? {
                    self.finish()?;
                    return match self.inbox.is_empty() {
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
                add(&self.link.export.counters.refused, 1);
                self.inbox.consume(HEADER_BYTES);
                self.skip(request.payload())?;
                let link = &self.link;
                self.batch
                    .with(link, |out| refuse(link, &request, error, out))?;
                continue;
            }
            if !self.admit(&request)? {
                return Ok(());
            }
            match request.command {
                Command::Read => {
                    self.inbox.consume(HEADER_BYTES);
                    self.read(&request)?;
                }
                Command::Write => {
                    if !self.write(&request)? {
                        return Err(Ended::Torn);
                    }
                }
                Command::Trim | Command::WriteZeroes if self.is_done(&request) => {
                    self.inbox.consume(HEADER_BYTES);
                    self.change(&request)?;
                }
                _ => {
                    self.inbox.consume(HEADER_BYTES);
                    self.hand_over(request, Vec::new())?;
                }
            }
        }
    }

    fn finish(&mut self) -> Result<(), Ended> {
        self.batch.send(&self.link)?;
        self.reads.finish()
    }

    /// Waits for more of the client, and answers what comes from the disk meanwhile; false at the end. What is done is
    /// answered before.
    fn fill(&mut self) -> Result<bool, Ended> {
        self.batch.send(&self.link)?;
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
            self.batch.send(&self.link)?;
            if !throttle.wait(till, &place, |time| self.reads.pause(time)) {
                return Ok(false);
            }
        }
        throttle.count(till, writes, bytes);
        Ok(true)
    }

    /// Answers at once what the page cache has, and has the disk begin with the rest.
    fn read(&mut self, request: &Request) -> Result<(), Ended> {
        let link = &self.link;
        let length = request.length as usize;
        if length == 0 {
            let replies = link.replies();
            return self
                .batch
                .with(link, |out| replies.read_nothing(request.cookie, out));
        }
        if length > AT_ONCE {
            return self.hand_over(*request, Vec::new());
        }
        let header = link.replies().read_header_bytes();
        if self.batch.room() < header + length {
            self.batch.send(link)?;
        }
        let into = self.batch.at(header, length);
        match link.export.read_now(into, request.offset) {
            Ok(Tried::Done) => {
                let into = self.batch.at(0, header);
                let replies = link.replies();
                replies.read_header(request.cookie, request.offset, request.length, into);
                count_read(&link.export, request.length);
                add(&link.export.counters.at_once, 1);
                return self.batch.advance(link, header + length);
            }
            Ok(Tried::Cold(reading)) => {
                if self.reads.is_full() {
                    self.batch.send(link)?;
                }
                while self.reads.is_full() {
                    self.reads.serve(Patience::Forever)?;
                }
                if self.reads.begin(*request, reading) {
                    return Ok(());
                }
            }
            Ok(Tried::Due) => {}
            Err(error) => {
                return self
                    .batch
                    .with(link, |out| fail(link, request, &error, out));
            }
        }
        self.hand_over(*request, Vec::new())
    }

    /// Writes at once what is a copy into the page cache, and leaves the rest to workers. False where the
    /// client went before all of the data was there.
    fn write(&mut self, request: &Request) -> Result<bool, Ended> {
        let length = request.length as usize;
        let whole = (request.offset | u64::from(request.length)).is_multiple_of(PAGE);
        let at_once = whole && !request.fua() && request.length <= WRITTEN_AT_ONCE;
        if at_once && Inbox::fits(HEADER_BYTES + length) {
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
            })?;
            return Ok(true);
        }
        self.inbox.consume(HEADER_BYTES);
        let mut payload = self.link.export.pool.memory(length);
        let mut rest = payload.get_mut(..length).unwrap_or_default();
        let taken = self.inbox.take(rest);
        rest = rest.get_mut(taken..).unwrap_or_default();
        while !rest.is_empty() {
            self.batch.send(&self.link)?;
            let read = self.reads.receive(rest)?;
            if read == 0 {
                return Ok(false);
            }
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        self.hand_over(*request, payload)?;
        Ok(true)
    }

    /// Whether the disk has nothing to do for a trim, or for zeroes.
    fn is_done(&self, request: &Request) -> bool {
        request.length > 0
            && !request.fua()
            && !request.no_hole()
            && is_hole(self.link.export.image(), request)
    }

    /// Does at once what the disk has nothing to do for.
    fn change(&mut self, request: &Request) -> Result<(), Ended> {
        let link = &self.link;
        let done = change(link, request, &[]);
        self.batch.with(link, |out| match &done {
            Ok(()) => link.replies().done(request.cookie, out),
            Err(error) => fail(link, request, error, out),
        })
    }

    /// Gives a request to the workers of its export.
    fn hand_over(&mut self, request: Request, payload: Vec<u8>) -> Result<(), Ended> {
        let counted = match request.command {
            Command::Read | Command::Write => request.length as usize,
            _ => 0,
        };
        if !self.link.has_room() {
            self.batch.send(&self.link)?;
        }
        self.link.enter(counted);
        self.link.export.pool.push(Job {
            link: Arc::clone(&self.link),
            request,
            payload,
            counted,
        });
        Ok(())
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
