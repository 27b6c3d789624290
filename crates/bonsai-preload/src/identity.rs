//! The identity of this process in the ledger: its number, and the pid namespace of that.
//!
//! A process keeps its namespace for good. A forked child can be of another one
//! (`CLONE_NEWPID`; `unshare` or `setns` before the fork), and its parent's memory says nothing of
//! that: each finds out when it makes its first call. The next program of a process is told by a note in the
//! ledger.

use crate::seccomp::ask;
use crate::sys;
use bonsai_ledger::ProcessId;
use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(feature = "extension"))]
pub(crate) use here::*;

#[cfg(not(feature = "extension"))]
mod here {
    use super::{AtomicU64, Ordering, ProcessId, ask, of, sys};
    use crate::attach;
    use bonsai_ledger::Segment;
    use core::sync::atomic::AtomicBool;

    /// The process that has looked last.
    #[unsafe(link_section = ".bss.bonsai_early")]
    pub(crate) static KNOWN: AtomicU64 = AtomicU64::new(0);
    /// Set once the process that has looked at its start has made a call.
    #[unsafe(link_section = ".bss.bonsai_early")]
    static USED: AtomicBool = AtomicBool::new(false);

    pub(super) fn known() -> u64 {
        KNOWN.load(Ordering::Relaxed)
    }

    /// At the start of a program, as of `now`. The namespace is that of the program before, which has left a note
    /// with it a moment ago: the first look into `/proc/self` takes 10 us.
    pub(crate) fn begin(segment: &Segment, now: u64) {
        /// Age of such a note, ns.
        const LATEST: u64 = 1_000_000_000;
        let pid = sys::getpid();
        match segment.find_expected(pid, attach::program_words(), now.saturating_sub(LATEST)) {
            Some(process) => KNOWN.store(process.word(), Ordering::Relaxed),
            None => look(pid),
        }
    }

    /// At the first call of a process, which may be a forked child.
    pub(crate) fn meet(pid: u32) {
        let before = ProcessId::from_word(known());
        let is_it = before.is_some_and(|before| before.pid == pid);
        if is_it && !USED.swap(true, Ordering::Relaxed) {
            return;
        }
        if before.is_some_and(|before| is_parent(before.pid)) {
            KNOWN.store(of(pid).word(), Ordering::Relaxed);
        } else {
            look(pid);
        }
    }

    /// True where a process knows its parent by the number that this has in its own namespace: then both are of
    /// one, as children are never of a namespace above their parent's.
    fn is_parent(pid: u32) -> bool {
        // SAFETY: no arguments, no memory.
        usize::try_from(unsafe { ask!(Getppid) }) == Ok(pid as usize)
    }

    /// A process or thread that runs here: also that of a vforked child, which uses the memory of
    /// its parent.
    pub(crate) fn of_running(number: u32) -> ProcessId {
        let (running, registered) = (sys::getpid(), attach::registered());
        if running == registered || is_parent(registered) {
            return of(number);
        }
        ProcessId {
            pid: number,
            namespace: namespace_of(running),
        }
    }

    fn look(pid: u32) {
        let namespace = namespace_of(pid);
        KNOWN.store(ProcessId { pid, namespace }.word(), Ordering::Relaxed);
    }

    /// The namespace of the process that runs here. Where `/proc` does not say it, a child is taken
    /// to be of its parent's, but for the first of a namespace.
    fn namespace_of(pid: u32) -> u32 {
        let before = ProcessId::from_word(known());
        let inherited = || {
            before.map_or(0, |before| {
                if pid == 1 && before.pid != 1 {
                    0
                } else {
                    before.namespace
                }
            })
        };
        read().unwrap_or_else(inherited)
    }

    /// Reads the link: `pid:[4026531836]`.
    #[inline(never)]
    fn read() -> Option<u32> {
        let mut text = [0_u8; 32];
        let path = c"/proc/self/ns/pid";
        // SAFETY: a C string, and as many bytes as there are.
        let len = unsafe { ask!(Readlink, path.as_ptr(), text.as_mut_ptr(), text.len()) };
        let text = text.get(..usize::try_from(len).ok()?)?;
        let digits = text.strip_prefix(b"pid:[")?.strip_suffix(b"]")?;
        let add = |number: u32, digit: &u8| {
            let digit = digit.wrapping_sub(b'0');
            number.wrapping_mul(10).wrapping_add(digit.into())
        };
        Some(digits.iter().fold(0, add))
    }
}

#[cfg(feature = "extension")]
pub(crate) use there::*;

#[cfg(feature = "extension")]
mod there {
    use super::{AtomicU64, Ordering};
    use core::sync::atomic::AtomicPtr;

    static NOTHING: AtomicU64 = AtomicU64::new(0);
    /// Where the library has it.
    pub(crate) static KNOWN_AT: AtomicPtr<AtomicU64> =
        AtomicPtr::new((&raw const NOTHING).cast_mut());

    pub(super) fn known() -> u64 {
        // SAFETY: set before anything is decided on, and there for good.
        unsafe { (*KNOWN_AT.load(Ordering::Relaxed)).load(Ordering::Relaxed) }
    }
}

/// The namespace of this process; 0 where that is not known.
pub(crate) fn namespace() -> u32 {
    ProcessId::from_word(known()).map_or(0, |known| known.namespace)
}

/// A process or thread of that number in the namespace of this one.
pub(crate) fn of(pid: u32) -> ProcessId {
    let namespace = namespace();
    ProcessId { pid, namespace }
}

/// True for a process that has ended, as far as this one can know: `kill` knows the numbers of its own
/// namespace, and those of another one live.
pub(crate) fn has_ended(process: ProcessId) -> bool {
    // SAFETY: signal 0 only asks.
    let is_unknown = || unsafe { ask!(Kill, process.pid, 0) == sys::ESRCH };
    process.namespace == namespace() && is_unknown()
}
