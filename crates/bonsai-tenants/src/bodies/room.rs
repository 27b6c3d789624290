//! One network namespace: what is asked of the kernel there, once a look.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bonsai_link::{Counters, Events, Link, Site};
use rustix::time::ClockId;

use super::pace::Pace;
use super::sheet::{Counts, Sheet};
use super::{now_ns, ns_of};
use crate::error::Error;

/// What is limited of an interface, but for how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limited {
    pub(super) tx: bool,
    pub(super) rx: bool,
    pub(super) uplink: Option<u32>,
}

/// What went through a class or a tree.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// The look that it was seen at.
    look: u64,
    pub(super) counts: Counts,
}

/// The classes of a device, by number.
#[derive(Debug, Default)]
struct Table {
    asked: u64,
    rows: Vec<Row>,
}

/// A namespace.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) site: Site,
    pub(super) events: Events,
    /// Its interfaces, when they were listed last, and the places of these, by name.
    pub(super) links: Vec<Link>,
    pub(super) by_name: Vec<usize>,
    pub(super) limited: BTreeMap<u32, Limited>,
    pub(super) slots: BTreeMap<u32, u16>,
    /// The block that what each receives goes through.
    pub(super) blocks: BTreeMap<u32, u32>,
    /// Interfaces came, went or changed since they were listed.
    pub(super) unlisted: bool,
    /// Slots and blocks are to be read again.
    pub(super) stale: bool,
    pub(super) pace: Pace,
    tables: BTreeMap<u32, Table>,
    trees: Sheet,
    traffic: Sheet,
    /// How many interfaces were asked about themselves at this look and the one before.
    pub(super) asked: [usize; 2],
    /// When something was counted last at this look, ns; 0 if nothing was.
    pub(super) at_ns: u64,
}

impl Room {
    pub(super) fn open(namespace: Option<&OwnedFd>) -> Result<Self, Error> {
        let namespace = namespace.map(AsFd::as_fd);
        Ok(Self {
            site: Site::open(namespace)?,
            events: Events::open(namespace)?,
            links: Vec::new(),
            by_name: Vec::new(),
            limited: BTreeMap::new(),
            slots: BTreeMap::new(),
            blocks: BTreeMap::new(),
            unlisted: true,
            stale: false,
            pace: Pace::default(),
            tables: BTreeMap::new(),
            trees: Sheet::default(),
            traffic: Sheet::default(),
            asked: [0; 2],
            at_ns: 0,
        })
    }

    pub(super) fn has(&self, index: u32) -> bool {
        let found = self.links.binary_search_by_key(&index, |link| link.index);
        found.is_ok()
    }

    pub(super) fn list(&mut self) -> Result<(), Error> {
        if !self.unlisted {
            return Ok(());
        }
        // What happens from here on is heard.
        self.unlisted = false;
        self.links = self.site.links().inspect_err(|_| self.unlisted = true)?;
        let links = &self.links;
        self.by_name = (0..links.len()).collect();
        self.by_name
            .sort_unstable_by_key(|place| &links[*place].name);
        let is_there = |index: &u32| links.binary_search_by_key(index, |link| link.index).is_ok();
        self.tables.retain(|index, _| is_there(index));
        self.trees.retain(is_there);
        self.traffic.retain(is_there);
        Ok(())
    }

    /// Reads which class each has.
    pub(super) fn see(&mut self, look: u64) {
        let start = Instant::now();
        let seen = self.site.see();
        self.pace.done(start.elapsed());
        let Ok(seen) = seen else {
            return;
        };
        self.stale = false;
        self.slots = seen.slots();
        let limited = self.limited.keys();
        let blocks = limited.filter_map(|index| Some((*index, seen.block_of(*index)?)));
        self.blocks = blocks.collect();
        // What was asked before this is of other classes.
        for table in self.tables.values_mut().filter(|table| table.asked == look) {
            table.asked = 0;
        }
    }

    pub(super) fn class(&mut self, device: u32, minor: u16, look: u64) -> Option<Row> {
        let table = self.tables.entry(device).or_default();
        if table.asked != look {
            table.asked = look;
            let rows = &mut table.rows;
            let asked = self.site.classes(device, |class| {
                let Some(class) = class else {
                    rows.clear();
                    return;
                };
                // Queues wait in leaves.
                if class.leaf.0 == 0 {
                    return;
                }
                let place = usize::from(class.handle.minor());
                if place >= rows.len() {
                    rows.resize(place + 1, Row::default());
                }
                rows[place] = Row {
                    look,
                    counts: counts(&class.counters),
                };
            });
            if asked.is_err() {
                rows.clear();
            }
            self.at_ns = now_ns();
        }
        let row = table.rows.get(usize::from(minor));
        row.filter(|row| row.look == look).copied()
    }

    pub(super) fn tree(&mut self, device: u32, look: u64) -> Option<Row> {
        if self.trees.is_due(look) {
            let (trees, start) = (&mut self.trees, cpu_time());
            let asked = self.site.trees(|tree| {
                if let Some((device, counters)) = tree {
                    trees.count(device, look, counts(&counters), false);
                }
            });
            if asked.is_err() {
                trees.clear();
            }
            trees.done(look, cpu_time().saturating_sub(start));
            self.at_ns = now_ns();
        }
        let counts = self.trees.give(device, look)?;
        Some(Row { look, counts })
    }

    pub(super) fn traffic(&mut self, index: u32, look: u64) -> Option<[u64; 2]> {
        self.asked[0] += 1;
        // One alone costs as much as ten in a row.
        let many = self.asked[0].max(self.asked[1]) > self.links.len() / 10 + 4;
        if many && self.traffic.is_due(look) {
            let start = cpu_time();
            self.ask(None, look)?;
            self.traffic.done(look, cpu_time().saturating_sub(start));
        }
        let is_known = many && self.traffic.has(index);
        if !is_known && !self.traffic.is_given(index, look) {
            self.ask(Some(index), look)?;
        }
        Some(self.traffic.give(index, look)?.bytes)
    }

    /// Asks what went through one interface, or through all.
    fn ask(&mut self, which: Option<u32>, look: u64) -> Option<()> {
        let traffic = &mut self.traffic;
        let asked = self.site.traffic(which, |one| {
            if let Some((index, seen)) = one {
                let counts = Counts {
                    bytes: [seen.tx_bytes, seen.rx_bytes],
                    ..Counts::default()
                };
                traffic.count(index, look, counts, which.is_some());
            }
        });
        self.at_ns = now_ns();
        asked.ok()
    }
}

/// What a tree counts.
fn counts(counters: &Counters) -> Counts {
    Counts {
        bytes: [counters.bytes, 0],
        backlog: counters.backlog.into(),
        trouble: u64::from(counters.overlimits) + u64::from(counters.drops),
    }
}

/// What the thread has used of a processor.
fn cpu_time() -> Duration {
    Duration::from_nanos(ns_of(ClockId::ThreadCPUTime))
}
