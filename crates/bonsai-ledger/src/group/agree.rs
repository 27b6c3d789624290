//! Changing the terms of a group, and reading them.

use super::{
    Group, GroupSegment, GroupTerms, MEMBERS, MemberLine, MemberTerms, Membership, PoolTerms,
    optional,
};
use crate::config::CurveWords;
use crate::layout::GROUPS;
use crate::mapping::{LedgerError, load_text, store_text};
use crate::sync::{AtomicU64, Ordering, fence};
use bonsai_bucket::{Curve, GUARANTEE_BURST_NS, Seat, Weights, Word, grain};
use rustix::fs::FlockOperation;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What a ceiling may be ahead: 20 ms of it, the burst of a limit that says nothing.
const CEILING_BURST_NS: u64 = 20_000_000;

/// A number whose service has ended is free when nobody has asked with it for so long: a
/// process of it may have been left behind.
const LEFT_NS: u64 = 60_000_000_000;

/// The longest name of what is shared, bytes.
pub const THING_NAME: usize = 32;

/// The greatest weight.
pub const MOST_WEIGHT: u64 = 1000;

/// What a group shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thing {
    /// The call or class.
    pub name: String,
    /// Whether bytes are counted; otherwise calls.
    pub bytes: bool,
    /// Thousandths of a unit per second.
    pub rate_milli: u64,
    /// Burst in units.
    pub burst: u64,
}

/// What a member has of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Thousandths of a unit per second; 0 for none.
    pub guarantee_milli: u64,
    /// Thousandths of a unit per second; 0 for none.
    pub ceiling_milli: u64,
    /// Its weight, 1 to [`MOST_WEIGHT`].
    pub weight: u64,
}

impl Part {
    /// What a member has that asks for nothing.
    pub const PLAIN: Self = Self {
        guarantee_milli: 0,
        ceiling_milli: 0,
        weight: 1,
    };
}

/// A service that is, or becomes, a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its name.
    pub name: String,
    /// The process that made it.
    pub pid: u32,
    /// When that was started, ticks since boot.
    pub started: u64,
    /// Its user.
    pub uid: u32,
}

/// A member as it is.
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// Its number.
    pub membership: Membership,
    /// The service.
    pub who: Who,
    /// What it has and did, by what the group shares.
    pub parts: Vec<Option<PartReport>>,
}

/// What a member has and did.
#[derive(Clone, Copy, Debug)]
pub struct PartReport {
    /// What it has.
    pub part: Part,
    /// Units granted so far.
    pub granted: u64,
    /// Those of them that were borrowed.
    pub borrowed: u64,
    /// Units asked for and not granted yet.
    pub backlog: u64,
    /// Waits so far.
    pub waits: u64,
    /// Their sum, ns.
    pub waited_ns: u64,
}

impl Group {
    /// What it shares; what is not in use is `None`.
    #[must_use]
    pub fn things(&self) -> Vec<Option<Thing>> {
        self.with_terms(|terms| terms.pools.iter().map(thing_in).collect())
    }

    /// Its members, by number. Some may be dead.
    #[must_use]
    pub fn reports(&self) -> Vec<MemberReport> {
        let members = self.members.iter().enumerate();
        let there = members.filter_map(|(i, member)| {
            let who = self.who(i)?;
            let generation = member.generation.load(Ordering::Relaxed);
            let membership = Membership {
                member: i,
                generation,
            };
            let parts = (0..GROUPS).map(|thing| self.part_report(i, thing));
            Some(MemberReport {
                membership,
                who,
                parts: parts.collect(),
            })
        });
        there.collect()
    }

    /// What a member has of a thing.
    #[must_use]
    pub fn part(&self, membership: Membership, thing: usize) -> Option<Part> {
        self.with_terms(|terms| part_in(terms.members.get(membership.member)?.get(thing)?))
    }

    fn part_report(&self, member: usize, thing: usize) -> Option<PartReport> {
        let part = self.with_terms(|terms| part_in(&terms.members[member][thing]))?;
        let line = &self.lines[member][thing];
        let backlog = line.asked.get().wrapping_sub(line.granted.get());
        Some(PartReport {
            part,
            granted: line.granted.get(),
            borrowed: line.borrowed.get(),
            backlog: u64::try_from(backlog.cast_signed()).unwrap_or(0),
            waits: line.waits.get(),
            waited_ns: line.waited_ns.get(),
        })
    }

