//! What one dump counts of many interfaces. Where it takes long it is not made at each look, and what
//! came since the last one is given out over the looks until the next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::meter::Spread;

/// A dump may take so long at each look: a hundredth of a processor at ten looks a second.
const COST: Duration = Duration::from_millis(1);

/// It is made at least every so many looks.
const MOST: u64 = 10;

/// What is counted of an interface, in two directions or one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) bytes: [u64; 2],
    /// Bytes that wait.
    pub(super) backlog: u64,
    /// How often something waited or was dropped.
    pub(super) trouble: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// The look at which it was counted last, and that at which it was given last.
    read: u64,
    given: u64,
    last: Counts,
    bytes: [Spread; 2],
    shown: [u64; 2],
}

/// Interfaces by number.
#[derive(Debug)]
pub(super) struct Sheet {
    read: u64,
    every: u64,
    lines: BTreeMap<u32, Line>,
}

impl Default for Sheet {
    fn default() -> Self {
        Self {
            read: 0,
            every: 1,
            lines: BTreeMap::new(),
        }
    }
}

impl Sheet {
    /// Whether it is time for a dump.
    pub(super) fn is_due(&self, look: u64) -> bool {
        look >= self.read + self.every || self.read == 0
    }

    /// A dump was made, and took so long.
    pub(super) fn done(&mut self, look: u64, took: Duration) {
        self.read = look;
        let times = took.as_nanos().div_ceil(COST.as_nanos());
        self.every = u64::try_from(times).unwrap_or(MOST).clamp(1, MOST);
    }

    /// Takes what a dump says, or in between what was asked of one alone.
    pub(super) fn count(&mut self, device: u32, look: u64, counts: Counts, alone: bool) {
        let line = self.lines.entry(device).or_default();
        let looks = if alone { 1 } else { self.every };
        for (side, spread) in line.bytes.iter_mut().enumerate() {
            if counts.bytes[side] < line.last.bytes[side] {
                // It is counted anew.
                spread.begin();
            }
            spread.count(counts.bytes[side], looks);
        }
        (line.read, line.last) = (look, counts);
    }

    /// Whether one was counted by the last dump or since.
    pub(super) fn has(&self, device: u32) -> bool {
        let line = self.lines.get(&device);
        line.is_some_and(|line| line.read >= self.read && line.read > 0)
    }

    /// Whether one was counted or given at a look already.
    pub(super) fn is_given(&self, device: u32, look: u64) -> bool {
        let line = self.lines.get(&device);
        line.is_some_and(|line| line.read == look || line.given == look)
    }

    /// What one has at a look.
    pub(super) fn give(&mut self, device: u32, look: u64) -> Option<Counts> {
        let read = self.read;
        let line = self
            .lines
            .get_mut(&device)
            .filter(|line| line.read >= read)?;
        if line.given != look {
            line.given = look;
            line.shown = line
                .bytes
                .each_mut()
                .map(|of| of.give().unwrap_or_default());
        }
        Some(Counts {
            bytes: line.shown,
            ..line.last
        })
    }

    /// Forgets those that are not there any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&u32) -> bool) {
        self.lines.retain(|device, _| is_there(device));
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(bytes: u64) -> Counts {
        Counts {
            bytes: [bytes, 0],
            ..Counts::default()
        }
    }

    #[test]
    fn a_dump_that_takes_long_is_made_seldom_and_gives_no_lumps() {
        let mut sheet = Sheet::default();
        assert!(sheet.is_due(1));
        sheet.count(7, 1, sent(100), false);
        sheet.done(1, Duration::from_micros(2_500));
        assert_eq!(sheet.give(7, 1), Some(sent(100)));
        assert_eq!(
            [2, 3, 4].map(|look| sheet.is_due(look)),
            [false, false, true]
        );
        sheet.count(7, 4, sent(400), false);
        sheet.done(4, Duration::from_micros(900));
        let given: Vec<_> = (4..8).filter_map(|look| sheet.give(7, look)).collect();
        assert_eq!(given, [sent(200), sent(300), sent(400), sent(400)]);
        assert_eq!(sheet.give(7, 7), Some(sent(400)), "asked twice at a look");
        assert!(sheet.is_due(5));
        // It is made anew, and others are gone.
        sheet.count(8, 5, sent(1), true);
        sheet.count(7, 8, sent(50), false);
        sheet.done(8, Duration::from_secs(1));
        assert_eq!(sheet.give(7, 8), Some(sent(450)));
        assert!(sheet.has(7) && !sheet.has(8));
        assert_eq!(sheet.give(8, 8), None);
        assert!(!sheet.is_due(17) && sheet.is_due(18));
    }
}
