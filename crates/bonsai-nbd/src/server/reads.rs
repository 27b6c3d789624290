//! Reads of one connection that the disk is needed for, and waiting for its client meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::Ended;
use super::budget::Buffer;
use super::inbox::{receive, receive_now};
use super::link::{Link, Reply};
use super::perform::{Job, read_reply};
use super::ring::{Flight, Patience, Ring};
use crate::export::Reading;
use crate::protocol::Request;
use crate::throttle::sleep;

pub(super) struct Reads {
    link: Arc<Link>,
    ring: Option<Ring>,
    /// There is none to be had, or none is to be asked for.
    never: bool,
}

impl Reads {
    pub(super) const fn new(link: Arc<Link>, rings: bool) -> Self {
        Self {
            link,
            ring: None,
            never: !rings,
        }
    }

    /// Has the disk begin soon; the memory is given back where it could not be entered. The request is counted already.
    pub(super) fn begin(
        &mut self,
        request: Request,
        reading: Reading,
        data: Buffer,
    ) -> Result<(), Buffer> {
        if self.ring.is_none() && !self.never {
            self.ring = Ring::new().ok();
            self.never = self.ring.is_none();
        }
        let Some(ring) = &mut self.ring else {
            return Err(data);
        };
        let export = &self.link.export;
        let pieces = export.pieces(&reading, request.offset, request.length as usize);
        ring.enter(request, reading, (data, pieces))
    }

    /// Waits for one of the connection's own requests to be answered; false where none is under way.
    pub(super) fn wait_for_one(&mut self) -> Result<bool, Ended> {
        if self.is_idle() {
            return Ok(self.link.wait_for_one());
        }
        self.serve(Patience::Forever)?;
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.ring.as_ref().is_none_or(Ring::is_idle)
    }

    /// Waits for the disk, and answers what has come from there.
    pub(super) fn serve(&mut self, patience: Patience) -> Result<(), Ended> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        ring.wait(patience)?;
        let mut replies = Vec::new();
        while let Some(flight) = ring.take() {
            replies.extend(answer(&self.link, flight));
        }
        if !replies.is_empty() {
            self.link.reply(replies);
        }
        Ok(())
    }

    /// Answers all that is under way.
    pub(super) fn finish(&mut self) -> Result<(), Ended> {
        while !self.is_idle() {
            self.serve(Patience::Forever)?;
        }
        Ok(())
    }

    /// Waits for some bytes of the client, and for the disk; 0 at the end of what comes.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Ended> {
        loop {
            if self.link.is_dead() {
                // What had come is still there.
                return Ok(receive_now(self.link.socket(), into)?.unwrap_or(0));
            }
            if self.is_idle() {
                return receive(self.link.socket(), into);
            }
            if let Some(read) = receive_now(self.link.socket(), into)? {
                // A client that always has more is not to be answered at its end.
                self.serve(Patience::None)?;
                return Ok(read);
            }
            if let Some(ring) = &mut self.ring {
                ring.ask(self.link.socket());
            }
            self.serve(Patience::Forever)?;
        }
    }

    /// Lets time pass, but no answers wait; false where the client has gone.
    pub(super) fn pause(&mut self, time: Duration) -> bool {
        if self.is_idle() {
            sleep(time);
        } else if self.serve(Patience::Until(time)).is_err() {
            return false;
        }
        !self.link.is_over()
    }
}

/// The reply; none where a worker is to make it, since it did not come as a whole.
fn answer(link: &Arc<Link>, mut flight: Flight) -> Option<Reply> {
    let export = &link.export;
    let request = flight.request;
    let done = !flight.failed
        && export
            .finish(flight.reading, &mut flight.data, request.offset)
            .unwrap_or(false);
    if done {
        let mut reply = read_reply(link, &request, flight.data);
        reply.counted = true;
        return Some(reply);
    }
    export.pool.push(Job {
        link: Arc::clone(link),
        request,
        memory: Some(flight.data),
    });
    None
}
