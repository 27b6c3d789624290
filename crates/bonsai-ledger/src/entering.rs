//! Programs that have to be entered from outside: a process that is about to run one
//! asks here, and waits until somebody holds it.
//!
//! ```text
//!          asker         keeper           helper
//!   free ── ask ──> ASKED ─────> STARTED ── name ──> NAMED ── allow ──> ALLOWED ─┬─ seize ──> READY ── done ──> free
//!                                   ├── seize, where nothing has to be allowed ─────────────────^
//!                                   └───────────────────────────────── refused ──┴─> REFUSED ─────────────────> free
//!   asker gives up:  ASKED, STARTED ──> free
//!                    anything after that before READY, or a failed exec ──> CANCELLED ──> free (helper)
//! ```
//! A helper that comes late may answer the next question of its entry, whose own helper
//! then finds nothing to do. Where all entries are in use, an asker waits for one.
//! Either may be killed in any of these: whoever needs an entry takes one whose asker
//! is dead, or whose helper is.

use crate::identity::ProcessId;
use crate::layout::{ENTERING, Enter, Segment};
use crate::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const ASKED: u32 = 1;
const NAMED: u32 = 2;
const ALLOWED: u32 = 3;
const READY: u32 = 4;
const REFUSED: u32 = 5;
const CANCELLED: u32 = 6;
const STARTED: u32 = 7;

/// What the two sides need of their systems.
pub trait Futex {
    /// Sleeps while the word is `seen`, for a short while at most. False when it is
    /// time to give up.
    fn wait(&mut self, word: &AtomicU32, seen: u32) -> bool;
    /// Wakes whoever sleeps on the word.
    fn wake(&mut self, word: &AtomicU32);
    /// True for a process that is known to have ended: one of another pid namespace is not.
    fn is_dead(&mut self, process: ProcessId) -> bool;
}

impl Enter {
    fn step(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Gives back the entry of that asker.
    fn leave(&self, asker: ProcessId) {
        self.helper.store(0, Ordering::Relaxed);
        let _ = self
            .asker
            .compare_exchange(asker.word(), 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl Segment {
    /// A process of the keeper's pid namespace.
    fn beside_keeper(&self, pid: u32) -> ProcessId {
        let namespace = self.header.namespace.load(Ordering::Relaxed);
        let namespace = u32::try_from(namespace).unwrap_or(0);
        ProcessId { pid, namespace }
    }

    /// Asks for the program that this process, or thread, is about to run to be
    /// entered. `allow` lets the helper trace it. The number of
    /// the question when it is held: it has to go on with its exec, or to call
    /// [`Segment::cancel_entering`].
    pub fn ask_to_enter(
        &self,
        asker: ProcessId,
        futex: &mut impl Futex,
        allow: impl FnOnce(ProcessId),
    ) -> Option<usize> {
        let keeper = self.header.keeper.load(Ordering::Relaxed);
        if keeper == 0 || futex.is_dead(self.beside_keeper(keeper)) {
            return None;
        }
        let number = self.claim_question(asker, futex)?;
        let entry = &self.header.entering[number];
        entry.helper.store(0, Ordering::Relaxed);
        entry.state.store(ASKED, Ordering::Release);
        self.header.bell.fetch_add(1, Ordering::Release);
        futex.wake(&self.header.bell);
        let mut allow = Some(allow);
        loop {
            let seen = entry.state.load(Ordering::Acquire);
            match seen {
                NAMED => {
                    if let Some(allow) = allow.take() {
                        allow(self.beside_keeper(entry.helper.load(Ordering::Relaxed)));
                    }
                    entry.step(NAMED, ALLOWED);
                    futex.wake(&entry.state);
                }
                READY => return Some(number),
                _ if seen != REFUSED && futex.wait(&entry.state, seen) => {
                    let helper = entry.helper.load(Ordering::Relaxed);
                    let has_left = helper != 0 && futex.is_dead(self.beside_keeper(helper));
                    if has_left && entry.step(seen, FREE) {
                        entry.leave(asker);
                        return None;
                    }
                }
                ASKED | STARTED | REFUSED if entry.step(seen, FREE) => {
                    entry.leave(asker);
                    return None;
                }
                // The helper sees to it.
                _ if entry.step(seen, CANCELLED) => return None,
                _ => {}
            }
        }
    }

    /// An entry for a question; waits for one.
    fn claim_question(&self, asker: ProcessId, futex: &mut impl Futex) -> Option<usize> {
        loop {
            let last = &self.header.entering[ENTERING - 1].state;
            let seen = last.load(Ordering::Relaxed);
            let claimed = (0..ENTERING).find(|number| {
                let entry = &self.header.entering[*number];
                let owner = entry.asker.load(Ordering::Acquire);
                let helper = entry.helper.load(Ordering::Relaxed);
                // Also a living owner may be about to ask again, while the helper of its
                // last question has not yet given that back.
                let state = entry.state.load(Ordering::Relaxed);
                let is_over = matches!(state, READY | CANCELLED);
                let left = ProcessId::from_word(owner).is_none_or(|owner| futex.is_dead(owner))
                    || (is_over && helper != 0 && futex.is_dead(self.beside_keeper(helper)));
                left && entry
                    .asker
                    .compare_exchange(owner, asker.word(), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            });
            if claimed.is_some() || !futex.wait(last, seen) {
                return claimed;
            }
        }
    }

    /// The exec failed.
    pub fn cancel_entering(&self, number: usize) {
        if let Some(entry) = self.header.entering.get(number) {
            entry.step(READY, CANCELLED);
        }
    }

    /// What was asked under that number, and is to be answered by a helper that was
    /// started for it; `None` if nothing is.
    #[must_use]
    pub fn asked(&self, number: usize) -> Option<AskedFor<'_>> {
        let entry = self.header.entering.get(number)?;
        let is_started = entry.state.load(Ordering::Acquire) == STARTED;
        let asker = ProcessId::from_word(entry.asker.load(Ordering::Relaxed))?;
        is_started.then_some(AskedFor { entry, asker })
    }

    /// True while something is asked that no helper has taken.
    #[must_use]
    pub fn has_questions(&self) -> bool {
        let mut entries = self.header.entering.iter();
        entries.any(|entry| entry.state.load(Ordering::Acquire) == ASKED)
    }

    /// The numbers under which something is asked: to answer it, to start a helper for each, or to
    /// refuse it. Each question is found once.
    pub fn take_questions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..ENTERING).filter(|number| self.header.entering[*number].step(ASKED, STARTED))
    }
}

/// A question, as its helper sees it.
#[derive(Debug)]
pub struct AskedFor<'a> {
    entry: &'a Enter,
    asker: ProcessId,
}

impl AskedFor<'_> {
    /// The process, or thread, that asks, by its number in its pid namespace.
    #[must_use]
    pub fn asker(&self) -> ProcessId {
        self.asker
    }

