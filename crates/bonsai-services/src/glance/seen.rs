//! One service, as it is looked at again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_bucket::Curve;
use bonsai_calls::{CALLS, CallId, Selection, select};
use bonsai_ledger::{Ledger, LedgerError, Limit, Lines, Watch};
use bonsai_units::Resource;

use super::{CLOSELY_NS, Glance, Opens, OwnLimits, SELDOM, TURNS};
use crate::limits::{calls_of, is_of_daemon, written};
use crate::observe::monotonic_ns;
use crate::service::Service;

/// Which resources an entry of the table of calls is of, a bit each; the calls themselves are
/// of all.
pub(super) type Row = u8;

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) watch: Watch,
    /// Pages in use.
    pub(super) pages: usize,
    /// Where anything was counted in any of them: threads of a service do the same things.
    used: Lines,
    limits: Vec<Line>,
    /// Those that are none of a daemon's.
    pub(super) own: Arc<OwnLimits>,
    /// What the names of limits end with that this daemon sets.
    ours: &'static str,
    pub(super) glance: Glance,
    /// Something was held back since the waits were read.
    was_held: bool,
    /// It is looked at closely until then, ns.
    closely_until: u64,
    /// Or always.
    pub(super) closely: bool,
    /// Which pages are read whole; not of all services at the same time.
    turn: usize,
    /// Looks since its counters were read.
    looks: usize,
    /// Looks in which the first calls of a service are waited for yet.
    awaited: usize,
}

/// A limit in force.
#[derive(Debug)]
struct Line {
    bucket: usize,
    curve: Curve,
    resources: Row,
    /// Those of which it is on all calls, if it is none of a daemon's.
    bounds: Row,
}

const CALLS_ROW: Row = 1 << Resource::Calls.index();

/// What entries of the table of calls, and limits, are of.
#[derive(Debug)]
pub(super) struct Rows {
    /// By entry.
    entries: Vec<Row>,
    /// Of calls and of bytes, by name: the resources that a limit is on, and those of which it is
    /// on all calls.
    limits: [BTreeMap<String, (Row, Row)>; 2],
}

/// So many kinds of limits of each unit are remembered; there are few.
const KINDS: usize = 1000;

impl Rows {
    pub(super) fn new() -> Self {
        let row = |call: &bonsai_calls::Call| {
            let bytes = Resource::ALL.into_iter().filter(|resource| {
                let selection = select(resource.class());
                let is_of = selection.is_some_and(|selection| selection.contains(call));
                *resource != Resource::Calls && is_of && call.moves_bytes()
            });
            bytes.fold(CALLS_ROW, |row, resource| row | 1 << resource.index())
        };
        Self {
            entries: CALLS.iter().map(row).collect(),
            limits: Default::default(),
        }
    }

    fn entry(&self, call: CallId) -> Row {
        self.entries.get(usize::from(call)).copied().unwrap_or(0)
    }

    fn limit(&mut self, limit: &Limit) -> Option<(Row, Row)> {
        let limits = &mut self.limits[usize::from(limit.bytes)];
        if let Some(known) = limits.get(&limit.name) {
            return Some(*known);
        }
        let selection = calls_of(&limit.name)?;
        let of = (
            resources(selection, limit.bytes, &self.entries),
            wholes(selection, limit.bytes, &self.entries),
        );
        if limits.len() >= KINDS {
            limits.clear();
        }
        limits.insert(limit.name.clone(), of);
        Some(of)
    }
}

