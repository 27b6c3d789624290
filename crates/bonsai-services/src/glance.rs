//! What many services have done so far, cheaply enough to look ten times a second.
//!
//! # How
//! A thread's page of counters has a line for each two entries of the table of calls, of
//! which a program uses few. So it is remembered which entries of a page have been counted,
//! and only these are read; each page is read whole once in [`TURNS`] looks. What a thread
//! does for the first time in its life is seen that late at most, and nothing is lost: these
//! are totals. Limits are read when they have changed, and then their lines alone.
//!
//! Where there are many threads, services that nobody waits in are read in turns
//! ([`PAGES`], [`SELDOM`]); the lines of their limits are read in each look, and say whether
//! that is still so.
//!
//! The runtime directory is read when it has changed. A service that has died stays in sight
//! until somebody removes its folder ([`Services::live`] does).
//!
//! # Invariants
//! 1. A look writes nothing into a ledger.
//! 2. No descriptor is kept.

use std::collections::BTreeMap;

use bonsai_bucket::Curve;
use bonsai_calls::{CALLS, CallId, Selection, select};
use bonsai_ledger::{Ledger, LedgerError, Lines, Watch};
use bonsai_units::Resource;

use crate::limits::{BY_DAEMON, calls_of};
use crate::observe::monotonic_ns;
use crate::service::{Service, Services};

/// A page is read whole once in so many looks.
pub const TURNS: usize = 10;

/// So many pages of counters are read in each look, whoever they are of.
pub const PAGES: usize = 1500;

/// Where there are more, those of a service are read once in so many looks at least.
pub const SELDOM: usize = 5;

/// Whoever was held back is looked at closely for so long, ns.
const CLOSELY_NS: u64 = 1_000_000_000;

/// What a service has done so far, and whether it is held, by [`Resource::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Units since the service was made.
    pub totals: [u64; Resource::COUNT],
    /// Threads that wait now with a call that is of the resource, for a limit of the service
    /// or for its group. Event loops do not wait, but are in `backlog`.
    pub waiting: [u32; Resource::COUNT],
    /// Threads that have gone to sleep in such a wait since the look before; they may have
    /// come out of it.
    pub waited: [u32; Resource::COUNT],
    /// Units that its own limits hold back now: of several, the most.
    pub backlog: [u64; Resource::COUNT],
    /// Waits imposed so far, and their sum, ns. Read once in [`TURNS`] looks, where anything
    /// was held back since.
    pub waits: [(u64, u64); Resource::COUNT],
    /// The lowest limit that is none of the daemon's and is on all calls of a resource,
    /// thousandths of a unit per second: the service cannot use more.
    pub bounds: [Option<u64>; Resource::COUNT],
    /// When its counters were read, ns (monotonic clock).
    pub at_ns: u64,
}

/// Who came and who went since the look before. A service that was replaced by another one of
/// its name did both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New services.
    pub came: Vec<String>,
    /// Those that are gone.
    pub gone: Vec<String>,
}

/// How services of somebody else are opened, and told from others of their name by device and
/// inode.
pub trait Opens: std::fmt::Debug + Send {
    /// Opens one.
    ///
    /// # Errors
    /// As [`Watch::open`].
    fn open(&self, service: &Service) -> Result<Watch, LedgerError>;

    /// Whether what was opened is still that service.
    fn is_still(&self, service: &Service, identity: (u64, u64)) -> bool;
}

/// Looks at all services of a user.
#[derive(Debug)]
pub struct Glances {
    services: Services,
    /// Of others than the calling user.
    by: Option<Box<dyn Opens>>,
    rows: Vec<Row>,
    /// By name, in order.
    seen: Vec<(String, Seen)>,
    /// Services that could not be opened, and will be tried again.
    half_made: Vec<String>,
    /// When the runtime directory had changed last, and whether it may have again at the
    /// same instant.
    listed: Option<(i64, i64)>,
    is_settled: bool,
    turn: usize,
    /// Pages in use at the last look.
    pages: usize,
}

/// Which resources an entry of the table of calls is of, a bit each; the calls themselves are
/// of all.
type Row = u8;

