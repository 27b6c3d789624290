//! Services that are no `bonsai run`, looked at and limited on a thread of its own: looking at them
//! asks the kernel, and finding them the files of container engines.
//!
//! ```text
//!   ring ── configure, want ──> State ──> Bodies::look, Bodies::put ──> Seen ──> look, ring
//!                                 └──> wishes ──> the keeper of interfaces
//! ```
//!
//! # Invariants
//! 1. Nobody waits for it but a change, for a moment, so that it is in force when it is answered.
//! 2. What they may send and receive is put into force by the keeper of interfaces, what they may
//!    have of disks and CPUs here.
//! 3. When it ends, limits stay. Nothing is said to the keeper before all were looked at once: what
//!    they are to have is not decided before, and what is in force stays.

mod classes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonsai_api::LinkState;
use bonsai_policy::PerResource;
use bonsai_services::observe::monotonic_ns;
use bonsai_tenants::{Bodies, Body, Granted, Wish, bodies};
use bonsai_units::Resource;

use crate::links::{Kept, Orders};
use crate::places::{self, Placed, Places, Share, Wanted};

use classes::Classes;

/// Without a word from the daemon, a look comes this late.
const IDLE: Duration = Duration::from_secs(1);

/// Where nobody is wanted any more, what was theirs is given back by so many looks at most,
const LOOKS: u32 = 50;

/// so long after each other.
const BETWEEN: Duration = Duration::from_millis(100);

/// A look that is older says nothing any more, ns.
const STALE_NS: u64 = 3_000_000_000;

/// What is known of one.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) body: Body,
    /// What could not be done with it, in words.
    pub(crate) problems: Vec<String>,
}

/// What is known of all, by id.
pub(crate) type Seen = BTreeMap<Arc<str>, Arc<Found>>;

#[derive(Debug, Default)]
struct State {
    places: Arc<Places>,
    /// Whether that was said.
    is_told: bool,
    /// What is decided for those that are there.
    wanted: BTreeMap<Arc<str>, Wanted>,
    seen: Arc<Seen>,
    /// When that was, by the monotonic clock; 0 for never.
    looked_ns: u64,
    /// Whether what is wanted of interfaces is another than was last said.
    moved: bool,
    /// Counts what was wanted, and how much of that is done.
    wished: u64,
    fulfilled: u64,
    is_due: bool,
    ends: bool,
}

/// What is to be done at a look.
struct Due {
    places: Arc<Places>,
    wanted: BTreeMap<Arc<str>, Wanted>,
    /// Of which wish that is.
    wished: u64,
}

/// The way to it.
#[derive(Clone, Debug)]
pub(crate) struct Outsiders {
    shared: Arc<(Mutex<State>, Condvar)>,
    started_ns: u64,
}

impl Outsiders {
    fn new() -> Self {
        Self {
            shared: Arc::default(),
            started_ns: monotonic_ns(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        state.is_due = true;
        drop(state);
        self.shared.1.notify_all();
    }

    /// Says which there are to be.
    pub(crate) fn configure(&self, places: Places) {
        let mut state = self.lock();
        // What an earlier daemon has limited is given back also where there are none now.
        let is_first = !std::mem::replace(&mut state.is_told, true);
        if *state.places == places && !is_first {
            return;
        }
        // What was decided goes by what was configured; what is still right is decided again.
        state.wanted.retain(|id, _| places.contains_key(id));
        state.places = Arc::new(places);
        state.moved = true;
        state.wished += 1;
        self.wake(state);
    }

    /// Which there are to be.
    pub(crate) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.lock().places)
    }

    /// What was found at the last look; has them looked at once more. Nothing, and why, where no
    /// look has ended for long.
    pub(crate) fn found(&self, now_ns: u64) -> (Arc<Seen>, Option<String>) {
        let state = self.lock();
        if state.places.is_empty() {
            return (Arc::default(), None);
        }
        let last_ns = state.looked_ns.max(self.started_ns);
        let stale = now_ns.saturating_sub(last_ns) > STALE_NS;
        let seen = match stale {
            true => Arc::default(),
            false => Arc::clone(&state.seen),
        };
        self.wake(state);
        let problem = "services that are no bonsai run cannot be looked at: the machine is too busy, \
                       or something keeps whoever looks waiting";
        (seen, stale.then(|| problem.to_owned()))
    }

