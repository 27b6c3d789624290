//! The owner of everything that changes: observe, decide, enforce, once a period, and what is
//! asked for in between.
//!
//! # Definitions
//! - *period*: from one decision to the next; the monotonic clock counts it.
//! - *picture*: what is, as one value, published after each decision.
//!
//! ```text
//!   Event::Tick ──> look ──> decide ──> enforce ──> publish ──> record
//!   Event::Ask ───> check ──> change ──> decide ──> enforce ──> publish ──> answer
//! ```
//!
//! # Invariants
//! 1. Nothing changes but in [`Ring::apply`]; there is one thread that calls it.
//! 2. A request that is refused has changed nothing.
//! 3. Whoever got an answer to a change finds it in force: it is enforced before it is answered.
//! 4. Nothing here is waited for by a service. When the daemon ends, however it ends, limits stay
//!    as they are; the next one takes them over.
//! 5. Nothing here waits for a disk, a socket or a name service: those have threads of their own (`keeping`, `watched_files`,
//!    `links`, `placed`, `look::theirs`).
//! 6. The wall clock is for people: only the ends of changes that outlive a restart, and the
//!    dates in answers, depend on it.

mod ask;
mod audit;
mod further;
mod held;
mod initial;
mod links;
mod tick;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use bonsai_api as api;
use bonsai_api::Problem;
use bonsai_policy::{ClientReport, Observation, Policy};
use bonsai_services::observe::unix_ms;
use tokio::sync::{broadcast, oneshot, watch};

use crate::desired::Desired;
use crate::enforce::{Enforcer, Outcome};
use crate::files::Files;
use crate::keeping::{Keeping, Noted, Trail, Written};
use crate::links::Orders;
use crate::look::Looker;
use crate::past::Past;
use crate::picture::{Health, Identity, Picture};
use crate::placed::Outsiders;
use crate::plan::plan;
use crate::who::Who;

pub(crate) use ask::{Ask, Asked, Back, Wish};
pub(crate) use further::Saved;

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A period is over.
    Tick,
    /// Somebody asks for something.
    Ask(Box<Asked>),
    /// Somebody reads a picture, and there was none of late then (monotonic clock, ns).
    Show(u64),
    /// Somebody who reads the past has met damage.
    Damaged,
    /// The configuration file was changed.
    File(Box<anyhow::Result<api::Config>>),
    /// The process of the machine's daemon beside this one, if there is one.
    Above(Option<i32>),
    /// Whoever keeps interfaces has something to tell: what was done, and what about it.
    Told(Vec<(&'static str, String)>),
    /// It is to end.
    Stop,
}

/// What an answer is sent to.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// The end of the daemon before this one, as far as it is known.
#[derive(Debug)]
pub(crate) struct Before {
    /// Entries of the audit trail that its database may lack.
    pub(crate) trail: Trail,
    /// Problems, in words.
    pub(crate) notes: Vec<String>,
}

/// All that is owned.
#[derive(Debug)]
pub(crate) struct Ring {
    desired: Desired,
    policy: Policy,
    planned: Arc<bonsai_policy::Config>,
    config: Arc<api::Config>,
    looker: Looker,
    observation: Observation,
    /// Reports since the last decision.
    reports: Vec<ClientReport>,
    qos: BTreeMap<String, (api::QosReport, u64)>,
    enforcers: Vec<Box<dyn Enforcer>>,
    /// Whoever keeps interfaces as they are configured; root's daemon has one.
    links: Option<Orders>,
    /// Whoever looks at services that are no `bonsai run`, of the same.
    outsiders: Option<Outsiders>,
    /// Whether it has not been said yet what is wanted of interfaces, since it was not known.
    is_unordered: bool,
    /// Limits written of late, in eighths of a period.
    churn: u64,
    /// Until when demands are held at their peaks, ns.
    holds_until_ns: u64,
    /// Services came or went since the last decision.
    others: bool,
    outcome: Arc<Outcome>,
    identities: Arc<BTreeMap<Arc<str>, Identity>>,
    /// Whose keepers were asked for last.
    keepers: usize,
    health: Health,
    /// Said once, and shown until it is over.
    notes: BTreeMap<&'static str, String>,
    audits: audit::Audits,
    /// Entries that are to be kept with the change that they are of, or by themselves.
    noted: Vec<Noted>,
    past: Past,
    publish: watch::Sender<Arc<Picture>>,
    attended_ns: Arc<AtomicU64>,
    pictures: u64,
    ended: bool,
    /// The further limits that services have of the configuration.
    further: further::Further,
    /// Why some have them not, in words.
    unfit: BTreeMap<Arc<str>, String>,
    /// The last time that what moves slowly was looked at, monotonic ns.
    slow_ns: u64,
    /// The way to the disk of changes that survive a restart.
    keeping: Keeping,
    /// When a period has begun last, monotonic ns.
    beat_ns: Arc<AtomicU64>,
    /// When those who may not change everything have made changes lately.
    changes: BTreeMap<u32, Vec<Instant>>,
    /// The same of changes that were only tried.
    tries: BTreeMap<u32, Vec<Instant>>,
    /// The clocks at the last look at them, ms: the wall's, and one that is never set.
    clocks: (i64, i64),
    /// Initial limits of new services.
    initial: initial::Initial,
}

/// What everybody reads.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// When somebody last read a picture, monotonic ns: where nobody does, none is made.
    pub(crate) attended_ns: Arc<AtomicU64>,
    /// The latest picture.
    pub(crate) pictures: watch::Receiver<Arc<Picture>>,
    /// What is done, as it happens.
    pub(crate) audits: broadcast::Sender<api::AuditEntry>,
    /// What was done lately.
    pub(crate) recent: audit::Recent,
    /// State of the disk.
    pub(crate) written: watch::Receiver<Written>,
    /// When a period has begun last, monotonic ns.
    pub(crate) beat_ns: Arc<AtomicU64>,
}

