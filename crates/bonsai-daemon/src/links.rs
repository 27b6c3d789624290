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
//! 2. It looks where something is limited, when something has changed there, and once a second
//!    while something waits; otherwise it sleeps.
//! 3. When it ends, limits stay, and when the next one starts: it does nothing before it is told what
//!    is wanted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonsai_api::LinkState;
use bonsai_link::Events;
use bonsai_tenants::{Granted, Keeper, Round, Wish};
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

/// So long is waited for what was changed to take effect.
const EFFECT: Duration = Duration::from_secs(1);

/// What has become of interfaces.
#[derive(Debug, Default)]
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
    /// What is not as it is configured, in words. What waits is no problem.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problems = self
            .granted
            .iter()
            .filter(|(_, one)| one.state == LinkState::Problem);
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
    ended: bool,
}

/// The way to it.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    order: Arc<Mutex<Order>>,
    wake: Arc<OwnedFd>,
    kept: watch::Receiver<Arc<Kept>>,
    /// Where its book is.
    pub(crate) folder: Arc<PathBuf>,
}

impl Orders {
    /// Says what is wanted from now on.
    pub(crate) fn want(&self, revision: u64, wishes: BTreeMap<String, Wish>) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.revision = revision;
        order.wishes = Some(Arc::new(wishes));
        drop(order);
        self.wake();
    }

    /// Says that it is to end.
    pub(crate) fn end(&self) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.ended = true;
        drop(order);
        self.wake();
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
    let order = Arc::default();
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
    };
    let thread = thread::Builder::new().name("links".to_owned());
    Ok((orders, thread.spawn(move || work.run())?))
}

struct Work {
    order: Arc<Mutex<Order>>,
    wake: Arc<OwnedFd>,
    publish: watch::Sender<Arc<Kept>>,
    events: SyncSender<Event>,
    keeper: Keeper,
    /// What is listened to, by the cookie of the namespace.
    heard: BTreeMap<u64, Events>,
    repairs: u64,
}

impl Work {
    fn run(mut self) {
        loop {
            let (revision, wishes) = {
                let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                if order.ended {
                    return;
                }
                (order.revision, order.wishes.clone())
            };
            let Some(wishes) = wishes else {
                self.sleep(false);
                continue;
            };
            let start = Instant::now();
            let (again, places) = match self.keeper.round(&wishes, start) {
                Ok(mut round) => {
                    let places = std::mem::take(&mut round.places);
                    let again = round.again;
                    self.tell(revision, round);
                    (again, places)
                }
                Err(error) => {
                    self.fail(revision, &wishes, &error.sentence());
                    (true, BTreeMap::new())
                }
            };
            // What happened before it was listened to was not heard.
            if self.listen(places) {
                continue;
            }
            let end = Instant::now();
            let rest = ((end - start) * REST).min(AGAIN);
            if self.sleep(again) {
                self.rest(rest.saturating_sub(end.elapsed()).max(CROWD));
            }
        }
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
                "somebody changes an interface again and again: {what}; from now on that is done \
                 once a second"
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
        if !told.is_empty() {
            // An owner who has too much to do, or has ended, is not waited for.
            let _ = self.events.try_send(Event::Told(told));
        }
    }

    /// Publishes that nothing could be done.
    fn fail(&self, revision: u64, wishes: &BTreeMap<String, Wish>, why: &str) {
        let failed = |target: &String| {
            let granted = Granted {
                state: LinkState::Problem,
                why: Some(why.to_owned()),
                at: None,
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
            if let Ok(events) = Events::open(namespace.as_ref().map(AsFd::as_fd)) {
                self.heard.insert(cookie, events);
                new = true;
            }
        }
        new
    }

    /// Sleeps until something is wanted or has happened, or may have. Whether it has happened, and
    /// more may come.
    fn sleep(&mut self, again: bool) -> bool {
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        fds.extend(
            self.heard
                .values()
                .map(|one| PollFd::new(one, PollFlags::IN)),
        );
        let timeout = again.then(|| Timespec::try_from(AGAIN).ok()).flatten();
        let woken = match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => fds[1..].iter().any(|fd| !fd.revents().is_empty()),
            Err(_) => false,
        };
        let wanted = !fds[0].revents().is_empty();
        drop(fds);
        self.drain();
        woken && !wanted
    }

    /// Lets a crowd of changes pass; what is wanted meanwhile is not kept waiting.
    fn rest(&mut self, time: Duration) {
        let timeout = Timespec::try_from(time).ok();
        let _ = poll(
            &mut [PollFd::new(&*self.wake, PollFlags::IN)],
            timeout.as_ref(),
        );
        self.drain();
    }

    /// Takes what was heard. One who has become deaf is replaced in the next round.
    fn drain(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.heard.retain(|_, events| events.heard().is_ok());
    }
}
