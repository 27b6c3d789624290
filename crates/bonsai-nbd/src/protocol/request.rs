//! Requests of the transmission phase, and what is wrong with them.

use super::wire::{self, MAX_PAYLOAD, command};
use super::{ExportInfo, ProtocolError, Session};

/// The size of a request without its payload.
pub const HEADER_BYTES: usize = 28;

/// What a request is answered with when it fails ("Error values").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// From below.
    Io = 5,
    /// There is no memory.
    NoMem = 12,
    /// What was asked makes no sense.
    Inval = 22,
    /// The disk is full, or the export ends before.
    NoSpc = 28,
    /// It does not fit a reply.
    Overflow = 75,
    /// It would not be quick.
    NotSup = 95,
    /// The server ends.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// Bytes.
    Read,
    /// Its payload follows.
    Write,
    /// The end, without a reply.
    Disconnect,
    /// What was answered before is to be on the disk.
    Flush,
    /// What is there is needed no longer.
    Trim,
    /// It will be read soon.
    Cache,
    /// Zeroes.
    WriteZeroes,
    /// Where there is data.
    BlockStatus,
    /// A number that the specification does not have.
    Unknown(u16),
}

/// A request as it came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// What is asked for.
    pub command: Command,
    /// As they came.
    pub flags: u16,
    /// The client's own number for it.
    pub cookie: u64,
    /// The first byte.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

impl Request {
    /// Takes a header apart.
    ///
    /// # Errors
    /// It does not begin as a request does: the stream is lost.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let (magic, rest) = take4(bytes);
        if magic != wire::REQUEST {
            return Err(ProtocolError::Magic {
                what: "a request",
                found: u64::from(magic),
            });
        }
        let [f0, f1, t0, t1, c0, c1, c2, c3, c4, c5, c6, c7, rest @ ..] = *rest;
        let [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = rest;
        let kind = u16::from_be_bytes([t0, t1]);
        Ok(Self {
            command: match kind {
                command::READ => Command::Read,
                command::WRITE => Command::Write,
                command::DISC => Command::Disconnect,
                command::FLUSH => Command::Flush,
                command::TRIM => Command::Trim,
                command::CACHE => Command::Cache,
                command::WRITE_ZEROES => Command::WriteZeroes,
                command::BLOCK_STATUS => Command::BlockStatus,
                other => Command::Unknown(other),
            },
            flags: u16::from_be_bytes([f0, f1]),
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// Bytes that follow the header.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }

    /// Whether it changes bytes, and how many it moves; `None` for what is neither a read nor a change.
    /// Trims and zeroes move none: nothing of them comes or goes.
    #[must_use]
    pub const fn counted(&self) -> Option<(bool, u64)> {
        match self.command {
            Command::Read => Some((false, self.length as u64)),
            Command::Write => Some((true, self.length as u64)),
            Command::Trim | Command::WriteZeroes => Some((true, 0)),
            _ => None,
        }
    }

    /// Whether it is to be on the disk before the reply.
    #[must_use]
    pub const fn fua(&self) -> bool {
        self.flags & command::FLAG_FUA != 0
    }

    /// Whether zeroes are to keep their place on the disk.
    #[must_use]
    pub const fn no_hole(&self) -> bool {
        self.flags & command::FLAG_NO_HOLE != 0
    }

    /// Whether zeroes are to fail where they take as long as a write.
    #[must_use]
    pub const fn fast_zero(&self) -> bool {
        self.flags & command::FLAG_FAST_ZERO != 0
    }

    /// Whether a read is to have one chunk.
    #[must_use]
    pub const fn one_chunk(&self) -> bool {
        self.flags & command::FLAG_DF != 0
    }

    /// Whether one extent is asked for.
    #[must_use]
    pub const fn one_extent(&self) -> bool {
        self.flags & command::FLAG_REQ_ONE != 0
    }

    /// Whether it can be done at all.
    ///
    /// # Errors
    /// The number that it is answered with.
    pub fn check(&self, export: &ExportInfo, session: &Session) -> Result<(), Errno> {
        let allowed = command::FLAG_FUA
            | match self.command {
                Command::Read if session.structured => command::FLAG_DF,
                Command::WriteZeroes if export.fast_zero => {
                    command::FLAG_NO_HOLE | command::FLAG_FAST_ZERO
                }
                Command::WriteZeroes => command::FLAG_NO_HOLE,
                Command::BlockStatus => command::FLAG_REQ_ONE,
                _ => 0,
            };
        if self.flags & !allowed != 0 {
            return Err(Errno::Inval);
        }
        let writes = matches!(
            self.command,
            Command::Write | Command::Trim | Command::WriteZeroes
        );
        if writes && export.read_only {
            return Err(Errno::Perm);
        }
        let end = self.offset.checked_add(u64::from(self.length));
        let inside = end.is_some_and(|end| end <= export.size);
        match self.command {
            Command::Read | Command::Write if self.length > MAX_PAYLOAD => Err(Errno::Inval),
            Command::Write | Command::WriteZeroes if !inside => Err(Errno::NoSpc),
            Command::Read | Command::Trim | Command::Cache if !inside => Err(Errno::Inval),
            Command::BlockStatus if !inside || self.length == 0 => Err(Errno::Inval),
            Command::BlockStatus if !session.base_allocation => Err(Errno::Inval),
            Command::Flush if self.offset != 0 || self.length != 0 => Err(Errno::Inval),
            Command::Unknown(_) => Err(Errno::Inval),
            _ => Ok(()),
        }
    }
}

fn take4(bytes: &[u8; HEADER_BYTES]) -> (u32, &[u8; HEADER_BYTES - 4]) {
    let (head, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let rest = rest.try_into().unwrap_or(&[0; HEADER_BYTES - 4]);
    (u32::from_be_bytes(*head), rest)
}
