//! Requests in parts, within the slot of their connection, where there is no other memory for them.
//!
//! The connection's own thread does them, one part after the other, and none of its other requests is under way
//! meanwhile. It is slower than a buffer, and needs nothing that another connection could hold.
//!
//! # Limits
//! A read that fails after its first part was sent cannot be answered with an error where replies are simple (or the client asked
//! for one chunk): the connection is closed. A write that is cut off is done in part, as that of a disk may be.

use std::sync::Arc;

use super::Ended;
use super::perform::{count_change, count_failure, count_read, extents, fail, write};
use super::serving::Serving;
use crate::protocol::Request;

/// A part, in bytes: it fits into the inbox, and with its header into the batch.
const PART: u64 = 128 << 10;

impl Serving {
    /// Answers a read part by part.
    pub(super) fn read_in_parts(&mut self, request: &Request) -> Result<(), Ended> {
        let link = Arc::clone(&self.link);
        let replies = link.replies();
        let chunks = replies.is_structured() && !request.one_chunk();
        for (skip, length) in parts(request) {
            if !link.is_wanted(length.into()) {
                return Ok(());
            }
            let offset = request.offset + skip;
            let last = skip + u64::from(length) == u64::from(request.length);
            let mut head = Vec::new();
            if chunks {
                replies.data_chunk(request.cookie, offset, length, last, &mut head);
            } else if skip == 0 {
                head.resize(replies.read_header_bytes(), 0);
                replies.read_header(request.cookie, offset, request.length, &mut head);
            }
            let room = self.batch.room(&link, head.len() + length as usize);
            let (front, data) = room.split_at_mut(head.len());
            front.copy_from_slice(&head);
            match link.export.read(data, offset) {
                Ok(()) => self.batch.advance(&link, head.len() + length as usize),
                Err(error) if skip == 0 || chunks => {
                    self.batch
                        .with(&link, |out| fail(&link, request, &error, out));
                    return Ok(());
                }
                Err(error) => {
                    count_failure(&link, request, &error);
                    self.batch.send(&link);
                    return Err(Ended::Cut(error));
                }
            }
        }
        // The end of the reply goes out before a worker can answer the next request in the middle of it.
        self.batch.send(&link);
        count_read(&link.export, request.length);
        Ok(())
    }

    /// Does a write part by part; false where the client went before all of the data was there.
    pub(super) fn write_in_parts(&mut self, request: &Request) -> Result<bool, Ended> {
        let link = Arc::clone(&self.link);
        let mut done = Ok(());
        for (skip, length) in parts(request) {
            let length = length as usize;
            while self.inbox.bytes().len() < length {
                if !self.fill()? {
                    return Ok(false);
                }
            }
            if done.is_ok() {
                let bytes = self.inbox.bytes().get(..length).unwrap_or_default();
                done = write(&link, bytes, request.offset + skip, false);
            }
            // After a failure the rest is only skipped.
            self.inbox.consume(length);
        }
        if done.is_ok() && request.fua() {
            done = link.flush();
        }
        match done {
            Ok(()) => {
                count_change(&link, request);
                let replies = link.replies();
                self.batch
                    .with(&link, |out| replies.done(request.cookie, out));
            }
            Err(error) => self
                .batch
                .with(&link, |out| fail(&link, request, &error, out)),
        }
        Ok(true)
    }

    /// Answers a block status by this thread.
    pub(super) fn status_in_place(&mut self, request: &Request) {
        let link = Arc::clone(&self.link);
        let found = extents(&link, request);
        self.batch.with(&link, |out| match found {
            Ok(extents) => link.replies().extents(request.cookie, &extents, out),
            Err(error) => fail(&link, request, &error, out),
        });
    }
}

/// Parts of a request, each with its place in it; but for the first they begin at whole parts of the image.
fn parts(request: &Request) -> impl Iterator<Item = (u64, u32)> + use<> {
    let (offset, length) = (request.offset, u64::from(request.length));
    let mut skip = 0;
    std::iter::from_fn(move || {
        let to_next = PART - (offset + skip) % PART;
        let part = to_next.min(length - skip);
        let at = (skip, u32::try_from(part).unwrap_or(0));
        skip += part;
        (part > 0).then_some(at)
    })
}