    /// Starts a change of terms at `now` (monotonic clock, ns). One at a time.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn edit(&self, now: u64) -> Result<GroupEditor<'_>, LedgerError> {
        let failed = |source| LedgerError::File {
            path: self.path().into(),
            what: "lock",
            source,
        };
        // Locks belong to the open file, so a fresh one keeps threads apart too.
        let again = format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd());
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let lock = rustix::fs::open(again, flags, rustix::fs::Mode::empty()).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(failed)?;
        let things = self.things();
        let members = (0..MEMBERS).map(|i| {
            let who = self.who(i)?;
            let part = |thing| self.with_terms(|terms| part_in(&terms.members[i][thing]));
            Some((who, (0..GROUPS).map(part).collect()))
        });
        Ok(GroupEditor {
            group: self,
            _lock: lock,
            now,
            things,
            members: members.collect(),
        })
    }
}

impl GroupSegment {
    fn who(&self, member: usize) -> Option<Who> {
        let member = self.members.get(member)?;
        let pid = member.pid.load(Ordering::Acquire);
        (pid != 0).then(|| Who {
            name: load_text(&member.name),
            pid,
            started: member.started.load(Ordering::Relaxed),
            uid: member.uid.load(Ordering::Relaxed),
        })
    }
}

/// A change in preparation. Dropping it changes nothing.
#[derive(Debug)]
pub struct GroupEditor<'a> {
    group: &'a Group,
    // Held to the end: the kernel releases it, also if this process is killed.
    _lock: OwnedFd,
    now: u64,
    things: Vec<Option<Thing>>,
    members: Vec<Option<(Who, Vec<Option<Part>>)>>,
}

