//! What a call is about: the descriptors, addresses and paths among its arguments. A
//! limit on some descriptors looks there.

use crate::{
    ACCEPT, ACCEPT4, BIND, CLOSE, CONNECT, COPY_FILE_RANGE, DUP, DUP2, DUP3, FALLOCATE, FCHMOD,
    FCHOWN, FDATASYNC, FLOCK, FSTAT, FSTATFS, FSYNC, FTRUNCATE, GETDENTS64, IOCTL, LISTEN, LSEEK,
    READAHEAD, SENDFILE_FILE, SENDFILE_OTHER, SENDFILE_SOCKET, SENDMMSG, SENDMSG, SENDTO, SHUTDOWN,
    SPLICE_FILE, SPLICE_OTHER, SPLICE_SOCKET, SYNC_FILE_RANGE, SYNCFS, TEE,
};
use crate::{
    ACCESS, CHMOD, CHOWN, CREAT, FACCESSAT, FACCESSAT2, FCHMODAT, FCHOWNAT, LCHOWN, LINK, LINKAT,
    LSTAT, MKDIR, MKDIRAT, NEWFSTATAT, OPEN, OPENAT, OPENAT2, READLINK, READLINKAT, RENAME,
    RENAMEAT, RENAMEAT2, RMDIR, STAT, STATFS, STATX, SYMLINK, SYMLINKAT, TRUNCATE, UNLINK,
    UNLINKAT, UTIMENSAT,
};
use crate::{CALLS, CallId, Class, Fd, Shape};

/// No such argument.
pub const NO_ARG: u8 = u8::MAX;

/// Where the descriptors of a call stand among its arguments: the one that bytes come
/// from, and the one that they go to. A call that moves none has the first only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Bytes come from it.
    pub source: u8,
    /// Bytes go to it.
    pub target: u8,
}

impl Ends {
    const NONE: Self = Self::new(NO_ARG, NO_ARG);

    const fn new(source: u8, target: u8) -> Self {
        Self { source, target }
    }

    /// Whether there are two.
    #[must_use]
    pub const fn both(self) -> bool {
        self.source != NO_ARG && self.target != NO_ARG
    }

    /// The one there is, or the target.
    #[must_use]
    pub const fn one(self) -> u8 {
        if self.target == NO_ARG {
            self.source
        } else {
            self.target
        }
    }
}

/// The ends of each entry.
pub static ENDS: [Ends; CALLS.len()] = all();

#[expect(
    clippy::cast_possible_truncation,
    reason = "the table has at most 126 entries"
)]
const fn all() -> [Ends; CALLS.len()] {
    let mut ends = [Ends::NONE; CALLS.len()];
    let mut i = 0;
    while i < CALLS.len() {
        ends[i] = of(i as CallId);
        i += 1;
    }
    ends
}

const fn of(call: CallId) -> Ends {
    let row = &CALLS[call as usize];
    match call {
        SENDFILE_FILE | SENDFILE_SOCKET | SENDFILE_OTHER => Ends::new(1, 0),
        SPLICE_FILE | SPLICE_SOCKET | SPLICE_OTHER | COPY_FILE_RANGE => Ends::new(0, 2),
        TEE => Ends::new(0, 1),
        CLOSE | FSTAT | FSTATFS | GETDENTS64 | FCHMOD | FCHOWN | FTRUNCATE | FALLOCATE | FSYNC
        | FDATASYNC | SYNCFS | SYNC_FILE_RANGE | READAHEAD | IOCTL | FLOCK | LSEEK | ACCEPT
        | ACCEPT4 | CONNECT | BIND | LISTEN | SHUTDOWN | DUP | DUP2 | DUP3 => Ends::new(0, NO_ARG),
        _ if row.classes.contains(Class::Ipc) => Ends::NONE,
        _ => match row.shape {
            Shape::In => Ends::new(0, NO_ARG),
            Shape::Out => Ends::new(NO_ARG, 0),
            Shape::Count => Ends::NONE,
        },
    }
}

/// The ends of an entry.
#[must_use]
pub fn ends(call: CallId) -> Ends {
    ENDS.get(usize::from(call)).copied().unwrap_or(Ends::NONE)
}

/// Whether an entry can be about a socket.
#[must_use]
pub fn takes_sockets(call: CallId) -> bool {
    let Some(row) = CALLS.get(usize::from(call)) else {
        return false;
    };
    match call {
        CLOSE | FSTAT | IOCTL | DUP | DUP2 | DUP3 | ACCEPT | ACCEPT4 | CONNECT | BIND | LISTEN
        | SHUTDOWN => true,
        _ => row.fd == Fd::Socket || row.classes.contains(Class::Net),
    }
}

/// Whether an entry knows a peer: of a connection, or in its arguments.
#[must_use]
pub fn takes_peers(call: CallId) -> bool {
    // Who is accepted is known afterwards only.
    takes_sockets(call) && !matches!(call, ACCEPT | ACCEPT4 | BIND | LISTEN)
}

