//! Looks at a service again and again over a window: the evidence for the judgement.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bonsai_calls::{CALLS, Call, CallId};
use bonsai_host::pressure::{self, Resource};
use bonsai_host::threads::{self, Doing, Thread, delay_accounting};
use bonsai_ledger::{Ledger, Noted, Waiting};
use bonsai_services::group;
use bonsai_services::limits::{for_people, rate_of, unit_of};
use bonsai_services::observe::{applies, is_believed, monotonic_ns, why_uncovered};
use bonsai_services::service::members::{self, Member};
use bonsai_services::service::{Service, creator};

use super::activity::{Moment, classify};
use super::blame::{Blamed, Sightings, blame};
use super::judge::Seen;
use super::net::Net;
use super::spent::{Account, Counters};

/// Looks are at least this far apart.
const PAUSE: Duration = Duration::from_millis(5);

/// Processes and sockets are looked for at most this often: new ones are seen late,
/// but it takes a walk over all processes of the machine.
const REFRESH: Duration = Duration::from_millis(200);

/// A pause is this many times as long as what was before it: looking takes CPU that the
/// service may need.
const COST: u32 = 4;

/// What was seen, and how well it could be seen.
#[derive(Debug)]
pub(super) struct Evidence {
    /// What the judgement depends on.
    pub(super) seen: Seen,
    /// Looks.
    pub(super) looks: u32,
    /// Whether there were threads whose calls may not be read.
    pub(super) calls_hidden: bool,
    /// Whether the kernel counts the time on a CPU and without one.
    pub(super) scheduler_counts: bool,
    /// Whether it counts the time waiting for block devices; `None` where it cannot.
    pub(super) delay_accounting: Option<bool>,
    /// Whether the ledger has threads without a page.
    pub(super) crowded: bool,
    /// Pressure in the window.
    pub(super) pressure: Vec<Pressure>,
    /// Processes that no limit holds back, with the reason.
    pub(super) uncovered: Vec<String>,
}

/// The pressure of a resource in the window, as a share of it.
#[derive(Clone, Debug)]
pub(super) struct Pressure {
    /// Of what.
    pub(super) resource: &'static str,
    /// On the machine.
    pub(super) machine: Option<f64>,
    /// In the service's control group, if it has one of its own.
    pub(super) group: Option<f64>,
}

/// A thread: process, number and start, so that a number that comes round again is
/// another thread.
type Key = (u32, u32, u64);

struct Watch<'a> {
    service: &'a Service,
    ledger: &'a Ledger,
    members: Vec<Member>,
    net: Net,
    accounts: BTreeMap<Key, Account>,
    sightings: Sightings,
    before_ns: u64,
    looks: u32,
    hidden: bool,
    counted: bool,
}

/// Watches a service for a window.
///
/// # Errors
/// `/proc` cannot be read.
pub(super) fn watch(
    service: &Service,
    ledger: &Ledger,
    window: Duration,
) -> anyhow::Result<Evidence> {
    let mut watch = Watch {
        service,
        ledger,
        members: Vec::new(),
        net: Net::default(),
        accounts: BTreeMap::new(),
        sightings: Sightings::new(),
        before_ns: monotonic_ns(),
        looks: 0,
        hidden: false,
        counted: false,
    };
    watch.refresh()?;
    let group = watch
        .members
        .first()
        .and_then(|m| pressure::group_of(m.process.pid));
    let pressed = Pressed::now(group.as_ref());
    let start = Instant::now();
    let waited = watch.waited();
    watch.look();
    let mut due = Instant::now() + REFRESH;
    let mut cost = Duration::ZERO;
    while let Some(rest) = window
        .checked_sub(start.elapsed())
        .filter(|rest| !rest.is_zero())
    {
        // Not in step with anything that has a period.
        let jitter = PAUSE * (watch.looks * 7 % 10) / 10;
        std::thread::sleep(rest.min(PAUSE.max(cost * COST) + jitter));
        let from = Instant::now();
        if from > due {
            watch.refresh()?;
            due = Instant::now() + REFRESH.max(from.elapsed() * COST * COST);
        }
        let from = Instant::now();
        watch.look();
        cost = from.elapsed();
    }
    let window_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let waited = since(&waited, &watch.waited());
    let (limits, lifted_ns) = blame(&waited, &watch.sightings, &watch.limits());
    let pressure = pressed.until(&Pressed::now(group.as_ref()), window_ns);
    Ok(Evidence {
        seen: Seen {
            service: service.name.clone(),
            window_ns,
            threads: watch.accounts.values().map(Account::spent).collect(),
            limits,
            lifted_ns,
            queues: watch.net.queues(),
        },
        looks: watch.looks,
        calls_hidden: watch.hidden,
        scheduler_counts: watch.counted,
        delay_accounting: delay_accounting(),
        crowded: bonsai_services::observe::has_crowd(ledger),
        pressure,
        uncovered: watch.uncovered(),
    })
}