impl Seen {
    /// `ours` is what the names of limits end with that this daemon sets.
    pub(super) fn new(watch: Watch, ours: &'static str) -> Self {
        Self {
            ours,
            turn: usize::try_from(watch.identity().1).unwrap_or(0) % (TURNS * SELDOM),
            looks: 0,
            awaited: 0,
            watch,
            pages: 0,
            used: Lines::default(),
            limits: Vec::new(),
            own: Arc::default(),
            glance: Glance {
                totals: [0; Resource::COUNT],
                waiting: [0; Resource::COUNT],
                waited: [0; Resource::COUNT],
                backlog: [0; Resource::COUNT],
                waits: [(0, 0); Resource::COUNT],
                bounds: [None; Resource::COUNT],
                lowest: [None; Resource::COUNT],
                at_ns: 0,
                // Never the number of limits.
                epoch: 0,
            },
            was_held: true,
            closely_until: 0,
            closely: false,
        }
    }

    /// Whether a service of its name is the same one.
    pub(super) fn is_still(&self, service: &Service, by: Option<&dyn Opens>) -> bool {
        if let Some(by) = by {
            return by.is_still(service, self.watch.identity());
        }
        let path = match service.enforced() {
            Some(_) => self.watch.path().to_owned(),
            None => service.ledger_path(),
        };
        let stat = rustix::fs::stat(&path);
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.watch.identity())
    }

    /// Whether its counters are to be read, where each service's are once in `seldom` looks.
    pub(super) const fn is_due(&self, turn: usize, seldom: usize, now: u64) -> bool {
        self.closely || now < self.closely_until || turn.is_multiple_of(seldom)
    }

    /// What the next look reads is on its way.
    pub(super) fn fetch(&self, is_due: bool) {
        let pages = if is_due { self.pages } else { 0 };
        for page in (1..pages).filter_map(|i| self.watch.page(i)) {
            page.fetch(self.used);
        }
        for line in &self.limits {
            self.watch.fetch(line.bucket);
        }
    }

    /// Looks at its limits, and at its counters if that is due or it is held back. Where it
    /// `is_crowded`, as little as possible is read.
    pub(super) fn look(
        &mut self,
        rows: &mut Rows,
        is_due: bool,
        is_crowded: bool,
        now: u64,
    ) -> Result<(), LedgerError> {
        self.looks += 1;
        if self.watch.epoch() != self.glance.epoch {
            let ledger = self.watch.ledger()?;
            self.read_limits(rows, &ledger);
        }
        let mut backlog = [0; Resource::COUNT];
        for line in &self.limits {
            let level = self.watch.level(line.bucket, &line.curve, now);
            let owed = u64::try_from(level.saturating_neg()).unwrap_or(0);
            for (i, backlog) in backlog.iter_mut().enumerate() {
                if line.resources >> i & 1 != 0 {
                    *backlog = owed.max(*backlog);
                }
            }
        }
        self.glance.backlog = backlog;
        if is_due || backlog != [0; Resource::COUNT] {
            self.count(rows, is_crowded, now)?;
        }
        Ok(())
    }

    /// Reads the limits in force, if they have changed: where they are, for those on all of their
    /// calls, and how they are written.
    pub(super) fn read_limits(&mut self, rows: &mut Rows, ledger: &Ledger) {
        // If they change again meanwhile, that is another number.
        let epoch = ledger.epoch();
        if epoch == self.glance.epoch {
            return;
        }
        self.glance.epoch = epoch;
        let all = ledger.limits(monotonic_ns());
        let mut own = OwnLimits::default();
        self.limits.clear();
        for limit in &all {
            let is_own = !is_of_daemon(&limit.name);
            if is_own {
                own.written.insert(limit.name.clone(), written(limit));
            }
            if limit.per_stream {
                continue;
            }
            let Some((resources, wholes)) = rows.limit(limit) else {
                continue;
            };
            let (_, curve) = ledger.with_config(|config| config.curves[limit.bucket].load().0);
            // Not what is narrowed down to some files or peers.
            let is_on_all = limit.used.is_none();
            let bounds = is_on_all && is_own;
            if is_on_all && !limit.name.ends_with(self.ours) {
                own.bound(limit, wholes);
            }
            self.limits.push(Line {
                bucket: limit.bucket,
                curve,
                resources,
                bounds: if bounds { wholes } else { 0 },
            });
        }
        if own != *self.own {
            self.own = Arc::new(own);
        }
        self.glance.bounds = lowest(&self.limits, |line| line.bounds);
        self.glance.lowest = lowest(&self.limits, |line| line.resources);
    }

    /// Reads its counters, and who waits.
    fn count(&mut self, rows: &Rows, is_crowded: bool, now: u64) -> Result<(), LedgerError> {
        let pages = match self.watch.pages() {
            Some(pages) => pages,
            None => {
                self.watch = self.watch.again()?;
                self.watch.pages().unwrap_or(0)
            }
        };
        // Of so many pages it is time to read them whole.
        let by = core::mem::take(&mut self.looks);
        self.turn = (self.turn + by) % (TURNS * SELDOM);
        let is_rare = is_crowded && !self.closely;
        let turns = if is_rare { TURNS * SELDOM } else { TURNS };
        let glance = &mut self.glance;
        (glance.waiting, glance.waited) = Default::default();
        if core::mem::replace(&mut self.pages, pages) != pages {
            self.awaited = TURNS;
        }
        // A new service counts soon; one that has not yet is read in its turn, where there are many.
        let is_new = self.used.is_empty() && (self.awaited > 0 || !is_rare);
        self.awaited = self.awaited.saturating_sub(by);
        for (i, page) in (0..pages).filter_map(|i| Some((i, self.watch.page(i)?))) {
            if is_new || (self.turn + i) % turns < by {
                self.used = self.used.with(page.used());
            }
        }
        // By entry first: which resources that is of is found out once for all pages.
        let (mut by_entry, mut all_calls) = ([0_u64; CALLS.len()], 0_u64);
        let mut entries = 0_u128;
        for page in (0..pages).filter_map(|i| self.watch.page(i)) {
            page.counts(self.used, |call, calls, bytes| {
                all_calls = all_calls.wrapping_add(calls);
                entries |= u128::from(calls != 0) << call;
                if let Some(sum) = by_entry.get_mut(usize::from(call)) {
                    *sum = sum.wrapping_add(bytes);
                }
            });
            let add = |to: &mut [u32; Resource::COUNT], call: Option<CallId>| {
                let row = call.map_or(0, |call| rows.entry(call));
                for (i, threads) in to.iter_mut().enumerate() {
                    *threads += u32::from(row >> i & 1);
                }
            };
            // All of it stands in one line.
            add(&mut glance.waiting, page.waits(now));
            add(&mut glance.waited, page.slept_since(glance.at_ns.max(1)));
        }
        glance.totals = totals(&by_entry, all_calls, &rows.entries);
        glance.at_ns = now;
        let is_held = glance.backlog.iter().any(|units| *units > 0)
            || glance.waited.iter().any(|threads| *threads > 0)
            || glance.waiting.iter().any(|threads| *threads > 0);
        if is_held {
            self.closely_until = now + CLOSELY_NS;
        }
        self.was_held |= is_held;
        if self.was_held && self.turn % TURNS < by {
            self.glance.waits = self.waits(rows, |call| entries >> call & 1 != 0)?;
            // Whoever waits now has not been counted yet.
            self.was_held = is_held;
        }
        Ok(())
    }

    fn waits(
        &self,
        rows: &Rows,
        is_used: impl Fn(CallId) -> bool,
    ) -> Result<[(u64, u64); Resource::COUNT], LedgerError> {
        let mut waits = [(0_u64, 0_u64); Resource::COUNT];
        self.watch.waits(is_used, |call, count, sum_ns| {
            let row = rows.entry(call);
            for (i, waits) in waits.iter_mut().enumerate() {
                if row >> i & 1 != 0 {
                    *waits = (waits.0 + count, waits.1.saturating_add(sum_ns));
                }
            }
        })?;
        Ok(waits)
    }
}

