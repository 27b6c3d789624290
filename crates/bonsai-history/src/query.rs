//! Series of points: which resolution, and how slots are added up.

use std::collections::BTreeMap;

use bonsai_units::Resource;

use crate::codec::{Block, Cells, FIELDS, LIMIT, LIMITED, Level, SUMMARY, widened};
use crate::error::Error;

/// Whose points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Of the service with this name.
    Service(String),
    /// Of all services together.
    Total,
}

/// Points of one service and resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Whose.
    pub which: Which,
    /// Of what.
    pub resource: Resource,
    /// From this second on, since 1970.
    pub from: u64,
    /// Up to this second, without it.
    pub to: u64,
    /// So many points at most, from 1 to [`Query::MOST_POINTS`].
    pub points: usize,
}

/// Least, mean and most of the seconds of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// The least.
    pub min: f64,
    /// The mean over the seconds that were observed.
    pub mean: f64,
    /// The most.
    pub max: f64,
}

/// What happened in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// Its first second, since 1970.
    pub at: u64,
    /// Its length, s.
    pub width: u64,
    /// Seconds of it that were observed; the others are a gap, and in no other number here.
    pub observed: u64,
    /// Asked for, units per second.
    pub asked: Stat,
    /// Let through, units per second.
    pub got: Stat,
    /// The limit, units per second, over the seconds that had one.
    pub limit: Option<Stat>,
    /// The guarantee, units per second.
    pub guarantee: Stat,
    /// Waited, seconds per second; above 1 where several threads waited at once.
    pub waited: Stat,
    /// Waits that began.
    pub waits: u64,
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The length of its slots, s. Where that fine a resolution is not kept any longer, slots
    /// are as long as the finest that is ([`Slot::width`]).
    pub step: u64,
    /// Slots with something observed in them, in the order of time. What is missing is a gap.
    pub slots: Vec<Slot>,
    /// Damaged blocks that were left out.
    pub damaged: u64,
}

/// Lengths of slots; beyond the last, whole days.
const STEPS: [u64; 20] = [
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600,
    43_200, 86_400,
];

impl Query {
    /// The most points that can be asked for.
    pub const MOST_POINTS: usize = 20_000;

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.from >= self.to {
            let text = format!(
                "from {} to {} is no time: give an earlier start",
                self.from, self.to
            );
            return Err(Error::Query(text));
        }
        if self.points == 0 || self.points > Self::MOST_POINTS {
            return Err(Error::Query(format!(
                "{} points cannot be given: ask for 1 to {}",
                self.points,
                Self::MOST_POINTS
            )));
        }
        Ok(())
    }
}

/// The shortest step that gives at most so many slots.
pub(crate) fn step_for(from: u64, to: u64, points: usize) -> u64 {
    let points = points as u64;
    let fits = |step: u64| to.div_ceil(step) - from / step <= points;
    let day = STEPS[STEPS.len() - 1];
    // So many days are not enough, or just so.
    let days = (to.saturating_sub(from) / points / day).max(2);
    let mut all = STEPS
        .into_iter()
        .chain((days..).map(|days| days.saturating_mul(day)));
    // Ends: a step longer than `to` gives one slot.
    all.find(|step| fits(*step)).unwrap_or(day)
}

/// The coarsest tier that such slots can be made of.
pub(crate) fn level_for(step: u64) -> Level {
    let coarse = Level::ALL.into_iter().rev();
    let mut fitting = coarse.filter(|level| step.is_multiple_of(level.slot_seconds()));
    fitting.next().unwrap_or(Level::Second)
}

/// Slots that are added up.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    seconds: u64,
    least: [u64; FIELDS],
    sum: [u128; FIELDS],
    most: [u64; FIELDS],
    limited: u64,
}

impl Sum {
    pub(crate) fn new() -> Self {
        Self {
            seconds: 0,
            least: [u64::MAX; FIELDS],
            sum: [0; FIELDS],
            most: [0; FIELDS],
            limited: 0,
        }
    }

    /// Adds a slot of a tier; without cells, all of them are zero.
    pub(crate) fn add(&mut self, level: Level, seconds: u16, cells: Option<Cells>) {
        let cells = match (cells, level) {
            (None, _) => [0; SUMMARY],
            (Some(cells), Level::Second) => widened(&cells),
            (Some(cells), _) => cells,
        };
        self.seconds += u64::from(seconds);
        self.limited += cells[LIMITED];
        for field in 0..FIELDS {
            if field == LIMIT && cells[LIMITED] == 0 {
                continue;
            }
            self.least[field] = self.least[field].min(cells[3 * field]);
            self.sum[field] += u128::from(cells[3 * field + 1]);
            self.most[field] = self.most[field].max(cells[3 * field + 2]);
        }
    }

