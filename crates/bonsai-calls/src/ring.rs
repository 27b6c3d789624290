//! What programs put into rings (io_uring) and queues (libaio) instead of making calls:
//! from the bytes of an entry to the call of the table that it stands for.
//!
//! # Definitions
//! - An *entry* is one `struct io_uring_sqe` or `struct iocb`, as eight words.
//! - It *stands for* the call of its own that would do the same: `IORING_OP_READ` for
//!   `read`, whatever its offset; `IOCB_CMD_PREAD` for `pread64`.
//!
//! # Limits
//! The numbers are those of Linux 6.18. What a later kernel knows beyond them, and what
//! is a command to a device, is [`Meaning::Unknown`].

use crate::table as t;
use crate::{CALLS, Call, CallId, Fd};

/// The words of an entry.
pub type Words = [u64; 8];

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A call of the table.
    Call(Op),
    /// Nothing that the table knows: timeouts, cancellation, advice.
    Nothing,
    /// Not to be told from here.
    Unknown,
}

/// An entry that stands for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The first entry of that call in the table; see [`Op::by_kind`].
    pub call: CallId,
    /// Its descriptor, or the index of one where `fixed` says so.
    pub fd: i32,
    /// Whether `fd` is a place in the ring's own table of files.
    pub fixed: bool,
    /// How many bytes it asks for.
    pub amount: Amount,
    /// The descriptor that it closes, if it closes one.
    pub closes: Option<u32>,
    /// Whether its result is a new descriptor, or a place in the ring's table of files.
    pub gives: Option<Given>,
    /// Whether it goes on after a first result.
    pub many: bool,
}

/// Where a new descriptor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// Among those of the process.
    Descriptor,
    /// Into the ring's table of files: at this place, or at one that the result says.
    Place(Option<u32>),
}

/// Bytes that an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// None: it is one call.
    None,
    /// So many.
    Bytes(u32),
    /// Those of an array of `struct iovec`: where it is, and its length.
    Vectors(u64, u32),
    /// Those of the `struct msghdr` there.
    Message(u64),
    /// It is told by the result alone: buffers that the kernel chooses.
    Open,
}

impl Op {
    const fn plain(call: CallId, fd: i32, amount: Amount) -> Self {
        Self {
            call,
            fd,
            fixed: false,
            amount,
            closes: None,
            gives: None,
            many: false,
        }
    }

    /// Whether the kind of descriptor decides which of three entries of the table it is.
    #[must_use]
    pub fn by_kind(&self) -> bool {
        CALLS
            .get(usize::from(self.call))
            .is_some_and(|call| call.fd != Fd::Any)
    }
}

impl Op {
    /// The arguments of the call that it stands for, as far as `about` says where to look:
    /// descriptors, paths and addresses. A file of the ring's own table is no descriptor.
    #[must_use]
    pub fn arguments(&self, entry: &Words) -> [u64; 6] {
        let [_, second, at, lengths, _, more, ..] = *entry;
        let number = |fd: i32, fixed: bool| match fixed {
            true => u64::from(u32::MAX),
            false => u64::from(fd.cast_unsigned()),
        };
        let fd = number(self.fd, self.fixed);
        let (source, fixed) = splice_from(entry);
        let source = number(source, fixed);
        match self.call {
            t::CONNECT | t::BIND => [fd, at, second, 0, 0, 0],
            // The length of an address has 16 bits.
            t::SENDTO => [fd, 0, 0, 0, second, (more >> 32) & 0xffff],
            t::SPLICE_FILE => [source, 0, fd, 0, 0, 0],
            t::TEE => [source, fd, 0, 0, 0, 0],
            t::LINKAT => [fd, at, u64::from(halves(lengths).0), second, 0, 0],
            t::SYMLINKAT => [at, fd, second, 0, 0, 0],
            _ => [fd, at, 0, 0, 0, 0],
        }
    }
}