/// Where the path of an entry stands among its arguments, and the folder that it begins
/// in; of two paths, the one that goes away or comes.
#[must_use]
pub const fn path(call: CallId) -> Option<(u8, u8)> {
    match call {
        OPEN | CREAT | STAT | LSTAT | STATFS | ACCESS | READLINK | UNLINK | RMDIR | MKDIR
        | CHMOD | CHOWN | LCHOWN | TRUNCATE | RENAME => Some((NO_ARG, 0)),
        OPENAT | OPENAT2 | NEWFSTATAT | STATX | FACCESSAT | FACCESSAT2 | READLINKAT | UNLINKAT
        | MKDIRAT | FCHMODAT | FCHOWNAT | UTIMENSAT | RENAMEAT | RENAMEAT2 => Some((0, 1)),
        LINK | SYMLINK => Some((NO_ARG, 1)),
        SYMLINKAT => Some((1, 2)),
        LINKAT => Some((2, 3)),
        _ => None,
    }
}

/// Whether an entry can be about a file with a path, open or not.
#[must_use]
pub fn takes_paths(call: CallId) -> bool {
    takes_files(call) || path(call).is_some()
}

/// Whether an entry can be about an open file: anything but a socket.
#[must_use]
pub fn takes_files(call: CallId) -> bool {
    let Some(row) = CALLS.get(usize::from(call)) else {
        return false;
    };
    match call {
        SENDFILE_SOCKET | CLOSE | FSTAT | IOCTL | DUP | DUP2 | DUP3 => true,
        _ => ends(call) != Ends::NONE && !takes_sockets(call) && row.fd != Fd::Socket,
    }
}

/// Whether an entry has a descriptor at each end, of different kinds maybe.
#[must_use]
pub fn has_two_ends(call: CallId) -> bool {
    ends(call).both()
}

/// Where the address of a call stands among its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// There is none.
    None,
    /// The address, and its length in the next argument.
    Arg(u8),
    /// In a `msghdr`, or the first `mmsghdr`.
    Message(u8),
}

/// Where the address of an entry stands.
#[must_use]
pub const fn address(call: CallId) -> Address {
    match call {
        CONNECT => Address::Arg(1),
        SENDTO => Address::Arg(4),
        SENDMSG | SENDMMSG => Address::Message(1),
        _ => Address::None,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{MQ_TIMEDSEND, PREAD64, READ_FILE, READ_SOCKET, RECVFROM, WRITE_OTHER};
    use std::vec::Vec;

    #[test]
    fn descriptors_stand_where_the_manual_says() {
        for (call, source, target) in [
            (READ_FILE, 0, NO_ARG),
            (WRITE_OTHER, NO_ARG, 0),
            (SENDFILE_SOCKET, 1, 0),
            (COPY_FILE_RANGE, 0, 2),
            (TEE, 0, 1),
            (ACCEPT4, 0, NO_ARG),
            (OPENAT, NO_ARG, NO_ARG),
            (MQ_TIMEDSEND, NO_ARG, NO_ARG),
        ] {
            assert_eq!(ends(call), Ends::new(source, target), "{call}");
        }
        assert_eq!(ends(u8::MAX), Ends::NONE);
    }

    #[test]
    fn every_call_with_a_path_is_known() {
        let by_name = |row: &crate::Call| {
            let classes = [Class::Open, Class::Stat, Class::Access, Class::Readlink];
            let more = [
                Class::Rename,
                Class::Unlink,
                Class::Mkdir,
                Class::Link,
                Class::Chmod,
            ];
            let mut all = classes.iter().chain(&more).chain(&[Class::Truncate]);
            all.any(|class| row.classes.contains(*class))
        };
        for (call, row) in (0..).zip(CALLS).filter(|(_, row)| by_name(row)) {
            let on_descriptor = ends(call).one() != NO_ARG;
            assert_ne!(path(call).is_some(), on_descriptor, "{}", row.name);
        }
    }

    #[test]
    fn kinds_follow_the_classes() {
        let named = |f: fn(CallId) -> bool| -> Vec<CallId> {
            let rows = 0..CallId::try_from(CALLS.len()).expect("126 at most");
            rows.filter(|call| f(*call)).collect()
        };
        for call in [
            READ_SOCKET,
            RECVFROM,
            SENDFILE_SOCKET,
            SPLICE_SOCKET,
            CONNECT,
        ] {
            assert!(named(takes_peers).contains(&call), "{call}");
        }
        for call in [READ_FILE, PREAD64, SENDFILE_SOCKET, FSYNC, COPY_FILE_RANGE] {
            assert!(named(takes_files).contains(&call), "{call}");
        }
        let both = |call: &CallId| takes_files(*call) && takes_sockets(*call);
        assert_eq!(
            named(takes_files)
                .into_iter()
                .filter(both)
                .collect::<Vec<_>>(),
            [SENDFILE_SOCKET, CLOSE, FSTAT, IOCTL, DUP, DUP2, DUP3]
        );
        assert_eq!(address(CONNECT), Address::Arg(1));
        assert!(takes_sockets(ACCEPT) && !takes_peers(ACCEPT));
    }
}
