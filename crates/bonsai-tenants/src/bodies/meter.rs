//! Totals that only grow, whatever they are counted by.

/// A total of what one source counts, or now this one and now that one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter<S> {
    total: u64,
    last: Option<(S, u64)>,
}

impl<S> Default for Meter<S> {
    fn default() -> Self {
        Self {
            total: 0,
            last: None,
        }
    }
}

impl<S: Copy + PartialEq> Meter<S> {
    /// The total; `None` before the first count.
    pub(super) fn total(&self) -> Option<u64> {
        self.last.is_some().then_some(self.total)
    }

    /// By what it was counted last.
    pub(super) fn source(&self) -> Option<S> {
        self.last.map(|(source, _)| source)
    }

    /// Says that its sources are others of their kind, which begin at 0.
    pub(super) fn begin(&mut self) {
        self.last = self.last.map(|(source, _)| (source, 0));
    }

    /// Takes a count of a source. The first one is the total; one that is less than the last has
    /// begun anew; one of another source says from where it goes on, for what that counted before was
    /// counted by the last one, too.
    pub(super) fn count(&mut self, source: S, now: u64) {
        let grown = match self.last {
            None => now,
            Some((of, last)) if of == source => now.checked_sub(last).unwrap_or(now),
            Some(_) => 0,
        };
        self.total = self.total.saturating_add(grown);
        self.last = Some((source, now));
    }
}

/// A total that is not counted at each look: what comes in one lump is given out over as many looks
/// as it had to come in, so that no rate is above what was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    total: Option<u64>,
    /// Of the source.
    last: u64,
    /// What is not yet in the total, and over how many looks it comes into it.
    left: u64,
    looks: u64,
}

impl Spread {
    /// Takes a count, `looks` looks after the last one. Whether something has moved.
    pub(super) fn count(&mut self, now: u64, looks: u64) -> bool {
        let grown = match self.total {
            // What is counted of less disks than before has lost a part, and begins at no 0.
            Some(_) => now.saturating_sub(self.last),
            None => {
                self.total = Some(now);
                0
            }
        };
        self.last = now;
        if grown > 0 {
            self.left = self.left.saturating_add(grown);
            self.looks = looks.max(1);
        }
        grown > 0
    }

    /// Says that its source begins at 0 again.
    pub(super) fn begin(&mut self) {
        self.last = 0;
    }

    /// The total at a look.
    pub(super) fn give(&mut self) -> Option<u64> {
        let part = self.left.div_ceil(self.looks.max(1)).min(self.left);
        self.left -= part;
        self.looks = self.looks.saturating_sub(1);
        self.total = self.total.map(|total| total.saturating_add(part));
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_grows_whatever_counts_it() {
        let mut meter = Meter::default();
        assert_eq!(meter.total(), None);
        meter.count('i', 1000);
        meter.count('i', 1500);
        // A class is made, later, and has counted something already.
        meter.count('c', 70);
        meter.count('c', 170);
        assert_eq!((meter.total(), meter.source()), (Some(1600), Some('c')));
        // The class is made anew.
        meter.count('c', 30);
        assert_eq!(meter.total(), Some(1630));
        meter.count('i', 9000);
        meter.count('i', 9001);
        assert_eq!(meter.total(), Some(1631));
        // Another interface of that name has had more traffic already.
        meter.begin();
        meter.count('i', 10_000);
        assert_eq!(meter.total(), Some(11_631));
    }

    #[test]
    fn a_lump_is_given_out_over_the_time_that_it_came_in() {
        let mut disk = Spread::default();
        assert_eq!(disk.give(), None);
        assert!(!disk.count(100, 1));
        assert_eq!(disk.give(), Some(100));
        assert!(disk.count(1100, 4));
        let totals: Vec<_> = (0..5).filter_map(|_| disk.give()).collect();
        assert_eq!(totals, [350, 600, 850, 1100, 1100]);
        // A disk that goes takes its counters with it.
        assert!(!disk.count(600, 1));
        assert!(disk.count(650, 1));
        assert_eq!(disk.give(), Some(1150));
    }
}
