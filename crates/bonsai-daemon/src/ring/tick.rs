//! One period.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bonsai_policy::is_same;
use bonsai_services::observe::monotonic_ns;

use super::{Ring, audit::Deed};
use crate::enforce::{Outcome, Wanted};
use crate::look::{Arrivals, Watched};
use crate::picture::{Identity, Picture};
use crate::plan::check;
use bonsai_services::observe::unix_ms;
use bonsai_units::text::escaped;

/// Time between looks at names and ends of changes, ns.
const SLOW_NS: u64 = 1_000_000_000;

/// So many services are asked at a time whether their keepers live.
const KEEPERS: usize = 200;

/// The wall clock is set by no less, ms; less is its adjusting.
const STEP_MS: u64 = 500;

/// How long a change may take to reach the services of other users before it is answered.
const SETTLED: std::time::Duration = std::time::Duration::from_millis(50);

/// Pictures are made for so long after somebody has read one, ns.
const ATTENDED_NS: u64 = 2 * SLOW_NS;

/// Where more limits than these are rewritten in each period, demands are held at their peaks,
const CHURN: u64 = 200;

/// for so long, ns.
const HOLDS_NS: u64 = 60 * SLOW_NS;

impl Ring {
    /// Observes, decides, enforces and publishes.
    pub(super) fn tick(&mut self) {
        let start = Instant::now();
        let now_ns = monotonic_ns();
        self.beat_ns.store(now_ns, Ordering::Relaxed);
        let arrivals = match self.looker.look(now_ns, &mut self.observation) {
            Ok(arrivals) => {
                self.notes.remove("look");
                arrivals
            }
            Err(error) => {
                self.notes.insert(
                    "look",
                    format!(
                        "services cannot be looked at: {}",
                        bonsai_host::sentence(error.as_ref())
                    ),
                );
                // Whoever asks is told so.
                self.show();
                return;
            }
        };
        self.others |= !arrivals.came.is_empty() || !arrivals.went.is_empty();
        for enforcer in &mut self.enforcers {
            enforcer.observe(&mut self.observation);
        }
        self.observation.reports = std::mem::take(&mut self.reports);
        let slow = now_ns.saturating_sub(self.slow_ns) >= SLOW_NS;
        if slow {
            self.slow_ns = now_ns;
            let offset_s = crate::zone::utc_offset_s(unix_ms() / 1000);
            self.policy.set_utc_offset(offset_s);
            self.health.history = self.past.state();
            let others = self.looker.problems();
            self.set_notes("others", &others);
            self.look_at_what_is_kept();
            self.mind_the_clock();
            self.end_what_is_over();
            self.look_at_links();
            self.initial.look();
            // Names of services come and go; those of nobody are not asked for again.
            self.qos.retain(|id, _| {
                self.config.services.contains_key(id) || self.looker.get(id).is_some()
            });
        }
        self.decide_and_enforce(now_ns);
        self.order_what_moved();
        if slow || !arrivals.came.is_empty() || !arrivals.went.is_empty() {
            // What is lent of a guarantee is to be lent at once.
            for decided in &self.policy.allocation().services {
                let promised = decided.grants.iter().any(|grant| grant.guarantee > 0);
                self.looker.closely(&decided.name, promised);
            }
            self.identify();
        }
        self.tell(&arrivals);
        self.past
            .tick(&self.looker, self.policy.allocation(), &self.policy);
        self.health.periods += 1;
        self.health.work_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let attended_ns = self.attended_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(attended_ns) < ATTENDED_NS {
            self.show();
        }
    }