/// Sums by resource, of bytes by entry and of all calls.
fn totals(by_entry: &[u64], all_calls: u64, rows: &[Row]) -> [u64; Resource::COUNT] {
    let mut totals = [0_u64; Resource::COUNT];
    for (sum, row) in by_entry.iter().zip(rows).filter(|(sum, _)| **sum != 0) {
        for (i, total) in totals.iter_mut().enumerate() {
            let is_of = u64::from(row >> i & 1);
            *total = total.wrapping_add(sum & is_of.wrapping_neg());
        }
    }
    totals[Resource::Calls.index()] = all_calls;
    // Between a correction and what it corrects, a sum may be below zero.
    totals.map(|total| u64::try_from(total.cast_signed()).unwrap_or(0))
}

/// The lowest rate of the limits on each resource, thousandths of a unit per second.
fn lowest(lines: &[Line], of: impl Fn(&Line) -> Row) -> [Option<u64>; Resource::COUNT] {
    core::array::from_fn(|i| {
        let lines = lines.iter().filter(|line| of(line) >> i & 1 != 0);
        lines.map(|line| line.curve.rate_milli).min()
    })
}

/// The resources of which a limit is on all calls.
fn wholes(selection: Selection, bytes: bool, rows: &[Row]) -> Row {
    let all_of = |bit: usize| {
        let mut calls = CALLS.iter().zip(rows);
        calls.all(|(call, row)| row >> bit & 1 == 0 || selection.contains(call))
    };
    let calls = Resource::Calls.index();
    let bits = if bytes { 0..calls } else { calls..calls + 1 };
    bits.filter(|bit| all_of(*bit))
        .fold(0, |row, bit| row | 1 << bit)
}