impl GroupEditor<'_> {
    /// Sets what the group shares of a thing.
    ///
    /// # Errors
    /// There is no room, or the name is too long.
    pub fn share(&mut self, wanted: Thing) -> Result<usize, LedgerError> {
        if wanted.name.len() > THING_NAME {
            let text = format!("{}: the name is too long for a group", wanted.name);
            return Err(LedgerError::Limit(text));
        }
        let same = |thing: &Option<Thing>| {
            let thing = thing.as_ref();
            thing.is_some_and(|t| t.name == wanted.name && t.bytes == wanted.bytes)
        };
        let place = self.things.iter().position(same);
        let Some(i) = place.or_else(|| self.things.iter().position(Option::is_none)) else {
            let text = format!("{}: a group has at most {GROUPS} limits", wanted.name);
            return Err(LedgerError::Limit(text));
        };
        if self.things[i].replace(wanted).is_none() {
            // Whoever draws on it has its part; the others do not ask.
            for (_, parts) in self.members.iter_mut().flatten() {
                parts[i] = Some(Part::PLAIN);
            }
        }
        Ok(i)
    }

    /// Shares a thing no longer: it is not limited by the group any more. Returns whether
    /// there was one of that name.
    pub fn lift(&mut self, name: &str) -> bool {
        let mut found = false;
        for (i, thing) in self.things.iter_mut().enumerate() {
            if thing.as_ref().is_some_and(|thing| thing.name == name) {
                *thing = None;
                found = true;
                for (_, parts) in self.members.iter_mut().flatten() {
                    parts[i] = None;
                }
            }
        }
        found
    }

    /// What it shares, as changed so far.
    #[must_use]
    pub fn things(&self) -> &[Option<Thing>] {
        &self.things
    }

    /// Gives a service a number, with nothing in it. Numbers of services that
    /// `is_alive` does not know, and with which nobody asks any more, are free.
    ///
    /// # Errors
    /// All are in use.
    pub fn join(
        &mut self,
        who: Who,
        is_alive: impl Fn(&Who) -> bool,
    ) -> Result<Membership, LedgerError> {
        let group = self.group;
        let asks = |i: usize| {
            let last = group.lines[i].iter().map(|line| line.looked.get()).max();
            last.is_some_and(|last| self.now.saturating_sub(last) < LEFT_NS && last != 0)
        };
        let is_free = |(i, member): (usize, &Option<(Who, _)>)| match member {
            None => true,
            Some((who, _)) => !is_alive(who) && !asks(i),
        };
        // Those of services that may go on without whoever kept them come last.
        let unused = self.members.iter().position(Option::is_none);
        let Some(i) = unused.or_else(|| self.members.iter().enumerate().position(is_free)) else {
            let text = format!(
                "group {}: all {MEMBERS} members are in use",
                self.group.name()
            );
            return Err(LedgerError::Limit(text));
        };
        self.members[i] = Some((who, vec![None; GROUPS]));
        let generation = &group.members[i].generation;
        // From here on an earlier owner is none any more.
        group.members[i].pid.store(0, Ordering::Release);
        let generation = generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        for line in &group.lines[i] {
            clear(line);
        }
        Ok(Membership {
            member: i,
            generation,
        })
    }

    /// Takes back all numbers of a service that is not a member.
    pub fn forget(&mut self, who: &Who) {
        for member in &mut self.members {
            if member.as_ref().is_some_and(|(there, _)| there == who) {
                *member = None;
            }
        }
    }

    /// Ties a number to another process of its service.
    pub fn own(&mut self, membership: Membership, who: Who) {
        let member = self.members.get_mut(membership.member);
        if let Some((there, _)) = member.and_then(Option::as_mut)
            && self.group.has(membership)
        {
            *there = who;
        }
    }

    /// Takes a number back.
    pub fn leave(&mut self, membership: Membership) {
        if self.group.has(membership) {
            self.members[membership.member] = None;
        }
    }

    /// What a member has, as changed so far.
    #[must_use]
    pub fn part(&self, membership: Membership, thing: usize) -> Option<Part> {
        let (_, parts) = self.members.get(membership.member)?.as_ref()?;
        *parts.get(thing)?
    }

    /// What is guaranteed of a thing to all members but one, thousandths of a unit per
    /// second.
    #[must_use]
    pub fn promised(&self, thing: usize, but: Membership) -> u64 {
        let others = self.members.iter().enumerate();
        let others = others.filter(|(i, _)| *i != but.member);
        let parts = others.filter_map(|(_, m)| m.as_ref()?.1.get(thing).copied()?);
        parts.fold(0, |all, part| all.saturating_add(part.guarantee_milli))
    }

    /// Sets what a member has of a thing.
    pub fn agree(&mut self, membership: Membership, thing: usize, part: Part) {
        let member = self.members.get_mut(membership.member);
        if let Some((_, parts)) = member.and_then(Option::as_mut)
            && let Some(place) = parts.get_mut(thing)
        {
            *place = Some(part);
        }
    }

    /// Puts the change into force and wakes every member that waits.
    ///
    /// # Errors
    /// The guarantees do not fit into a rate, or a ceiling is below its guarantee: nothing
    /// is changed then.
    pub fn commit(self) -> Result<(), LedgerError> {
        self.check()?;
        let group = self.group;
        let epoch = group.epoch();
        let next = &group.terms[(epoch.wrapping_add(1) & 1) as usize];
        let old = &group.terms[(epoch & 1) as usize];
        // As in a change of limits: a reader may still be in that copy.
        fence(Ordering::Release);
        for thing in 0..GROUPS {
            self.write(old, next, thing);
        }
        for (i, member) in self.members.iter().enumerate() {
            let place = &group.members[i];
            match member {
                Some((who, _)) => {
                    store_text(&place.name, &who.name);
                    place.started.store(who.started, Ordering::Relaxed);
                    place.uid.store(who.uid, Ordering::Relaxed);
                    place.pid.store(who.pid, Ordering::Release);
                }
                None if place.pid.load(Ordering::Relaxed) != 0 => {
                    place.pid.store(0, Ordering::Release);
                    place.generation.fetch_add(1, Ordering::AcqRel);
                }
                None => {}
            }
        }
        let epoch = match epoch.wrapping_add(1) {
            0 => 2,
            epoch => epoch,
        };
        group.head.epoch.0.store(epoch, Ordering::Release);
        let word = &group.head.epoch.0;
        // A failure wakes nobody; sleepers look again within a second by themselves.
        let flags = rustix::thread::futex::Flags::empty();
        let _ = rustix::thread::futex::wake(word, flags, i32::MAX.unsigned_abs());
        Ok(())
    }

    fn parts(&self, thing: usize) -> impl Iterator<Item = (&Who, Part)> {
        let members = self.members.iter().flatten();
        members.filter_map(move |(who, parts)| Some((who, parts[thing]?)))
    }

    fn check(&self) -> Result<(), LedgerError> {
        for (i, thing) in self.things.iter().enumerate() {
            let Some(thing) = thing else { continue };
            for (who, part) in self.parts(i) {
                if part.ceiling_milli != 0 && part.ceiling_milli < part.guarantee_milli {
                    return Err(LedgerError::Limit(format!(
                        "{}: the ceiling of {} is below its guarantee",
                        who.name, thing.name
                    )));
                }
            }
            let promised: u128 = self
                .parts(i)
                .map(|(_, part)| u128::from(part.guarantee_milli))
                .sum();
            if promised > u128::from(thing.rate_milli) {
                return Err(LedgerError::Limit(format!(
                    "group {}: the guarantees of its members on {} come to more than it has",
                    self.group.name(),
                    thing.name
                )));
            }
        }
        Ok(())
    }

    /// Writes the terms of a thing into the copy that comes into force.
    fn write(&self, old: &GroupTerms, next: &GroupTerms, thing: usize) {
        let (pool_terms, wanted) = (&next.pools[thing], self.things[thing].as_ref());
        let Some(wanted) = wanted else {
            pool_terms.curve.store(&NOTHING, 0);
            store_text(&pool_terms.name, "");
            for member in &next.members {
                clear_terms(&member[thing]);
            }
            return;
        };
        let weights = Weights::of(self.parts(thing).map(|(_, part)| part.weight));
        for (i, member) in self.members.iter().enumerate() {
            let (from, to) = (&old.members[i][thing], &next.members[i][thing]);
            let part = member.as_ref().and_then(|(_, parts)| parts[thing]);
            let (Some(part), Some(seat)) = (part, self.group.seat(i, thing)) else {
                clear_terms(to);
                continue;
            };
            let grain = grain(wanted.rate_milli, part.weight, weights);
            let before = from.grain.load(Ordering::Relaxed);
            if before != grain {
                seat.leave_line(before);
            }
            to.grain.store(grain, Ordering::Relaxed);
            to.weight.store(part.weight, Ordering::Relaxed);
            let now = self.now;
            let set = |from, to, word, rate, ns| retune(from, to, word, rate, ns, now);
            let [guaranteed, capped] = [seat.member.guaranteed, seat.member.capped];
            let (g, c) = (&from.guarantee, &from.ceiling);
            let burst = GUARANTEE_BURST_NS;
            set(g, &to.guarantee, guaranteed, part.guarantee_milli, burst);
            let burst = CEILING_BURST_NS;
            set(c, &to.ceiling, capped, part.ceiling_milli, burst);
        }
        self.write_pool(&old.pools[thing], pool_terms, thing, wanted);
    }

    fn write_pool(&self, old: &PoolTerms, next: &PoolTerms, thing: usize, wanted: &Thing) {
        let Some(seat) = self.group.seat(0, thing) else {
            return;
        };
        let (rate, burst) = (wanted.rate_milli, wanted.burst.max(1));
        let curve = match optional(&old.curve) {
            Some(curve) if curve.rate_milli == rate && curve.burst == burst => curve,
            Some(curve) => {
                Seat::raise_pool(&seat.pool, &curve, self.now);
                curve.retune(rate, burst, self.now)
            }
            None => {
                let issued = seat.pool.issued.get();
                let issued = issued.wrapping_add(seat.pool.guaranteed.get());
                Curve::empty(rate, burst, issued, self.now)
            }
        };
        next.curve.store(&curve, 1);
        store_text(&next.name, &wanted.name);
        next.bytes.store(u64::from(wanted.bytes), Ordering::Relaxed);
    }
}