    /// What is known of one that is not there.
    pub(crate) fn absent(&self) -> BTreeMap<Arc<str>, String> {
        let state = self.lock();
        let why = |id: &Arc<str>| match state.seen.get(id) {
            Some(found) if found.body.there => None,
            Some(found) => {
                let why = found.body.why.clone();
                Some(why.unwrap_or_else(|| "it is not there".to_owned()))
            }
            None => Some("it has not been looked for yet".to_owned()),
        };
        let ids = state.places.keys();
        ids.filter_map(|id| Some((Arc::clone(id), why(id)?)))
            .collect()
    }

    /// One has gone: the next one of its name begins with what is configured.
    pub(crate) fn forget(&self, id: &str) {
        let mut state = self.lock();
        state.moved |= state.wanted.remove(id).is_some();
    }

    fn want(&self, id: &Arc<str>, change: impl FnOnce(&Placed, &mut Wanted)) -> bool {
        let mut state = self.lock();
        let places = Arc::clone(&state.places);
        let Some(placed) = places.get(id) else {
            return false;
        };
        let wanted = state.wanted.entry(Arc::clone(id));
        let wanted = wanted.or_insert_with(|| placed.first.clone());
        let before = wanted.clone();
        change(placed, wanted);
        if *wanted == before {
            return false;
        }
        let wishes = |wanted| placed.wish(wanted);
        let moved = wishes(&before) != wishes(wanted);
        state.moved |= moved;
        state.wished += 1;
        self.wake(state);
        true
    }

    /// The plain limits that one is to have, thousandths of a byte per second; whether that is new.
    pub(crate) fn want_plain(&self, id: &Arc<str>, plain: PerResource<Option<u64>>) -> bool {
        self.want(id, |placed, wanted| {
            for resource in Resource::ALL {
                let at = resource.index();
                if placed.has[at] && !placed.is_shared(resource) {
                    wanted.plain[at] = plain[at].map(|milli| placed.limit(resource, milli));
                }
            }
        })
    }

    /// The share of its uplink that one is to have; whether that is new.
    pub(crate) fn want_share(&self, id: &Arc<str>, share: Share) -> bool {
        self.want(id, |_, wanted| wanted.share = share)
    }

    /// What is wanted of interfaces, by target; nothing while it is not decided yet, since the daemon
    /// has begun.
    pub(crate) fn wishes(&self) -> Option<BTreeMap<String, Wish>> {
        let mut state = self.lock();
        let patience_ns = self.started_ns + STALE_NS;
        let is_known = |id: &Arc<str>| {
            let found = state.seen.get(id);
            found.is_some_and(|found| !found.body.there || state.wanted.contains_key(id))
        };
        let all_known = state.places.keys().all(is_known);
        if !all_known && monotonic_ns() < patience_ns {
            return None;
        }
        state.moved = false;
        let wanted = |id: &str| state.wanted.get(id);
        Some(places::wishes(&state.places, wanted))
    }

    /// Whether that is another than was said last.
    pub(crate) fn has_moved(&self) -> bool {
        self.lock().moved
    }