/// The resources that a limit is on: those which have at least half of its calls in common
/// with it, or of their own. (`net` has `sendfile`, which reads, but is no limit on reading.)
fn resources(selection: Selection, bytes: bool, rows: &[Row]) -> Row {
    if !bytes {
        return CALLS_ROW;
    }
    let calls = || {
        CALLS
            .iter()
            .zip(rows)
            .filter(|(call, _)| call.moves_bytes())
    };
    let limited = calls().filter(|(call, _)| selection.contains(call));
    let limited: Vec<Row> = limited.map(|(_, row)| *row).collect();
    let of = |bit: usize| {
        let own = calls().filter(|(_, row)| *row >> bit & 1 != 0).count();
        let common = limited.iter().filter(|row| **row >> bit & 1 != 0).count();
        2 * common >= own.min(limited.len())
    };
    let bits = (0..Resource::Calls.index()).filter(|bit| of(*bit));
    bits.fold(0, |row, bit| row | 1 << bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_on_what_they_hold_back() {
        let [read, write, send, recv, all] = [1, 2, 4, 8, CALLS_ROW];
        for (name, bytes, wanted) in [
            ("read", true, read),
            ("write", true, write),
            ("send", true, send),
            ("recv", true, recv),
            ("net", true, send | recv),
            ("disk", true, read | write),
            ("all", true, read | write | send | recv),
            ("pwrite64", true, write),
            ("sendto", true, send),
            ("all", false, all),
            ("open", false, all),
        ] {
            let selection = select(name).expect(name);
            assert_eq!(
                resources(selection, bytes, &Rows::new().entries),
                wanted,
                "{name}"
            );
        }
    }

    #[test]
    fn only_a_limit_on_all_calls_of_a_resource_bounds_it() {
        let [read, write, send, recv] = [1, 2, 4, 8];
        for (name, bytes, wanted) in [
            ("read", true, read),
            ("send", true, send),
            ("all", true, read | write | send | recv),
            ("pwrite64", true, 0),
            ("sendto", true, 0),
            ("all", false, CALLS_ROW),
            ("open", false, 0),
        ] {
            let selection = select(name).expect(name);
            assert_eq!(
                wholes(selection, bytes, &Rows::new().entries),
                wanted,
                "{name}"
            );
        }
    }
}
