//! Parts of a large call.

use crate::Division;

/// Parts are whole pages. A pipe takes as much at once (`PIPE_BUF`).
pub const PAGE: usize = 4096;

/// Calls that use the position of an open file, and writes to files, are not divided up to this size: the open file may be shared with
/// other threads and processes, and some files take a write as a whole or not at all.
pub const RECORD: usize = 1 << 20;

/// Length of a part by the `units` that the buckets of a call give in a quantum: whole pages, at least one.
#[must_use]
pub fn quantum_length(units: u64) -> u32 {
    let pages = (units / PAGE as u64).max(1);
    u32::try_from(pages * PAGE as u64).unwrap_or(u32::MAX)
}

/// The length of the parts of a call of `asked` bytes, all alike: whole pages, as near to `quantum` bytes as that comes. The last part
/// would otherwise be short, and what the thread takes beyond it missing to others until its next call.
#[must_use]
#[inline]
pub fn part_length(asked: usize, quantum: usize) -> usize {
    let quantum = quantum.max(1);
    let count = (asked.saturating_add(quantum / 2) / quantum).max(1);
    asked.div_ceil(count).next_multiple_of(PAGE)
}

/// The parts of a call, of which some are made already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Bytes, or messages, of the whole call.
    asked: usize,
    first: usize,
    further: usize,
    done: usize,
}

impl Parts {
    /// Plan of a call of `asked` bytes, by the most bytes of its `first` part and of each `further` one. `None` for a call that is made as
    /// a whole; `division` is asked for only where parts are wanted.
    #[must_use]
    #[inline]
    pub fn plan(
        asked: usize,
        (first, further): (usize, usize),
        division: impl FnOnce() -> Division,
    ) -> Option<Self> {
        if asked <= first {
            return None;
        }
        let shortest = division().shortest();
        let (first, further) = (first.max(shortest), further.max(shortest));
        (asked > first).then_some(Self::new(asked, (first, further)))
    }

    /// The same, of a call that is known to be made in parts.
    #[must_use]
    pub const fn new(asked: usize, (first, further): (usize, usize)) -> Self {
        Self {
            asked,
            first,
            further,
            done: 0,
        }
    }

    /// The length of the next part.
    #[must_use]
    pub const fn next(&self) -> usize {
        let left = self.asked - self.done;
        let most = if self.is_first() {
            self.first
        } else {
            self.further
        };
        if most < left { most } else { left }
    }

    /// True before the first part, which alone is a call for a limit in calls.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.done == 0
    }

    /// Bytes, or messages, of the parts that were made.
    #[must_use]
    pub const fn done(&self) -> usize {
        self.done
    }

    /// A part of `part` bytes was made with this raw result; returns the result of the whole call where it ends with that. A part that
    /// is short, or fails, is the last one.
    pub fn made(&mut self, part: usize, result: isize) -> Option<isize> {
        let got = usize::try_from(result)
            .unwrap_or(0)
            .min(self.asked - self.done);
        self.done += got;
        let goes_on = got > 0 && got >= part && self.done < self.asked;
        (!goes_on).then(|| self.result(result))
    }

    /// Result of the call if it ends now, `last` being the result of the part that was made last.
    #[must_use]
    pub fn result(&self, last: isize) -> isize {
        match self.done {
            0 => last,
            done => isize::try_from(done).unwrap_or(last),
        }
    }
}