    /// Waits until what was wanted so far is done, for as long as said.
    pub(crate) fn settle(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        let wished = state.wished;
        while state.fulfilled < wished {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the thread, when it comes back from what it is at.
    pub(crate) fn end(&self) {
        self.lock().ends = true;
        self.shared.1.notify_all();
    }

    /// Waits until it is due, or for as long as said; nothing at the end.
    fn next(&self, patience: Option<Duration>) -> Option<Due> {
        let mut state = self.lock();
        let until = patience.map(|patience| Instant::now() + patience);
        while !state.is_due && !state.ends {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let waited = self.shared.1.wait_timeout(state, left.unwrap_or(IDLE));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_due = false;
        let due = Due {
            places: Arc::clone(&state.places),
            wanted: state.wanted.clone(),
            wished: state.wished,
        };
        (!state.ends).then_some(due)
    }

    fn publish(&self, seen: Seen, fulfilled: u64) {
        let mut state = self.lock();
        state.seen = Arc::new(seen);
        state.looked_ns = monotonic_ns();
        state.fulfilled = fulfilled;
        drop(state);
        self.shared.1.notify_all();
    }
}

/// Starts it. Records of what was there before are in `folder`.
pub(crate) fn start(
    folder: PathBuf,
    orders: Orders,
) -> std::io::Result<(Outsiders, JoinHandle<()>)> {
    let outsiders = Outsiders::new();
    let work = Work {
        outsiders: outsiders.clone(),
        orders,
        bodies: Bodies::new(folder),
        told: None,
        looks: 0,
        kept: Arc::default(),
        links: BTreeMap::new(),
        refused: BTreeMap::new(),
        classes: Classes::default(),
    };
    let thread = thread::Builder::new().name("outsiders".to_owned());
    Ok((outsiders, thread.spawn(move || work.run())?))
}

struct Work {
    outsiders: Outsiders,
    orders: Orders,
    bodies: Bodies,
    /// Which were wanted last.
    told: Option<Arc<Places>>,
    /// How often was looked since nobody is wanted.
    looks: u32,
    /// What the keeper of interfaces said last, and the interfaces in that.
    kept: Arc<Kept>,
    links: BTreeMap<String, (u64, u32)>,
    /// Why something could not be had, by id.
    refused: BTreeMap<Arc<str>, String>,
    /// What groups send.
    classes: Classes,
}

impl Work {
    fn run(mut self) {
        let mut patience = None;
        while let Some(due) = self.outsiders.next(patience) {
            let seen = self.look(&due);
            self.outsiders.publish(seen, due.wished);
            patience = match due.places.is_empty() {
                false => Some(IDLE),
                true => Some(BETWEEN).filter(|_| self.looks < LOOKS),
            };
        }
    }

    fn look(&mut self, due: &Due) -> Seen {
        let places = &due.places;
        let is_new = self.told.as_ref().is_none_or(|told| told != places);
        if is_new {
            let all = places.iter();
            self.bodies.want(
                all.map(|(id, of)| (id.to_string(), of.place.clone()))
                    .collect(),
            );
            self.refused.retain(|id, _| places.contains_key(id));
            self.told = Some(Arc::clone(places));
            self.looks = 0;
        }
        if places.is_empty() {
            self.looks += 1;
            self.bodies.look(&BTreeMap::new());
            return Seen::new();
        }
        let kept = self.orders.kept();
        if is_new || !Arc::ptr_eq(&kept, &self.kept) {
            let at = |of: &Placed| kept.granted.get(&of.place.to_string())?.at;
            let links = places.iter();
            let links = links.filter_map(|(id, of)| Some((id.to_string(), at(of)?)));
            self.links = links.collect();
            self.kept = kept;
        }
        self.put(due);
        self.found(places)
    }

    /// Gives them what they may have of disks and CPUs.
    fn put(&mut self, due: &Due) {
        for (id, placed) in &*due.places {
            let wanted = due.wanted.get(id).unwrap_or(&placed.first);
            let plain = |resource: Resource| {
                let at = resource.index();
                wanted.plain[at].filter(|_| placed.has[at])
            };
            let terms = bodies::Terms {
                read: plain(Resource::Read),
                write: plain(Resource::Write),
                cpu: placed.cpu,
            };
            match self.bodies.put(id, &terms) {
                Ok(()) => drop(self.refused.remove(id)),
                Err(error) => drop(self.refused.insert(Arc::clone(id), error.sentence())),
            }
        }
    }

    /// Looks at all of them.
    fn found(&mut self, places: &Places) -> Seen {
        let class = |placed: &Placed| {
            let granted = self.kept.granted.get(&placed.place.to_string());
            granted?.class.filter(|_| placed.place.link().is_none())
        };
        let groups = places.iter();
        self.classes
            .look(groups.filter_map(|(id, placed)| Some((id, class(placed)?))));
        let seen = self.bodies.look(&self.links);
        let found = places.iter().filter_map(|(id, placed)| {
            let mut body = seen.get(&**id)?.clone();
            if let Some(of) = class(placed) {
                self.classes.add(id, of, &mut body);
            }
            let granted = self.kept.granted.get(&placed.place.to_string());
            let refused = self.refused.get(id);
            let problems = problems(&body, granted, refused);
            Some((Arc::clone(id), Arc::new(Found { body, problems })))
        });
        found.collect()
    }
}

/// What is not as it is wanted, in words. Why one is not there is no problem of its own.
fn problems(body: &Body, granted: Option<&Granted>, refused: Option<&String>) -> Vec<String> {
    let granted = granted.filter(|granted| granted.state == LinkState::Problem);
    let of_link = granted.and_then(|granted| granted.why.as_ref());
    let all = [
        body.why.clone().filter(|_| body.there),
        of_link.map(|why| format!("its limits of send and recv are not in force: {why}")),
        body.disk_why.clone(),
        body.cpu_why.clone(),
        refused.cloned(),
    ];
    let mut problems: Vec<String> = Vec::new();
    for problem in all.into_iter().flatten() {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}