impl Watch<'_> {
    /// Finds the processes and their sockets anew.
    fn refresh(&mut self) -> anyhow::Result<()> {
        let keeper = self
            .service
            .has_keeper()?
            .then(|| creator(self.ledger))
            .flatten();
        self.members = members::all(self.service, self.ledger, keeper)?;
        let pids: Vec<u32> = self.members.iter().map(|m| m.process.pid).collect();
        self.net.find(&pids);
        Ok(())
    }

    /// Threads that wait for a limit, as far as the ledger knows, by their numbers in `/proc`.
    fn notes(&self) -> BTreeMap<(u32, u32), Noted> {
        let waiting = self.ledger.waiting(monotonic_ns()).into_iter();
        let note = |waiting: Waiting| {
            let is_of = |m: &&Member| m.entered && waiting.owner.is_of(m.id);
            let member = self.members.iter().find(is_of)?;
            let attached_ns = member.entry.as_ref().map_or(0, |entry| entry.attached_ns);
            if waiting.noted.since_ns < attached_ns {
                return None;
            }
            let thread = member.thread(waiting.owner.tid)?;
            Some(((member.process.pid, thread), waiting.noted))
        };
        waiting.filter_map(note).collect()
    }

    /// Processes that are not covered, in words.
    fn uncovered(&self) -> Vec<String> {
        let named = |member: &Member| {
            let reason = why_uncovered(self.service, member)?;
            let (program, pid) = (member.program(), member.process.pid);
            Some(format!("{program} ({pid}) is not covered: {reason}"))
        };
        self.members.iter().filter_map(named).collect()
    }

    fn look(&mut self) {
        self.net.look();
        let pids: Vec<(u32, bool)> = self
            .members
            .iter()
            .map(|m| (m.process.pid, m.entered))
            .collect();
        let first = self.looks == 0;
        let start_ns = monotonic_ns();
        for (pid, entered) in pids {
            let notes = if entered {
                self.notes()
            } else {
                BTreeMap::new()
            };
            let at_ns = monotonic_ns();
            for thread in threads::threads(pid) {
                let note = notes
                    .get(&(pid, thread.tid))
                    .filter(|_| is_believed(self.ledger, &thread));
                if let Some(noted) = note {
                    let key = (noted.call, usize::from(noted.bucket));
                    *self.sightings.entry(key).or_default() += 1;
                }
                let moment = Moment {
                    state: thread.state,
                    doing: thread.doing,
                    // Nothing else in an entered process is likely to be there.
                    limited: note.is_some() || (entered && is_limit_call(thread.doing)),
                    descriptor: self.net.descriptor(&thread),
                    connections: self.net.connections(pid),
                };
                self.hidden |= thread.doing == Doing::Unknown;
                self.counted |= thread.ran_ns.is_some();
                let counters = counters(&thread, at_ns);
                let key = (pid, thread.tid, thread.start_ticks);
                let before_ns = self.before_ns;
                let account = self.accounts.entry(key).or_insert_with(|| {
                    Account::new(if first {
                        counters
                    } else {
                        born(&counters, before_ns)
                    })
                });
                account.look(counters, classify(&moment));
            }
        }
        self.before_ns = start_ns;
        self.looks += 1;
    }

    /// For how long each call has waited so far, waits under way included.
    fn waited(&self) -> Vec<(CallId, u64)> {
        let now = monotonic_ns();
        let mut waited: Vec<(CallId, u64)> = (0_u8..)
            .zip(self.ledger.totals())
            .map(|(call, total)| (call, total.waited_ns))
            .collect();
        for ((pid, tid), noted) in self.notes() {
            let believed =
                || threads::thread(pid, tid).is_some_and(|t| is_believed(self.ledger, &t));
            if let Some((_, ns)) = waited
                .get_mut(usize::from(noted.call))
                .filter(|_| believed())
            {
                *ns = ns.saturating_add(now.saturating_sub(noted.uncounted_ns));
            }
        }
        waited
    }

    fn limits(&self) -> Vec<Blamed> {
        let limits = self.ledger.limits(monotonic_ns()).into_iter();
        let blamed = limits.map(|limit| {
            let (unit, rate, selection) = (
                unit_of(&limit),
                rate_of(&limit),
                bonsai_services::limits::calls_of(&limit.name),
            );
            let on = |(_, call): &(u8, &Call)| applies(selection, unit, call);
            Blamed {
                bucket: limit.bucket,
                rate: for_people(rate, selection).replace(' ', ""),
                calls: (0_u8..)
                    .zip(CALLS)
                    .filter(on)
                    .map(|(call, _)| call)
                    .collect(),
                line_s: -(limit.level as f64) / rate.per_sec_f64().max(1e-3),
                name: limit.name,
            }
        });
        let group = group::drawn(self.ledger);
        let shares = group.iter().flat_map(group::blamed);
        let shares = shares.map(|(bucket, name, rate, calls)| Blamed {
            bucket,
            name,
            rate,
            calls,
            line_s: 0.0,
        });
        blamed.chain(shares).collect()
    }
}