/// Flags of an entry that say how it goes together with others (`IOSQE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// The next entry waits for this one; both have to enter the ring at once.
    pub linked: bool,
    /// It leaves no result unless it fails.
    pub silent: bool,
    /// By which its result is known again.
    pub key: u64,
}

const FIXED_FILE: u64 = 1 << 8;
const LINK: u64 = 1 << 10;
const HARD_LINK: u64 = 1 << 11;
const BUFFER_SELECT: u64 = 1 << 13;
const SKIP_SUCCESS: u64 = 1 << 14;

/// `IORING_RECV_MULTISHOT` and `IORING_ACCEPT_MULTISHOT`, in `ioprio`.
const RECV_MANY: u64 = 1 << 17;
const ACCEPT_MANY: u64 = 1 << 16;
/// `IORING_RECVSEND_BUNDLE`.
const BUNDLE: u64 = 1 << 20;
/// `IORING_POLL_ADD_MULTI`, in `len`.
const POLL_MANY: u32 = 1;
/// `IORING_FSYNC_DATASYNC`.
const DATA_ONLY: u32 = 1;
/// `IORING_FILE_INDEX_ALLOC`.
const ANY_PLACE: u32 = u32::MAX;

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// How an entry of a submission ring goes together with others.
#[must_use]
pub const fn together(entry: &Words) -> Together {
    Together {
        linked: entry[0] & (LINK | HARD_LINK) != 0,
        silent: entry[0] & SKIP_SUCCESS != 0,
        key: entry[4],
    }
}

/// Reads an entry of a submission ring (`struct io_uring_sqe`).
#[must_use]
pub fn submission(entry: &Words) -> Meaning {
    let first = entry[0];
    let fd = halves(first).1.cast_signed();
    let (len, op_flags) = halves(entry[3]);
    let at = entry[2];
    // In the upper half of the sixth word: a place in the table of files, counted from
    // one, or for `splice` its other end.
    let place = halves(entry[5]).1;
    // Of a buffer that the kernel chooses, nothing but its group is known.
    let bytes = if first & (BUFFER_SELECT | BUNDLE) != 0 {
        Amount::Open
    } else {
        Amount::Bytes(len)
    };
    let plain = |call, amount| Op::plain(call, fd, amount);
    let counted = |call| plain(call, Amount::None);
    let vectors = Amount::Vectors(at, len);
    let given = |call| Op {
        gives: Some(match place {
            0 => Given::Descriptor,
            ANY_PLACE => Given::Place(None),
            n => Given::Place(Some(n - 1)),
        }),
        ..counted(call)
    };
    let mut op = match first & 0xff {
        0 | 7 | 11 | 12 | 14 | 15 | 20 | 24 | 25 | 31 | 32 | 40..=44 | 50..=54 | 63 => {
            return Meaning::Nothing;
        }
        1 | 60 => plain(t::READV_FILE, vectors),
        2 | 61 => plain(t::WRITEV_FILE, vectors),
        3 if op_flags & DATA_ONLY != 0 => counted(t::FDATASYNC),
        3 => counted(t::FSYNC),
        4 | 22 => plain(t::READ_FILE, bytes),
        5 | 23 => plain(t::WRITE_FILE, bytes),
        6 => Op {
            many: len & POLL_MANY != 0,
            ..counted(t::POLL)
        },
        8 => counted(t::SYNC_FILE_RANGE),
        9 | 48 => plain(t::SENDMSG, Amount::Message(at)),
        10 => Op {
            many: first & RECV_MANY != 0,
            ..plain(t::RECVMSG, Amount::Message(at))
        },
        13 => Op {
            many: first & ACCEPT_MANY != 0,
            ..given(t::ACCEPT4)
        },
        16 => counted(t::CONNECT),
        17 => counted(t::FALLOCATE),
        18 => given(t::OPENAT),
        19 => Op {
            closes: (place == 0).then_some(fd.cast_unsigned()),
            ..counted(t::CLOSE)
        },
        21 => counted(t::STATX),
        26 | 47 => plain(t::SENDTO, bytes),
        27 => Op {
            many: first & RECV_MANY != 0,
            ..plain(t::RECVFROM, bytes)
        },
        28 => given(t::OPENAT2),
        29 => counted(t::EPOLL_CTL),
        30 => plain(t::SPLICE_FILE, Amount::Bytes(len)),
        33 => plain(t::TEE, Amount::Bytes(len)),
        34 => counted(t::SHUTDOWN),
        35 => counted(t::RENAMEAT2),
        36 => counted(t::UNLINKAT),
        37 => counted(t::MKDIRAT),
        38 => counted(t::SYMLINKAT),
        39 => counted(t::LINKAT),
        45 => given(t::SOCKET),
        49 => Op {
            many: true,
            ..plain(t::READ_FILE, Amount::Open)
        },
        55 => counted(t::FTRUNCATE),
        56 => counted(t::BIND),
        57 => counted(t::LISTEN),
        58 => Op {
            many: true,
            ..plain(t::RECVFROM, Amount::Open)
        },
        59 => counted(t::EPOLL_WAIT),
        62 => counted(t::PIPE2),
        _ => return Meaning::Unknown,
    };
    op.fixed = first & FIXED_FILE != 0;
    if op.fixed {
        op.closes = None;
    }
    Meaning::Call(op)
}

