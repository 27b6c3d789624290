//! Limited calls that are made by instructions which cannot be replaced.

use super::ProgramName;
use crate::patch;
use crate::slots::{fact, facts};
use crate::trap;
use crate::uncovered;
use bonsai_calls::{self as calls, CALLS, CallId};
use bonsai_ledger::{Segment, flags};
use core::sync::atomic::Ordering;

/// Says on standard error that a limited call has an instruction that could not be replaced, once in a service. Ends the process if the
/// service is strict. Limits that come later are weighed by `bonsai status`, which names the calls as well.
pub(super) fn complain(segment: &Segment) {
    let unseen = patch::unseen();
    let is_unseen = |call: CallId| unseen[usize::from(call / 64) & 1] >> (call % 64) & 1 != 0;
    let mut entries = (0_u8..).take(CALLS.len());
    if unseen == [0, 0] || trap::is_active() || !entries.any(|call| is_unseen(call) && is_limited(segment, call)) {
        return;
    }
    let before = segment.header.flags.fetch_or(flags::HOLES, Ordering::Relaxed);
    let strict = before & flags::STRICT != 0;
    if before & flags::HOLES == 0 || strict {
        let said: &[u8] = if strict {
            b": a limited call is made by an instruction that cannot be replaced, and --strict refuses that\n"
        } else {
            b": a limited call is made by an instruction that cannot be replaced: not limited there (bonsai status names it, --unpatched trap limits it)\n"
        };
        uncovered::say(&[b"bonsai: ", ProgramName::own().bytes(), said]);
    }
    if strict {
        uncovered::end_refused();
    }
}

/// True where a limit is on a system call, on some kind of descriptor, by its first entry.
fn is_limited(segment: &Segment, first: CallId) -> bool {
    let has_kinds = facts(first) & fact::KINDS != 0 || first == calls::SPLICE_FILE;
    let last = if has_kinds { first + 2 } else { first };
    (first..=last).any(|call| segment.is_limited(call))
}
