//! What is remembered of a service between looks, and what is counted of it.

use std::time::Instant;

use bonsai_cgroup::{Cgroup, DeviceNumber, Hierarchies};

use super::disks::Disks;
use super::meter::Meter;
use super::pace::Retry;
use super::rooms::{Port, Rooms, Source};
use super::who::{Found, Key};
use super::{Body, Terms, now_ns, unix_ns};
use crate::error::Error;

/// A look at groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking<'a> {
    /// Which look it is.
    pub(super) look: u64,
    /// The machine's disks.
    pub(super) disks: &'a [DeviceNumber],
    pub(super) hierarchies: &'a Hierarchies,
}

/// What is remembered of a service between looks.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// What was found of it; `None` if it is not there.
    pub(super) found: Option<Found>,
    key: Option<Key>,
    born_ns: u64,
    /// Its interface, when it had one last.
    port: Option<Port>,
    /// What its interface sends and receives.
    net: [Meter<Source>; 2],
    /// How often something waited in the classes of these.
    trouble: [Option<u64>; 2],
    disks: Disks,
    pub(super) terms: Option<Terms>,
    /// Its group is another one than when its terms were put into force last.
    pub(super) fresh: bool,
    pub(super) compared: Option<Instant>,
    /// When it is tried again, if putting its terms into force failed.
    pub(super) retry: Retry,
    pub(super) disk_why: Option<String>,
    pub(super) cpu_why: Option<String>,
    pub(super) sweep_why: Option<String>,
}

impl Known {
    pub(super) fn group(&self) -> Option<&Cgroup> {
        self.found.as_ref()?.home.io.as_ref()
    }

    /// Whether something is said of its disk or CPU.
    pub(super) fn is_told(&self) -> bool {
        self.disk_why.is_some() || self.cpu_why.is_some()
    }

    pub(super) fn say(&self, body: &mut Body) {
        body.disk_why.clone_from(&self.disk_why);
        let cpu_why = self.cpu_why.as_ref().or(self.sweep_why.as_ref());
        body.cpu_why.clone_from(&cpu_why.cloned());
    }

    /// Takes what was found. Whether it is there, and its terms are to be put into force.
    pub(super) fn settle(&mut self, found: Result<Found, Error>, body: &mut Body) -> bool {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.found = None;
                self.fresh = true;
                // The number of a namespace that has gone is given to others.
                if error.is_absent() && matches!(self.key, Some(Key::Namespace(..))) {
                    self.key = None;
                }
                *body = Body {
                    why: Some(error.sentence()),
                    born_ns: self.born_ns,
                    at_ns: now_ns(),
                    ..Body::default()
                };
                return false;
            }
        };
        let is_new = self.key.is_none_or(|key| !key.is_same(found.key));
        if let Some(port) = found.port
            && self.port.replace(port).is_some_and(|before| before != port)
        {
            self.net.iter_mut().for_each(Meter::begin);
        }
        if is_new {
            // What began at one moment may begin anew at the same; two are two.
            let born_ns = found.born_ns.unwrap_or_else(unix_ns);
            self.born_ns = match born_ns == self.born_ns {
                true => born_ns + 1,
                false => born_ns,
            };
            self.net = Default::default();
            self.trouble = Default::default();
            self.disks = Disks::default();
            self.fresh = true;
        }
        self.key = Some(found.key);
        body.there = true;
        body.why.clone_from(&found.why);
        body.uid = found.uid;
        body.pid = found.pid;
        body.turned = found.turned;
        body.born_ns = self.born_ns;
        let comes = self.found.is_none() || is_new;
        self.found = Some(found);
        comes && self.terms.is_some()
    }

    pub(super) fn count_net(&mut self, rooms: &mut Rooms, body: &mut Body) {
        let Some(port) = self.found.as_ref().and_then(|found| found.port) else {
            (body.totals[0], body.totals[1]) = (None, None);
            (body.waits[0], body.waits[1]) = (false, false);
            return;
        };
        let line = rooms.line(port);
        let mut waits = [false; 2];
        for (side, source) in [line.tx, line.rx].into_iter().enumerate() {
            let further = line.further.filter(|_| side == 1);
            let row = rooms.row(port, source);
            let meter = &mut self.net[side];
            // By the interface up to now, and until its class is there.
            let by_interface = match row {
                Some(_) => meter.source() == Some(Source::Interface),
                None => {
                    source == Source::Interface
                        || matches!(meter.source(), None | Some(Source::Interface))
                }
            };
            if by_interface && let Some(traffic) = rooms.traffic(port) {
                meter.count(Source::Interface, traffic[side]);
            }
            if let Some(row) = row {
                meter.count(source, row.counts.bytes[0]);
            }
            let further = further.and_then(|source| rooms.row(port, source));
            let rows = [row, further].into_iter().flatten();
            let (backlog, trouble) = rows.fold((0, 0), |(backlog, trouble), row| {
                (backlog + row.counts.backlog, trouble + row.counts.trouble)
            });
            let had = self.trouble[side];
            waits[side] = backlog > 0 || had.is_some_and(|had| had != trouble);
            self.trouble[side] = row.map(|_| trouble);
        }
        let [tx, rx] = self.net.map(|meter| meter.total());
        let at_ns = rooms.at_ns(port.room);
        if at_ns > 0 {
            body.at_ns = at_ns;
        }
        let order = match port.turned {
            true => [(rx, waits[1]), (tx, waits[0])],
            false => [(tx, waits[0]), (rx, waits[1])],
        };
        for (place, (total, waits)) in order.into_iter().enumerate() {
            body.totals[place] = total;
            body.waits[place] = waits;
        }
    }

    /// Reads its group, if it is its turn, and judges whether it waits for its limits. `false` if the
    /// group is not there any more.
    pub(super) fn count_disks(&mut self, body: &mut Body, by: Looking<'_>, is_turn: bool) -> bool {
        let group = self.found.as_ref().and_then(|found| found.home.io.as_ref());
        let Some(group) = group else {
            (body.totals[2], body.totals[3]) = (None, None);
            (body.waits[2], body.waits[3]) = (false, false);
            return true;
        };
        let limits = limits_of(self.terms);
        let mut is_there = true;
        if is_turn || self.disks.is_busy(body.at_ns, limits) {
            is_there = self.disks.read(group, by.disks, by.look, body.at_ns);
        }
        let totals = self.disks.give();
        let hierarchies = by.hierarchies;
        let waits = self
            .disks
            .waits(group, hierarchies, limits, totals, body.at_ns);
        [body.totals[2], body.totals[3]] = totals;
        [body.waits[2], body.waits[3]] = waits;
        is_there
    }
}

/// What one may read and write.
fn limits_of(terms: Option<Terms>) -> [Option<u64>; 2] {
    terms.map_or([None; 2], |terms| [terms.read, terms.write])
}
