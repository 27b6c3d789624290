//! Whoever keeps interfaces as they are configured, on a thread of its own.
//!
//! ```text
//!   ring ── Orders::want ──┐
//!                          ├──> Keeper::round ──> Kept (published) ──> http, ring
//!   kernel ── Events ──────┘          └──> Event::Told ──> audit trail
//! ```
//!
//! # Invariants
//! 1. Nobody waits for it but those who ask whether a change has taken effect.
//! 2. It looks where something is limited, when something has changed there, and while something
//!    waits: soon after a change, and less and less often, down to once a second; otherwise it
//!    sleeps. Rates alone move without a look, and groups of processes that come are entered at once.
//!    Once a second it compares what interfaces moved with what went through their limits.
//! 3. When it ends, limits stay, and when the next one starts: it does nothing before it is told what
//!    is wanted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonsai_api::{Link, LinkState};
use bonsai_link::Events;
use bonsai_tenants::{Granted, Keeper, Round, Tuned, Wish};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::watch;

use crate::ring::Event;

/// Changes in the kernel come in crowds: so long is waited for the rest of one.
const CROWD: Duration = Duration::from_millis(20);

/// Between two rounds is so many times what the last one took, at most a second: whoever changes
/// things without end does not keep a processor busy here.
const REST: u32 = 4;

/// What waits is looked for so often.
const AGAIN: Duration = Duration::from_secs(1);

/// After something has happened, what waits is looked for so soon, and then after twice as long each
/// time: the interface of a container comes some time before the container does.
const SOON: Duration = Duration::from_millis(20);

/// What interfaces moved is compared with what went through their limits so often.
const WATCHED: Duration = Duration::from_secs(1);

/// Rates that moved are written into the book so often.
const NOTED: Duration = Duration::from_secs(1);

/// So long is waited for what was changed to take effect.
const EFFECT: Duration = Duration::from_secs(1);

/// Most entries kept for a control thread that takes none; older ones go first.
const UNTOLD: usize = 256;

/// An entry for the audit trail: an action, and why.
type Entry = (&'static str, String);

/// What has become of interfaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Of which state of what is configured.
    pub(crate) revision: u64,
    /// Of each target.
    pub(crate) granted: BTreeMap<String, Granted>,
    /// What could not be done, in words.
    pub(crate) failures: Vec<String>,
    /// How often somebody else's changes were put right.
    pub(crate) repairs: u64,
}

impl Kept {
    /// What of these is not as it is configured, in words. What waits is no problem.
    pub(crate) fn problems(&self, configured: &BTreeMap<String, Link>) -> Vec<String> {
        let problems = self.granted.iter().filter(|(target, one)| {
            one.state == LinkState::Problem && configured.contains_key(*target)
        });
        let of_targets = problems.map(|(target, one)| {
            let why = one.why.as_deref().unwrap_or("it is not in force");
            format!("links.{target}: {why}")
        });
        let failures = self.failures.iter().cloned();
        of_targets.chain(failures).collect()
    }
}

#[derive(Debug, Default)]
struct Order {
    revision: u64,
    /// `None` until it is said: nothing is given free before.
    wishes: Option<Arc<BTreeMap<String, Wish>>>,
    /// Counts orders, and those of them that were seen to.
    given: u64,
    done: u64,
    ended: bool,
}

type Shared = Arc<(Mutex<Order>, Condvar)>;

fn lock(order: &Shared) -> MutexGuard<'_, Order> {
    order.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to it.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    order: Shared,
    wake: Arc<OwnedFd>,
    kept: watch::Receiver<Arc<Kept>>,
    /// Where its book is.
    pub(crate) folder: Arc<PathBuf>,
}

impl Orders {
    /// Says what is wanted from now on.
    pub(crate) fn want(&self, revision: u64, wishes: BTreeMap<String, Wish>) {
        let mut order = lock(&self.order);
        order.revision = revision;
        order.wishes = Some(Arc::new(wishes));
        order.given += 1;
        drop(order);
        self.wake();
    }

    /// Says that it is to end.
    pub(crate) fn end(&self) {
        lock(&self.order).ended = true;
        self.wake();
    }

