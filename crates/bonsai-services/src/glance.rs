//! What many services have done so far, cheaply enough to look ten times a second.
//!
//! # How
//! A thread's page of counters has a line for each two entries of the table of calls, of
//! which a program uses few. So it is remembered which entries a service has counted, and only
//! these are read, of each thread's page; each page is read whole once in [`TURNS`] looks. What a
//! service does for the first time in its life is seen that late at most, and nothing is lost:
//! these are totals. Limits are read when they have changed, and then their lines alone.
//!
//! Where there are many threads, services that nobody waits in are read in turns
//! ([`PAGES`], [`SELDOM`]); the lines of their limits are read in each look, and say whether
//! that is still so. Pages are read whole less often by as much, but for those of services that
//! somebody wants to see closely.
//!
//! The runtime directory is read when it has changed. A service that has died stays in sight
//! until somebody removes its folder ([`Services::live`] does).
//!
//! # Invariants
//! 1. A look writes nothing into a ledger.
//! 2. No descriptor is kept.

mod seen;

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_ledger::{Ledger, LedgerError, Watch};
use bonsai_units::Resource;

use crate::limits::{BY_DAEMON, BY_SYSTEM};
use crate::observe::monotonic_ns;
use crate::service::{Service, Services};

use seen::{Rows, Seen};

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
    /// The lowest limit on any calls of a resource, whoever set it.
    pub lowest: [Option<u64>; Resource::COUNT],
    /// When its counters were read, ns (monotonic clock).
    pub at_ns: u64,
    /// The number of the limits in force.
    pub epoch: u32,
}

/// A limit on all calls of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its name.
    pub name: String,
    /// Thousandths of a unit per second.
    pub rate_milli: u64,
}

/// Limits of a service that are none of the daemon's that looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnLimits {
    /// Those that no daemon sets, as they are written, by name.
    pub written: BTreeMap<String, String>,
    /// The lowest on all calls of a resource, also of another daemon's; by [`Resource::index`].
    pub bounds: [Option<Bound>; Resource::COUNT],
}

impl OwnLimits {
    /// Takes a limit that is on all calls of some resources, a bit each.
    fn bound(&mut self, limit: &bonsai_ledger::Limit, resources: u8) {
        for (i, lowest) in self.bounds.iter_mut().enumerate() {
            let is_lower = |known: &Bound| limit.rate_milli < known.rate_milli;
            if resources >> i & 1 != 0 && lowest.as_ref().is_none_or(is_lower) {
                *lowest = Some(Bound {
                    name: limit.name.clone(),
                    rate_milli: limit.rate_milli,
                });
            }
        }
    }
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

/// How services of somebody else are found and opened, and told from others of their name by
/// device and inode.
pub trait Opens: std::fmt::Debug + Send {
    /// When one was last made or removed: seconds, and their ns.
    ///
    /// # Errors
    /// What the system says.
    fn changed(&self) -> anyhow::Result<(i64, i64)>;

    /// The names of those that have a folder, in order.
    ///
    /// # Errors
    /// What the system says.
    fn names(&self) -> anyhow::Result<Vec<String>>;

    /// Whether one has a folder.
    fn has_folder(&self, name: &str) -> bool;

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
    rows: Rows,
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
            rows: Rows::new(),
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
            if seen.look(&mut self.rows, is_due, seldom > 1, now).is_err() {
                lost.push(name.clone());
            }
            self.pages += seen.pages;
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

    /// Where a service is in `seen`.
    fn place(&self, name: &str) -> Option<usize> {
        let by_name = |(there, _): &(String, Seen)| (**there).cmp(name);
        self.seen.binary_search_by(by_name).ok()
    }

    fn seen(&self, name: &str) -> Option<&Seen> {
        self.seen.get(self.place(name)?).map(|(_, seen)| seen)
    }

    /// What was seen of one at the last look.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Glance> {
        self.seen(name).map(|seen| &seen.glance)
    }

    /// The limits that were in force at the last look and are none of this daemon's.
    #[must_use]
    pub fn own_limits(&self, name: &str) -> Arc<OwnLimits> {
        let seen = self.seen(name);
        seen.map(|seen| Arc::clone(&seen.own)).unwrap_or_default()
    }

    /// Reads the limits of a service by a ledger that is open already, so that the next look need
    /// not open it.
    pub fn read_limits(&mut self, name: &str, ledger: &Ledger) {
        if let Some((_, seen)) = self.place(name).and_then(|at| self.seen.get_mut(at)) {
            seen.read_limits(&mut self.rows, ledger);
        }
    }

    /// Has a service looked at in each look, however many there are.
    pub fn closely(&mut self, name: &str, closely: bool) {
        if let Some((_, seen)) = self.place(name).and_then(|at| self.seen.get_mut(at)) {
            seen.closely = closely;
        }
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
        let changed = self.changed()?;
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
        let there = self.all()?;
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

    /// When the runtime directory was changed.
    fn changed(&self) -> anyhow::Result<(i64, i64)> {
        if let Some(by) = &self.by {
            return by.changed();
        }
        let stat = rustix::fs::stat(self.services.folder())?;
        let ns = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Ok((stat.st_mtime, ns))
    }

    /// All that have a folder, by name.
    fn all(&self) -> anyhow::Result<Vec<Service>> {
        let Some(by) = &self.by else {
            return self.services.all();
        };
        let names = by.names()?.into_iter();
        Ok(names.map(|name| self.services.named(&name)).collect())
    }

    fn open(&mut self, name: &str, changes: &mut Changes) {
        let service = self.services.named(name);
        let opened = match &self.by {
            Some(by) => by.open(&service),
            None => watch(&service),
        };
        match opened {
            Ok(watch) => {
                changes.came.push(service.name.clone());
                let ours = if self.by.is_some() {
                    BY_SYSTEM
                } else {
                    BY_DAEMON
                };
                self.seen.push((service.name, Seen::new(watch, ours)));
            }
            // It is half made, or just being removed. What is of another version stays so.
            Err(LedgerError::Version { .. } | LedgerError::NotYours { .. }) => {}
            Err(_) => {
                let is_there = match &self.by {
                    Some(by) => by.has_folder(name),
                    None => service.folder.exists(),
                };
                if is_there {
                    self.half_made.push(service.name);
                }
            }
        }
    }
}

fn watch(service: &Service) -> Result<Watch, LedgerError> {
    match service.enforced() {
        Some(enforced) => Watch::open_held(enforced.supervisor, enforced.ledger),
        None => Watch::open(&service.ledger_path()),
    }
}
