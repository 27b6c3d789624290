//! What block servers tell of their exports.
//!
//! # Why threads
//! Servers are asked over sockets in runtime directories, which may be those of other users: a directory may be on a file
//! system that keeps whoever opens it waiting, and a server may not answer. So each user is asked by a thread of their
//! own, and whoever wants to know waits for those that answer soon, and takes what was told last.
//!
//! # Invariants
//! 1. A user has one thread at a time. Whoever keeps it waiting is not seen, and holds up nobody else.
//! 2. Nobody is asked where nobody wants to know.
//! 3. What is said of a user's servers comes from a process of that user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bonsai_nbd::control::{
    Ask, Asked, Door, FOLDER, ServerShares, ServerStatus, ask_all, ask_doors,
};
use bonsai_services::theirs::{Home, homes};
use tokio::sync::Notify;

use crate::users;

/// How long servers may take for each of two answers,
const ANSWER: Duration = Duration::from_millis(600);

/// and how long whoever wants to know waits for both.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What was told so short a time ago is not asked for again,
const FRESH: Duration = Duration::from_millis(400);

/// and so long it is told to others while it is.
const TOLD: Duration = Duration::from_secs(2);

/// After this it is no answer any more.
const STALE: Duration = Duration::from_secs(10);

/// Users who are looked at.
const MOST_USERS: usize = 1000;

/// Users who are asked at the same time.
const AT_ONCE: usize = 32;

/// Users whose threads have not come back, at most; nobody is asked then.
const STUCK: usize = 256;

/// What one server told.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) pid: u32,
    /// Nothing, where it does not answer.
    pub(crate) status: Option<ServerStatus>,
    pub(crate) shares: Option<ServerShares>,
}

/// What the servers of a user told.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    /// What ids of their services begin with; nothing for the daemon's own user.
    pub(crate) label: Option<String>,
    pub(crate) servers: Vec<Server>,
    /// Whether they could not be asked for long.
    pub(crate) is_stuck: bool,
}

/// Asks block servers.
#[derive(Clone, Debug)]
pub(crate) struct Drives(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The runtime directory of the daemon's user.
    own: PathBuf,
    /// Where those of others are.
    places: Vec<PathBuf>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// When it was begun to look for users, and the thread that does.
    looking: Option<(Instant, thread::JoinHandle<()>)>,
    looked: Option<Instant>,
    /// By runtime directory.
    known: BTreeMap<PathBuf, Known>,
}

#[derive(Debug)]
struct Known {
    uid: u32,
    /// When they were begun to be asked, if nobody has come back.
    asking: Option<Instant>,
    told: Option<(Instant, Arc<User>)>,
    is_there: bool,
}

fn is_younger(than: Duration, at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < than)
}

impl Known {
    const fn new(uid: u32) -> Self {
        Self {
            uid,
            asking: None,
            told: None,
            is_there: true,
        }
    }

    fn told_at(&self) -> Option<Instant> {
        self.told.as_ref().map(|(at, _)| *at)
    }

    /// Whether an answer is to be waited for.
    fn is_awaited(&self) -> bool {
        is_younger(PATIENCE, self.asking) && !is_younger(TOLD, self.told_at())
    }
}

