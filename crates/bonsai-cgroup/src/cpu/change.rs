//! One change of a target, step by step, each of which can be taken back.

use bonsai_units::{Change, CpuTerms, Reserve};

use crate::error::Error;
use crate::record::Record;

use super::deadline::{self, Reserved};
use super::share::{Kept, Weight};
use super::{Cpu, Held, Of, Pair, fits};

/// How often it is looked for threads that were made while time was reserved for the others.
const ROUNDS: usize = 50;

/// What takes one step of a change back.
enum Undo {
    Weight(Weight),
    Quota(Kept),
    /// A thread that had no reservation before this change.
    Thread(Reserved),
    /// One that had another.
    Again(Reserved, Reserve),
}

/// A change that is being made.
pub(super) struct Changing<'a> {
    cpu: &'a Cpu,
    of: &'a Of,
    pub(super) record: Record<Held>,
    undo: Vec<Undo>,
}

impl<'a> Changing<'a> {
    pub(super) const fn new(cpu: &'a Cpu, of: &'a Of, record: Record<Held>) -> Self {
        Self {
            cpu,
            of,
            record,
            undo: Vec::new(),
        }
    }

    /// Makes the change, or takes back what was made of it.
    pub(super) fn all(&mut self, terms: &CpuTerms) -> Result<(), Error> {
        let done = self.share(terms).and_then(|()| match terms.reserve {
            Change::Keep => Ok(()),
            Change::To(reserve) => self.reserve(reserve),
            Change::Clear => self.release(),
        });
        done.map_err(|cause| match self.undone() {
            Ok(()) => cause,
            Err(undo) => Error::NotUndone {
                cause: Box::new(cause),
                undo: Box::new(undo),
            },
        })
    }

    fn share(&mut self, terms: &CpuTerms) -> Result<(), Error> {
        if let Of::Place(place) = self.of {
            if !terms.weight.is_keep() {
                let (now, wanted) = (place.weight()?, place.weight_from(terms.weight.over(None)));
                let before = self.record.held.weight.map_or(now, |pair| pair.before);
                self.record.held.weight = Some(Pair {
                    before,
                    set: wanted,
                });
                self.cpu.records.save(&self.record)?;
                self.undo.push(Undo::Weight(now));
                place.set_weight(wanted)?;
            }
            if !terms.quota.is_keep() {
                let (now, wanted) = (place.quota()?, place.quota_from(terms.quota.over(None)));
                let before = self.record.held.quota.map_or(now, |pair| pair.before);
                self.record.held.quota = Some(Pair {
                    before,
                    set: wanted,
                });
                self.cpu.records.save(&self.record)?;
                self.undo.push(Undo::Quota(now));
                place.set_quota(wanted)?;
            }
        }
        Ok(())
    }

    /// All threads as they were before.
    fn release(&mut self) -> Result<(), Error> {
        let old = self.record.held.reserve();
        for one in std::mem::take(&mut self.record.held.threads) {
            deadline::restore(&one)?;
            self.undo.extend(old.map(|old| Undo::Again(one, old)));
        }
        self.record.held.reserve = None;
        self.cpu.records.save(&self.record)
    }

    /// Reserves for all threads, until there are none without.
    pub(super) fn reserve(&mut self, reserve: Reserve) -> Result<(), Error> {
        let old = self.record.held.reserve();
        self.record.held.reserve = Some((reserve.runtime_ns, reserve.period_ns));
        for _ in 0..ROUNDS {
            let threads = self.of.threads()?;
            let held = self.cpu.held_elsewhere(Some(&self.record.target));
            fits(reserve.share() * threads.len() as f64, held)?;
            let held = &mut self.record.held.threads;
            held.retain(|one| threads.contains(&one.thread));
            let mut todo = Vec::new();
            for thread in threads {
                match held.iter().find(|one| one.thread == thread) {
                    Some(known) if known.holds(reserve) => {}
                    Some(known) => todo.push((*known, old)),
                    None => {
                        let before = deadline::inherited(held, thread.pid);
                        todo.extend(Reserved::of(thread, before).map(|one| (one, None)));
                    }
                }
            }
            if todo.is_empty() {
                return Ok(());
            }
            let new = todo.iter().filter(|(_, old)| old.is_none());
            held.extend(new.map(|(one, _)| *one));
            self.cpu.records.save(&self.record)?;
            for (one, old) in todo {
                self.undo.push(match old {
                    Some(old) => Undo::Again(one, old),
                    None => Undo::Thread(one),
                });
                one.reserve(reserve)?;
            }
        }
        // Threads are made faster than they can be found; those that were found have it.
        Ok(())
    }

    /// Takes all steps back, the last one first. What cannot be taken back keeps no other step from
    /// it.
    fn undone(&mut self) -> Result<(), Error> {
        let mut failed = Ok(());
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            let done = match (step, self.of) {
                (Undo::Weight(was), Of::Place(place)) => place.set_weight(was),
                (Undo::Quota(was), Of::Place(place)) => place.set_quota(was),
                (Undo::Thread(one), _) => deadline::restore(&one).map(drop),
                (Undo::Again(one, reserve), _) => one.reserve(reserve),
                (Undo::Weight(_) | Undo::Quota(_), Of::Process(..)) => Ok(()),
            };
            failed = failed.and(done);
        }
        failed
    }
}
