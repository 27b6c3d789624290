//! New entries: what each asks for, and how many of them may enter together.

use super::records::{Record, Records, is};
use super::toll::{Group, NO_FD, is_inward};
use crate::amount::{self, Args};
use crate::kind;
use crate::own::Own;
use crate::wait::Wait;
use bonsai_calls::ring::{Amount, Given, Meaning, Op, Together, Words, splice_from};
use bonsai_calls::whole::MOST_BYTES;
use bonsai_calls::{self as calls, CallId, Fd};
use bonsai_ledger::{Segment, Unshaped};

/// Where entries are: a ring, or the arguments of `io_submit`.
pub(crate) trait Entries {
    /// The entry at a position; `None` where the kernel will pass it over.
    fn entry(&self, at: u32) -> Option<Words>;
    /// What it stands for, and how it goes together with others.
    fn read(&self, at: u32, entry: &Words) -> (Meaning, Together);
    /// How many positions it takes.
    fn width(&self, entry: &Words) -> u32;
    /// What is at a place of the ring's table of files.
    fn file(&self, place: u32) -> Fd;
    /// A descriptor of this kind goes to a place of that table.
    fn set_file(&self, place: u32, kind: Fd);
    /// Charges of what is under way.
    fn records(&self) -> &Records;
}

/// Groups of entries that are paid for one after the other.
const GROUPS: usize = 6;

/// What an entry asks for here.
struct Measured {
    call: CallId,
    fd: usize,
    /// What a limit on some descriptors looks at.
    args: Args,
    bytes: u64,
    /// Its bytes are known by its result.
    later: bool,
}

/// The entries from `at` on, `left` at most, that may enter together: waits until they may,
/// and says how many they are. All of them where `whole` is said. `may_end`: whether a
/// signal ends the wait, with nothing charged.
pub(crate) fn part(
    segment: &Segment,
    own: &mut Own,
    entries: &impl Entries,
    (at, left): (u32, u32),
    whole: bool,
    may_end: bool,
) -> (u32, Wait) {
    let mut groups = [const { None::<Group> }; GROUPS];
    let mut n = 0;
    // Whether the one before is linked to the next: both have to enter at once.
    let mut linked = false;
    while n < left {
        let position = at.wrapping_add(n);
        let Some(entry) = entries.entry(position) else {
            n += 1;
            continue;
        };
        let (meaning, together) = entries.read(position, &entry);
        let width = entries.width(&entry);
        let may_stop = n > 0 && !linked && !whole;
        let Meaning::Call(op) = meaning else {
            if meaning == Meaning::Unknown {
                segment.count_unshaped(Unshaped::Ring);
            }
            linked = together.linked;
            n += width;
            continue;
        };
        let measured = measure(entries, own, &entry, &op);
        let (call, fd, args) = (measured.call, measured.fd, measured.args);
        let known = groups
            .iter()
            .position(|g| g.as_ref().is_some_and(|g| g.takes(segment, call, &args)));
        let free = groups.iter().position(Option::is_none);
        let Some(place) = known.or(free) else {
            if may_stop {
                break;
            }
            // A long chain of all kinds: what it has is paid for on the way.
            pay(segment, own, &mut groups, false);
            groups = [const { None }; GROUPS];
            continue;
        };
        let Some(slot) = groups.get_mut(place) else {
            break;
        };
        let group = slot.get_or_insert_with(|| Group::new(segment, own, call, &args));
        if may_stop && !group.has_room(segment, measured.bytes) {
            break;
        }
        let epoch = segment.epoch();
        let recorded = record(entries, &op, &measured, together, epoch);
        let (bytes, calls) = ahead(&op, &measured, recorded);
        group.bytes = group.bytes.saturating_add(bytes);
        group.calls += calls;
        if !recorded && (op.many || op.amount == Amount::Open) {
            segment.count_unshaped(Unshaped::Ring);
        }
        if let Some(fd) = op.closes {
            kind::forget(fd as usize);
            crate::descriptors::forget(fd as usize, fd as usize);
        }
        if changes(op.call) {
            crate::descriptors::forget(fd, fd);
        }
        if let Some(Given::Place(Some(place))) = op.gives {
            entries.set_file(place, given(op.call));
        }
        linked = together.linked;
        n += width;
    }
    let n = n.min(left);
    let end = pay(segment, own, &mut groups, may_end);
    if end != Wait::Due {
        each(entries, at, n, |_, _, together| {
            entries.records().take(together.key, true);
        });
    }
    (n, end)
}

/// Every entry from `at` on that stands for a call.
fn each(entries: &impl Entries, at: u32, n: u32, mut see: impl FnMut(&Words, Op, Together)) {
    let mut i = 0;
    while i < n {
        let position = at.wrapping_add(i);
        let Some(entry) = entries.entry(position) else {
            i += 1;
            continue;
        };
        if let (Meaning::Call(op), together) = entries.read(position, &entry) {
            see(&entry, op, together);
        }
        i += entries.width(&entry);
    }
}