#[derive(Debug)]
struct Seen {
    watch: Watch,
    /// By page: where anything was counted there.
    used: Vec<Lines>,
    epoch: u32,
    limits: Vec<Line>,
    glance: Glance,
    /// Something was held back since the waits were read.
    was_held: bool,
    /// It is looked at closely until then, ns.
    closely_until: u64,
    /// Or always.
    closely: bool,
    /// Which pages are read whole; not of all services at the same time.
    turn: usize,
    /// Looks since its counters were read.
    looks: usize,
}

/// A limit in force.
#[derive(Debug)]
struct Line {
    bucket: usize,
    curve: Curve,
    resources: Row,
}

const CALLS_ROW: Row = 1 << Resource::Calls.index();

fn rows() -> Vec<Row> {
    let row = |call: &bonsai_calls::Call| {
        let bytes = Resource::ALL.into_iter().filter(|resource| {
            let selection = select(resource.class());
            let is_of = selection.is_some_and(|selection| selection.contains(call));
            *resource != Resource::Calls && is_of && call.moves_bytes()
        });
        bytes.fold(CALLS_ROW, |row, resource| row | 1 << resource.index())
    };
    CALLS.iter().map(row).collect()
}

impl Glances {
    /// Of the calling user's services.
    ///
    /// # Errors
    /// There is no runtime directory, and none can be made.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self::of(Services::open()?, None))
    }

    /// Of somebody else's services.
    #[must_use]
    pub fn of(services: Services, by: Option<Box<dyn Opens>>) -> Self {
        Self {
            services,
            by,
            rows: rows(),
            seen: Vec::new(),
            half_made: Vec::new(),
            listed: None,
            is_settled: false,
            turn: 0,
            pages: 0,
        }
    }

    /// Looks at all of them.
    ///
    /// # Errors
    /// The runtime directory cannot be read.
    pub fn look(&mut self) -> anyhow::Result<Changes> {
        let mut changes = self.list()?;
        let now = monotonic_ns();
        self.turn = (self.turn + 1) % (TURNS * SELDOM);
        let seldom = self.pages.div_ceil(PAGES).clamp(1, SELDOM);
        let mut lost = Vec::new();
        self.pages = 0;
        for i in 0..self.seen.len() {
            if let Some((_, next)) = self.seen.get(i + 1) {
                next.fetch(next.is_due(self.turn + i + 1, seldom, now));
            }
            let Some((name, seen)) = self.seen.get_mut(i) else {
                break;
            };
            let is_due = seen.is_due(self.turn + i, seldom, now);
            if seen.look(&self.rows, is_due, now).is_err() {
                lost.push(name.clone());
            }
            self.pages += seen.used.len();
        }
        // They are ending at this moment; the next look at the directory says so.
        self.seen.retain(|(name, _)| !lost.contains(name));
        changes.gone.extend(lost.iter().cloned());
        self.half_made.extend(lost);
        Ok(changes)
    }

    /// What was seen at the last look, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Glance)> {
        let all = self.seen.iter();
        all.map(|(name, seen)| (name.as_str(), &seen.glance))
    }

    fn seen(&self, name: &str) -> Option<&Seen> {
        let at = self.seen.binary_search_by(|(there, _)| (**there).cmp(name));
        self.seen.get(at.ok()?).map(|(_, seen)| seen)
    }

    /// What was seen of one at the last look.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Glance> {
        self.seen(name).map(|seen| &seen.glance)
    }

    /// Has a service looked at in each look, however many there are.
    pub fn closely(&mut self, name: &str, closely: bool) {
        let at = self.seen.binary_search_by(|(there, _)| (**there).cmp(name));
        if let Some((_, seen)) = at.ok().and_then(|at| self.seen.get_mut(at)) {
            seen.closely = closely;
        }
    }

    /// Opens the segment of a service.
    ///
    /// # Errors
    /// As [`Ledger::open`]; there is none of that name.
    pub fn ledger(&self, name: &str) -> Option<Result<Ledger, LedgerError>> {
        self.seen(name).map(|seen| seen.watch.ledger())
    }

    /// The number of the limits in force in a service.
    #[must_use]
    pub fn epoch(&self, name: &str) -> Option<u32> {
        self.seen(name).map(|seen| seen.watch.epoch())
    }

    /// When a service was made, ns of the wall clock since 1970: another one of its name was
    /// made at another time.
    #[must_use]
    pub fn created_ns(&self, name: &str) -> Option<u64> {
        self.seen(name).map(|seen| seen.watch.created_ns())
    }

    /// How many services there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Finds out which services there are, if that may have changed.
    fn list(&mut self) -> anyhow::Result<Changes> {
        let mut changes = Changes::default();
        let stat = rustix::fs::stat(self.services.folder())?;
        let changed = (
            stat.st_mtime,
            i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
        );
        if self.is_settled && self.listed == Some(changed) {
            for name in core::mem::take(&mut self.half_made) {
                self.open(&name, &mut changes);
            }
            if !changes.came.is_empty() {
                self.seen.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            return Ok(changes);
        }
        // The kernel's clock for files has steps of some milliseconds.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let since = since.unwrap_or_default().as_millis();
        let at = u128::try_from(changed.0 * 1000 + changed.1 / 1_000_000).unwrap_or(0);
        self.is_settled = since > at + 50;
        self.listed = Some(changed);
        self.half_made.clear();
        let there = self.services.all()?;
        let mut gone: BTreeMap<_, _> = core::mem::take(&mut self.seen).into_iter().collect();
        for service in there {
            match gone.remove(&service.name) {
                Some(seen) if seen.is_still(&service, self.by.as_deref()) => {
                    self.seen.push((service.name, seen));
                }
                was => {
                    changes.gone.extend(was.map(|_| service.name.clone()));
                    self.open(&service.name, &mut changes);
                }
            }
        }
        changes.gone.extend(gone.into_keys());
        Ok(changes)
    }

    fn open(&mut self, name: &str, changes: &mut Changes) {
        let service = Service {
            name: name.to_owned(),
            folder: self.services.folder().join(name),
        };
        let opened = match &self.by {
            Some(by) => by.open(&service),
            None => watch(&service),
        };
        match opened {
            Ok(watch) => {
                changes.came.push(service.name.clone());
                self.seen.push((service.name, Seen::new(watch)));
            }
            // It is half made, or just being removed. What is of another version stays so.
            Err(LedgerError::Version { .. } | LedgerError::NotYours { .. }) => {}
            Err(_) if service.folder.exists() => self.half_made.push(service.name),
            Err(_) => {}
        }
    }
}