impl Drives {
    /// Of the user with that runtime directory, and of those at these places.
    pub(crate) fn new(own: PathBuf, places: Vec<PathBuf>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let state = State {
            known: BTreeMap::from([(own.clone(), Known::new(uid))]),
            ..State::default()
        };
        Self(Arc::new(Inner {
            own,
            places,
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// What all of them tell, by runtime directory; not later than [`PATIENCE`].
    pub(crate) async fn ask(&self) -> Vec<Arc<User>> {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let changed = self.0.changed.notified();
            // From here on it is told of what happens.
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.go() || tokio::time::timeout_at(end, changed).await.is_err() {
                return self.told();
            }
        }
    }

    fn told(&self) -> Vec<Arc<User>> {
        let state = self.0.lock();
        let known = state.known.values().filter(|known| known.is_there);
        let users = known.filter_map(|known| match &known.told {
            Some((at, told)) if at.elapsed() < STALE => Some(Arc::clone(told)),
            _ => known.asking.map(|_| {
                Arc::new(User {
                    uid: known.uid,
                    label: None,
                    servers: Vec::new(),
                    is_stuck: true,
                })
            }),
        });
        users.collect()
    }

    /// Has those asked that are due; whether an answer is to be waited for.
    fn go(&self) -> bool {
        let mut state = self.0.lock();
        let own = self.0.own.clone();
        state.start(&own, |label| {
            let inner = Arc::clone(&self.0);
            move || inner.ask_own(label)
        });
        // A look that has failed keeps the next one from nothing.
        let is_under_way = |(_, thread): &(Instant, thread::JoinHandle<()>)| !thread.is_finished();
        let is_out = state.looking.as_ref().is_some_and(is_under_way);
        let is_due = !is_out && !is_younger(FRESH, state.looked);
        if !self.0.places.is_empty() && is_due {
            let inner = Arc::clone(&self.0);
            let thread = thread::Builder::new().name("users".to_owned());
            if let Ok(thread) = thread.spawn(move || inner.look()) {
                state.looking = Some((Instant::now(), thread));
            }
        }
        let first = state.looked.is_none()
            && is_younger(PATIENCE, state.looking.as_ref().map(|(at, _)| *at));
        first || state.known.values().any(Known::is_awaited)
    }
}

impl State {
    /// Starts a thread that asks a user, if that is due.
    fn start<F: FnOnce() + Send + 'static>(
        &mut self,
        path: &Path,
        ask: impl FnOnce(Option<String>) -> F,
    ) {
        let asking = || self.known.values().filter_map(|known| known.asking);
        let late = asking().filter(|since| since.elapsed() >= PATIENCE).count();
        if asking().count() - late >= AT_ONCE || late >= STUCK {
            return;
        }
        let Some(known) = self.known.get_mut(path) else {
            return;
        };
        if known.asking.is_some() || is_younger(FRESH, known.told_at()) {
            return;
        }
        let label = known.told.as_ref().and_then(|(_, told)| told.label.clone());
        let thread = thread::Builder::new().name(format!("drives {}", known.uid));
        // Without a thread nobody is asked now; the next look tries again.
        if thread.spawn(ask(label)).is_ok() {
            known.asking = Some(Instant::now());
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds out which users there are, and has them asked.
    fn look(self: Arc<Self>) {
        let there = self.places.iter().flat_map(|place| homes(place, &self.own));
        let there: Vec<Home> = there.take(MOST_USERS).collect();
        let mut state = self.lock();
        for known in state.known.values_mut() {
            known.is_there = false;
        }
        if let Some(own) = state.known.get_mut(&self.own) {
            own.is_there = true;
        }
        for home in there {
            let path = home.path().to_owned();
            let known = state.known.entry(path.clone());
            known.or_insert_with(|| Known::new(home.uid())).is_there = true;
            let inner = Arc::clone(&self);
            state.start(&path, |label| move || inner.ask_home(&home, label));
        }
        state
            .known
            .retain(|_, known| known.is_there || known.asking.is_some());
        (state.looking, state.looked) = (None, Some(Instant::now()));
        drop(state);
        self.changed.notify_waiters();
    }

    fn ask_own(&self, label: Option<String>) {
        let folder = self.own.join(FOLDER);
        // Where there is no folder there is no server.
        let status = ask_all(&folder, Ask::Status, ANSWER, |_| true).unwrap_or_default();
        let answers = answered(&status);
        let shares = ask_all(&folder, Ask::Shares, ANSWER, |pid| answers.contains(&pid));
        let uid = rustix::process::geteuid().as_raw();
        self.tell(
            &self.own,
            uid,
            label,
            told(status, shares.unwrap_or_default()),
        );
    }

    fn ask_home(&self, home: &Home, label: Option<String>) {
        // The name service may take long; it is asked once.
        let label = label.unwrap_or_else(|| users::label(home.uid()));
        let sockets = home.sockets(FOLDER).unwrap_or_default().into_iter();
        let doors = sockets.filter_map(|(name, held)| Door::of(&name, held, home.uid()));
        let mut doors: Vec<Door> = doors.collect();
        let status = ask_doors(&doors, Ask::Status, ANSWER).servers;
        let answers = answered(&status);
        doors.retain(|door| answers.contains(&door.pid()));
        let shares = ask_doors(&doors, Ask::Shares, ANSWER).servers;
        self.tell(home.path(), home.uid(), Some(label), told(status, shares));
    }

    fn tell(&self, path: &Path, uid: u32, label: Option<String>, servers: Vec<Server>) {
        let mut state = self.lock();
        if let Some(known) = state.known.get_mut(path) {
            let user = User {
                uid,
                label,
                servers,
                is_stuck: false,
            };
            (known.asking, known.told) = (None, Some((Instant::now(), Arc::new(user))));
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

fn answered(status: &[Asked<ServerStatus>]) -> Vec<u32> {
    let answered = status.iter().filter(|asked| asked.answer.is_some());
    answered.map(|asked| asked.pid).collect()
}

fn told(status: Vec<Asked<ServerStatus>>, shares: Vec<Asked<ServerShares>>) -> Vec<Server> {
    let mut shares: BTreeMap<u32, Option<ServerShares>> = shares
        .into_iter()
        .map(|asked| (asked.pid, asked.answer))
        .collect();
    let servers = status.into_iter().map(|asked| Server {
        pid: asked.pid,
        status: asked.answer,
        shares: shares.remove(&asked.pid).flatten(),
    });
    servers.collect()
}
