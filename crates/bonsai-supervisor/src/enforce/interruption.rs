//! Calls that end with `EINTR` when a signal handler runs, with `SA_RESTART` as well.
//!
//! The kernel restarts a call that waits for an answer if the handler was installed with `SA_RESTART`, whichever call it is. So the
//! same call, asked about again, is told `EINTR` here where it would not have been restarted; once, for it cannot be told whether the
//! kernel has restarted it or the program has made it again.

use bonsai_calls::CallId;
use bonsai_calls::Fd;
use bonsai_calls::signals::{Interruption, interruption};

use super::filter::entry_of;
use super::listener::Asked;
use super::perform::time_limit;
use super::threads::{descriptor, entry_on, process};

/// Whether a call would not have been restarted. `pid` is the process of its thread.
pub(super) fn ends(asked: &Asked, pid: u32) -> bool {
    let Some(first) = entry_of(asked.nr) else {
        return false;
    };
    // Whether it is one on a socket is not always known: files and pipes have no time limits.
    match interruption(entry_on(first, Fd::Socket)) {
        Interruption::Ends => true,
        Interruption::Never | Interruption::Restarts => false,
        Interruption::RestartsWithoutTimeout => {
            let fd = process(asked.tid, pid).and_then(|of| descriptor(&of, asked.args[0]));
            let which = if is_out(first) {
                libc::SO_SNDTIMEO
            } else {
                libc::SO_RCVTIMEO
            };
            fd.is_ok_and(|fd| time_limit(&fd, which) != u64::MAX)
        }
    }
}

fn is_out(first: CallId) -> bool {
    let row = bonsai_calls::CALLS.get(usize::from(first));
    row.is_some_and(|row| row.shape == bonsai_calls::Shape::Out)
}
