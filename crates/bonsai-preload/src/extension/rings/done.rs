//! Results: what entries have moved, against what was charged for them.

use super::records::{Record, is};
use super::toll::{Group, correct, moves_bytes, on};
use super::walk::{Entries, changes};
use crate::descriptors;
use crate::kind;
use crate::own::Own;
use crate::sys;
use bonsai_calls::{CallId, Fd};
use bonsai_ledger::Segment;

/// A result.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    /// Which entry it is of.
    pub(crate) key: u64,
    /// Its number of bytes, or an error.
    pub(crate) result: isize,
    /// Whether more will come of the same entry.
    pub(crate) more: bool,
}

/// Debts of several results.
const DEBTS: usize = 4;

/// What came in and is still to be paid.
pub(crate) struct Debts([Option<Group>; DEBTS]);

const ECANCELED: isize = -125;

impl Debts {
    pub(crate) const NONE: Self = Self([const { None }; DEBTS]);

    /// Looks at one result.
    pub(crate) fn take(
        &mut self,
        segment: &Segment,
        own: &mut Own,
        entries: &impl Entries,
        done: Done,
    ) {
        let Some(record) = entries.records().take(done.key, !done.more) else {
            return;
        };
        let moved = u64::try_from(done.result).unwrap_or(0);
        let what = (record.call, record.fd as usize);
        if record.is & (is::GIVES | is::PLACE) != 0 {
            place(entries, &record, done.result);
        }
        if changes(record.call) {
            descriptors::forget(what.1, what.1);
        }
        // Nothing was done: the program will come again, or not.
        // A connection that was given up has been begun all the same.
        let undone =
            matches!(done.result, sys::EAGAIN | sys::EINTR | ECANCELED) && !changes(record.call);
        let sure = record.is & is::UNSURE == 0;
        let many = record.is & is::MANY != 0;
        let paid = record.is & is::PAID != 0;
        let left = match (paid, sure) {
            (true, true) => u64::from(record.asked).saturating_sub(moved),
            _ => 0,
        };
        if left > 0 || undone && !many {
            let calls = u64::from(undone && !many);
            correct(segment, own, what, record.epoch, (left, calls));
        }
        if paid {
            return;
        }
        let bytes = match (moves_bytes(record.call), sure) {
            (true, true) => moved,
            // Which of two it was is not known: at least what it may have asked for.
            (true, false) => moved.max(u64::from(record.asked)),
            _ => 0,
        };
        let calls = u64::from(many && done.result >= 0);
        self.add(segment, own, what, bytes, calls);
    }

    fn add(
        &mut self,
        segment: &Segment,
        own: &mut Own,
        (call, fd): (CallId, usize),
        bytes: u64,
        calls: u64,
    ) {
        if bytes + calls == 0 {
            return;
        }
        let args = on(call, fd);
        let takes = |g: &Option<Group>| g.as_ref().is_none_or(|g| g.takes(segment, call, &args));
        let place = self.0.iter().position(takes).unwrap_or_else(|| {
            self.pay(segment, own);
            0
        });
        let Some(slot) = self.0.get_mut(place) else {
            return;
        };
        let group = slot.get_or_insert_with(|| Group::new(segment, own, call, &args));
        group.bytes = group.bytes.saturating_add(bytes);
        group.calls += calls;
    }

    /// Waits until all of them are due.
    pub(crate) fn pay(&mut self, segment: &Segment, own: &mut Own) {
        for slot in &mut self.0 {
            if let Some(mut group) = slot.take() {
                group.owe(segment, own);
            }
        }
    }
}

/// A new descriptor: what its number meant before is over.
fn place(entries: &impl Entries, record: &Record, result: isize) {
    let Ok(number) = u32::try_from(result) else {
        return;
    };
    if record.is & is::GIVES != 0 {
        kind::forget(number as usize);
        descriptors::forget(number as usize, number as usize);
    } else if record.call == bonsai_calls::ACCEPT4 {
        entries.set_file(number, Fd::Socket);
    }
}
