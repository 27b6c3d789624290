//! Services that are not a `bonsai run`: interfaces, namespaces, containers, virtual machines, units
//! and control groups; what they do, and what they may have of disk and CPU.
//!
//! What they may send and receive is a matter of interfaces ([`crate::Keeper`]); what they do send
//! and receive is counted here.
//!
//! ```text
//!   want ──> who is who (seldom) ──┬──> interfaces: a dump for each device ──┐
//!                                  ├──> groups: a file for each that moves ──┴──> Body
//!   put ──> bonsai_cgroup <────────┘
//! ```
//!
//! # Invariants
//! 1. A look finds nobody anew but where something is missing, has changed, or now and then; what that
//!    takes is at most a few hundredths of a processor (`pace`).
//! 2. Totals never get less for one `born_ns`, whatever counts them.
//! 3. What is limited stays so when the process ends, and the next one gives back what is wanted no
//!    more.

mod body;
mod disks;
mod known;
mod limits;
mod meter;
mod owned;
mod pace;
mod place;
mod room;
mod rooms;
mod sheet;
mod who;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bonsai_cgroup::{Device, DeviceNumber, Hierarchies};
use bonsai_host::tenants::{Roots, Tenants};
use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::find::wrong;

use known::{Known, Looking};
use limits::{For, Limits};
use pace::Pace;
use rooms::Rooms;
use who::Machine;

pub use body::{Body, Terms};
pub use place::Place;

/// So many idle groups are read at a look.
const IDLE_GROUPS: u64 = 32;

/// So many processes are looked for at a look, at least.
const PROCESSES: usize = 16;

/// What is limited is compared with what is in force so often, if that takes no more than a hundredth
/// of a processor.
const COMPARED: Duration = Duration::from_secs(1);

/// What is put into force.
#[derive(Clone, Copy, Debug)]
struct What {
    disk: bool,
    cpu: bool,
    /// What is not as it was is no drift then.
    by_caller: bool,
}

impl What {
    /// All that is wanted, once more.
    const ALL: Self = Self {
        disk: true,
        cpu: true,
        by_caller: false,
    };
}

/// All services of this kind that are wanted.
#[derive(Debug)]
pub struct Bodies {
    folder: PathBuf,
    roots: Roots,
    wanted: BTreeMap<String, Place>,
    /// Whether it was said what is wanted: nothing is given back before.
    told: bool,
    given: BTreeMap<String, (u64, u32)>,
    known: BTreeMap<String, Known>,
    seen: BTreeMap<String, Body>,
    rooms: Option<Rooms>,
    limits: Limits,
    hierarchies: Hierarchies,
    disks: Vec<DeviceNumber>,
    look: u64,
    /// Something has changed, so that who is who is to be found anew.
    changed: bool,
    finding: Pace,
    sweeping: Pace,
    last_look: Option<Instant>,
}

