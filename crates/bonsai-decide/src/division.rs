//! Calls that may be made in parts without anyone seeing it.
//!
//! Sources: write(2), pipe(7), socket(7), open(2), splice(2), sctp(7), `linux/fs.h`, `linux/socket.h` of Linux 6.12.

use bonsai_calls::io_size::{IoSize, io_size};
use bonsai_calls::{self as calls, CallId};

use crate::RECORD;

/// Kind of an open file, by its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file or a block device.
    File,
    /// A socket of any family.
    Socket,
    /// A pipe or FIFO.
    Pipe,
    /// A terminal, character device, eventfd or anything else.
    Other,
}

/// Type and protocol of a socket (`SO_TYPE`, `SO_PROTOCOL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketType {
    /// `SOCK_STREAM` and the like.
    pub kind: u32,
    /// `IPPROTO_TCP` and the like.
    pub protocol: u32,
}

const SOCK_STREAM: u32 = 1;

/// `IPPROTO_SCTP`, whose streams have messages.
const SCTP: u32 = 132;

impl SocketType {
    /// True for a stream of bytes without messages.
    #[must_use]
    pub const fn is_byte_stream(self) -> bool {
        self.kind == SOCK_STREAM && self.protocol != SCTP
    }
}

/// Answers of the kernel about the file that the bytes of a call go to, or come from. Each is asked for at most once, and only where
/// the decision depends on it.
pub trait OpenFile {
    /// Kind of the file.
    fn kind(&self) -> FileKind;
    /// Status flags (`F_GETFL`); `None` if the kernel refuses to say.
    fn status(&self) -> Option<u32>;
    /// Type of a socket.
    fn socket(&self) -> SocketType;
}

/// Flags of a call, and addresses or control data beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Flags of the call: `MSG_*`, `RWF_*`.
    pub flags: u32,
    /// An address, or control data.
    pub is_addressed: bool,
}

/// Parts that a call may be made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Any length.
    Any,
    /// At least [`RECORD`] bytes.
    Records,
    /// None: it is one.
    Never,
}

impl Division {
    /// Length of the shortest part, except the last one.
    #[must_use]
    pub const fn shortest(self) -> usize {
        match self {
            Self::Any => 0,
            Self::Records => RECORD,
            Self::Never => usize::MAX,
        }
    }
}

const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o10_000;
const O_DIRECT: u32 = 0o40_000;

/// `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND`, `RWF_ATOMIC`.
const RWF_WHOLE: u32 = 0x2 | 0x4 | 0x10 | 0x40;

/// `MSG_OOB`, `MSG_ZEROCOPY`, `MSG_FASTOPEN`: said of a call, not of its bytes.
const MSG_WHOLE: u32 = 0x2400_0001;

/// Parts of a call for outgoing bytes. Pipes in stream mode and stream sockets take anything in parts. A write to
/// a file is one write up to a mebibyte, and of any size where it is appended, synchronous, direct or atomic. A datagram is one, and
/// so is whatever a device or a packet socket takes at a time.
#[must_use]
pub fn division(call: CallId, extras: Extras, file: &impl OpenFile) -> Division {
    let size = io_size(call);
    let is_one = matches!(size, IoSize::Messages | IoSize::None)
        || matches!(
            call,
            calls::MQ_TIMEDSEND
                | calls::MSGSND
                | calls::TEE
                | calls::VMSPLICE
                | calls::PROCESS_VM_WRITEV
        );
    let sends = matches!(call, calls::SENDTO | calls::SENDMSG) && extras.flags & MSG_WHOLE != 0;
    // Control data goes once.
    let is_message = call == calls::SENDMSG && extras.is_addressed;
    if is_one || sends || is_message {
        return Division::Never;
    }
    let kind = file.kind();
    let Some(status) = file.status() else {
        return Division::Never;
    };
    match kind {
        FileKind::File if status & (O_APPEND | O_DSYNC | O_DIRECT) != 0 => Division::Never,
        FileKind::File if call == calls::PWRITEV2 && extras.flags & RWF_WHOLE != 0 => {
            Division::Never
        }
        // The kernel itself divides transfers between files.
        FileKind::File if matches!(size, IoSize::Arg(3 | 4)) => Division::Any,
        FileKind::File => Division::Records,
        FileKind::Socket if file.socket().is_byte_stream() => Division::Any,
        FileKind::Pipe if status & O_DIRECT == 0 => Division::Any,
        _ => Division::Never,
    }
}

/// Parts of a call that reads from a file. A read at the position of the open file moves that for all threads and processes which share
/// the open file.
#[must_use]
pub fn read_division(call: CallId, kind: impl Fn() -> FileKind) -> Division {
    match call {
        calls::READ_FILE | calls::READV_FILE => Division::Records,
        calls::PREAD64 | calls::PREADV | calls::PREADV2 if kind() == FileKind::File => {
            Division::Any
        }
        _ => Division::Never,
    }
}

/// True for a pipe and a socket of type stream: bytes without boundaries.
#[must_use]
pub fn is_stream(file: &impl OpenFile) -> bool {
    match file.kind() {
        FileKind::Socket => file.socket().is_byte_stream(),
        FileKind::Pipe => true,
        FileKind::File | FileKind::Other => false,
    }
}

/// `MSG_PEEK`, `MSG_TRUNC`, `MSG_WAITALL`, `MSG_ERRQUEUE`, `MSG_OOB`.
const RECEIVED_WHOLE: u32 = 0x2 | 0x20 | 0x100 | 0x2000 | 0x1;

/// True for a call that may bring fewer bytes than are there: on a stream, and without a flag that says otherwise.
/// The program then has to be told that there is more (`EPOLLIN`).
#[must_use]
pub const fn may_be_shortened(call: CallId, flags: u32) -> bool {
    match call {
        calls::RECVFROM => flags & RECEIVED_WHOLE == 0,
        calls::READ_SOCKET | calls::READ_OTHER | calls::READV_SOCKET | calls::READV_OTHER => true,
        _ => false,
    }
}