fn watch(service: &Service) -> Result<Watch, LedgerError> {
    match service.enforced() {
        Some(enforced) => Watch::open_held(enforced.supervisor, enforced.ledger),
        None => Watch::open(&service.ledger_path()),
    }
}

impl Seen {
    fn new(watch: Watch) -> Self {
        Self {
            turn: usize::try_from(watch.identity().1).unwrap_or(0) % TURNS,
            looks: 0,
            watch,
            used: Vec::new(),
            // Never the number of limits.
            epoch: 0,
            limits: Vec::new(),
            glance: Glance {
                totals: [0; Resource::COUNT],
                waiting: [0; Resource::COUNT],
                waited: [0; Resource::COUNT],
                backlog: [0; Resource::COUNT],
                waits: [(0, 0); Resource::COUNT],
                bounds: [None; Resource::COUNT],
                at_ns: 0,
            },
            was_held: true,
            closely_until: 0,
            closely: false,
        }
    }

    /// Whether a service of its name is the same one.
    fn is_still(&self, service: &Service, by: Option<&dyn Opens>) -> bool {
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
    const fn is_due(&self, turn: usize, seldom: usize, now: u64) -> bool {
        self.closely || now < self.closely_until || turn.is_multiple_of(seldom)
    }

    /// What the next look reads is on its way.
    fn fetch(&self, is_due: bool) {
        for (i, lines) in self.used.iter().enumerate().skip(1).filter(|_| is_due) {
            if let Some(page) = self.watch.page(i) {
                page.fetch(*lines);
            }
        }
        for line in &self.limits {
            self.watch.fetch(line.bucket);
        }
    }

    /// Looks at its limits, and at its counters if that is due or it is held back.
    fn look(&mut self, rows: &[Row], is_due: bool, now: u64) -> Result<(), LedgerError> {
        self.looks += 1;
        let epoch = self.watch.epoch();
        if epoch != self.epoch {
            (self.limits, self.glance.bounds) = limits(&self.watch, rows)?;
            self.epoch = epoch;
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
            self.count(rows, now)?;
        }
        Ok(())
    }

    /// Reads its counters, and who waits.
    fn count(&mut self, rows: &[Row], now: u64) -> Result<(), LedgerError> {
        let pages = match self.watch.pages() {
            Some(pages) => pages,
            None => {
                self.watch = self.watch.again()?;
                self.watch.pages().unwrap_or(0)
            }
        };
        // Of so many pages it is time to read them whole.
        let by = core::mem::take(&mut self.looks);
        self.turn = (self.turn + by) % TURNS;
        let glance = &mut self.glance;
        (glance.waiting, glance.waited) = Default::default();
        self.used.resize(pages, Lines::default());
        // By entry first: which resources that is of is found out once for all pages.
        let (mut by_entry, mut all_calls) = ([0_u64; CALLS.len()], 0_u64);
        let mut entries = 0_u128;
        for (i, used) in self.used.iter_mut().enumerate() {
            let Some(page) = self.watch.page(i) else {
                break;
            };
            // That of threads without a page of their own is hardly ever used.
            let is_new = used.is_empty() && i != 0;
            if is_new || (self.turn + i) % TURNS < by {
                *used = page.used();
            }
            page.counts(*used, |call, calls, bytes| {
                all_calls = all_calls.wrapping_add(calls);
                entries |= u128::from(calls != 0) << call;
                if let Some(sum) = by_entry.get_mut(usize::from(call)) {
                    *sum = sum.wrapping_add(bytes);
                }
            });
            let add = |to: &mut [u32; Resource::COUNT], call: Option<CallId>| {
                let row = call.and_then(|call| rows.get(usize::from(call)).copied());
                for (i, threads) in to.iter_mut().enumerate() {
                    *threads += u32::from(row.unwrap_or(0) >> i & 1);
                }
            };
            // All of it stands in one line.
            add(&mut glance.waiting, page.waits(now));
            add(&mut glance.waited, page.slept_since(glance.at_ns.max(1)));
        }
        glance.totals = totals(&by_entry, all_calls, rows);
        glance.at_ns = now;
        let is_held = glance.backlog.iter().any(|units| *units > 0)
            || glance.waited.iter().any(|threads| *threads > 0)
            || glance.waiting.iter().any(|threads| *threads > 0);
        if is_held {
            self.closely_until = now + CLOSELY_NS;
        }
        self.was_held |= is_held;
        if self.was_held && self.turn < by {
            self.glance.waits = self.waits(rows, |call| entries >> call & 1 != 0)?;
            // Whoever waits now has not been counted yet.
            self.was_held = is_held;
        }
        Ok(())
    }

    fn waits(
        &self,
        rows: &[Row],
        is_used: impl Fn(CallId) -> bool,
    ) -> Result<[(u64, u64); Resource::COUNT], LedgerError> {
        let mut waits = [(0_u64, 0_u64); Resource::COUNT];
        self.watch.waits(is_used, |call, count, sum_ns| {
            let row = rows.get(usize::from(call)).copied().unwrap_or(0);
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

/// By resource, thousandths of a unit per second.
type Bounds = [Option<u64>; Resource::COUNT];

/// The limits in force on all of their calls, which resources they are on, and the lowest of
/// those that are not the daemon's.
fn limits(watch: &Watch, rows: &[Row]) -> Result<(Vec<Line>, Bounds), LedgerError> {
    let ledger = watch.ledger()?;
    let all = ledger.limits(monotonic_ns());
    let (mut lines, mut bounds) = (Vec::new(), Bounds::default());
    for limit in all.iter().filter(|limit| !limit.per_stream) {
        let Some(selection) = calls_of(&limit.name) else {
            continue;
        };
        let (_, curve) = ledger.with_config(|config| config.curves[limit.bucket].load().0);
        lines.push(Line {
            bucket: limit.bucket,
            curve,
            resources: resources(selection, limit.bytes, rows),
        });
        if limit.used.is_none() && !limit.name.ends_with(BY_DAEMON) {
            let whole = wholes(selection, limit.bytes, rows);
            let bounds = bounds.iter_mut().enumerate();
            for (_, bound) in bounds.filter(|(i, _)| whole >> i & 1 != 0) {
                let other = bound.unwrap_or(u64::MAX);
                *bound = Some(limit.rate_milli.min(other));
            }
        }
    }
    Ok((lines, bounds))
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
            assert_eq!(resources(selection, bytes, &rows()), wanted, "{name}");
        }
    }
}