const NOTHING: Curve = Curve::empty(0, 0, 0, 0);

/// A member's own curve after a change of its rate.
fn retune(from: &CurveWords, to: &CurveWords, word: &impl Word, rate: u64, ns: u64, now: u64) {
    if rate == 0 {
        to.store(&NOTHING, 0);
        return;
    }
    let burst = Curve::empty(rate, 0, 0, 0).units_in(ns).max(2);
    let curve = match optional(from) {
        Some(curve) if curve.rate_milli == rate => curve,
        Some(curve) => {
            let mut seen = word.get();
            while let Err(there) = word.exchange(seen, curve.raised(seen, now)) {
                seen = there;
            }
            curve.retune(rate, burst, now)
        }
        None => Curve::empty(rate, burst, word.get(), now),
    };
    to.store(&curve, 1);
}

fn clear(line: &MemberLine) {
    let MemberLine {
        asked,
        granted,
        place,
        served,
        guaranteed,
        capped,
        looked,
        borrowed,
        alone,
        leased,
        waits,
        waited_ns,
    } = line;
    let counters = [
        guaranteed, capped, looked, borrowed, alone, leased, waits, waited_ns,
    ];
    for word in [place, granted, asked, served].into_iter().chain(counters) {
        word.0.store(0, Ordering::Relaxed);
    }
}

fn clear_terms(terms: &MemberTerms) {
    terms.guarantee.store(&NOTHING, 0);
    terms.ceiling.store(&NOTHING, 0);
    for word in [&terms.grain, &terms.weight] {
        AtomicU64::store(word, 0, Ordering::Relaxed);
    }
}

fn thing_in(terms: &PoolTerms) -> Option<Thing> {
    let curve = optional(&terms.curve)?;
    Some(Thing {
        name: load_text(&terms.name),
        bytes: terms.bytes.load(Ordering::Relaxed) != 0,
        rate_milli: curve.rate_milli,
        burst: curve.burst,
    })
}

fn part_in(terms: &MemberTerms) -> Option<Part> {
    if terms.grain.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let rate = |words| optional(words).map_or(0, |curve| curve.rate_milli);
    Some(Part {
        guarantee_milli: rate(&terms.guarantee),
        ceiling_milli: rate(&terms.ceiling),
        weight: terms.weight.load(Ordering::Relaxed),
    })
}
