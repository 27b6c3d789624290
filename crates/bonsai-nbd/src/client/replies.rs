//! Requests as bytes, and replies taken apart.

use std::collections::HashMap;

use super::{Agreed, ClientError};
use crate::protocol::Command;
use crate::protocol::wire::{REQUEST, SIMPLE_REPLY, STRUCTURED_REPLY, chunk, command};

/// The most data of a chunk that says what failed: two numbers, and a text of 4 KiB.
const MAX_WORDS: u32 = 16 + 4096;

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// Read, write, flush, trim, cache or zeroes.
    pub command: Command,
    /// As on the wire.
    pub flags: u16,
    /// The first byte.
    pub offset: u64,
    /// In bytes; of a flush 0.
    pub length: u32,
}

/// What a reply says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event<'a> {
    /// A part of a read.
    Data {
        /// Of which request.
        cookie: u64,
        /// From the request's own offset, bytes.
        at: u32,
        /// What is there.
        bytes: &'a [u8],
    },
    /// A part of a read that is zero.
    Zeroes {
        /// Of which request.
        cookie: u64,
        /// From the request's own offset, bytes.
        at: u32,
        /// In bytes.
        length: u32,
    },
    /// A request is done.
    Done {
        /// Which.
        cookie: u64,
        /// Why it failed, if so: the protocol's number, never 0.
        error: Option<u32>,
    },
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    is_read: bool,
    offset: u64,
    length: u32,
    /// Bytes that have come.
    got: u32,
    error: Option<u32>,
}

/// Data that is on its way.
#[derive(Clone, Copy, Debug)]
struct Flow {
    cookie: u64,
    at: u32,
    left: u32,
    /// Nothing of this request follows.
    is_last: bool,
}

/// An agreed connection, without its socket.
#[derive(Debug)]
pub struct Session {
    agreed: Agreed,
    next: u64,
    waiting: HashMap<u64, Waiting>,
    flow: Option<Flow>,
}

impl Session {
    /// After a handshake.
    #[must_use]
    pub fn new(agreed: Agreed) -> Self {
        Self {
            agreed,
            next: 0,
            waiting: HashMap::new(),
            flow: None,
        }
    }

