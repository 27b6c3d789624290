//! The seccomp filter: calls of the table, where they are made within some code.

use crate::extension::{Filter, OURS, own_text};
use crate::seccomp::ask;
use crate::signal::Handler;
use crate::signals;
use crate::sys::nr;
use bonsai_calls::{BY_NR, NO_CALL};
use core::ops::Range;

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;

const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000 | OURS;

// Of `struct seccomp_data`.
const NR: u32 = 0;
const ARCH_AT: u32 = 4;
const POINTER_LOW: u32 = 8;
const POINTER_HIGH: u32 = 12;
const FIRST: u32 = 16;

// `linux/bpf_common.h`
const LOAD: u16 = 0x20;
const GO: u16 = 0x05;
const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const AT_LEAST: u16 = 0x35;
const SET: u16 = 0x45;
const RETURN: u16 = 0x06;

const CLONE: usize = 56;
const VFORK: usize = 58;
const CLONE_VM: u32 = 0x100;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

const ROOM: usize = 384;

struct Program {
    steps: [Step; ROOM],
    len: usize,
    /// There was no room.
    full: bool,
}

impl Program {
    fn add(&mut self, code: u16, k: u32, yes: u8, no: u8) {
        match self.steps.get_mut(self.len) {
            Some(step) => {
                *step = Step { code, yes, no, k };
                self.len += 1;
            }
            None => self.full = true,
        }
    }

    /// What is done `then`, where the instruction pointer is within a range: one step.
    #[expect(clippy::cast_possible_truncation, reason = "the halves of an address")]
    fn within(&mut self, range: &Range<usize>, mut then: impl FnMut(&mut Self)) {
        let (mut from, last) = (range.start, range.end.wrapping_sub(1));
        while from <= last {
            // No further than to where the upper half changes.
            let to = last.min(from | 0xffff_ffff);
            self.add(LOAD, POINTER_HIGH, 0, 0);
            self.add(EQUAL, (from >> 32) as u32, 0, 4);
            self.add(LOAD, POINTER_LOW, 0, 0);
            self.add(AT_LEAST, from as u32, 0, 2);
            self.add(GREATER, to as u32, 1, 0);
            then(self);
            from = to + 1;
        }
    }

    fn allow(&mut self) {
        self.add(RETURN, ALLOW, 0, 0);
    }

    fn trap(&mut self) {
        self.add(RETURN, TRAP, 0, 0);
    }
}

/// Whether a call is trapped. `clone` is looked at once more; what makes a child that uses
/// the same memory would have it return in the handler's frame, which is its parent's.
fn is_trapped(number: usize) -> bool {
    let known = BY_NR.get(number).is_some_and(|call| *call != NO_CALL);
    known && number != CLONE && number != VFORK || is_signals(number)
}

/// What could take the signal from us.
fn is_signals(number: usize) -> bool {
    matches!(number, nr::RT_SIGACTION | nr::RT_SIGPROCMASK)
}

/// Makes the signal ours, and installs the filter, if that is for anything.
pub(crate) extern "C" fn install(filter: &Filter<'_>, handler: Handler) -> bool {
    signals::take(handler);
    filter.ranges.is_empty() || set(&program(filter))
}

#[inline(never)]
fn program(filter: &Filter<'_>) -> Program {
    let none = Step {
        code: RETURN,
        yes: 0,
        no: 0,
        k: ALLOW,
    };
    let mut program = Program {
        steps: [none; ROOM],
        len: 0,
        full: false,
    };
    let p = &mut program;
    p.add(LOAD, ARCH_AT, 0, 0);
    p.add(EQUAL, ARCH, 1, 0);
    p.allow();
    if !filter.ours.is_empty() {
        for range in [&filter.ours, &own_text()] {
            p.within(range, Program::allow);
        }
    }
    // Where each of them has to go is known later.
    let begun = p.len;
    for range in filter.ranges {
        p.within(range, |p| p.add(GO, u32::MAX, 0, 0));
    }
    if !filter.signals.is_empty() {
        p.add(LOAD, NR, 0, 0);
        p.add(EQUAL, 13, 2, 0);
        p.add(EQUAL, 14, 1, 0);
        p.allow();
        for range in filter.signals {
            p.within(range, Program::trap);
        }
    }
    p.allow();
    let numbers = p.len;
    for (i, step) in p.steps.iter_mut().enumerate().take(numbers).skip(begun) {
        if step.code == GO {
            step.k = u32::try_from(numbers - i - 1).unwrap_or(0);
        }
    }
    add_numbers(p);
    program
}

/// Calls of the table, as runs of numbers.
fn add_numbers(p: &mut Program) {
    p.add(LOAD, NR, 0, 0);
    let mut number = 0;
    while number < BY_NR.len() {
        let from = number;
        while number < BY_NR.len() && is_trapped(number) {
            number += 1;
        }
        if number > from {
            let bound = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            p.add(AT_LEAST, bound(number), 2, 0);
            p.add(AT_LEAST, bound(from), 0, 1);
            p.trap();
        }
        number += 1;
    }
    p.add(EQUAL, 56, 1, 0);
    p.allow();
    p.add(LOAD, FIRST, 0, 0);
    p.add(SET, CLONE_VM, 0, 1);
    p.allow();
    p.trap();
}

/// `struct sock_fprog`.
#[repr(C)]
struct Given {
    len: usize,
    steps: *const Step,
}

fn set(program: &Program) -> bool {
    if program.full {
        return false;
    }
    /// `SECCOMP_FILTER_FLAG_TSYNC`, `SECCOMP_FILTER_FLAG_SPEC_ALLOW`.
    const FLAGS: usize = 1 | 4;
    let given = Given {
        len: program.len,
        steps: program.steps.as_ptr(),
    };
    // SAFETY: SECCOMP_SET_MODE_FILTER with a filter of ours; the kernel copies it.
    let install = || unsafe { ask!(Seccomp, 1, FLAGS, &raw const given) };
    // Without the right to, only who gives up new privileges may.
    // SAFETY: PR_SET_NO_NEW_PRIVS.
    install() == 0 || unsafe { ask!(NoNewPrivs, 38, 1, 0, 0, 0) == 0 && install() == 0 }
}
