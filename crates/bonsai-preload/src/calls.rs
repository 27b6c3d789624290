//! From a system call number and its arguments to the entry of the table.

use crate::amount::Args;
use crate::kind::{self, Looked};
use crate::slots;
use bonsai_calls::{self as calls, BY_NR, CallId, Fd, NO_CALL};

/// The first entry of a system call number.
pub(crate) fn first_entry(nr: usize) -> Option<CallId> {
    BY_NR.get(nr).copied().filter(|c| *c != NO_CALL)
}

/// All entries of a system call, by its first one: one for each kind of descriptor that makes a difference.
pub(crate) fn entries_of(first: CallId) -> core::ops::RangeInclusive<CallId> {
    let has_kinds = slots::facts(first) & slots::fact::KINDS != 0 || first == calls::SPLICE_FILE;
    first..=if has_kinds { first + 2 } else { first }
}

/// The entry for a call, by the kind of descriptor it works on, which is looked
/// up `afresh`, or if it is not known.
pub(crate) fn entry_of(first: CallId, args: &Args, afresh: bool) -> (CallId, Option<Looked>) {
    if first == calls::SPLICE_FILE {
        // One end is a pipe: the other one decides.
        let (from, to) = (kind::look(args.a[0]), kind::look(args.a[2]));
        let decides = if to.kind == Fd::Other { from } else { to };
        return (first + kind::offset(decides.kind), Some(to));
    }
    if slots::facts(first) & slots::fact::KINDS == 0 {
        return (first, None);
    }
    if let (false, Some(kind)) = (afresh, kind::known(args.a[0])) {
        return (first + kind::offset(kind), None);
    }
    let looked = kind::look(args.a[0]);
    (first + kind::offset(looked.kind), Some(looked))
}

/// Whether a call's result is a new descriptor.
pub(crate) const fn gives_descriptor(call: CallId) -> bool {
    matches!(
        call,
        calls::OPEN
            | calls::OPENAT
            | calls::OPENAT2
            | calls::CREAT
            | calls::SOCKET
            | calls::ACCEPT
            | calls::ACCEPT4
            | calls::DUP
            | calls::DUP2
            | calls::DUP3
            | calls::IO_URING_SETUP
    )
}

/// Where `syscall(2)`, and a site that may be reached with any number, look it up.
pub(crate) static BONSAI_BY_NR: &[u8; bonsai_calls::NR_LIMIT] = &BY_NR;
