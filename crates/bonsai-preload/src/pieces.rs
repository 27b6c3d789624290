//! Pieces of a large call.

use crate::amount::{Args, IoSize, io_size};
use crate::own::Own;
use bonsai_calls::{self as calls, CallId, whole};
use bonsai_decide::{PAGE, part_length};
use bonsai_ledger::sync::bump;
use core::sync::atomic::Ordering;

/// The length of the pieces of a call of `asked` bytes: see [`part_length`].
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
    part_length(asked, piece)
}

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

/// Sets the arguments to the part of a call that starts after `done` bytes.
pub(crate) fn advance(args: &mut Args, start: &Args, call: CallId, done: usize, part: usize) {
    match io_size(call) {
        IoSize::Arg(i) => args.a[usize::from(i) % 6] = part,
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
