//! Looking again and again: rates come from two looks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bonsai_calls::{CALLS, Call, Selection};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{CallTotals, Ledger, LedgerError, Limit};
use bonsai_units::{Rate, Unit};
use rustix::time::{ClockId, clock_gettime};

use super::counters::{sum_waits, unshaped_of};
use super::coverage::{self, Coverage};
use super::mapped::Mapped;
use super::mapped_files::MappedFiles;
use super::streams;
use super::unseen;
use super::waiting;
use super::{CallWaits, Head, LimitView, Observation, ServiceView, Waits, kind};
use crate::group;
use crate::limits::{for_people, rate_of, unit_of, written};
use crate::service::{Service, Services, creator, members};

/// The monotonic clock, ns: the ledger's time.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec)
        .saturating_mul(1_000_000_000)
        .saturating_add(part(now.tv_nsec))
}

/// Looks at services, and remembers what it saw.
#[derive(Debug)]
pub struct Sampler {
    services: Services,
    only: Option<String>,
    streams: bool,
    last: BTreeMap<String, Seen>,
}

/// What a service had done at a look.
#[derive(Debug)]
struct Seen {
    created_ns: u64,
    at: Instant,
    totals: Vec<CallTotals>,
    limits: Vec<Limit>,
    streams: streams::Used,
    group: group::Seen,
}

impl Sampler {
    /// Of all services, or of one that must be running.
    ///
    /// # Errors
    /// No runtime directory, or no such service.
    pub fn new(only: Option<&str>) -> anyhow::Result<Self> {
        let services = Services::open()?;
        if let Some(name) = only {
            services.find(name)?;
        }
        Ok(Self {
            services,
            only: only.map(str::to_owned),
            streams: false,
            last: BTreeMap::new(),
        })
    }

    /// The same that looks at streams too.
    pub const fn with_streams(mut self, streams: bool) -> Self {
        self.streams = streams;
        self
    }

    /// Looks. A service that ended since is not there any more.
    ///
    /// # Errors
    /// The runtime directory or `/proc` cannot be read.
    pub fn look(&mut self) -> anyhow::Result<Observation> {
        let mut views = Vec::new();
        let mut seen = BTreeMap::new();
        for service in self.services.live()? {
            if self.only.as_ref().is_some_and(|only| *only != service.name) {
                continue;
            }
            let view = match service.ledger() {
                Ok(ledger) => {
                    let now = seen_now(&ledger, self.streams);
                    let before = self
                        .last
                        .get(&service.name)
                        .filter(|before| before.created_ns == now.created_ns);
                    let view = view(&service, &ledger, &now, before, self.streams);
                    seen.insert(service.name.clone(), now);
                    // One that cannot be looked at takes no other with it.
                    view.unwrap_or_else(|error| {
                        broken(&service, bonsai_host::sentence(error.as_ref()))
                    })
                }
                Err(error) => unreadable(&service, &error),
            };
            views.push(view);
        }
        self.last = seen;
        Ok(Observation {
            head: Head::now(),
            services: views,
        })
    }

    /// Looks twice, `interval` apart, and returns the second look.
    ///
    /// # Errors
    /// As [`Sampler::look`].
    pub fn measure(&mut self, interval: Duration) -> anyhow::Result<Observation> {
        if self.last.is_empty() && self.look()?.services.is_empty() {
            return self.look();
        }
        std::thread::sleep(interval);
        self.look()
    }
}

fn seen_now(ledger: &Ledger, streams: bool) -> Seen {
    let start = Instant::now();
    let totals = ledger.totals();
    let now = monotonic_ns();
    let limits = ledger.limits(now);
    let streams = if streams {
        streams::used(ledger, &limits, now)
    } else {
        streams::Used::new()
    };
    Seen {
        created_ns: ledger.header.created_ns.load(Ordering::Relaxed),
        // A pause in between is as likely before as after any of the counters.
        at: start + start.elapsed() / 2,
        totals,
        limits,
        streams,
        group: group::drawn(ledger),
    }
}

fn unreadable(service: &Service, error: &anyhow::Error) -> ServiceView {
    let is_missing = match error.downcast_ref::<LedgerError>() {
        Some(LedgerError::File { source, .. }) => *source == rustix::io::Errno::NOENT,
        _ => false,
    };
    // Until everything is in it, a ledger looks like a foreign file.
    let is_unfinished = matches!(
        error.downcast_ref::<LedgerError>(),
        Some(LedgerError::Foreign { .. } | LedgerError::Damaged { .. })
    );
    // Links are made once it is there.
    let was_there = service.preload_path().symlink_metadata().is_ok();
    let error = if is_missing && was_there {
        "its ledger was removed: the limits of its processes stay as they are and cannot be changed, and programs that they start are not limited"
            .to_owned()
    } else if (is_missing || is_unfinished) && service.has_keeper().unwrap_or(false) {
        "is being started".to_owned()
    } else {
        bonsai_host::sentence(error.as_ref())
    };
    broken(service, error)
}

