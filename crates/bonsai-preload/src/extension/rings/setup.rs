//! A ring is made. One that a kernel thread would poll is made without, where limits are
//! in force, and looks to the program as if that thread were always asleep: it is woken
//! by a call, and that call submits.

use super::known::{self, params};
use super::places;
use super::{flag, toll};
use crate::amount::{self, Args};
use crate::own::Own;
use bonsai_calls as calls;
use bonsai_ledger::{Segment, coverage, flags};
use core::sync::atomic::Ordering;

/// `IORING_SQ_NEED_WAKEUP`: the kernel leaves this bit of a ring alone that it does not
/// poll.
const NEED_WAKEUP: u32 = 1;

/// What a program that polls for results itself (`IORING_SETUP_IOPOLL`) and lets a thread
/// do that for it is told: as on kernels that allow it to privileged users only.
pub(crate) const EPERM: isize = -1;

/// What a program has asked for.
pub(crate) struct Asked {
    params: [u32; params::WORDS],
    /// Flags that were taken away.
    without: u32,
}

fn words(args: &Args, own: &mut Own) -> Option<*mut u32> {
    let at = args.a[1];
    amount::readable(at, 4 * params::WORDS, &mut own.readable).then_some(at as *mut u32)
}

impl Asked {
    /// What the program asked for it finds where it has put it.
    pub(crate) fn restore(&self, args: &Args) {
        // SAFETY: found readable, and what the kernel would have written.
        unsafe { *(args.a[1] as *mut u32).add(params::FLAGS) |= self.without };
    }

    /// Whether it cannot be made to work by calls: nobody would fetch its results.
    pub(crate) const fn is_refused(&self) -> bool {
        self.without != 0 && self.params[params::FLAGS] & flag::POLL_RESULTS != 0
    }
}

/// Looks at what is about to be asked for.
pub(crate) fn asked(segment: &'static Segment, own: &mut Own, args: &Args) -> Option<Asked> {
    let at = words(args, own)?;
    if toll::begin(segment, own) {
        known::inherit();
    }
    // SAFETY: readable, and the kernel will write it.
    let flags = unsafe { at.add(params::FLAGS) };
    let mut asked = Asked {
        params: [0; params::WORDS],
        without: 0,
    };
    let limited = segment.is_special(calls::IO_URING_ENTER)
        || segment.header.flags.load(Ordering::Relaxed) & flags::STRICT != 0;
    // SAFETY: as above.
    unsafe {
        // What the kernel refuses to poll for other flags stays refused.
        if *flags & flag::POLL != 0 && *flags & flag::NOT_POLLED == 0 && limited {
            asked.without = *flags & (flag::POLL | flag::POLL_ON);
            *flags &= !asked.without;
            toll::say(coverage::UNPOLLED);
        }
        asked
            .params
            .copy_from_slice(core::slice::from_raw_parts(at, params::WORDS));
    }
    Some(asked)
}

/// Remembers what was made.
pub(crate) fn made(
    segment: &'static Segment,
    own: &mut Own,
    args: &Args,
    mut asked: Asked,
    result: isize,
) {
    let at = args.a[1] as *mut u32;
    let polled = asked.params[params::FLAGS] & flag::POLL != 0;
    let own_memory = asked.params;
    // SAFETY: the kernel has just written it, or refused to.
    unsafe {
        if result >= 0 {
            asked
                .params
                .copy_from_slice(core::slice::from_raw_parts(at, params::WORDS));
        }
    }
    asked.restore(args);
    let Ok(fd) = usize::try_from(result) else {
        return;
    };
    if polled {
        toll::say(coverage::POLLED);
        return;
    }
    for word in [params::SQ_ADDRESS, params::CQ_ADDRESS] {
        asked.params[word] = own_memory[word];
        asked.params[word + 1] = own_memory[word + 1];
    }
    let alone = asked.params[params::FLAGS] & flag::NO_DESCRIPTOR != 0;
    let number = if alone { toll::NO_FD } else { fd };
    let Some(ring) = known::learn(number, &asked.params) else {
        return;
    };
    let held = if alone {
        places::put_place(ring, own.tid, u32::try_from(fd).unwrap_or(0));
        places::at_place(segment, own.tid, fd, &mut own.readable)
    } else if asked.without != 0 {
        known::find(segment, fd, &mut own.readable)
    } else {
        None
    };
    if asked.without != 0 {
        ring.unpolled.store(true, Ordering::Relaxed);
        if let Some(held) = held {
            held.word(params::SQ_FLAGS)
                .fetch_or(NEED_WAKEUP, Ordering::SeqCst);
        }
    }
}
