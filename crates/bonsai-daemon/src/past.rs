//! What is kept of what happens: points each second, deeds as they are done, what was learned.

mod learned;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonsai_api as api;
use bonsai_history::{
    Actor, AuditEntry, AuditFilter, Blob, Difference, Error, Options, Point, Reader, Sample, State,
    Tick, Via, Writer,
};
use bonsai_policy::{Allocation, PerResource, Policy, is_same};
use bonsai_services::observe::unix_ms;
use bonsai_units::Resource;

use crate::keeping::{Noted, Trail};
use crate::look::{Done, Looker};

/// What was learned is kept so often.
const LEARNED: Duration = Duration::from_secs(600);

/// All of it is read so often at most, however often damage is met.
const CHECKED: Duration = Duration::from_secs(10);

/// So long a start waits for the audit trail to be completed.
const COMPLETED: Duration = Duration::from_secs(2);

/// The key of what was learned.
const KEY: &str = "policy";

/// Keeps the past.
#[derive(Debug)]
pub(crate) struct Past {
    writer: Option<Arc<Writer>>,
    /// Why there is none.
    why: Option<String>,
    /// In the order of ids.
    last: Vec<Last>,
    last_at: Instant,
    last_second: u64,
    learned_at: Instant,
    checked_at: Option<Instant>,
    /// The policy's memory was written by a newer version, which finds it again.
    is_newer: bool,
}

/// What a service had done at the last point.
#[derive(Debug)]
struct Last {
    id: Arc<str>,
    created_ns: u64,
    done: PerResource<Done>,
}

impl Past {
    /// In that folder.
    pub(crate) fn open(folder: &Path, config: &api::History) -> Self {
        let (mut writer, mut why) = (None, None);
        if config.keep {
            let options = Options {
                points_bytes: config.size.0.0,
                audit_bytes: config.audit_size.0.0,
                ..Options::default()
            };
            match Writer::start(folder, options) {
                Ok(started) => writer = Some(Arc::new(started)),
                Err(error) => why = Some(error.to_string()),
            }
        } else {
            why = Some("history.keep is false".to_owned());
        }
        Self {
            writer,
            why,
            last: Vec::new(),
            last_at: Instant::now(),
            last_second: 0,
            learned_at: Instant::now(),
            checked_at: None,
            is_newer: false,
        }
    }

    /// The way to the thread that writes.
    pub(crate) fn writer(&self) -> Option<Arc<Writer>> {
        self.writer.clone()
    }

    /// Completes the audit trail with entries that were on the disk beside the changes when the daemon before ended; returns
    /// what the database has not taken of it.
    pub(crate) fn complete(&self, mut trail: Trail) -> Trail {
        let Some(writer) = &self.writer else {
            trail.entries.clear();
            return trail;
        };
        for Noted { uid, entry } in &trail.entries {
            writer.audit_as(entry.id, kept(entry, *uid));
        }
        let _ = writer.flush(COMPLETED);
        let stored = writer.status().stored;
        trail.entries.retain(|noted| noted.entry.id > stored);
        trail
    }