/// The other end of a `splice` or `tee`: its descriptor, and whether that is a place in
/// the ring's table of files (`SPLICE_F_FD_IN_FIXED`).
#[must_use]
pub const fn splice_from(entry: &Words) -> (i32, bool) {
    let (_, flags) = halves(entry[3]);
    (halves(entry[5]).1.cast_signed(), flags >> 31 != 0)
}

/// Reads an entry of a queue (`struct iocb`).
#[must_use]
pub fn queued(entry: &Words) -> Meaning {
    let [_, _, third, at, len, ..] = *entry;
    let fd = halves(third).1.cast_signed();
    // The kernel refuses what does not fit.
    let bytes = Amount::Bytes(u32::try_from(len).unwrap_or(u32::MAX));
    let vectors = Amount::Vectors(at, u32::try_from(len).unwrap_or(u32::MAX));
    Meaning::Call(match third & 0xffff {
        0 => Op::plain(t::PREAD64, fd, bytes),
        1 => Op::plain(t::PWRITE64, fd, bytes),
        2 => Op::plain(t::FSYNC, fd, Amount::None),
        3 => Op::plain(t::FDATASYNC, fd, Amount::None),
        5 => Op::plain(t::POLL, fd, Amount::None),
        6 => return Meaning::Nothing,
        7 => Op::plain(t::PREADV, fd, vectors),
        8 => Op::plain(t::PWRITEV, fd, vectors),
        _ => return Meaning::Unknown,
    })
}