/// A service of which nothing but its name is known, and why.
fn broken(service: &Service, error: String) -> ServiceView {
    ServiceView {
        name: service.name.clone(),
        folder: service.folder.clone(),
        error: Some(error),
        keeper: None,
        created_unix_ms: 0,
        interval_ms: 0,
        limits: Vec::new(),
        group: None,
        waits: Waits::default(),
        longest_wait_ns: 0,
        waiting: Vec::new(),
        crowded: false,
        processes: Vec::new(),
        uncovered: Vec::new(),
        unshaped: Vec::new(),
        mapped: Mapped::default(),
        mapped_files: MappedFiles::default(),
        unseen: None,
        unseen_line: None,
        processes_lost: 0,
        enforced: service.enforced(),
        target: None,
    }
}

fn view(
    service: &Service,
    ledger: &Ledger,
    now: &Seen,
    before: Option<&Seen>,
    with_streams: bool,
) -> anyhow::Result<ServiceView> {
    let header = &ledger.header;
    let keeper = service.has_keeper()?.then(|| creator(ledger)).flatten();
    let interval = before.map(|before| now.at - before.at);
    let members = members::all(service, ledger, keeper)?;
    let moment = monotonic_ns();
    let limits = &now.limits;
    let waiting = waiting::of(ledger, limits, &now.group, &members, moment);
    let open = with_streams.then(|| streams::Open::of(&members));
    let group = now.group.as_ref().map(|drawn| {
        let view = drawn.view(&before.and_then(|before| before.group.clone()), interval);
        (group::limit_views(drawn, &view), view)
    });
    let (shares, group) = group.map_or_else(Default::default, |(l, view)| (l, Some(view)));
    let unseen = unseen::of_service(service, ledger, keeper, &members);
    let Coverage {
        processes,
        uncovered,
    } = coverage::of(service, ledger, members);
    let (delays, waited) = sum_waits(&now.totals, |_| true);
    let longest = header.longest_wait_ns.load(Ordering::Relaxed);
    Ok(ServiceView {
        name: service.name.clone(),
        folder: service.folder.clone(),
        error: None,
        keeper,
        created_unix_ms: now.created_ns / 1_000_000,
        interval_ms: interval.map_or(0, |time| {
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
        }),
        limits: limits
            .iter()
            .map(|limit| {
                let mut view = limit_view(limit, longest, now, before, interval);
                if let Some(open) = open.as_ref().filter(|_| limit.per_stream) {
                    let before = before.map(|b| &b.streams).zip(interval);
                    view.streams = Some(streams::of(ledger, limit, open, before, moment));
                }
                view
            })
            .chain(shares)
            .collect(),
        group,
        waits: Waits::of(&delays, waited).at_most(longest),
        longest_wait_ns: longest,
        waiting,
        crowded: waiting::has_crowd(ledger),
        mapped: super::mapped::of_service(ledger, processes.iter().map(|p| p.mapped), keeper),
        mapped_files: MappedFiles::of(ledger),
        unseen_line: unseen.and_then(|unseen| unseen.line(ledger)),
        unseen,
        processes,
        uncovered,
        unshaped: unshaped_of(ledger),
        processes_lost: header.processes_lost.load(Ordering::Relaxed),
        enforced: service.enforced(),
        target: None,
    })
}

fn limit_view(
    limit: &Limit,
    longest_ns: u64,
    now: &Seen,
    before: Option<&Seen>,
    interval: Option<Duration>,
) -> LimitView {
    let rate = |units: u64| interval.map(|time| units as f64 / time.as_secs_f64().max(1e-9));
    if let Some(used) = limit.used {
        let same = |old: &&Limit| (&old.name, old.bytes) == (&limit.name, limit.bytes);
        let old = before.and_then(|before| before.limits.iter().find(same)?.used);
        let old = old.unwrap_or_default();
        let waits = |count: u64, total_ns: u64| Waits {
            count,
            total_ns,
            ..Waits::default()
        };
        let since = |now: u64, then: u64| now.saturating_sub(then);
        return LimitView {
            got: before.and_then(|_| rate(since(used.units, old.units))),
            waits: waits(used.waits, used.waited_ns),
            recent: before.map_or_else(Waits::default, |_| {
                waits(
                    since(used.waits, old.waits),
                    since(used.waited_ns, old.waited_ns),
                )
            }),
            waiting_calls: Vec::new(),
            ..plain_view(limit, longest_ns, now, before, interval)
        };
    }
    plain_view(limit, longest_ns, now, before, interval)
}