impl Bodies {
    /// None yet. What is limited is written down below `folder`, where the book of interfaces is, too.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self {
            limits: Limits::new(&folder),
            folder,
            roots: Roots::default(),
            wanted: BTreeMap::new(),
            told: false,
            given: BTreeMap::new(),
            known: BTreeMap::new(),
            seen: BTreeMap::new(),
            rooms: None,
            hierarchies: Hierarchies::default(),
            disks: Vec::new(),
            look: 0,
            changed: false,
            finding: Pace::default(),
            sweeping: Pace::default(),
            last_look: None,
        }
    }

    /// Says which there are to be, by names that the caller gives. Whoever is not among them any more,
    /// or is another place than before, is released by one of the next looks; so is what an earlier
    /// process has limited for such a name.
    pub fn want(&mut self, places: BTreeMap<String, Place>) {
        self.told = true;
        if places == self.wanted {
            return;
        }
        let same =
            |id: &String| self.wanted.contains_key(id) && self.wanted.get(id) == places.get(id);
        self.known.retain(|id, _| same(id));
        self.seen.retain(|id, _| same(id));
        for id in places.keys() {
            self.known.entry(id.clone()).or_default();
            self.seen.entry(id.clone()).or_default();
        }
        self.wanted = places;
        self.changed = true;
    }

    /// Looks at all of them. `links` has the interfaces of those whose interface is limited, as
    /// [`crate::Granted::at`] says: the cookie of the namespace and the number there. Of others it is
    /// found here. The calling thread is to be in the network namespace of the process.
    pub fn look(&mut self, links: &BTreeMap<String, (u64, u32)>) -> &BTreeMap<String, Body> {
        let now = Instant::now();
        self.look += 1;
        if self.given != *links {
            self.given.clone_from(links);
            self.changed = true;
        }
        let mut rooms = self.rooms.take();
        if let Some(rooms) = &mut rooms {
            self.changed |= rooms.begin(now);
        }
        let nobody = self.wanted.is_empty() && !self.told;
        if !nobody && self.finding.is_due(now, self.changed) {
            self.changed = false;
            let start = Instant::now();
            rooms = self.find(rooms);
            self.finding.done(start.elapsed());
        }
        self.count(rooms.as_mut());
        self.rooms = rooms;
        self.look_for_processes();
        self.compare(now);
        if self.limits.has_reserves() && self.sweeping.is_due(now, true) {
            self.sweep();
        }
        self.last_look = Some(now);
        &self.seen
    }

    /// Says what one may have from now on. What is not there gets it when it comes; what is there has
    /// it when this returns: of disk, and of CPU, all of it, or what it had before and there is an
    /// error. Then it is tried again, and [`Body`] says why it is not so. Where it is so already,
    /// nothing is written.
    ///
    /// # Errors
    /// There is nobody of that name, it cannot have it, or the kernel refuses.
    pub fn put(&mut self, id: &str, terms: &Terms) -> Result<(), Error> {
        let none = || {
            wrong(format!(
                "there is no service {id} that is an interface or a group"
            ))
        };
        let place = self.wanted.get(id).ok_or_else(none)?;
        let no_group = |what: &str| {
            wrong(format!(
                "{place} has no control group, so its {what} cannot be limited"
            ))
        };
        if !place.has_disk() && (terms.read.is_some() || terms.write.is_some()) {
            return Err(no_group("disk"));
        }
        if !place.has_cpu() && terms.cpu.is_some() {
            return Err(no_group("CPU time"));
        }
        let known = self.known.get_mut(id).ok_or_else(none)?;
        let before = known.terms.replace(*terms);
        let of = |terms: Terms| (terms.read, terms.write);
        let what = What {
            disk: before.map(of) != Some(of(*terms)),
            cpu: before.map(|before| before.cpu) != Some(terms.cpu),
            by_caller: true,
        };
        // Whoever reads it next is told by the same words.
        let done = self.put_into_force(id, what);
        if let (Some(known), Some(body)) = (self.known.get(id), self.seen.get_mut(id)) {
            known.say(body);
        }
        done
    }

    /// Gives disk and CPU back: they are as they were before. What cannot be given back now is tried
    /// again for as long as nothing else is put.
    pub fn release(&mut self, id: &str) {
        if let Some(known) = self.known.get_mut(id) {
            known.terms = None;
            (known.disk_why, known.cpu_why, known.sweep_why) = (None, None, None);
        }
        if let Ok(hierarchies) = Hierarchies::read() {
            let released = self.limits.release(id, &hierarchies);
            if let (Err(error), Some(known)) = (released, self.known.get_mut(id)) {
                known.terms = Some(Terms::default());
                known.disk_why = Some(error.sentence());
            }
        }
    }

    /// Puts into force what one may have.
    fn put_into_force(&mut self, id: &str, what: What) -> Result<(), Error> {
        let (Some(place), Some(known)) = (self.wanted.get(id), self.known.get_mut(id)) else {
            return Ok(());
        };
        let (Some(found), Some(terms)) = (&known.found, &known.terms) else {
            return Ok(());
        };
        if found.home.has_gone() {
            // Whoever comes gets it when it is found.
            self.changed = true;
            known.compared = Some(Instant::now());
            return Ok(());
        }
        let place = place.to_string();
        let of = For {
            id,
            place: &place,
            home: &found.home,
            fresh: known.fresh || what.by_caller,
        };
        let mut done = Ok(());
        let mut said = |became: Result<Option<String>, Error>| match became {
            Ok(said) => said,
            Err(error) => {
                let text = error.sentence();
                if done.is_ok() {
                    done = Err(error);
                }
                Some(text)
            }
        };
        if what.disk {
            known.disk_why = said(self.limits.put_disk(of, terms, &self.hierarchies));
        }
        if what.cpu {
            known.cpu_why = said(self.limits.put_cpu(of, terms, &self.hierarchies));
        }
        known.fresh = false;
        known.retry.tried(done.is_ok(), Instant::now());
        if what.disk && what.cpu {
            known.compared = Some(Instant::now());
        }
        done
    }

    /// Finds who is who, and gives back what nobody wants any more.
    fn find(&mut self, rooms: Option<Rooms>) -> Option<Rooms> {
        if self.wanted.is_empty() {
            if let Ok(hierarchies) = Hierarchies::read() {
                self.hierarchies = hierarchies;
                self.give_back();
            }
            return None;
        }
        let rooms = match rooms {
            Some(mut rooms) => rooms.list().map(|()| rooms),
            None => Rooms::open(self.folder.clone()),
        };
        let hierarchies = Hierarchies::read().map_err(Error::from);
        let tenants = who::need_tenants(&self.wanted).then(|| Tenants::look(&self.roots));
        let tenants = tenants.transpose().map_err(wrong);
        let mut rooms = match rooms {
            Ok(rooms) => rooms,
            Err(error) => {
                self.none_is_there(&error.sentence());
                return None;
            }
        };
        let (hierarchies, tenants) = match (hierarchies, tenants) {
            (Ok(hierarchies), Ok(tenants)) => (hierarchies, tenants),
            (Err(error), _) | (_, Err(error)) => {
                self.none_is_there(&error.sentence());
                return Some(rooms);
            }
        };
        self.hierarchies = hierarchies;
        let disks = Device::disks().unwrap_or_default();
        self.disks = disks.into_iter().map(|disk| disk.number).collect();
        let mut machine = Machine {
            tenants,
            hierarchies: self.hierarchies.clone(),
            rooms: &mut rooms,
        };
        let mut came = Vec::new();
        for ((id, place), (known, body)) in self
            .wanted
            .iter()
            .zip(self.known.values_mut().zip(self.seen.values_mut()))
        {
            let given = self.given.get(id).copied();
            let found = machine.find(place, given, known.found.as_ref());
            if known.settle(found, body) {
                came.push(id.clone());
            }
        }
        let used = self
            .known
            .values()
            .filter_map(|known| known.found.as_ref()?.port);
        let used: BTreeSet<u64> = used.map(|port| port.room).collect();
        rooms.keep(&used);
        self.give_back();
        for id in came {
            // Why not is said in what is known of it.
            let _ = self.put_into_force(&id, What::ALL);
        }
        Some(rooms)
    }

    fn none_is_there(&mut self, why: &str) {
        for (known, body) in self.known.values_mut().zip(self.seen.values_mut()) {
            known.settle(Err(wrong(why)), body);
        }
    }

    /// Gives back what was put into force for those that are wanted no more.
    fn give_back(&mut self) {
        for (id, place) in self.limits.owners().unwrap_or_default() {
            let is_wanted = self.wanted.get(&id).map(ToString::to_string) == Some(place);
            if self.told && !is_wanted {
                // What cannot be given back is tried again at the next time.
                let _ = self.limits.release(&id, &self.hierarchies);
            }
        }
    }

    /// Counts what all have done.
    fn count(&mut self, mut rooms: Option<&mut Rooms>) {
        let groups = self.known.values().filter(|known| known.group().is_some());
        let turns = u64::try_from(groups.count()).unwrap_or(u64::MAX) / IDLE_GROUPS + 1;
        let by = Looking {
            look: self.look,
            disks: &self.disks,
            hierarchies: &self.hierarchies,
        };
        let bodies = self.known.values_mut().zip(self.seen.values_mut());
        for ((known, body), place) in bodies.zip(0_u64..) {
            if known.found.is_none() {
                continue;
            }
            body.at_ns = now_ns();
            if let Some(rooms) = &mut rooms {
                known.count_net(rooms, body);
            }
            let is_turn = (self.look + place).is_multiple_of(turns);
            self.changed |= !known.count_disks(body, by, is_turn);
            known.say(body);
        }
    }

    /// Looks whether leading processes are still there, some at each look.
    fn look_for_processes(&mut self) {
        let pids = self
            .known
            .values()
            .filter_map(|known| known.found.as_ref()?.pid);
        let pids: Vec<u32> = pids.collect();
        let some = PROCESSES.max(pids.len() / 20).min(pids.len());
        let start = usize::try_from(self.look).unwrap_or(0).wrapping_mul(some);
        let mut turn = (0..some).map(|place| pids[(start + place) % pids.len()]);
        self.changed |= turn.any(|pid| !who::is_there(pid));
    }

    /// Compares what was put into force with what is, some at each look.
    fn compare(&mut self, now: Instant) {
        let since = self.last_look.map_or(Duration::ZERO, |last| now - last);
        let start = Instant::now();
        let is_old = |at: Instant| now.saturating_duration_since(at) >= COMPARED;
        loop {
            let limited = self.known.iter().filter(|(_, known)| {
                // One that fails again and again, or takes long to fail, leaves the others their turns.
                known.found.is_some()
                    && known.retry.is_due(now)
                    && known
                        .terms
                        .is_some_and(|terms| terms != Terms::default() || known.is_told())
            });
            let oldest = limited.min_by_key(|(_, known)| known.compared);
            let due = oldest.filter(|(_, known)| known.compared.is_none_or(is_old));
            let Some(id) = due.map(|(id, _)| id.clone()) else {
                return;
            };
            // Why not is said in what is known of it.
            let _ = self.put_into_force(&id, What::ALL);
            if start.elapsed() * 100 >= since {
                return;
            }
        }
    }

    fn sweep(&mut self) {
        let start = Instant::now();
        for (id, why) in self.limits.sweep() {
            if let Some(known) = self.known.get_mut(&id) {
                known.sweep_why = why;
            }
        }
        self.sweeping.done(start.elapsed());
    }
}

fn ns_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Of the clock that does not jump, ns.
fn now_ns() -> u64 {
    ns_of(ClockId::Monotonic)
}

/// ns since 1970.
fn unix_ns() -> u64 {
    ns_of(ClockId::Realtime)
}