/// Calls that go through rings and queues as well.
#[must_use]
pub fn reaches(call: &Call) -> bool {
    use crate::Class::{
        Accept, Close, Connect, Disk, Link, Mkdir, Net, Open, Pipe, Poll, Read, Rename, Socket,
        Stat, Sync, Truncate, Unlink, Write,
    };
    let with = [
        Accept, Close, Connect, Disk, Link, Mkdir, Net, Open, Pipe, Poll, Read, Rename, Socket,
        Stat, Sync, Truncate, Unlink, Write,
    ];
    let alone = ["bind", "listen", "shutdown", "epoll_ctl"];
    with.iter().any(|class| call.classes.contains(*class)) || alone.contains(&call.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(opcode: u64, flags: u64, fd: u32, len: u32) -> Words {
        let mut words = [0; 8];
        words[0] = opcode | flags | u64::from(fd) << 32;
        words[2] = 0x7000;
        words[3] = u64::from(len);
        words[4] = 77;
        words
    }

    fn op(words: &Words) -> Op {
        match submission(words) {
            Meaning::Call(op) => op,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_moves_bytes_asks_for_them() {
        for (opcode, call, amount) in [
            (22, t::READ_FILE, Amount::Bytes(4096)),
            (4, t::READ_FILE, Amount::Bytes(4096)),
            (1, t::READV_FILE, Amount::Vectors(0x7000, 4096)),
            (60, t::READV_FILE, Amount::Vectors(0x7000, 4096)),
            (23, t::WRITE_FILE, Amount::Bytes(4096)),
            (5, t::WRITE_FILE, Amount::Bytes(4096)),
            (2, t::WRITEV_FILE, Amount::Vectors(0x7000, 4096)),
            (26, t::SENDTO, Amount::Bytes(4096)),
            (47, t::SENDTO, Amount::Bytes(4096)),
            (27, t::RECVFROM, Amount::Bytes(4096)),
            (9, t::SENDMSG, Amount::Message(0x7000)),
            (48, t::SENDMSG, Amount::Message(0x7000)),
            (10, t::RECVMSG, Amount::Message(0x7000)),
            (30, t::SPLICE_FILE, Amount::Bytes(4096)),
            (33, t::TEE, Amount::Bytes(4096)),
        ] {
            let op = op(&entry(opcode, 0, 5, 4096));
            assert_eq!((op.call, op.amount, op.fd), (call, amount, 5), "{opcode}");
            assert!(CALLS[usize::from(call)].moves_bytes());
            assert!(!op.fixed && !op.many && op.closes.is_none());
        }
    }

    #[test]
    fn what_the_kernel_chooses_is_known_by_the_result() {
        let chosen = op(&entry(27, BUFFER_SELECT | RECV_MANY, 5, 0));
        assert_eq!((chosen.amount, chosen.many), (Amount::Open, true));
        assert_eq!(op(&entry(26, BUNDLE, 5, 0)).amount, Amount::Open);
        assert_eq!(op(&entry(49, BUFFER_SELECT, 5, 0)).amount, Amount::Open);
        assert!(op(&entry(13, ACCEPT_MANY, 5, 0)).many);
        assert!(op(&entry(6, 0, 5, 1)).many);
    }

    #[test]
    fn entries_that_belong_together_say_so() {
        let linked = |flags| together(&entry(22, flags, 5, 1)).linked;
        assert!(linked(LINK) && linked(HARD_LINK) && !linked(FIXED_FILE));
        let silent = together(&entry(23, SKIP_SUCCESS, 5, 1));
        assert!(silent.silent && silent.key == 77);
        assert!(op(&entry(22, FIXED_FILE, 3, 1)).fixed);
    }

    #[test]
    fn descriptors_come_and_go() {
        assert_eq!(op(&entry(19, 0, 9, 0)).closes, Some(9));
        let mut place = entry(19, 0, 0, 0);
        place[5] = 4 << 32;
        assert_eq!(op(&place).closes, None);
        assert_eq!(op(&entry(18, 0, 9, 0)).gives, Some(Given::Descriptor));
        let mut accept = entry(13, 0, 9, 0);
        accept[5] = 4 << 32;
        assert_eq!(op(&accept).gives, Some(Given::Place(Some(3))));
        accept[5] = u64::from(u32::MAX) << 32;
        assert_eq!(op(&accept).gives, Some(Given::Place(None)));
        let mut splice = entry(30, 0, 9, 1);
        splice[5] = 6 << 32;
        assert_eq!(splice_from(&splice), (6, false));
        splice[3] |= 1 << 63;
        assert_eq!(splice_from(&splice), (6, true));
    }

    #[test]
    fn arguments_stand_where_those_of_the_call_do() {
        use crate::about::{Address, address, ends, path};
        let none = u64::from(u32::MAX);
        let mut words = entry(0, 0, 9, 4);
        (words[1], words[5]) = (0x5000, 16 << 32);
        let of = |opcode: u64, flags: u64| {
            let mut words = words;
            words[0] |= opcode | flags;
            let op = op(&words);
            (op.call, op.arguments(&words))
        };
        for (opcode, at, len) in [(16, 0x7000, 0x5000), (26, 0x5000, 16)] {
            let (call, args) = of(opcode, 0);
            let Address::Arg(first) = address(call) else {
                panic!("{call} has an address");
            };
            let first = usize::from(first);
            assert_eq!((args[0], args[first], args[first + 1]), (9, at, len));
        }
        let (call, args) = of(9, 0);
        assert_eq!((address(call), args[1]), (Address::Message(1), 0x7000));
        for (opcode, source, target) in [(30, 16, 9), (33, 16, 9)] {
            let (call, args) = of(opcode, 0);
            let ends = ends(call);
            let at = |arg: u8| args[usize::from(arg)];
            assert_eq!((at(ends.source), at(ends.target)), (source, target));
        }
        for (opcode, folder, text) in [
            (18, 9, 0x7000),
            (21, 9, 0x7000),
            (28, 9, 0x7000),
            (35, 9, 0x7000),
            (36, 9, 0x7000),
            (37, 9, 0x7000),
            (38, 9, 0x5000),
            (39, 4, 0x5000),
        ] {
            let (call, args) = of(opcode, 0);
            let (begin, at) = path(call).expect("a path");
            let found = (args[usize::from(begin)], args[usize::from(at)]);
            assert_eq!(found, (folder, text), "{opcode}");
        }
        assert_eq!(
            of(23, FIXED_FILE).1[0],
            none,
            "no descriptor of the process"
        );
    }

    #[test]
    fn synchronisation_is_one_call() {
        let mut data = entry(3, 0, 5, 0);
        assert_eq!(op(&data).call, t::FSYNC);
        data[3] |= 1 << 32;
        assert_eq!(op(&data).call, t::FDATASYNC);
    }

    #[test]
    fn queues_say_the_same_in_other_places() {
        let iocb = |opcode: u64| [1, 0, opcode | 5 << 32, 0x7000, 512, 0, 0, 0];
        let op = |opcode| match queued(&iocb(opcode)) {
            Meaning::Call(op) => (op.call, op.fd, op.amount),
            other => panic!("{other:?}"),
        };
        assert_eq!(op(0), (t::PREAD64, 5, Amount::Bytes(512)));
        assert_eq!(op(1), (t::PWRITE64, 5, Amount::Bytes(512)));
        assert_eq!(op(7), (t::PREADV, 5, Amount::Vectors(0x7000, 512)));
        assert_eq!(op(8), (t::PWRITEV, 5, Amount::Vectors(0x7000, 512)));
        assert_eq!(op(3), (t::FDATASYNC, 5, Amount::None));
        assert_eq!(queued(&iocb(6)), Meaning::Nothing);
        assert_eq!(queued(&iocb(4)), Meaning::Unknown);
    }

    /// Every call that an entry can stand for is one that `reaches` names: otherwise a
    /// limit on it would not be looked for in rings.
    #[test]
    fn whatever_can_be_asked_for_is_reached() {
        let reached = |meaning| {
            if let Meaning::Call(op) = meaning {
                let call = &CALLS[usize::from(op.call)];
                assert!(reaches(call), "{}", call.name);
                let same = CALLS.iter().filter(|c| c.nr == call.nr);
                assert!(same.clone().all(reaches), "{}", call.name);
                assert_eq!(op.by_kind(), same.count() == 3, "{}", call.name);
            }
        };
        for opcode in 0..=255 {
            reached(submission(&entry(opcode, 0, 5, 1)));
            reached(queued(&[0, 0, opcode, 0, 0, 0, 0, 0]));
        }
        assert!(!reaches(&CALLS[usize::from(t::GETPPID)]));
        assert!(!reaches(&CALLS[usize::from(t::IO_URING_ENTER)]));
    }
}
