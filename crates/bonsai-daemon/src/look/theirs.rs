//! Services of another user: a thread of their own looks at them and writes their limits.
//!
//! # Why a thread
//! The ledgers are that user's, who may write anything into them at any instant, hold their locks
//! for ever, or cut them short. So whatever is done with them is done here, and nobody waits for
//! it: the owner of all that changes takes what was seen last, and leaves what is wanted. A user
//! who keeps this thread busy loses sight of their own services, and of nothing else.
//!
//! # Invariants
//! 1. What was read while a ledger was cut short is thrown away; its user's services are left
//!    alone for [`PAUSE`] then, and it is said.
//! 2. A panic in here, whatever it was that a ledger said, is the end of one look.
//! 3. A lock of theirs is taken if it is free, never waited for. What else keeps the thread (a
//!    lease, a file system of their own) keeps this one: as long as it has not come back, its
//!    user gets no other ([`Theirs::lives`]).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, LedgerError, Watch};
use bonsai_policy::PerResource;
use bonsai_services::glance::{Glance, Glances, Opens, OwnLimits};
use bonsai_services::limits::{BY_SYSTEM, put_plain};
use bonsai_services::observe::monotonic_ns;
use bonsai_services::service::members::Living;
use bonsai_services::service::{Service, Services, creator};
use bonsai_services::theirs::Home;

use crate::users;

/// The most services of a user that are looked at.
const MOST: u64 = 1024;

/// How long a user is left alone after one of their ledgers was cut short.
const PAUSE: Duration = Duration::from_secs(30);

/// Without a word from the daemon, a look comes this late.
const IDLE: Duration = Duration::from_secs(1);

/// Those whose `bonsai run` was killed are looked for so often.
const TIDY: Duration = Duration::from_secs(5);

/// A look that is older says nothing any more, ns.
const STALE_NS: u64 = 3_000_000_000;

/// So long the name service may take to say what a user is called, ns; until it has said so
/// they go by their number then.
const NAMED_NS: u64 = 1_000_000_000;

/// A lock that is held by a command of theirs is free again soon: it is tried so often,
const TRIES: u32 = 5;

/// so long after each other.
const BETWEEN: Duration = Duration::from_millis(1);

/// What is known of one service.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) glance: Glance,
    pub(crate) created_ns: u64,
    /// Its `bonsai run`.
    pub(crate) keeper: Option<u32>,
    /// Its limits that are none of this daemon's.
    pub(crate) limits: Arc<OwnLimits>,
    /// What could not be done, in words.
    pub(crate) problem: Option<String>,
}

/// What is known of all, by name.
pub(crate) type Seen = BTreeMap<String, Arc<Found>>;

/// What a service is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    plain: PerResource<Option<u64>>,
    further: BTreeMap<String, String>,
    /// Further limits that a daemon has put there and that are no longer configured, until they
    /// are gone; and when the service was made that has them.
    left: BTreeSet<String>,
    left_ns: u64,
}

#[derive(Debug, Default)]
struct State {
    found: Arc<Seen>,
    /// When that was, by the monotonic clock.
    looked_ns: u64,
    wanted: BTreeMap<String, Wanted>,
    /// Counts wishes, and those of them that are fulfilled.
    wished: u64,
    fulfilled: u64,
    problem: Option<String>,
    is_due: bool,
    ends: bool,
    /// What ids of their services begin with, when that is known.
    label: Option<Arc<str>>,
    threads: Vec<JoinHandle<()>>,
}

impl State {
    /// Whether no look has ended for long.
    const fn is_stale(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) > STALE_NS
    }

    /// Notes what was found, and which of these wishes are fulfilled.
    fn take(&mut self, found: Seen, fulfilled: &BTreeMap<String, Wanted>) {
        self.wanted.retain(|name, wanted| {
            let found = found.get(name);
            let is_done = found.is_some_and(|found| found.problem.is_none());
            // More of it may be wanted since.
            let then = fulfilled.get(name);
            if is_done && then.is_some_and(|then| then.left == wanted.left) {
                wanted.left.clear();
            }
            found.is_some()
        });
        (self.found, self.problem) = (Arc::new(found), None);
    }
}