    /// Lets the policy remember; the number of the last deed, and the parts of both that cannot be read, in words.
    pub(crate) fn recall(&mut self, folder: &Path, policy: &mut Policy) -> (u64, Vec<String>) {
        let reader = Reader::new(folder);
        let mut problems = Vec::new();
        let learned = match reader.get(KEY) {
            Ok(blob) => {
                self.is_newer = blob.as_ref().is_some_and(learned::is_newer);
                blob.map(|blob| learned::read(&blob)).transpose()
            }
            Err(Error::Absent { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        match learned {
            Ok(None) => {}
            Ok(Some(memory)) => policy.import(&memory, unix_ms() / 1000),
            Err(why) => problems.push(format!(
                "what was learned of services before cannot be used, and is learned anew: {why}"
            )),
        }
        let newest = AuditFilter {
            limit: 1,
            ..AuditFilter::default()
        };
        let last = match reader.audit(&newest) {
            Ok(rows) => rows.first().map_or(0, |row| row.id),
            Err(Error::Absent { .. }) => 0,
            Err(error) => {
                problems.push(format!("the audit trail cannot be read: {error}"));
                0
            }
        };
        (last, problems)
    }

    /// Notes what happened in the second that has just ended, if one has.
    pub(crate) fn tick(&mut self, looker: &Looker, allocation: &Allocation, policy: &Policy) {
        let second = unix_ms() / 1000;
        if second == self.last_second || self.writer.is_none() {
            return;
        }
        let elapsed = self.last_at.elapsed().max(Duration::from_millis(1));
        let first = self.last_second == 0;
        (self.last_second, self.last_at) = (second, Instant::now());
        let points = self.points(looker, allocation, elapsed);
        let Some(writer) = &self.writer else {
            return;
        };
        // The first second was not seen from its beginning.
        if !first {
            let tick = Tick {
                second: second - 1,
                points,
            };
            // What finds no room is counted, and said.
            let _ = writer.try_send(tick);
        }
        if self.learned_at.elapsed() >= LEARNED {
            self.keep_learned(policy);
        }
    }

    fn points(&mut self, looker: &Looker, allocation: &Allocation, time: Duration) -> Vec<Point> {
        let mut points = Vec::new();
        // All are in the order of ids.
        let before = std::mem::take(&mut self.last);
        let mut before = before.iter().peekable();
        for (decided, watched) in allocation.services.iter().zip(looker.watched().values()) {
            if !is_same(&decided.name, &watched.id) {
                continue;
            }
            while before.next_if(|last| last.id < watched.id).is_some() {}
            let last = before.next_if(|last| last.id == watched.id);
            let last = last.filter(|last| last.created_ns == watched.created_ns);
            self.last.push(Last {
                id: Arc::clone(&watched.id),
                created_ns: watched.created_ns,
                done: watched.done,
            });
            let Some(last) = last else {
                continue;
            };
            for resource in Resource::ALL {
                let at = resource.index();
                let (then, done, grant) = (last.done[at], watched.done[at], &decided.grants[at]);
                // What was never touched says nothing.
                if done.units == 0 && grant.guarantee == 0 {
                    continue;
                }
                let units = u128::from(done.units.saturating_sub(then.units));
                let got = units * 1_000_000_000_000 / time.as_nanos().max(1);
                let got = u64::try_from(got).unwrap_or(u64::MAX);
                let sample = Sample {
                    // One that wants more than it gets asks for no number.
                    asked: grant
                        .wanted()
                        .map_or(got, |demand| demand.min(got.max(demand))),
                    got,
                    limit: grant.share.or(grant.limit),
                    guarantee: grant.guarantee,
                    waited_ns: done.waited_ns.saturating_sub(then.waited_ns),
                    waits: done.waits.saturating_sub(then.waits),
                };
                points.push(Point {
                    service: Arc::clone(&decided.name),
                    resource,
                    sample,
                });
            }
        }
        points
    }

    /// Keeps what was learned.
    pub(crate) fn keep_learned(&mut self, policy: &Policy) {
        self.learned_at = Instant::now();
        if self.is_newer {
            return;
        }
        let wall_s = unix_ms() / 1000;
        if let Some(writer) = &self.writer {
            let blob: Blob = learned::write(&policy.export(wall_s));
            // What is too much to keep is learned anew.
            let _ = writer.put(KEY, Some(blob));
        }
    }

    /// Has all of it read by its writer, and what is damaged moved aside; not again and again.
    pub(crate) fn check(&mut self) {
        if self.checked_at.is_some_and(|at| at.elapsed() < CHECKED) {
            return;
        }
        self.checked_at = Some(Instant::now());
        if let Some(writer) = &self.writer {
            writer.check();
        }
    }

    /// How it is.
    pub(crate) fn state(&self) -> api::StoreState {
        let Some(writer) = &self.writer else {
            return api::StoreState {
                about: self.why.clone(),
                ..api::StoreState::default()
            };
        };
        let status = writer.status();
        let states = [&status.points, &status.records].into_iter();
        let off: Vec<&str> = states
            .filter_map(|state| match state {
                State::Off(why) => Some(why.as_str()),
                State::Writing => None,
            })
            .collect();
        let keeping = off.is_empty();
        // Each fault and each file that was moved aside is named: there are two databases.
        let mut about: Vec<String> = off.into_iter().map(str::to_owned).collect();
        about.extend(status.notes);
        if status.counters.dropped_audit > 0 {
            about.push(format!(
                "{} entries of the audit trail found no room and are lost",
                status.counters.dropped_audit
            ));
        }
        let (points, records) = (status.points_bytes, status.records_bytes);
        api::StoreState {
            keeping,
            about: (!about.is_empty()).then(|| about.join("; ")),
            bytes: points.1 + points.2 + records.1 + records.2,
            dropped: status.counters.dropped_points,
        }
    }

    /// Writes what there is to write before the end.
    pub(crate) fn end(&mut self, policy: &Policy) {
        self.keep_learned(policy);
        if let Some(writer) = &self.writer {
            let _ = writer.flush(Duration::from_secs(5));
        }
    }
}

/// A deed as it is kept.
pub(crate) fn kept(entry: &api::AuditEntry, uid: Option<u32>) -> AuditEntry {
    let actor = match (entry.actor.as_str(), uid) {
        ("policy", None) => Actor::Policy {
            name: "policy".to_owned(),
        },
        ("timer", None) => Actor::Timer,
        ("file", None) => Actor::Config,
        (name, Some(uid)) => Actor::User {
            uid,
            name: Some(name.to_owned()),
            pid: entry.pid,
            peer: None,
        },
        (name, None) => Actor::Token {
            name: name.to_owned(),
            peer: None,
        },
    };
    AuditEntry {
        revision: entry.revision,
        unix_ms: entry.unix_ms,
        via: match (entry.via.as_str(), &actor) {
            ("socket", _) => Via::Socket,
            ("tcp", _) => Via::Tcp {
                token: entry.actor.clone(),
            },
            (_, Actor::Config) => Via::Config {
                path: String::new(),
            },
            (_, Actor::Timer) => Via::Timer,
            _ => Via::Policy,
        },
        actor,
        action: entry.action.clone(),
        service: entry.service.clone(),
        differences: entry
            .differences
            .iter()
            .map(|of| Difference {
                path: of.path.clone(),
                from: of.from.clone(),
                to: of.to.clone(),
            })
            .collect(),
        left_out: entry.left_out,
        reason: entry.reason.clone(),
        dry_run: false,
    }
}

/// A deed as it will be told once it was kept.
pub(crate) fn as_kept(entry: &api::AuditEntry, uid: Option<u32>) -> api::AuditEntry {
    told(bonsai_history::AuditRow {
        id: entry.id,
        entry: kept(entry, uid).shortened(),
        problem: None,
    })
}

/// A deed as it is told.
pub(crate) fn told(row: bonsai_history::AuditRow) -> api::AuditEntry {
    let entry = row.entry;
    let differences = entry.differences.into_iter().map(|of| api::Difference {
        path: of.path,
        from: of.from,
        to: of.to,
    });
    let (actor, pid) = match entry.actor {
        Actor::User { uid, name, pid, .. } => (name.unwrap_or_else(|| format!("uid {uid}")), pid),
        Actor::Token { name, .. } | Actor::Policy { name } => (name, None),
        Actor::Timer => ("timer".to_owned(), None),
        Actor::Config => ("file".to_owned(), None),
    };
    api::AuditEntry {
        id: row.id,
        unix_ms: entry.unix_ms,
        actor,
        via: match entry.via {
            Via::Socket => "socket",
            Via::Tcp { .. } => "tcp",
            _ => "daemon",
        }
        .to_owned(),
        pid,
        action: entry.action,
        revision: entry.revision,
        service: entry.service,
        differences: differences.collect(),
        left_out: entry.left_out,
        problem: row.problem,
        reason: entry.reason,
    }
}