/// The bytes and calls that are charged when an entry enters.
fn ahead(op: &Op, measured: &Measured, recorded: bool) -> (u64, u64) {
    let late = (op.many || measured.later) && recorded;
    let bytes = if late { 0 } else { measured.bytes };
    (bytes, u64::from(!(op.many && recorded)))
}

/// Pays for groups; if a wait ends early, for none of them.
fn pay(
    segment: &Segment,
    own: &mut Own,
    groups: &mut [Option<Group>; GROUPS],
    may_end: bool,
) -> Wait {
    let mut end = Wait::Due;
    let mut paid = 0;
    for group in groups.iter_mut().flatten() {
        end = group.pay(segment, own, may_end);
        if end != Wait::Due {
            break;
        }
        paid += 1;
    }
    if end != Wait::Due {
        for group in groups.iter().flatten().take(paid) {
            group.undo(segment, own);
        }
    }
    end
}

/// Gives back what was charged for entries that did not enter.
pub(crate) fn undo(segment: &Segment, own: &mut Own, entries: &impl Entries, at: u32, n: u32) {
    each(entries, at, n, |entry, op, together| {
        let measured = measure(entries, own, entry, &op);
        let recorded = entries.records().take(together.key, true).is_some();
        let mut group = Group::new(segment, own, measured.call, &measured.args);
        (group.bytes, group.calls) = ahead(&op, &measured, recorded);
        group.undo(segment, own);
    });
}

/// Keeps what an entry was charged, if its result can change that or says more. False if
/// that was not possible.
fn record(
    entries: &impl Entries,
    op: &Op,
    measured: &Measured,
    together: Together,
    epoch: u32,
) -> bool {
    let gives = match op.gives {
        None => 0,
        Some(Given::Descriptor) => is::GIVES,
        Some(Given::Place(_)) => is::PLACE,
    };
    let has_more = op.amount != Amount::None || gives != 0 || op.many || changes(op.call);
    // Of what succeeds in silence there is nothing to learn.
    if together.silent || !has_more {
        return false;
    }
    let paid = if measured.later || op.many {
        0
    } else {
        is::PAID
    };
    let many = if op.many { is::MANY } else { 0 };
    let record = Record {
        call: measured.call,
        fd: u32::try_from(measured.fd).unwrap_or(u32::MAX),
        epoch,
        asked: u32::try_from(measured.bytes).unwrap_or(u32::MAX),
        is: paid | many | gives,
    };
    entries.records().put(together.key, &record)
}

/// What kind of descriptor a call gives.
const fn given(call: CallId) -> Fd {
    match call {
        calls::OPENAT | calls::OPENAT2 => Fd::File,
        _ => Fd::Socket,
    }
}

fn measure(entries: &impl Entries, own: &mut Own, entry: &Words, op: &Op) -> Measured {
    let kind_of = |fd: i32, fixed: bool| {
        if fixed {
            return entries.file(fd.cast_unsigned());
        }
        let fd = fd.cast_unsigned() as usize;
        kind::known(fd).unwrap_or_else(|| kind::look(fd).kind)
    };
    let mut call = op.call;
    let mut kind = Fd::Any;
    if op.by_kind() {
        kind = kind_of(op.fd, op.fixed);
        if call == calls::SPLICE_FILE && kind == Fd::Other {
            // One end is a pipe: the other one decides.
            let (from, fixed) = splice_from(entry);
            kind = kind_of(from, fixed);
        }
        call += kind::offset(kind);
    }
    let mut args = Args { a: [0; 6], nr: 0 };
    let bytes = match op.amount {
        Amount::None | Amount::Open => 0,
        Amount::Bytes(bytes) => (bytes as usize).min(MOST_BYTES),
        Amount::Vectors(at, n) => {
            (args.a[1], args.a[2]) = (word(at), n as usize);
            amount::asked(calls::READV_FILE, &args, &mut own.readable)
        }
        Amount::Message(at) => {
            args.a[1] = word(at);
            amount::asked(calls::SENDMSG, &args, &mut own.readable)
        }
    };
    // A read of a file has its bytes at once; whatever else comes in may be long in coming.
    let comes_late = is_inward(call) && kind != Fd::File && !is_queued(call);
    Measured {
        call,
        fd: if op.fixed {
            NO_FD
        } else {
            op.fd.cast_unsigned() as usize
        },
        args: about(op, entry),
        bytes: bytes as u64,
        later: comes_late || op.amount == Amount::Open,
    }
}

/// Whether a call changes what limits see in its descriptor: its peer or port.
pub(super) const fn changes(call: CallId) -> bool {
    matches!(call, calls::CONNECT | calls::BIND)
}

/// The arguments of the call that an entry stands for, as far as limits look at them.
fn about(op: &Op, entry: &Words) -> Args {
    Args {
        a: op.arguments(entry).map(word),
        nr: 0,
    }
}

/// Calls that only queues stand for: on files, as a rule.
const fn is_queued(call: CallId) -> bool {
    matches!(call, calls::PREAD64 | calls::PREADV)
}

fn word(at: u64) -> usize {
    usize::try_from(at).unwrap_or(0)
}
