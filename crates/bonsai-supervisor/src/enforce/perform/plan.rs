//! What a call asks for, copied out of the memory of its thread.

use std::io;
use std::os::fd::OwnedFd;

use crate::enforce::amount::{self, MOST};
use crate::enforce::listener::Asked;
use crate::enforce::memory::{self, Span, word};

/// `struct msghdr`, the parts that are lists, and what else the call gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) spans: Vec<Span>,
    pub(crate) name: Vec<u8>,
    /// Where the sender's name goes, how much fits, and where its length goes.
    pub(crate) name_at: u64,
    pub(crate) name_room: u32,
    pub(crate) name_len_at: u64,
    pub(crate) control: Vec<u8>,
    pub(crate) control_at: u64,
    pub(crate) control_room: u64,
    /// Of the header itself, where results go; 0 for none.
    pub(crate) header_at: u64,
    /// Where the length goes, of a list of messages; 0 for none.
    pub(crate) len_at: u64,
    pub(crate) flags: i32,
}

/// A call to be made.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Write {
        spans: Vec<Span>,
        offset: Option<i64>,
        flags: i32,
    },
    Read {
        spans: Vec<Span>,
        offset: Option<i64>,
        flags: i32,
    },
    Send(Message),
    Receive(Message),
    /// No messages at all.
    Nothing,
    /// What the kernel refuses whatever its bytes are: it is to say so.
    Refused,
    /// Between two descriptors: bytes, those that were asked for, and where the offsets are, 0 for none.
    Transfer {
        len: u64,
        asked: u64,
        offsets: [u64; 2],
        flags: u32,
        /// Its descriptors are not open for it.
        denied: bool,
    },
}

/// Longer control data is refused by the kernel (`net.core.optmem_max` of 6.18).
const LONGEST_CONTROL: u64 = 128 * 1024;
const LONGEST_NAME: u64 = 128;

impl Plan {
    /// Reads what the call points to.
    ///
    /// # Errors
    /// The memory may not be looked at.
    pub(crate) fn read(asked: &Asked) -> io::Result<Self> {
        match Self::accepted(asked) {
            Err(error) if is_refusal(&error) => Ok(Self::Refused),
            plan => plan,
        }
    }

    fn accepted(asked: &Asked) -> io::Result<Self> {
        let (tid, a) = (asked.tid, &asked.args);
        let plain = || {
            memory::accepted(vec![Span {
                at: a[1],
                len: a[2].min(MOST),
            }])
        };
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
        let int = |i: usize| a[i] as u32;
        let offset = |i: usize| match a[i].cast_signed() {
            -1 if matches!(asked.nr, 327 | 328) => Ok(None),
            offset @ 0.. => Ok(Some(offset)),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        Ok(match asked.nr {
            0 => Self::Read {
                spans: whole(a)?,
                offset: None,
                flags: 0,
            },
            1 => Self::Write {
                spans: whole(a)?,
                offset: None,
                flags: 0,
            },
            19 => Self::Read {
                spans: memory::spans(tid, a[1], a[2])?,
                offset: None,
                flags: 0,
            },
            20 => Self::Write {
                spans: memory::spans(tid, a[1], a[2])?,
                offset: None,
                flags: 0,
            },
            295 | 327 => Self::Read {
                spans: memory::spans(tid, a[1], a[2])?,
                offset: offset(3)?,
                flags: if asked.nr == 327 {
                    int(5).cast_signed()
                } else {
                    0
                },
            },
            296 | 328 => Self::Write {
                spans: memory::spans(tid, a[1], a[2])?,
                offset: offset(3)?,
                flags: if asked.nr == 328 {
                    int(5).cast_signed()
                } else {
                    0
                },
            },
            278 => Self::Write {
                spans: memory::spans(tid, a[1], a[2])?,
                offset: None,
                flags: 0,
            },
            40 => Self::Transfer {
                len: a[3].min(MOST),
                asked: a[3],
                offsets: [a[2], 0],
                flags: 0,
                denied: false,
            },
            275 | 326 => Self::Transfer {
                len: a[4].min(MOST),
                asked: a[4],
                offsets: [a[1], a[3]],
                flags: int(5),
                denied: false,
            },
            276 => Self::Transfer {
                len: a[2].min(MOST),
                asked: a[2],
                offsets: [0, 0],
                flags: int(3),
                denied: false,
            },
            44 => Self::Send(Message {
                spans: plain()?,
                name: name(tid, a[4], a[5])?,
                flags: int(3).cast_signed(),
                ..Message::default()
            }),
            45 => Self::Receive(Message {
                spans: plain()?,
                name_at: a[4],
                name_len_at: if a[4] == 0 { 0 } else { a[5] },
                name_room: if a[4] == 0 || a[5] == 0 {
                    0
                } else {
                    u32::from_le_bytes(memory::read_exactly(tid, a[5])?)
                },
                flags: int(3).cast_signed(),
                ..Message::default()
            }),
            46 => Self::Send(message(tid, a[1], int(2), true)?),
            47 => Self::Receive(message(tid, a[1], int(2), false)?),
            307 | 299 if int(2) == 0 => Self::Nothing,
            307 => Self::Send(message_of(tid, a[1], 0, int(3), true)?),
            299 => Self::Receive(message_of(tid, a[1], 0, int(3) & !MSG_WAITFORONE, false)?),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        })
    }

    /// A transfer asks for no more than its file has: nobody is to wait for tickets for
    /// what is not there.
    pub(super) fn shorten(&mut self, tid: u32, from: &OwnedFd, is_file: bool) {
        let Self::Transfer { len, offsets, .. } = self else {
            return;
        };
        if !is_file {
            return;
        }
        let at = match offsets[0] {
            0 => rustix::fs::seek(from, rustix::fs::SeekFrom::Current(0)).ok(),
            at => memory::read_exactly(tid, at).ok().map(u64::from_le_bytes),
        };
        let size = rustix::fs::fstat(from)
            .ok()
            .and_then(|stat| u64::try_from(stat.st_size).ok());
        if let (Some(at), Some(size @ 1..)) = (at, size) {
            *len = (*len).min(size.saturating_sub(at));
        }
    }

    /// Bytes that it moves at most.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Write { spans, .. } | Self::Read { spans, .. } => memory::total(spans),
            Self::Send(message) | Self::Receive(message) => memory::total(&message.spans),
            Self::Transfer { len, .. } => *len,
            Self::Nothing | Self::Refused => 0,
        }
    }

    /// Whether its bytes are paid for when they have come.
    pub(crate) const fn is_in(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Receive(_))
    }
}