    /// Decides by what was seen last, and puts that into force.
    pub(super) fn decide_and_enforce(&mut self, now_ns: u64) {
        let start = Instant::now();
        self.policy.decide(&self.observation);
        let decided = start.elapsed().as_nanos();
        self.health.decision_ns = u64::try_from(decided).unwrap_or(u64::MAX);
        let decided = &self.policy.allocation().services;
        let (watched, glances) = self.looker.watched_and_read();
        let services: Vec<_> = decided.iter().zip(watched.values()).collect();
        let wanted = Wanted {
            services: &services,
            others: std::mem::take(&mut self.others),
            capacity: &self.planned.capacity,
            now_ns,
        };
        let mut outcome = Outcome::default();
        outcome.how.resize(services.len(), Default::default());
        // What is decided for one would else be done to another.
        if services
            .iter()
            .all(|(decided, watched)| is_same(&decided.name, &watched.id))
        {
            for enforcer in &mut self.enforcers {
                let mut read = |name: &str, ledger: &_| glances.read_limits(name, ledger);
                enforcer.enforce(&wanted, &mut outcome, &mut read);
            }
        } else {
            outcome.problem = Some("what is decided fits others than who is there".to_owned());
        }
        self.set_note("enforce", outcome.problem.clone());
        self.health.written += outcome.written;
        self.churn = self.churn - self.churn / 8 + outcome.written;
        if self.churn > 8 * CHURN {
            self.holds_until_ns = now_ns + HOLDS_NS;
        }
        self.policy.hold_peaks(now_ns < self.holds_until_ns);
        self.outcome = Arc::new(outcome);
        self.publish_initial();
    }

    /// Says whether there is a daemon of the whole machine beside this one.
    pub(super) fn above(&mut self, pid: Option<i32>) {
        let text = |pid| {
            format!(
                "root's daemon, process {pid}, governs this machine: its limits (read/system \
                 and so on) hold beside those of this one, and the lower one binds"
            )
        };
        self.set_note("above", pid.map(text));
    }

    /// Finds out whether the wall clock was set since the last look: what is for a time ends as
    /// late as was asked for all the same.
    pub(super) fn mind_the_clock(&mut self) {
        let now = clocks();
        let (wall, steady) = (now.0 - self.clocks.0, now.1 - self.clocks.1);
        self.clocks = now;
        let step = wall - steady;
        if step.unsigned_abs() < STEP_MS || !self.desired.shift(step) {
            return;
        }
        let by = bonsai_units::format_duration_ns(step.unsigned_abs().saturating_mul(1_000_000));
        let whither = if step < 0 { "back" } else { "forward" };
        self.note(Deed {
            who: None,
            by: "timer",
            action: "clock",
            service: None,
            differences: Vec::new(),
            reason: format!(
                "the machine's clock was set {whither} by {by}: changes for a time end as late as \
                 they were to"
            ),
        });
        self.keep();
    }

    /// Takes a configuration file that was changed.
    pub(super) fn file(&mut self, read: anyhow::Result<bonsai_api::Config>) {
        self.mind_the_clock();
        match read {
            Ok(config) => {
                let reloaded = self.desired.reload(&config, check);
                match reloaded {
                    Ok((differences, notes)) => {
                        self.set_notes("file", &notes);
                        let deed = Deed {
                            who: None,
                            by: "file",
                            action: "reload",
                            service: None,
                            differences,
                            reason: "the configuration file was changed".to_owned(),
                        };
                        self.note(deed);
                        self.configured();
                    }
                    Err(error) => self.refuse_file(&error.to_string()),
                }
            }
            Err(error) => self.refuse_file(&bonsai_host::sentence(error.as_ref())),
        }
    }

    /// Ends changes for a time. One that cannot end is said, in the trail once.
    fn end_what_is_over(&mut self) {
        let known = self.desired.stuck().to_vec();
        let ended = self.desired.expire(unix_ms(), check);
        let stuck = self.desired.stuck();
        let texts: Vec<(bool, String)> = stuck
            .iter()
            .map(|stuck| {
                let text = format!(
                    "the change for a time of revision {}, made by {}, should have ended and \
                     cannot, for without it {}",
                    stuck.revision, stuck.actor, stuck.why
                );
                let is_new = known.iter().all(|known| known.revision != stuck.revision);
                (is_new, text)
            })
            .collect();
        let all: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
        self.set_notes("ends", &all);
        for (_, reason) in texts.into_iter().filter(|(is_new, _)| *is_new) {
            self.note(Deed {
                who: None,
                by: "timer",
                action: "refuse",
                service: None,
                differences: Vec::new(),
                reason,
            });
        }
        if let Some((differences, whose)) = ended {
            let deed = Deed {
                who: None,
                by: "timer",
                action: "expire",
                service: None,
                differences,
                reason: format!("a change for a time, made by {whose}, has ended"),
            };
            self.note(deed);
            self.configured();
        }
    }

