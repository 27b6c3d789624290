//! Payment for a call: before it, after it, and back.

use bonsai_calls::io_size::{IoSize, io_size};
use bonsai_calls::{self as calls, CallId};

/// Bytes of an undivided call that are waited for before it, at most. Some ask for all that there may be (`tee(2)` with `INT_MAX`), or
/// are refused; what they move beyond this is waited for afterwards.
pub const MOST_BEFORE: usize = 1 << 20;

/// The longest wait for one ticket, ns, unless a part takes longer: a thread that is killed while it waits leaves the others no more
/// than that to wait for.
pub const LONGEST_TICKET_NS: u64 = 250_000_000;

/// Bytes to be paid for before a call that is made as a whole.
#[must_use]
pub const fn before(asked: usize) -> usize {
    if asked < MOST_BEFORE {
        asked
    } else {
        MOST_BEFORE
    }
}

/// Difference between the bytes that were paid for and those that have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// None.
    Even,
    /// Bytes that were paid for and have not moved.
    Refund(usize),
    /// Bytes that have moved and were not paid for: the next call waits for them.
    Owe(usize),
}

/// Compares what was `paid` for with what has `moved`.
#[must_use]
#[inline]
pub const fn settle(paid: usize, moved: usize) -> Settlement {
    if moved < paid {
        Settlement::Refund(paid - moved)
    } else if moved > paid {
        Settlement::Owe(moved - paid)
    } else {
        Settlement::Even
    }
}

const EINTR: isize = -4;
const EAGAIN: isize = -11;

/// True for a raw result of a call that has done nothing, so that its program makes it again: no call for a limit in calls.
#[must_use]
#[inline]
pub const fn did_nothing(result: isize) -> bool {
    result == EAGAIN || result == EINTR
}

const MSG_PEEK: u32 = 0x2;
const MSG_TRUNC: u32 = 0x20;

/// Bytes that a call moved, where its result says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many.
    Bytes(usize),
    /// All that it asked for.
    All,
    /// The result, or the room for it if that is less: with `MSG_TRUNC` the result is the length of the message.
    WithinRoom,
    /// The lengths of as many messages as the result says.
    Messages,
}

/// Bytes that a call has moved, by its raw result and its flags (`MSG_*`; 0 for a call without them).
#[must_use]
pub fn moved(call: CallId, flags: u32, result: isize) -> Moved {
    let Ok(got) = usize::try_from(result) else {
        return Moved::Bytes(0);
    };
    match call {
        // Zero on success: all of it or nothing.
        calls::MQ_TIMEDSEND | calls::MSGSND => Moved::All,
        // Bytes that were looked at stay in the queue.
        calls::RECVFROM | calls::RECVMSG | calls::RECVMMSG if flags & MSG_PEEK != 0 => {
            Moved::Bytes(0)
        }
        calls::SENDMMSG | calls::RECVMMSG => Moved::Messages,
        calls::RECVFROM => Moved::WithinRoom,
        calls::RECVMSG if flags & MSG_TRUNC != 0 => Moved::WithinRoom,
        _ if matches!(io_size(call), IoSize::None) => Moved::Bytes(0),
        _ => Moved::Bytes(got),
    }
}
