//! The table of calls: every system call that Bonsai counts and can limit.
//!
//! It lives here once. The interposer takes its call numbers, shapes and libc
//! symbols from it, the ledger its array indices, the command line the names a
//! limit may use, and the reference (`docs/reference/calls.md`) and the
//! conformance tests their rows.
//!
//! One *entry* is a system call, or a system call on one kind of descriptor:
//! `write(2)` on a file belongs to other classes than `write(2)` on a socket,
//! so it has three entries. The index of an entry is part of the layout of the
//! shared segment: entries are only ever appended, and a change of order is a
//! new layout version of `bonsai-ledger`.
#![no_std]
#![forbid(unsafe_code)]

pub mod about;
mod class;
pub mod helpers;
pub mod io_size;
pub mod pattern;
pub mod ring;
pub mod signals;
pub mod symbols;
mod table;
pub mod whole;

pub use class::{CLASSES, Class, ClassSet};
pub use table::*;

/// What a call moves, and therefore when it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bytes come in (`read`, `recv`): charged when they have arrived, by their
    /// actual number; the caller gets them once they are due.
    In,
    /// Bytes go out (`write`, `send`): the caller waits before the call, and
    /// what was not accepted is given back.
    Out,
    /// No bytes: one unit per call, waited for before the call.
    Count,
}

/// The kind of descriptor that an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fd {
    /// The call does not depend on the kind of its descriptor.
    Any,
    /// A regular file or a block device.
    File,
    /// A socket of any family.
    Socket,
    /// A pipe, terminal, character device, eventfd or anything else.
    Other,
}

/// Which counters of `/proc/PID/io` the kernel advances for a call: the
/// independent source that `bonsai audit` compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcIo {
    /// Neither: sockets through `send` and `recv`, `splice`, and calls without bytes.
    None,
    /// `rchar`.
    Read,
    /// `wchar`.
    Write,
    /// Both, by the same amount (`sendfile`, `copy_file_range`).
    Both,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The name of the system call, as in section 2 of the manual.
    pub name: &'static str,
    /// Its number on x86-64.
    pub nr: u16,
    /// The direction of its bytes.
    pub shape: Shape,
    /// The kind of descriptor this entry stands for.
    pub fd: Fd,
    /// The classes it belongs to.
    pub classes: ClassSet,
    /// What `/proc/PID/io` says of it.
    pub proc_io: ProcIo,
}

impl Call {
    /// Whether the call moves bytes, so that a limit in bytes/s applies to it.
    #[must_use]
    pub const fn moves_bytes(&self) -> bool {
        !matches!(self.shape, Shape::Count)
    }
}

/// The index of a table entry, as used by the ledger's arrays.
pub type CallId = u8;

/// The most entries one page of thread counters has room for.
pub const MAX_CALLS: usize = 126;

/// Marks a system call number without an entry in [`BY_NR`].
pub const NO_CALL: CallId = u8::MAX;

/// The size of [`BY_NR`]: one above the highest system call number known.
pub const NR_LIMIT: usize = 512;

/// The first entry of each system call number, or [`NO_CALL`]. A call with one
/// entry per kind of descriptor has them in the order file, socket, other.
pub static BY_NR: [CallId; NR_LIMIT] = by_nr();

#[expect(
    clippy::cast_possible_truncation,
    reason = "the table has at most MAX_CALLS = 126 entries, checked below"
)]
const fn by_nr() -> [CallId; NR_LIMIT] {
    let mut map = [NO_CALL; NR_LIMIT];
    let mut i = CALLS.len();
    while i > 0 {
        i -= 1;
        map[CALLS[i].nr as usize] = i as CallId;
    }
    map
}

const _: () = assert!(CALLS.len() <= MAX_CALLS);

/// Calls that a name stands for: a class, or else a single system call (all of
/// its entries). A name that is both is the class, which contains the call.
///
/// Returns `None` for an unknown name.
#[must_use]
pub fn select(name: &str) -> Option<Selection> {
    if let Some(class) = Class::by_name(name) {
        return Some(Selection::Class(class));
    }
    let first = CALLS.iter().find(|c| c.name == name)?;
    Some(Selection::Nr(first.nr))
}

/// Calls that glibc makes in another's place, so that the name of its function
/// limits both: `select` is made as `pselect6`, `faccessat` as `faccessat2`.
const STANDS_FOR: [(u16, u16); 2] = [(23, 270), (269, 439)];

/// The calls that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All entries of a class.
    Class(Class),
    /// All entries of one system call number.
    Nr(u16),
}

impl Selection {
    /// Whether an entry is selected.
    #[must_use]
    pub fn contains(self, call: &Call) -> bool {
        match self {
            Self::Class(class) => call.classes.contains(class),
            Self::Nr(nr) => call.nr == nr || STANDS_FOR.contains(&(nr, call.nr)),
        }
    }

    /// Whether any selected entry moves bytes.
    #[must_use]
    pub fn moves_bytes(self) -> bool {
        CALLS.iter().any(|c| self.contains(c) && c.moves_bytes())
    }
}

/// Every name that [`select`] knows: classes first, then single calls, without
/// repetition.
pub fn names() -> impl Iterator<Item = &'static str> {
    let classes = CLASSES.iter().map(|(_, name, _)| *name);
    let calls = CALLS.iter().enumerate().filter_map(|(i, c)| {
        let seen = CALLS[..i].iter().any(|p| p.name == c.name);
        (!seen && Class::by_name(c.name).is_none()).then_some(c.name)
    });
    classes.chain(calls)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn entries_of_one_number_are_adjacent_and_in_order() {
        for (i, c) in CALLS.iter().enumerate() {
            let first = BY_NR[c.nr as usize] as usize;
            assert!(
                first <= i && CALLS[first..=i].iter().all(|p| p.nr == c.nr),
                "{}",
                c.name
            );
        }
        for nr in [0, 1, 19, 20, 40] {
            let first = BY_NR[nr] as usize;
            let kinds: std::vec::Vec<Fd> = CALLS[first..first + 3].iter().map(|c| c.fd).collect();
            assert_eq!(kinds, [Fd::File, Fd::Socket, Fd::Other]);
        }
    }

    #[test]
    fn every_byte_call_is_in_a_direction_and_in_all() {
        for c in CALLS {
            assert!(c.classes.contains(Class::All), "{}", c.name);
            let directed = [Class::Read, Class::Write, Class::Send, Class::Recv];
            assert_eq!(
                c.moves_bytes(),
                directed.iter().any(|d| c.classes.contains(*d)) || c.classes.contains(Class::Ipc),
                "{}",
                c.name
            );
        }
    }

    #[test]
    fn names_are_unique_and_select_something() {
        let mut seen = HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name} twice");
            let chosen = select(name).expect(name);
            assert!(
                CALLS.iter().any(|c| chosen.contains(c)),
                "{name} selects nothing"
            );
        }
        assert_eq!(select("raed"), None);
    }

    #[test]
    fn a_class_that_shares_a_call_name_contains_that_call() {
        for c in CALLS {
            if let Some(Selection::Class(class)) = select(c.name) {
                // `read` on a socket is received data: its class is `recv`, as documented.
                assert!(
                    c.classes.contains(class) || c.fd == Fd::Socket,
                    "{}",
                    c.name
                );
            }
        }
    }

    #[test]
    fn symbols_name_known_calls() {
        for s in symbols::SYMBOLS {
            assert!((s.call as usize) < CALLS.len(), "{}", s.name);
        }
        let mut seen = HashSet::new();
        assert!(symbols::SYMBOLS.iter().all(|s| seen.insert(s.name)));
    }
}