/// `futex_waitv`, which the library waits with where it can.
const fn is_limit_call(doing: Doing) -> bool {
    matches!(doing, Doing::Call(449, _))
}

const fn counters(thread: &Thread, at_ns: u64) -> Counters {
    Counters {
        at_ns,
        cpu_ticks: thread.cpu_ticks,
        block_ticks: thread.block_ticks,
        ran_ns: thread.ran_ns,
        queued_ns: thread.queued_ns,
    }
}

/// The counters of a thread that was not there at the look before.
fn born(now: &Counters, before_ns: u64) -> Counters {
    Counters {
        at_ns: before_ns,
        cpu_ticks: 0,
        block_ticks: 0,
        ran_ns: now.ran_ns.map(|_| 0),
        queued_ns: now.queued_ns.map(|_| 0),
    }
}

/// What was added to each call.
fn since(before: &[(CallId, u64)], now: &[(CallId, u64)]) -> Vec<(CallId, u64)> {
    let pairs = before.iter().zip(now);
    pairs
        .map(|((_, before), (call, now))| (*call, now.saturating_sub(*before)))
        .collect()
}

/// Totals of pressure, us.
struct Pressed([[Option<u64>; 2]; 2]);

const RESOURCES: [(Resource, &str); 2] = [(Resource::Io, "io"), (Resource::Cpu, "cpu")];

impl Pressed {
    fn now(group: Option<&PathBuf>) -> Self {
        Self(RESOURCES.map(|(resource, _)| {
            let of_group = group.and_then(|group| pressure::of_group(group, resource));
            [pressure::of_machine(resource), of_group]
        }))
    }

    fn until(&self, end: &Self, window_ns: u64) -> Vec<Pressure> {
        let share = |before: Option<u64>, now: Option<u64>| {
            let us = now?.saturating_sub(before?);
            Some((us as f64 * 1e3 / window_ns.max(1) as f64).min(1.0))
        };
        let each = RESOURCES.iter().zip(self.0.iter().zip(&end.0));
        each.map(|((_, resource), (before, now))| Pressure {
            resource,
            machine: share(before[0], now[0]),
            group: share(before[1], now[1]),
        })
        .collect()
    }
}