impl Ring {
    /// A ring that has not looked yet.
    pub(crate) fn new(
        files: Files,
        desired: Desired,
        looker: Looker,
        enforcers: Vec<Box<dyn Enforcer>>,
        links: Option<Orders>,
        mut past: Past,
        Before { trail, mut notes }: Before,
    ) -> anyhow::Result<(Self, Published)> {
        let config = Arc::new(desired.effective().clone());
        let planned = plan(&config).map_err(anyhow::Error::msg)?;
        let mut policy = Policy::new(planned.clone())
            .map_err(|problems| anyhow::anyhow!("{}", crate::texts(&problems)))?;
        let planned = Arc::new(planned);
        let empty = Picture {
            number: 0,
            at_ns: 0,
            unix_ms: unix_ms(),
            revision: desired.revision(),
            config: Arc::clone(&config),
            planned: Arc::clone(&planned),
            identities: Arc::default(),
            seen: Vec::new(),
            waited: Vec::new(),
            done: Vec::new(),
            allocation: bonsai_policy::Allocation::default(),
            outcome: Arc::default(),
            absent: Arc::default(),
            health: Health::default(),
            qos: Arc::default(),
        };
        let trail = past.complete(trail);
        let (last, problems) = past.recall(&files.state, &mut policy);
        notes.extend(problems);
        let left = trail.entries.iter().map(|noted| noted.entry.clone());
        let audits = audit::Audits::new(last.max(trail.last()), left);
        let trail = Trail {
            ids: last.max(trail.last()),
            ..trail
        };
        let kept = desired.kept().clone();
        let (further, problem) = further::Further::open(&files.state)?;
        notes.extend(problem);
        let keeping = Keeping::start(files, kept, trail, past.writer())?;
        let (publish, pictures) = watch::channel(Arc::new(empty));
        let published = Published {
            attended_ns: Arc::default(),
            pictures,
            audits: audits.live(),
            recent: audits.recent(),
            written: keeping.written(),
            beat_ns: Arc::new(AtomicU64::new(bonsai_services::observe::monotonic_ns())),
        };
        let notes = (!notes.is_empty()).then(|| ("start", notes.join("; ")));
        let outsiders = looker.outsiders().cloned();
        let mut ring = Self {
            desired,
            policy,
            planned,
            config,
            looker,
            observation: Observation::default(),
            reports: Vec::new(),
            qos: BTreeMap::new(),
            enforcers,
            links,
            outsiders,
            is_unordered: true,
            churn: 0,
            holds_until_ns: 0,
            others: true,
            outcome: Arc::default(),
            identities: Arc::default(),
            keepers: 0,
            health: Health::default(),
            notes: notes.into_iter().collect(),
            audits,
            noted: Vec::new(),
            past,
            publish,
            attended_ns: Arc::clone(&published.attended_ns),
            pictures: 0,
            ended: false,
            further,
            unfit: BTreeMap::new(),
            slow_ns: 0,
            keeping,
            beat_ns: Arc::clone(&published.beat_ns),
            changes: BTreeMap::new(),
            tries: BTreeMap::new(),
            clocks: tick::clocks(),
            initial: initial::Initial::default(),
        };
        ring.place();
        ring.order_links();
        Ok((ring, published))
    }

    /// Says what is not as it should be, or no longer says it.
    fn set_note(&mut self, about: &'static str, text: Option<String>) {
        match text {
            Some(text) => self.notes.insert(about, text),
            None => self.notes.remove(about),
        };
    }

    /// The same of any number of texts.
    fn set_notes<T: Borrow<str>>(&mut self, about: &'static str, texts: &[T]) {
        self.set_note(about, (!texts.is_empty()).then(|| texts.join("; ")));
    }

    /// Takes one event. All that ever changes, changes here.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Ask(asked) => self.ask(*asked),
            // One for all who have asked meanwhile.
            Event::Show(asked_ns) if self.publish.borrow().at_ns > asked_ns => {}
            Event::Show(_) => drop(self.show()),
            Event::Damaged => self.past.check(),
            Event::Told(told) => self.told(told),
            Event::File(read) => self.file(*read),
            Event::Above(pid) => self.above(pid),
            Event::Stop => self.ended = true,
        }
        // Entries of changes are on their way with these.
        self.keeping.note(std::mem::take(&mut self.noted));
    }

    /// Runs until it is to end: an event as it comes, and a tick each period. Periods that were
    /// missed are not made up for.
    pub(crate) fn run(mut self, events: &std::sync::mpsc::Receiver<Event>) {
        let mut due = Instant::now();
        while !self.ended {
            let now = Instant::now();
            if now >= due {
                self.apply(Event::Tick);
                let period = self.config.daemon.period.0;
                due = (due + period).max(Instant::now());
                continue;
            }
            match events.recv_timeout(due - now) {
                Ok(event) => self.apply(event),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        self.withdraw_initial();
        self.keeping.end();
        self.past.end(&self.policy);
    }
}

/// Whether somebody who may not change everything may ask for that.
pub(crate) fn may_write(who: &Who) -> Result<(), Problem> {
    if who.writes_all {
        return Ok(());
    }
    Err(crate::problems::forbidden(format!(
        "{} may look, and not change: root may, and users of api.write-group",
        who.name
    )))
}