/// Whether the kernel has to say what is wrong with a call.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(
        code,
        Some(libc::EFAULT | libc::EINVAL | libc::EMSGSIZE | libc::ENOBUFS)
    )
}

const MSG_WAITFORONE: u32 = 0x1_0000;

/// Bytes of a message in a list (`struct mmsghdr`).
const IN_LIST: u64 = 64;

/// One of a list of messages.
fn message_of(tid: u32, list: u64, number: u64, flags: u32, sends: bool) -> io::Result<Message> {
    let at = list.wrapping_add(number * IN_LIST);
    Ok(Message {
        len_at: at.wrapping_add(56),
        ..message(tid, at, flags, sends)?
    })
}

/// The message after `number` others of a list; `None` where there is no further one.
pub(super) fn next_message(asked: &Asked, number: u64) -> Option<io::Result<Plan>> {
    let (tid, a) = (asked.tid, &asked.args);
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let (count, flags) = (a[2] as u32, a[3] as u32);
    let is_list = matches!(asked.nr, 299 | 307);
    // The kernel sends so many at a time (UIO_MAXIOV), and receives any number.
    let most = if asked.nr == 307 {
        memory::MOST_SPANS as u64
    } else {
        u64::MAX
    };
    if !is_list || number >= u64::from(count).min(most) {
        return None;
    }
    let only_first = asked.nr == 299 && flags & MSG_WAITFORONE != 0;
    let now = if only_first {
        libc::MSG_DONTWAIT.cast_unsigned()
    } else {
        0
    };
    let flags = (flags & !MSG_WAITFORONE) | now;
    let message = message_of(tid, a[1], number, flags, asked.nr == 307);
    Some(message.map(if asked.nr == 307 {
        Plan::Send
    } else {
        Plan::Receive
    }))
}

/// The buffer of `read` and `write`, whose whole range has to be memory.
fn whole(a: &[u64; 6]) -> io::Result<Vec<Span>> {
    match amount::is_memory(a[1], a[2]) {
        true => memory::accepted(vec![Span {
            at: a[1],
            len: a[2],
        }]),
        false => Err(memory::fault()),
    }
}

fn name(tid: u32, at: u64, len: u64) -> io::Result<Vec<u8>> {
    if at == 0 || len == 0 {
        return Ok(Vec::new());
    }
    bytes(tid, at, len & 0xffff_ffff, LONGEST_NAME, libc::EINVAL)
}

fn bytes(tid: u32, at: u64, len: u64, most: u64, error: i32) -> io::Result<Vec<u8>> {
    if len > most {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    match memory::read(tid, &[Span { at, len }], 0, &mut bytes)? {
        got if got == bytes.len() => Ok(bytes),
        _ => Err(memory::fault()),
    }
}

fn message(tid: u32, at: u64, flags: u32, sends: bool) -> io::Result<Message> {
    let header: [u8; 56] = memory::read_exactly(tid, at)?;
    let name_at = word(&header, 0);
    // Without a name the kernel ignores the length.
    let name_len = match name_at {
        0 => 0,
        _ => word(&header, 8) & 0xffff_ffff,
    };
    let (control_at, control_len) = (word(&header, 32), word(&header, 40));
    let spans = match word(&header, 24) {
        0 => Vec::new(),
        count if count > memory::MOST_SPANS as u64 => {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        count => memory::spans(tid, word(&header, 16), count)?,
    };
    if name_len > u64::from(i32::MAX.cast_unsigned()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut message = Message {
        spans,
        name_at,
        name_room: u32::try_from(name_len).unwrap_or(0),
        control_at,
        control_room: control_len,
        header_at: at,
        flags: flags.cast_signed(),
        ..Message::default()
    };
    if sends {
        message.name = name(tid, name_at, name_len.min(LONGEST_NAME))?;
        if control_len != 0 {
            message.control = bytes(tid, control_at, control_len, LONGEST_CONTROL, libc::ENOBUFS)?;
        }
    }
    Ok(message)
}