    /// Waits until what was wanted so far was seen to, for as long as said.
    pub(crate) fn settle(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut order = lock(&self.order);
        let given = order.given;
        while order.done < given {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.order.1.wait_timeout(order, left);
            order = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn wake(&self) {
        // It fails if it was woken 2^64 times and slept on.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// What has become of it so far.
    pub(crate) fn kept(&self) -> Arc<Kept> {
        Arc::clone(&self.kept.borrow())
    }

    /// What has become of a state of what is configured, or of the one before, if that does not come
    /// in time.
    pub(crate) async fn settled(&self, revision: u64) -> Arc<Kept> {
        let mut kept = self.kept.clone();
        let settled = kept.wait_for(|kept| kept.revision >= revision);
        let _ = tokio::time::timeout(EFFECT, settled).await;
        self.kept()
    }
}

/// Starts it. Its book is in `folder`.
pub(crate) fn start(
    folder: PathBuf,
    events: SyncSender<Event>,
) -> std::io::Result<(Orders, JoinHandle<()>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let order = Shared::default();
    let (publish, kept) = watch::channel(Arc::default());
    let orders = Orders {
        order: Arc::clone(&order),
        wake: Arc::clone(&wake),
        kept,
        folder: Arc::new(folder.clone()),
    };
    let work = Work {
        order,
        wake,
        publish,
        events,
        keeper: Keeper::new(folder),
        heard: BTreeMap::new(),
        repairs: 0,
        noted: Instant::now(),
        watched: Instant::now(),
        soon: AGAIN,
        untold: Vec::new(),
    };
    let thread = thread::Builder::new().name("links".to_owned());
    Ok((orders, thread.spawn(move || work.run())?))
}

struct Work {
    order: Shared,
    wake: Arc<OwnedFd>,
    publish: watch::Sender<Arc<Kept>>,
    events: SyncSender<Event>,
    keeper: Keeper,
    /// What is listened to, by the cookie of the namespace.
    heard: BTreeMap<u64, Events>,
    repairs: u64,
    /// When the book was written last.
    noted: Instant,
    /// When limits were compared last.
    watched: Instant,
    /// How long after the next round what waits is looked for.
    soon: Duration,
    /// Entries for the audit trail that the control thread has not taken yet.
    untold: Vec<Entry>,
}

impl Work {
    fn run(mut self) {
        // When a round is to be, and when the last one has been rested from.
        let (mut due, mut rested) = (Some(Instant::now()), Instant::now());
        // Something has happened: the rest of a crowd passes meanwhile.
        let mut rests = false;
        loop {
            let (revision, wishes, given) = {
                let order = lock(&self.order);
                if order.ended {
                    break;
                }
                (order.revision, order.wishes.clone(), order.given)
            };
            let Some(wishes) = wishes else {
                self.sleep(None, true);
                continue;
            };
            let start = Instant::now();
            let tuned = match due.filter(|due| start >= *due) {
                Some(_) => Tuned::Round,
                None => self.keeper.tune(&wishes).unwrap_or(Tuned::Round),
            };
            match tuned {
                Tuned::Done => self.tuned(revision),
                Tuned::Later => {
                    self.tuned(revision);
                    let then = start + AGAIN;
                    due = Some(due.map_or(then, |due| due.min(then)));
                }
                Tuned::Round => {
                    let (waits, listens) = self.round(revision, &wishes, start);
                    let end = Instant::now();
                    rested = end + ((end - start) * REST).min(AGAIN);
                    rests = false;
                    due = waits.then(|| rested.max(end + self.soon));
                    self.soon = (self.soon * 2).min(AGAIN);
                    // What happened before it was listened to was not heard.
                    if listens {
                        due = Some(end);
                        continue;
                    }
                }
            }
            self.done(given);
            if self.watch() {
                due = Some(Instant::now());
                continue;
            }
            let noted = self.note();
            let watched = self.keeper.is_watching().then(|| self.watched + WATCHED);
            self.report(Vec::new());
            let untold = (!self.untold.is_empty()).then(|| Instant::now() + AGAIN);
            let until = due
                .into_iter()
                .chain(noted)
                .chain(watched)
                .chain(untold)
                .min();
            if self.sleep(until, rests) {
                let then = rested.max(Instant::now() + CROWD);
                due = Some(due.map_or(then, |due| due.min(then)));
                rests = true;
                self.soon = SOON;
            }
        }
        let _ = self.keeper.note();
    }

    /// Makes all as it is wanted: whether something waits, and whether more is listened to since.
    fn round(
        &mut self,
        revision: u64,
        wishes: &BTreeMap<String, Wish>,
        start: Instant,
    ) -> (bool, bool) {
        self.noted = start;
        let (waits, places) = match self.keeper.round(wishes, start) {
            Ok(mut round) => {
                let places = std::mem::take(&mut round.places);
                let waits = round.again;
                self.tell(revision, round);
                (waits, places)
            }
            Err(error) => {
                self.fail(revision, wishes, &error.sentence());
                (true, BTreeMap::new())
            }
        };
        (waits, self.listen(places))
    }

    /// Publishes that what is configured now is in force, where only rates were different. Whoever
    /// asks reads it in the book.
    fn tuned(&mut self, revision: u64) {
        let kept = Arc::clone(&self.publish.borrow());
        if kept.revision == revision {
            return;
        }
        self.noted = Instant::now();
        let _ = self.keeper.note();
        self.publish.send_replace(Arc::new(Kept {
            revision,
            ..Kept::clone(&kept)
        }));
    }

    /// Says that an order was seen to.
    fn done(&self, given: u64) {
        lock(&self.order).done = given;
        self.order.1.notify_all();
    }

    /// Compares what interfaces moved with what went through their limits, once a second: whether a round is to follow.
    fn watch(&mut self) -> bool {
        if self.watched.elapsed() < WATCHED {
            return false;
        }
        self.watched = Instant::now();
        let watched = self.keeper.watch(self.watched);
        let alarm = |what: String| ("alarm", format!("a limit does not hold: {what}"));
        let told: Vec<_> = watched.alarms.into_iter().map(alarm).collect();
        self.report(told);
        watched.changed
    }

    /// Writes rates that moved into the book, once a second; when that is due, if it is behind.
    fn note(&mut self) -> Option<Instant> {
        if self.keeper.is_behind() && self.noted.elapsed() >= NOTED {
            self.noted = Instant::now();
            // Whatever keeps it from that keeps a round from its work, and is said then.
            let _ = self.keeper.note();
        }
        self.keeper.is_behind().then(|| self.noted + NOTED)
    }

    /// Publishes what a round found.
    fn tell(&mut self, revision: u64, round: Round) {
        self.repairs += round.repairs;
        let mended = round.mended.into_iter().map(|what| {
            let text = format!("somebody had changed an interface, and it was put right: {what}");
            ("repair", text)
        });
        let fights = round.fights.into_iter().map(|what| {
            let text = format!(
                "another program keeps reverting an interface: {what}; from now on that is done after \
                 a second, and after twice as long each time, up to a minute"
            );
            ("alarm", text)
        });
        let told: Vec<_> = mended.chain(fights).collect();
        self.publish.send_replace(Arc::new(Kept {
            revision,
            granted: round.granted,
            failures: round.problems,
            repairs: self.repairs,
        }));
        self.report(told);
    }

    /// Hands entries for the audit trail to the control thread, with those that its full queue had no place for.
    /// Limits are kept meanwhile: this thread does not wait for that one.
    fn report(&mut self, told: Vec<Entry>) {
        self.untold.extend(told);
        let superfluous = self.untold.len().saturating_sub(UNTOLD);
        self.untold.drain(..superfluous);
        if self.untold.is_empty() {
            return;
        }
        let told = std::mem::take(&mut self.untold);
        if let Err(TrySendError::Full(Event::Told(told))) = self.events.try_send(Event::Told(told))
        {
            self.untold = told;
        }
    }

    /// Publishes that nothing could be done.
    fn fail(&self, revision: u64, wishes: &BTreeMap<String, Wish>, why: &str) {
        let failed = |target: &String| {
            let granted = Granted {
                state: LinkState::Problem,
                why: Some(why.to_owned()),
                ..Granted::default()
            };
            (target.clone(), granted)
        };
        self.publish.send_replace(Arc::new(Kept {
            revision,
            granted: wishes.keys().map(failed).collect(),
            failures: vec![format!("interfaces cannot be kept: {why}")],
            repairs: self.repairs,
        }));
    }

    /// Listens to these namespaces, and to no others: whoever listens in one keeps it. Whether there
    /// are new ones.
    fn listen(&mut self, places: BTreeMap<u64, Option<OwnedFd>>) -> bool {
        self.heard.retain(|cookie, _| places.contains_key(cookie));
        let mut new = false;
        for (cookie, namespace) in places {
            if self.heard.contains_key(&cookie) {
                continue;
            }
            // Without it, what is there is looked at each second.
            if let Ok(mut events) = Events::open(namespace.as_ref().map(AsFd::as_fd)) {
                // Elsewhere somebody else may have that port.
                if namespace.is_none() {
                    events.leave_out(self.keeper.port().ok());
                }
                self.heard.insert(cookie, events);
                new = true;
            }
        }
        new
    }

    /// Sleeps until something is wanted or has happened, or until then; one that `rests` does not
    /// listen. Whether something has happened, and more may come.
    fn sleep(&mut self, until: Option<Instant>, rests: bool) -> bool {
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        let heard = self.heard.values().filter(|_| !rests);
        fds.extend(heard.map(|one| PollFd::new(one, PollFlags::IN)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let events = fds.len();
        let ears = self.keeper.ears();
        fds.extend(ears.as_ref().map(|ears| PollFd::new(ears, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref());
        let woken = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
        let (newcomers, woken) = (woken(&fds[events..]), woken(&fds[1..events]));
        drop(fds);
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        // They are held until they are entered: before anything else.
        let limited = newcomers && self.keeper.newcomers();
        (woken && self.hear()) || limited
    }

    /// Takes what was heard, if that was anything but our own doing. One who has become deaf is
    /// replaced in the next round.
    fn hear(&mut self) -> bool {
        let mut some = false;
        self.heard.retain(|_, events| {
            let heard = events.heard();
            some |= heard
                .as_ref()
                .is_ok_and(|heard| heard.links || heard.control);
            some |= heard.is_err();
            heard.is_ok()
        });
        some
    }
}