    /// What was agreed on.
    #[must_use]
    pub const fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Requests that are not done.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a request to what is to be sent; of a write, its data has to follow. Returns its cookie.
    pub fn ask(&mut self, ask: Ask, out: &mut Vec<u8>) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let kind = match ask.command {
            Command::Read => command::READ,
            Command::Write => command::WRITE,
            Command::Disconnect => command::DISC,
            Command::Flush => command::FLUSH,
            Command::Trim => command::TRIM,
            Command::Cache => command::CACHE,
            Command::WriteZeroes => command::WRITE_ZEROES,
            Command::BlockStatus => command::BLOCK_STATUS,
            Command::Unknown(other) => other,
        };
        out.extend_from_slice(&REQUEST.to_be_bytes());
        out.extend_from_slice(&ask.flags.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&ask.offset.to_be_bytes());
        out.extend_from_slice(&ask.length.to_be_bytes());
        if ask.command != Command::Disconnect {
            let waiting = Waiting {
                is_read: ask.command == Command::Read,
                offset: ask.offset,
                length: ask.length,
                got: 0,
                error: None,
            };
            self.waiting.insert(cookie, waiting);
        }
        cookie
    }

    /// Takes what came from the server, and says what it means. Returns how much was used; the rest has to be given
    /// again, with more behind it.
    ///
    /// # Errors
    /// The server breaks the protocol: the connection is of no use any more.
    pub fn push(
        &mut self,
        input: &[u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        let mut rest = input;
        loop {
            let before = rest.len();
            rest = match self.flow.take() {
                Some(flow) => self.data(flow, rest, on)?,
                None => self.header(rest, on)?,
            };
            if rest.is_empty() || rest.len() == before && self.flow.is_none() {
                return Ok(input.len() - rest.len());
            }
        }
    }

    /// Asserts what holds between calls.
    ///
    /// # Panics
    /// It does not hold.
    pub fn check_invariants(&self) {
        for of in self.waiting.values() {
            assert!(of.got <= of.length, "more came than was asked for");
        }
        if let Some(flow) = self.flow {
            let of = self.waiting.get(&flow.cookie);
            let fits = of.is_some_and(|of| flow.at + flow.left <= of.length && of.is_read);
            assert!(flow.left > 0 && fits, "data without a request");
        }
    }

    fn data<'a>(
        &mut self,
        flow: Flow,
        input: &'a [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'a [u8], ClientError> {
        let Flow {
            cookie, at, left, ..
        } = flow;
        let here = input.len().min(left as usize);
        let (bytes, rest) = input.split_at_checked(here).unwrap_or((input, &[]));
        let here = u32::try_from(here).unwrap_or(left);
        if here > 0 {
            on(Event::Data { cookie, at, bytes });
        }
        if here < left {
            let (at, left) = (at + here, left - here);
            self.flow = Some(Flow { at, left, ..flow });
        } else if flow.is_last {
            self.done(cookie, on)?;
        }
        Ok(rest)
    }

    fn header<'a>(
        &mut self,
        input: &'a [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'a [u8], ClientError> {
        let Some(magic) = input.first_chunk::<4>() else {
            return Ok(input);
        };
        match u32::from_be_bytes(*magic) {
            SIMPLE_REPLY => self.simple(input, on),
            STRUCTURED_REPLY if self.agreed.structured => self.chunk(input, on),
            found => Err(ClientError::Magic {
                what: "a reply",
                found: found.into(),
            }),
        }
    }

    fn simple<'a>(
        &mut self,
        input: &'a [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'a [u8], ClientError> {
        let Some((head, rest)) = input.split_first_chunk::<16>() else {
            return Ok(input);
        };
        let [_, _, _, _, e0, e1, e2, e3, cookie @ ..] = *head;
        let cookie = u64::from_be_bytes(cookie);
        let error = u32::from_be_bytes([e0, e1, e2, e3]);
        let structured = self.agreed.structured;
        let of = self.waiting(cookie)?;
        if error != 0 {
            of.error = Some(error);
        } else if of.is_read && structured {
            return Err(ClientError::Broken("a read that is not answered in chunks"));
        } else if of.is_read && of.length > 0 {
            let left = of.length;
            of.got = left;
            self.flow = Some(Flow {
                cookie,
                at: 0,
                left,
                is_last: true,
            });
            return Ok(rest);
        }
        self.done(cookie, on)?;
        Ok(rest)
    }

    fn chunk<'a>(
        &mut self,
        input: &'a [u8],
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<&'a [u8], ClientError> {
        let Some((head, rest)) = input.split_first_chunk::<20>() else {
            return Ok(input);
        };
        let [_, _, _, _, f0, f1, k0, k1, tail @ ..] = *head;
        let [c0, c1, c2, c3, c4, c5, c6, c7, l0, l1, l2, l3] = tail;
        let cookie = u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let is_last = u16::from_be_bytes([f0, f1]) & chunk::DONE != 0;
        let kind = u16::from_be_bytes([k0, k1]);
        let of = self.waiting(cookie)?;
        match kind {
            chunk::NONE if length == 0 && is_last => self.done(cookie, on)?,
            chunk::OFFSET_DATA if of.is_read && length > 8 => {
                let Some((offset, rest)) = rest.split_first_chunk::<8>() else {
                    return Ok(input);
                };
                let left = length - 8;
                let at = of.part(u64::from_be_bytes(*offset), left)?;
                self.flow = Some(Flow {
                    cookie,
                    at,
                    left,
                    is_last,
                });
                return Ok(rest);
            }
            chunk::OFFSET_HOLE if of.is_read && length == 12 => {
                let Some((data, rest)) = rest.split_first_chunk::<12>() else {
                    return Ok(input);
                };
                let [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = *data;
                let length = u32::from_be_bytes([l0, l1, l2, l3]);
                let offset = u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
                let at = of.part(offset, length)?;
                on(Event::Zeroes { cookie, at, length });
                if is_last {
                    self.done(cookie, on)?;
                }
                return Ok(rest);
            }
            kind if kind >> 15 == 1 && (6..=MAX_WORDS).contains(&length) => {
                let Some((words, rest)) = rest.split_at_checked(length as usize) else {
                    return Ok(input);
                };
                let number = words
                    .first_chunk::<4>()
                    .map_or(0, |n| u32::from_be_bytes(*n));
                if number == 0 {
                    return Err(ClientError::Broken("an error without a number"));
                }
                of.error = of.error.or(Some(number));
                if is_last {
                    self.done(cookie, on)?;
                }
                return Ok(rest);
            }
            _ => return Err(ClientError::Broken("a chunk that fits no request")),
        }
        Ok(rest)
    }

    fn waiting(&mut self, cookie: u64) -> Result<&mut Waiting, ClientError> {
        let of = self.waiting.get_mut(&cookie);
        of.ok_or(ClientError::Broken("a reply to what was not asked"))
    }

    fn done(&mut self, cookie: u64, on: &mut dyn FnMut(Event<'_>)) -> Result<(), ClientError> {
        let Some(of) = self.waiting.remove(&cookie) else {
            return Err(ClientError::Broken("a reply to what was not asked"));
        };
        if of.is_read && of.error.is_none() && of.got < of.length {
            return Err(ClientError::Broken("a read of which not all came"));
        }
        let error = of.error;
        on(Event::Done { cookie, error });
        Ok(())
    }
}

impl Waiting {
    /// Where in the read a part lies, which has come then.
    fn part(&mut self, offset: u64, length: u32) -> Result<u32, ClientError> {
        let at = offset.checked_sub(self.offset);
        let at = at.and_then(|at| u32::try_from(at).ok());
        let inside = at.filter(|at| {
            let end = at.checked_add(length);
            length > 0 && end.is_some_and(|end| end <= self.length)
        });
        let got = self
            .got
            .checked_add(length)
            .filter(|got| *got <= self.length);
        match (inside, got) {
            (Some(at), Some(got)) => {
                self.got = got;
                Ok(at)
            }
            _ => Err(ClientError::Broken("data that was not asked for")),
        }
    }
}
