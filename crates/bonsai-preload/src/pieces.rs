//! Pieces of a large call.

use crate::amount::{Args, Len, len_of};
use crate::own::Own;
use bonsai_calls::{self as calls, CallId, whole};
use bonsai_ledger::sync::bump;
use core::sync::atomic::Ordering;

/// The length of the pieces of a call of `asked` bytes, all alike: whole pages, as
/// near to what the bucket gives in a quantum as that comes. The last one would
/// otherwise be short, and what the thread takes beyond it missing to others until
/// its next call.
pub(crate) fn length(own: &Own, call: CallId, asked: usize) -> usize {
    if cfg!(feature = "extension") && asked <= PAGE {
        // Most calls, at every one of which a division would be felt.
        return PAGE;
    }
    // Zero in a signal handler that interrupts the setting of it.
    let piece = match own.entries.get(usize::from(call)) {
        Some(entry) if entry.piece != 0 => entry.piece as usize,
        _ => u32::MAX as usize,
    };
    let pieces = (asked.saturating_add(piece / 2) / piece).max(1);
    asked.div_ceil(pieces).next_multiple_of(PAGE)
}

const PAGE: usize = 4096;

/// Calls that use the position of an open file, and writes to files, are not split up to this size: the open file may be shared with other
/// threads and processes, and some files take a write as a whole or not at all.
pub(crate) const RECORD: usize = 1 << 20;

/// Later pieces of a call are not calls of their own.
#[inline(never)]
pub(crate) fn uncount(own: &mut Own, call: CallId) {
    // SAFETY: set up with the state and never unmapped.
    let page = unsafe { &*own.page };
    if let (Some(count), Some(entry)) = (
        page.counts.get(usize::from(call)),
        own.entries.get_mut(usize::from(call)),
    ) {
        if own.crowd {
            count.calls.fetch_sub(1, Ordering::Relaxed);
        } else {
            bump(&count.calls, u64::MAX);
        }
        entry.calls += 1;
    }
}

/// Bytes moved by the pieces, or the first one's error.
pub(crate) fn finished(done: usize, last: isize) -> isize {
    if done == 0 {
        last
    } else {
        isize::try_from(done).unwrap_or(last)
    }
}

/// Sets the arguments to the part of a call that starts after `done` bytes.
pub(crate) fn advance(args: &mut Args, start: &Args, call: CallId, done: usize, part: usize) {
    match len_of(call) {
        Len::Arg(i) => args.a[usize::from(i) % 6] = part,
        _ => return,
    }
    match call {
        // The kernel moves these on by itself: through the file's own position,
        // or through the program's offset variable.
        calls::SENDFILE_FILE | calls::SENDFILE_SOCKET | calls::SENDFILE_OTHER => {}
        calls::SPLICE_FILE
        | calls::SPLICE_SOCKET
        | calls::SPLICE_OTHER
        | calls::COPY_FILE_RANGE => {}
        _ => {
            args.a[1] = start.a[1] + done;
            if let Some(offset) = whole::offset_after(call, start.a[3], done) {
                args.a[3] = offset;
            }
        }
    }
}