    fn refuse_file(&mut self, why: &str) {
        let text = format!(
            "the configuration file was changed and is not taken: {why}; what was in force still is"
        );
        if self.notes.get("file") != Some(&text) {
            self.note(Deed {
                who: None,
                by: "file",
                action: "refuse",
                service: None,
                differences: Vec::new(),
                reason: text.clone(),
            });
        }
        self.notes.insert("file", text);
    }

    /// Takes over what is wanted now; it has been checked.
    pub(super) fn configured(&mut self) {
        self.config = Arc::new(self.desired.effective().clone());
        match crate::plan::plan(&self.config) {
            Ok(planned) => {
                if let Err(problems) = self.policy.configure(planned.clone()) {
                    self.notes.insert("policy", crate::texts(&problems));
                }
                self.set_notes("idle", &crate::idle(&self.config, &planned));
                self.planned = Arc::new(planned);
            }
            Err(problem) => drop(self.notes.insert("policy", problem)),
        }
        self.place();
        let now_ns = monotonic_ns();
        self.enforce_further(now_ns);
        self.decide_and_enforce(now_ns);
        self.order_links();
        self.keep();
        // A change is in force when it is answered; who keeps their thread busy has to wait.
        self.looker.settle(SETTLED);
        if let Some(links) = self.links.as_ref().filter(|_| self.has_places()) {
            links.settle(SETTLED);
        }
        self.identify();
    }

    /// Has what is to survive a restart written, with the entries about it.
    fn keep(&mut self) {
        let noted = std::mem::take(&mut self.noted);
        self.keeping.keep(self.desired.kept().clone(), noted);
    }

    /// Looks whether that could be written.
    fn look_at_what_is_kept(&mut self) {
        let written = self.keeping.last();
        let problem = written.problem.map(|problem| {
            format!(
                "changes are in force, and would be lost if the daemon were restarted: {problem}"
            )
        });
        self.set_note("keep", problem);
        let problem = written.further.map(|problem| {
            format!("which further limits services have is not known to the next daemon: {problem}")
        });
        self.set_note("further", problem);
        if written.dropped > 0 {
            let text = format!(
                "{} entries of the audit trail are lost: its database could not be written, and there was no more room for them beside the changes",
                written.dropped
            );
            self.notes.insert("trail", text);
        }
    }

    /// Further limits of services, as they are configured.
    pub(super) fn enforce_further(&mut self, now_ns: u64) {
        let empty = BTreeMap::new();
        for watched in self.looker.watched().values() {
            let configured = self.config.services.get(&*watched.id);
            let configured = configured.map_or(&empty, |service| &service.limits);
            let created_ns = watched.created_ns;
            let before = self.further.of(&watched.id, created_ns, configured);
            match further(watched, configured, before, now_ns) {
                Ok(()) => drop(self.unfit.remove(&watched.id)),
                Err(error) => {
                    let text = format!(
                        "its further limits are not in force: {}",
                        bonsai_host::sentence(error.as_ref())
                    );
                    self.unfit.insert(Arc::clone(&watched.id), text);
                }
            }
        }
        if let Some(saved) = self.further.due() {
            self.keeping.further(saved);
        }
    }

    /// Who the services are, beside what they do. Of those whose limits nobody has changed,
    /// what was known before; of many, not each is asked each time whether its keeper lives.
    pub(super) fn identify(&mut self) {
        let before = Arc::clone(&self.identities);
        let turns = self.looker.watched().len().div_ceil(KEEPERS).max(1);
        self.keepers = (self.keepers + 1) % turns;
        let turn = self.keepers;
        let identity = |i: usize, watched: &Watched| {
            let created_unix_ms = watched.created_ns / 1_000_000;
            let known = before.get(&watched.id);
            let known = known.filter(|known| known.created_unix_ms == created_unix_ms);
            let epoch = watched.epoch();
            Identity {
                uid: watched.uid,
                keeper: match known.filter(|_| watched.outsiders().is_none()) {
                    Some(known) if known.keeper.is_none() || i % turns != turn => known.keeper,
                    _ => watched.keeper(),
                },
                created_unix_ms,
                limits: match known.filter(|known| known.epoch == epoch) {
                    Some(known) => Arc::clone(&known.limits),
                    None => self.looker.own_limits(watched),
                },
                epoch,
                problems: {
                    let mut problems = watched.problems();
                    problems.extend(self.unfit.get(&watched.id).cloned());
                    problems
                },
            }
        };
        let all = self.looker.watched().values();
        let all: BTreeMap<Arc<str>, Identity> = all
            .enumerate()
            .map(|(i, watched)| (Arc::clone(&watched.id), identity(i, watched)))
            .collect();
        let died = |(id, identity): (&Arc<str>, &Identity)| {
            let known = before.get(id).is_some_and(|known| known.keeper.is_some());
            known && identity.keeper.is_none()
        };
        if all.iter().any(died) {
            self.looker.tidy_soon();
        }
        self.identities = Arc::new(all);
    }