/// A limit on all of its calls: what these did.
fn plain_view(
    limit: &Limit,
    longest_ns: u64,
    now: &Seen,
    before: Option<&Seen>,
    interval: Option<Duration>,
) -> LimitView {
    let (now, before) = (&now.totals, before.map(|before| &before.totals));
    let selection = crate::limits::calls_of(&limit.name);
    let unit = unit_of(limit);
    let applies = |call: &Call| applies(selection, unit, call);
    let units = |totals: &[CallTotals]| -> u64 {
        let under = totals.iter().filter(|total| applies(&CALLS[total.call]));
        under
            .map(|total| {
                if unit == Unit::Bytes {
                    total.bytes
                } else {
                    total.calls
                }
            })
            .fold(0, u64::saturating_add)
    };
    let got = before.zip(interval).map(|(before, time)| {
        units(now).saturating_sub(units(before)) as f64 / time.as_secs_f64().max(1e-9)
    });
    let (delays, waited) = sum_waits(now, applies);
    let recent = before.map_or_else(Waits::default, |before| {
        let (old_delays, old_waited) = sum_waits(before, applies);
        Waits::of(
            &delays.since(&old_delays),
            waited.saturating_sub(old_waited),
        )
        .at_most(longest_ns)
    });
    let waiting_calls = now
        .iter()
        .filter(|total| applies(&CALLS[total.call]) && !total.delays.is_empty())
        .map(|total| {
            let call = &CALLS[total.call];
            CallWaits {
                call: call.name,
                kind: kind(call.fd),
                waits: Waits::of(&total.delays, total.waited_ns).at_most(longest_ns),
            }
        })
        .collect();
    let rate = rate_of(limit);
    LimitView {
        name: limit.name.clone(),
        setting: written(limit),
        unit: match unit {
            Unit::Bytes => "bytes",
            Unit::Calls => "calls",
        },
        asked: rate.per_sec_f64(),
        got,
        burst: limit.burst,
        level: limit.level,
        waits: Waits::of(&delays, waited).at_most(longest_ns),
        recent,
        waiting_calls,
        per_stream: limit.per_stream,
        streams: None,
        network: is_network(rate, selection),
    }
}

/// Whether a limit of this unit applies to a call.
pub fn applies(selection: Option<Selection>, unit: Unit, call: &Call) -> bool {
    selection.is_some_and(|s| s.contains(call)) && (unit == Unit::Calls || call.moves_bytes())
}

fn is_network(rate: Rate, selection: Option<Selection>) -> bool {
    rate.unit() == Unit::Bytes && for_people(rate, selection) == rate.network()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counters::tests::totals;
    use bonsai_calls::{READ_FILE, READ_SOCKET, WRITE_FILE};

    fn limit(name: &str, bytes: bool) -> Limit {
        Limit {
            name: name.to_owned(),
            bytes,
            rate_milli: 1_000_000,
            burst: 10,
            bucket: 0,
            level: 0,
            per_stream: false,
            scope: bonsai_ledger::Scope::default(),
            used: None,
        }
    }

    #[test]
    fn a_limit_gets_what_its_calls_did_in_the_interval() {
        let before = totals(&[(READ_FILE, 1, 100), (READ_SOCKET, 1, 1000)]);
        let now = totals(&[
            (READ_FILE, 3, 600),
            (READ_SOCKET, 2, 3000),
            (WRITE_FILE, 9, 9),
        ]);
        let seen = |totals| Seen {
            created_ns: 0,
            at: Instant::now(),
            totals,
            limits: Vec::new(),
            streams: streams::Used::new(),
            group: None,
        };
        let (now, before) = (seen(now), seen(before));
        let half = Some(Duration::from_millis(500));
        let got = |name: &str, bytes: bool| {
            limit_view(&limit(name, bytes), u64::MAX, &now, Some(&before), half)
                .got
                .expect("a rate")
        };
        assert_eq!(got("read", true), 1000.0, "the class has no sockets in it");
        assert_eq!(got("read", false), 4.0);
        assert_eq!(got("recv", true), 4000.0);
        assert_eq!(got("all", false), 24.0);
        let first = limit_view(&limit("read", true), u64::MAX, &now, None, None);
        assert_eq!(
            (first.got, first.recent.count, first.waits.count),
            (None, 0, 1)
        );
    }
}