    /// Says that nobody answers.
    pub fn refuse(&self, futex: &mut impl Futex) {
        self.entry.step(STARTED, REFUSED);
        futex.wake(&self.entry.state);
    }

    /// Says which process answers, so that the asker finds out should it die.
    pub fn name(&self, helper: u32) {
        self.entry.helper.store(helper, Ordering::Relaxed);
    }

    /// Says that the asker is held, which had nothing to allow. False if it has given up.
    pub fn seized_at_once(&self, futex: &mut impl Futex) -> bool {
        // Otherwise the entry is the asker's, or another one's by now.
        let told = self.entry.step(STARTED, READY);
        futex.wake(&self.entry.state);
        told
    }

    /// Says who answers, and waits until that may trace the asker. False if the asker
    /// does not want it any more.
    pub fn wait_until_allowed(&self, helper: u32, futex: &mut impl Futex) -> bool {
        self.entry.helper.store(helper, Ordering::Relaxed);
        if !self.entry.step(STARTED, NAMED) {
            return false;
        }
        futex.wake(&self.entry.state);
        loop {
            match self.entry.state.load(Ordering::Acquire) {
                ALLOWED => return true,
                NAMED if futex.wait(&self.entry.state, NAMED) => {}
                // The asker sees to it, if there still is one.
                NAMED if self.entry.step(NAMED, REFUSED) => return false,
                NAMED => {}
                _ => {
                    self.done();
                    return false;
                }
            }
        }
    }

    /// Says that it is held, or cannot be. False if the asker has given up.
    pub fn seized(&self, held: bool, futex: &mut impl Futex) -> bool {
        let told = self.entry.step(ALLOWED, if held { READY } else { REFUSED });
        futex.wake(&self.entry.state);
        if !told {
            self.done();
        }
        told
    }

    /// Whether the asker has given up.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.entry.state.load(Ordering::Acquire) == CANCELLED
    }

    /// It is over. Where the asker has died, its entry may be another one's by now.
    pub fn done(&self) {
        if self.entry.step(READY, FREE) || self.entry.step(CANCELLED, FREE) {
            self.entry.leave(self.asker);
        }
    }
}
