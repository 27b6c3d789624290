//! Who waits for a limit at this moment.

use bonsai_calls::CALLS;
use bonsai_host::threads::{Doing, Thread, thread};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Header, Ledger, Limit, Waiting, flags};
use serde::Serialize;

use super::kind;
use crate::group;
use crate::limits::written;
use crate::service::members::Member;

/// A thread that waits for a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingView {
    /// Process id.
    pub pid: u32,
    /// File name of the process's program.
    pub program: String,
    /// Thread id.
    pub tid: u32,
    /// The name of the limit; of several, the one that lets the call go last. `null`
    /// if it has been lifted this moment.
    pub limit: Option<String>,
    /// That limit as it would be written.
    pub setting: Option<String>,
    /// The call.
    pub call: &'static str,
    /// The kind of its descriptor: `file`, `socket`, `other`, or `any`.
    pub kind: &'static str,
    /// For how long the call has waited so far, ns.
    pub waited_ns: u64,
    /// In how long its place in line is due, ns. A large call takes several.
    pub due_in_ns: u64,
}

/// Where the library's futex word is in a page.
const WORD: u64 = core::mem::offset_of!(Header, epoch) as u64;

/// Whether a thread may be in the wait that it has noted: what it does does not say
/// otherwise.
pub fn is_believed(ledger: &Ledger, thread: &Thread) -> bool {
    if ledger.header.flags.load(Ordering::Relaxed) & flags::ENFORCED != 0 {
        // The supervisor notes it, which knows.
        return true;
    }
    may_wait(thread)
}

fn may_wait(thread: &Thread) -> bool {
    match thread.doing {
        // futex_waitv, and restart_syscall, which goes on with any of these after a
        // signal.
        Doing::Call(449 | 219, _) => true,
        // futex, on the epoch of a ledger.
        Doing::Call(202, address) => address % 4096 == WORD,
        // clock_nanosleep, by CLOCK_MONOTONIC.
        Doing::Call(230, clock) => clock == 1,
        // clone, vfork, clone3: a child uses its state meanwhile.
        Doing::Call(56 | 58 | 435, _) => true,
        // It is on its way into the wait or out of it.
        Doing::Running | Doing::Unknown => true,
        Doing::Call(..) | Doing::Fault => false,
    }
}

/// The threads that wait at `now`, the longest first.
pub(super) fn of(
    ledger: &Ledger,
    limits: &[Limit],
    group: &group::Seen,
    members: &[Member],
    now: u64,
) -> Vec<WaitingView> {
    let view = |waiting: Waiting| {
        let (owner, noted) = (waiting.owner, waiting.noted);
        let member = members
            .iter()
            .find(|member| member.entered && owner.is_of(member.id))?;
        // What a thread has noted before its process became another program.
        let attached_ns = member.entry.as_ref().map_or(0, |entry| entry.attached_ns);
        if noted.since_ns < attached_ns {
            return None;
        }
        let (pid, tid) = (member.process.pid, member.thread(owner.tid)?);
        thread(pid, tid).filter(|thread| is_believed(ledger, thread))?;
        let call = CALLS.get(usize::from(noted.call))?;
        let limit = limits
            .iter()
            .find(|limit| limit.bucket == usize::from(noted.bucket));
        let name = limit.map(|limit| (limit.name.clone(), written(limit)));
        let name = name.or_else(|| group::waiting_name(group, noted.bucket));
        let (limit, setting) = name.unzip();
        Some(WaitingView {
            pid,
            program: member.program(),
            tid,
            limit,
            setting,
            call: call.name,
            kind: kind(call.fd),
            waited_ns: now.saturating_sub(noted.since_ns),
            due_in_ns: noted.due_ns.saturating_sub(now),
        })
    };
    let mut views: Vec<_> = ledger.waiting(now).into_iter().filter_map(view).collect();
    views.sort_by_key(|view| (std::cmp::Reverse(view.waited_ns), view.tid));
    views
}

/// Whether there are threads without a page of their own in the ledger: nobody knows
/// which of them wait.
pub fn has_crowd(ledger: &Ledger) -> bool {
    let calls = |count: &bonsai_ledger::Count| count.calls.load(Ordering::Relaxed);
    ledger.crowd.counts.iter().any(|count| calls(count) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_does_may_contradict_its_note() {
        let mut me = thread(
            std::process::id(),
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
        )
        .expect("this thread");
        for (doing, believed) in [
            (Doing::Call(449, 0), true),
            (Doing::Call(202, 0x7f00_0000_0080), true),
            (Doing::Call(202, 0x7f00_0000_0084), false),
            (Doing::Call(230, 1), true),
            (Doing::Call(230, 0), false),
            (Doing::Call(58, 0), true),
            (Doing::Running, true),
            (Doing::Unknown, true),
            (Doing::Call(0, 3), false),
            (Doing::Fault, false),
        ] {
            me.doing = doing;
            assert_eq!(may_wait(&me), believed, "{doing:?}");
        }
    }
}