/// What the two sides share.
#[derive(Debug)]
pub(crate) struct Theirs {
    uid: u32,
    identity: (u64, u64),
    started_ns: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// A user without a name is asked for again after so long, and then after twice as long each time,
const AGAIN: Duration = Duration::from_secs(1);

/// at most; one with a name may have another one.
const RENAMED: Duration = Duration::from_secs(60);

impl Theirs {
    /// Starts to look at the services in a user's runtime directory.
    pub(crate) fn start(home: Home) -> std::io::Result<Arc<Self>> {
        let uid = home.uid();
        let theirs = Arc::new(Self::of(uid, home.identity()));
        let shared = Arc::clone(&theirs);
        let looks = thread::Builder::new()
            .name(format!("user {uid}"))
            .spawn(move || run(&shared, home))?;
        let shared = Arc::clone(&theirs);
        // The name service may take half a minute. Without a thread they go by their number.
        let asks = thread::Builder::new()
            .name(format!("name {uid}"))
            .spawn(move || {
                // The name service may also answer late after a start of the machine, and say another name one day.
                let mut pause = AGAIN;
                loop {
                    let label: Arc<str> = users::label(uid).into();
                    let is_number = *label == *uid.to_string();
                    let mut state = shared.lock();
                    if state.ends {
                        return;
                    }
                    // A name that was known is not forgotten for a service that does not answer.
                    if !is_number || state.label.is_none() {
                        state.label = Some(label);
                    }
                    pause = if is_number {
                        (pause * 2).min(RENAMED)
                    } else {
                        RENAMED
                    };
                    let ends = |state: &mut State| !state.ends;
                    let waited = shared.changed.wait_timeout_while(state, pause, ends);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
            });
        let threads = [Some(looks), asks.ok()].into_iter().flatten();
        theirs.lock().threads.extend(threads);
        Ok(theirs)
    }

    /// Those that nobody looks at yet.
    fn of(uid: u32, identity: (u64, u64)) -> Self {
        let started_ns = monotonic_ns();
        let state = State {
            looked_ns: started_ns,
            ..State::default()
        };
        Self {
            uid,
            identity,
            started_ns,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// What ids of their services begin with; nothing where that may be known in a moment.
    pub(crate) fn label(&self, now_ns: u64) -> Option<Arc<str>> {
        let known = self.lock().label.clone();
        let is_late = now_ns.saturating_sub(self.started_ns) > NAMED_NS;
        known.or_else(|| is_late.then(|| self.uid.to_string().into()))
    }

    /// Whether a thread of theirs has not ended.
    pub(crate) fn lives(&self) -> bool {
        let state = self.lock();
        state.threads.iter().any(|thread| !thread.is_finished())
    }

    /// The thread that looks has not ended, which it does not by itself.
    pub(crate) fn is_looking(&self) -> bool {
        let state = self.lock();
        let looks = state.threads.first();
        looks.is_some_and(|thread| !thread.is_finished())
    }

    /// Whose they are.
    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Device and inode of the directory.
    pub(crate) const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found at the last look, by name; has them looked at once more. Nothing, and why,
    /// where no look has ended for long.
    pub(crate) fn found(&self, now_ns: u64) -> (Arc<Seen>, Option<String>) {
        let mut state = self.lock();
        state.is_due = true;
        self.changed.notify_all();
        if state.is_stale(now_ns) {
            let text =
                "they cannot be looked at: something of theirs keeps whoever opens it waiting";
            return (Arc::default(), Some(text.to_owned()));
        }
        (Arc::clone(&state.found), state.problem.clone())
    }

    fn want(&self, name: &str, change: impl FnOnce(&mut Wanted)) -> bool {
        let mut state = self.lock();
        let wanted = state.wanted.entry(name.to_owned()).or_default();
        let before = wanted.clone();
        change(wanted);
        if *wanted == before {
            return false;
        }
        state.wished += 1;
        state.is_due = true;
        self.changed.notify_all();
        true
    }

    /// The plain limits that a service is to have; whether that is new.
    pub(crate) fn want_plain(&self, name: &str, plain: PerResource<Option<u64>>) -> bool {
        self.want(name, |wanted| wanted.plain = plain)
    }

    /// The further limits that a service is to have; `before` are those that it has of a daemon,
    /// since it was made at that time.
    pub(crate) fn want_further(
        &self,
        name: &str,
        created_ns: u64,
        further: &BTreeMap<String, String>,
        before: &BTreeMap<String, String>,
    ) {
        self.want(name, |wanted| {
            wanted.further.clone_from(further);
            if wanted.left_ns != created_ns {
                (wanted.left, wanted.left_ns) = (BTreeSet::new(), created_ns);
            }
            wanted.left.extend(before.keys().cloned());
            wanted.left.retain(|name| !further.contains_key(name));
        });
    }

    /// Waits until what was wanted so far is in force, for as long as said; not for who keeps
    /// their thread waiting.
    pub(crate) fn settle(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        let wished = state.wished;
        while state.fulfilled < wished && !state.is_stale(monotonic_ns()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Does nothing for a while, and says that it is there.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while !state.ends && Instant::now() < until {
            state.looked_ns = monotonic_ns();
            state.fulfilled = state.wished;
            let waited = self.changed.wait_timeout(state, IDLE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the thread, when it comes back from what it is at.
    pub(crate) fn end(&self) {
        self.lock().ends = true;
        self.changed.notify_all();
    }
}

/// The ledgers that are open.
type Ledgers = Arc<Mutex<BTreeMap<String, Arc<Ledger>>>>;

/// Opens what belongs to that user, and keeps it open.
#[derive(Debug)]
struct Opener {
    home: Arc<Home>,
    ledgers: Ledgers,
}

impl Opens for Opener {
    fn open(&self, service: &Service) -> Result<Watch, LedgerError> {
        let ledger = self.home.ledger(&service.name)?;
        let watch = Watch::open_held(std::process::id(), ledger.number())?;
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.insert(service.name.clone(), Arc::new(ledger));
        Ok(watch)
    }

    fn is_still(&self, service: &Service, identity: (u64, u64)) -> bool {
        self.home.has(&service.name, identity)
    }

    fn changed(&self) -> anyhow::Result<(i64, i64)> {
        Ok(self.home.changed()?)
    }

    fn names(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.home.names()?)
    }

    fn has_folder(&self, name: &str) -> bool {
        self.home.has_folder(name)
    }
}

struct Looking {
    home: Arc<Home>,
    glances: Glances,
    ledgers: Ledgers,
    /// What was written last, and the state of the ledger then.
    written: BTreeMap<String, (Wanted, u64, u32)>,
    problems: BTreeMap<String, String>,
    dead: Vec<String>,
    keepers: BTreeMap<String, bool>,
    tidied: Instant,
}

fn run(theirs: &Theirs, home: Home) {
    let mut looking = Looking::of(Arc::new(home));
    loop {
        let (wanted, wished) = {
            let mut state = theirs.lock();
            while !state.is_due && !state.ends {
                let waited = theirs.changed.wait_timeout(state, IDLE);
                let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = next;
                if timeout.timed_out() {
                    break;
                }
            }
            if state.ends {
                return;
            }
            state.is_due = false;
            (state.wanted.clone(), state.wished)
        };
        let lost = bonsai_host::bus::lost();
        let looked = catch_unwind(AssertUnwindSafe(|| looking.look(&wanted)));
        let is_whole = looked.is_ok() && bonsai_host::bus::lost() == lost;
        let mut state = theirs.lock();
        state.fulfilled = wished;
        state.looked_ns = monotonic_ns();
        theirs.changed.notify_all();
        match looked {
            Ok(Ok(found)) if is_whole => state.take(found, &wanted),
            Ok(Err(error)) if is_whole => {
                (state.found, state.problem) =
                    (Arc::default(), Some(bonsai_host::sentence(error.as_ref())));
            }
            _ => {
                let text = format!(
                    "a ledger of theirs was cut short or damaged while it was in use: they are \
                     left alone for {} s",
                    PAUSE.as_secs()
                );
                (state.found, state.problem) = (Arc::default(), Some(text));
                drop(state);
                looking = looking.start_anew();
                theirs.rest(PAUSE);
            }
        }
    }
}

impl Looking {
    fn of(home: Arc<Home>) -> Self {
        let ledgers = Ledgers::default();
        let by = Opener {
            home: Arc::clone(&home),
            ledgers: Arc::clone(&ledgers),
        };
        Self {
            glances: Glances::of(Services::at(home.path().to_owned()), Some(Box::new(by))),
            home,
            ledgers,
            written: BTreeMap::new(),
            problems: BTreeMap::new(),
            dead: Vec::new(),
            keepers: BTreeMap::new(),
            tidied: Instant::now() - TIDY,
        }
    }

    /// The same, with nothing open.
    fn start_anew(&self) -> Self {
        Self::of(Arc::clone(&self.home))
    }

    fn ledgers(&self) -> BTreeMap<String, Arc<Ledger>> {
        self.ledgers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Looks at all, and puts into force what is wanted.
    fn look(&mut self, wanted: &BTreeMap<String, Wanted>) -> anyhow::Result<Seen> {
        let folders = self.home.folders();
        if folders > MOST {
            anyhow::bail!(
                "there are {folders} services, and at most {MOST} of a user are looked at"
            );
        }
        let changes = self.glances.look()?;
        for name in &changes.gone {
            self.written.remove(name);
            self.problems.remove(name);
            self.keepers.remove(name);
            if self.glances.get(name).is_none() {
                let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
                ledgers.remove(name);
            }
        }
        if self.tidied.elapsed() >= TIDY || !changes.came.is_empty() {
            self.tidied = Instant::now();
            self.tidy()?;
        }
        let ledgers = self.ledgers();
        let living: Vec<(String, Glance)> = self
            .glances
            .iter()
            .filter(|(name, _)| !self.dead.iter().any(|dead| dead == name))
            .map(|(name, glance)| (name.to_owned(), *glance))
            .collect();
        let mut found = BTreeMap::new();
        for (name, glance) in living {
            let Some(ledger) = ledgers.get(&name) else {
                continue;
            };
            if let Some(wanted) = wanted.get(&name) {
                match self.put_soon(&name, ledger, wanted) {
                    Ok(()) => drop(self.problems.remove(&name)),
                    Err(error) => {
                        let text = format!(
                            "its limits could not be written: {}",
                            bonsai_host::sentence(error.as_ref())
                        );
                        self.problems.insert(name.clone(), text);
                    }
                }
            }
            found.insert(name.clone(), Arc::new(self.found(&name, ledger, glance)));
        }
        Ok(found)
    }

    /// Finds out whose `bonsai run` lives, and which of the others have a process.
    fn tidy(&mut self) -> anyhow::Result<()> {
        let names: Vec<String> = self
            .glances
            .iter()
            .map(|(name, _)| name.to_owned())
            .collect();
        self.keepers = names
            .into_iter()
            .map(|name| {
                let keeps = self.home.has_keeper(&name);
                (name, keeps)
            })
            .collect();
        let alone = self.keepers.iter().filter(|(_, keeps)| !**keeps);
        let mut alone: Vec<String> = alone.map(|(name, _)| name.clone()).collect();
        if !alone.is_empty() {
            let living = Living::now()?;
            alone.retain(|name| !living.any(&self.home.service(name)));
        }
        self.dead = alone;
        Ok(())
    }

    fn found(&self, name: &str, ledger: &Ledger, glance: Glance) -> Found {
        let created_ns = ledger.header.created_ns.load(Ordering::Relaxed);
        let keeps = self.keepers.get(name).copied().unwrap_or(false);
        Found {
            glance,
            created_ns,
            keeper: keeps.then(|| creator(ledger)).flatten(),
            limits: self.glances.own_limits(name),
            problem: self.problems.get(name).cloned(),
        }
    }

    /// Writes what is wanted; a lock that is free in a moment is waited for, unless it was held at
    /// the last look too.
    fn put_soon(&mut self, name: &str, ledger: &Ledger, wanted: &Wanted) -> anyhow::Result<()> {
        let tries = match self.problems.contains_key(name) {
            true => 1,
            false => TRIES,
        };
        for _ in 1..tries {
            match self.put(name, ledger, wanted) {
                Err(error) if is_locked(&error) => thread::sleep(BETWEEN),
                done => return done,
            }
        }
        self.put(name, ledger, wanted)
    }

    /// Writes what differs from what was written last, and all of it where somebody else has
    /// changed the ledger since.
    fn put(&mut self, name: &str, ledger: &Ledger, wanted: &Wanted) -> anyhow::Result<()> {
        let created_ns = ledger.header.created_ns.load(Ordering::Relaxed);
        let last = self.written.get(name);
        let last = last.filter(|(_, created, _)| *created == created_ns);
        if last.is_some_and(|(last, _, epoch)| last == wanted && *epoch == ledger.epoch()) {
            return Ok(());
        }
        let now_ns = monotonic_ns();
        put_plain(ledger, BY_SYSTEM, wanted.plain, now_ns)?;
        let mut before = last.map_or_else(BTreeMap::new, |(last, _, _)| last.further.clone());
        if wanted.left_ns == created_ns {
            let left = wanted.left.iter();
            before.extend(left.map(|name| (name.clone(), String::new())));
        }
        crate::enforce::put_further(name, ledger, &wanted.further, &before, now_ns)?;
        let written = (wanted.clone(), created_ns, ledger.epoch());
        self.written.insert(name.to_owned(), written);
        Ok(())
    }
}

fn is_locked(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(LedgerError::Locked { .. }))
}

#[cfg(test)]
mod tests;