    /// Adds one second.
    fn add_second(&mut self, values: &[u64; FIELDS]) {
        self.seconds += 1;
        for (field, &value) in values.iter().enumerate() {
            let value = match (field, value) {
                (LIMIT, 0) => continue,
                // Kept as one more than it is.
                (LIMIT, limit) => {
                    self.limited += 1;
                    limit - 1
                }
                (_, value) => value,
            };
            self.least[field] = self.least[field].min(value);
            self.sum[field] += u128::from(value);
            self.most[field] = self.most[field].max(value);
        }
    }

    /// Adds another sum.
    fn merge(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.limited += other.limited;
        for field in 0..FIELDS {
            self.least[field] = self.least[field].min(other.least[field]);
            self.sum[field] += other.sum[field];
            self.most[field] = self.most[field].max(other.most[field]);
        }
    }

    /// The slot in numbers for people and plots.
    pub(crate) fn slot(&self, at: u64, width: u64) -> Slot {
        let stat = |field: usize, unit: f64, seconds: u64| Stat {
            min: self.least[field] as f64 / unit,
            mean: self.sum[field] as f64 / unit / seconds.max(1) as f64,
            max: self.most[field] as f64 / unit,
        };
        Slot {
            at,
            width,
            observed: self.seconds,
            asked: stat(0, 1.0, self.seconds),
            got: stat(1, 1.0, self.seconds),
            limit: (self.limited > 0).then(|| stat(LIMIT, 1e3, self.limited)),
            guarantee: stat(3, 1e3, self.seconds),
            waited: stat(4, 1e6, self.seconds),
            waits: u64::try_from(self.sum[5]).unwrap_or(u64::MAX),
        }
    }
}

/// Slots by their first second, of one resource.
#[derive(Debug)]
pub(crate) struct Bins {
    resource: usize,
    from: u64,
    to: u64,
    step: u64,
    sums: BTreeMap<u64, Sum>,
}

impl Bins {
    /// Empty ones for a span.
    pub(crate) fn new(resource: usize, (from, to): (u64, u64), step: u64) -> Self {
        Self {
            resource,
            from,
            to,
            step,
            sums: BTreeMap::new(),
        }
    }

    /// Adds what a block that begins at `start` has in the span.
    pub(crate) fn add(&mut self, level: Level, start: u64, block: &Block) {
        // Slots come in the order of time, so their sum is looked up once for many.
        let mut run: Option<(u64, Sum)> = None;
        for (i, (slot, seconds)) in block.slots.iter().enumerate() {
            let at = start + u64::from(*slot) * level.slot_seconds();
            if at < self.from || at >= self.to {
                continue;
            }
            let bin = at - at % self.step;
            if run.as_ref().is_none_or(|(of, _)| *of != bin) {
                self.keep(run.replace((bin, Sum::new())));
            }
            let Some((_, sum)) = &mut run else { continue };
            if level == Level::Second {
                sum.add_second(&block.values(self.resource, i));
            } else {
                sum.add(level, *seconds, block.cells(self.resource, i));
            }
        }
        self.keep(run);
    }

    fn keep(&mut self, run: Option<(u64, Sum)>) {
        if let Some((bin, sum)) = run {
            self.sums.entry(bin).or_insert_with(Sum::new).merge(&sum);
        }
    }

    /// The resource that they are of.
    pub(crate) const fn resource(&self) -> usize {
        self.resource
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.sums.iter().map(|(at, sum)| sum.slot(*at, self.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_the_shortest_that_fits() {
        let day = 86_400;
        for (range, points, step) in [
            (100, 2000, 1),
            (2000, 2000, 1),
            (2001, 2000, 2),
            (day, 2000, 60),
            (7 * day, 2000, 600),
            (30 * day, 2000, 1800),
            (365 * day, 2000, 21_600),
            (365 * day, 100, 4 * day),
            (day, 1, day),
        ] {
            assert_eq!(step_for(0, range, points), step, "{range} s in {points}");
        }
        // Slots begin at multiples of the step, so a range that does not has one more.
        assert_eq!(step_for(30, 30 + 120, 2), 120);
        let long = step_for(0, 1 << 48, 3);
        assert_eq!(long % day, 0);
        assert!(((1 << 48) / 3..(1 << 47)).contains(&long), "{long}");
    }

    #[test]
    fn a_tier_is_the_coarsest_of_which_the_step_is_a_multiple() {
        for (step, level) in [
            (1, Level::Second),
            (30, Level::Second),
            (60, Level::Minute),
            (1800, Level::Minute),
            (3600, Level::Hour),
            (5 * 86_400, Level::Hour),
        ] {
            assert_eq!(level_for(step), level, "{step} s");
        }
        for step in STEPS {
            let level = level_for(step);
            if let Some(coarser) = level.coarser() {
                assert_eq!(
                    coarser.slot_seconds() % step,
                    0,
                    "slots do not reach across tiers"
                );
            }
        }
    }
}