    /// Tells who came and went, and what the policy changed by itself.
    fn tell(&mut self, arrivals: &Arrivals) {
        for id in &arrivals.went {
            self.further.forget(id);
            self.unfit.remove(id);
        }
        if !arrivals.came.is_empty() {
            self.enforce_further(monotonic_ns());
        }
        let changes = self.policy.allocation().changes.clone();
        for change in changes {
            let rate = |milli| {
                let rate = bonsai_units::Rate::from_milli(milli, change.resource.unit());
                Some(if milli == 0 {
                    "0".to_owned()
                } else {
                    change.resource.for_people(rate)
                })
            };
            self.note(Deed {
                who: None,
                by: "policy",
                action: "decide",
                service: Some(&change.service),
                differences: vec![bonsai_api::Difference {
                    path: format!("services.{}.{}.min", change.service, change.resource),
                    from: rate(change.from),
                    to: rate(change.to),
                }],
                reason: change.why.to_string(),
            });
        }
    }

    /// Notes a deed where everybody finds it.
    pub(super) fn note(&mut self, deed: Deed<'_>) {
        let revision = self.desired.revision();
        let noted = self.audits.note(deed, revision);
        self.noted.push(noted);
    }

    /// Publishes what is.
    pub(super) fn show(&mut self) -> Arc<Picture> {
        self.pictures += 1;
        let is_new = |watched: &Watched| {
            let known = self.identities.get(&watched.id);
            known.is_some_and(|known| known.epoch != watched.epoch())
        };
        if self.looker.watched().values().any(is_new) {
            self.identify();
        }
        let notes = self.notes.values();
        self.health.problems = notes.map(|text| escaped(text).into_owned()).collect();
        let picture = Arc::new(self.picture());
        self.publish.send_replace(Arc::clone(&picture));
        picture
    }

    /// What is.
    pub(super) fn picture(&self) -> Picture {
        // In the order of what was seen: each look has all of them.
        let watched = || self.looker.watched().values();
        Picture {
            number: self.pictures,
            at_ns: monotonic_ns(),
            unix_ms: unix_ms(),
            revision: self.desired.revision(),
            config: Arc::clone(&self.config),
            planned: Arc::clone(&self.planned),
            identities: Arc::clone(&self.identities),
            waited: watched().map(|watched| watched.waited).collect(),
            done: watched().map(|watched| watched.done).collect(),
            seen: self.observation.services.clone(),
            allocation: self.policy.allocation().clone(),
            outcome: Arc::clone(&self.outcome),
            absent: Arc::new(
                self.outsiders
                    .as_ref()
                    .map_or_else(BTreeMap::new, |o| o.absent()),
            ),
            health: self.health.clone(),
            qos: Arc::new(self.qos_views()),
        }
    }
}

/// The wall clock, and the one that is never set, also counting while the machine sleeps; ms.
pub(super) fn clocks() -> (i64, i64) {
    let steady = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let steady = steady.tv_sec * 1000 + steady.tv_nsec / 1_000_000;
    (i64::try_from(unix_ms()).unwrap_or(i64::MAX), steady)
}

/// Puts the further limits of a service into force, as far as they differ from those of before.
fn further(
    watched: &Watched,
    configured: &BTreeMap<String, String>,
    before: &mut BTreeMap<String, String>,
    now_ns: u64,
) -> anyhow::Result<()> {
    watched.put_further(configured, before, now_ns)?;
    before.clone_from(configured);
    Ok(())
}
