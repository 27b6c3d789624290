//! Limits as they are asked for: which calls they are on, and whether they make
//! sense.

mod apply;
mod file;
mod holds;
mod plain;
mod scope;

use bonsai_calls::symbols::SYMBOLS;
use bonsai_calls::{CALLS, Class, Fd, Selection, names, select};
use bonsai_ledger::{BUCKETS, MAX_TICKETS, Scope};
use bonsai_units::{LimitSpec, Rate, Setting, Unit};

use crate::refusal::Refusal;

pub use apply::{Change, apply};
pub use file::{File, read};
pub use holds::Holds;
pub use plain::{Rates, plain_rates, put_plain};
pub use scope::ScopeProblem;

/// A limit whose name and unit are known to fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The call or class.
    pub name: String,
    /// What the name stands for.
    pub selection: Selection,
    /// Whether each stream has a bucket of its own.
    pub per_stream: bool,
    /// The descriptors that it is for.
    pub scope: Scope,
    /// What it is to be set to.
    pub setting: Setting,
}

/// Why a limit makes no sense; each message is one sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitProblem {
    /// The name stands for nothing.
    #[error(
        "there is no call or class {name:?}{} (bonsai run --help lists the classes)",
        hint(name)
    )]
    UnknownName {
        /// The name.
        name: String,
    },
    /// One that the daemon makes.
    #[error("{name} is a limit that the daemon sets by itself: choose one of your own, such as {}", parts(name).0)]
    OfDaemon {
        /// The name.
        name: String,
    },
    /// A limit in bytes/s on something that moves none.
    #[error(
        "{name} moves no bytes, so its limit is in calls, such as {name}=100/s, and not {rate}"
    )]
    MovesNoBytes {
        /// The name.
        name: String,
        /// The rate asked for.
        rate: Rate,
    },
    /// The same limit twice.
    #[error("the limit on {name} is given twice: write it once")]
    Twice {
        /// The name.
        name: String,
    },
    /// More than the ledger holds.
    #[error("{count} limits are too many: a service has at most {BUCKETS}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// More than one call can wait for.
    #[error("the call {call} is under {count} limits: at most {MAX_TICKETS} may apply to one call")]
    TooManyForCall {
        /// The call.
        call: &'static str,
        /// How many.
        count: usize,
    },
    /// More of them per stream than a call can draw on.
    #[error(
        "the call {call} is under {count} limits per stream: at most {MOST_PER_STREAM} may be on one call"
    )]
    TooManyStreams {
        /// The call.
        call: &'static str,
        /// How many.
        count: usize,
    },
    /// One that the service has nothing to hold it with.
    #[error(
        "{service} serves a disk image, and holds limits on {held} alone, without paths, peers and streams: its clients' requests count as pread64 and pwrite64, and a limit on {name} would do nothing"
    )]
    NotHeld {
        /// The service.
        service: String,
        /// The limit's name.
        name: String,
        /// Names of those that it holds.
        held: String,
    },
    /// What narrows it down makes no sense.
    #[error("{0}")]
    Scope(ScopeProblem),
}

/// The most limits per stream that one call may be under.
const MOST_PER_STREAM: usize = 4;

/// Common words for classes.
const OTHER_WORDS: [(&[&str], &str); 4] = [
    (
        &["download", "down", "rx", "in", "ingress", "receive"],
        "recv",
    ),
    (
        &["upload", "up", "tx", "out", "egress", "bandwidth"],
        "send",
    ),
    (&["network", "bw"], "net"),
    (&["io", "storage", "file", "files"], "disk"),
];

/// Names that are close to `name`, as the middle of a sentence.
fn hint(name: &str) -> String {
    if let Some(symbol) = SYMBOLS.iter().find(|symbol| symbol.name == name) {
        let call = CALLS[usize::from(symbol.call)].name;
        return format!(", which is a function of libc: the call behind it is {call:?}");
    }
    if let Some((_, class)) = OTHER_WORDS.iter().find(|(words, _)| words.contains(&name)) {
        return format!(", but {class:?}");
    }
    nearest(name, names()).map_or_else(String::new, |known| format!(", the nearest is {known:?}"))
}

/// The known word that a misspelled one is nearest to, if at most a third of its letters differ.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::damerau_levenshtein(word, known), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .map(|(_, known)| known)
}

/// The calls that a limit of that name is on, whatever narrows it down.
pub fn calls_of(name: &str) -> Option<Selection> {
    select(parts(name).0)
}

/// What the names of limits end with that the daemon has made and moves. Nobody else can write
/// such a name, so they never get mixed up with what a person has set.
pub const BY_DAEMON: &str = "/daemon";

/// The same of the machine's daemon, for a service of another user than its own: so it and the
/// user's daemon can both have their limits on it, of which the lower one binds.
pub const BY_SYSTEM: &str = "/system";

/// Whether a limit of that name is one that a daemon moves.
#[must_use]
pub fn is_of_daemon(name: &str) -> bool {
    name.ends_with(BY_DAEMON) || name.ends_with(BY_SYSTEM)
}

/// The parts of a limit's name: its calls, whether it is per stream, and its scope.
fn parts(name: &str) -> (&str, bool, Option<&str>) {
    let of_daemon = [BY_DAEMON, BY_SYSTEM].into_iter();
    let name = of_daemon.fold(name, |name, end| name.strip_suffix(end).unwrap_or(name));
    let (calls, scope) = match name.split_once('@') {
        Some((calls, scope)) => (calls, Some(scope)),
        None => (name, None),
    };
    match calls.strip_suffix("/stream") {
        Some(calls) => (calls, true, scope),
        None => (calls, false, scope),
    }
}

impl Limit {
    /// Gives the words of a limit their meaning.
    pub fn check(spec: LimitSpec) -> Result<Self, LimitProblem> {
        let LimitSpec { name, setting } = spec;
        if is_of_daemon(&name) {
            return Err(LimitProblem::OfDaemon { name });
        }
        let (calls, per_stream, scope) = parts(&name);
        let Some(selection) = select(calls) else {
            return Err(LimitProblem::UnknownName {
                name: calls.to_owned(),
            });
        };
        if let Setting::Rate { rate, .. } = setting
            && rate.unit() == Unit::Bytes
            && !selection.moves_bytes()
        {
            return Err(LimitProblem::MovesNoBytes { name, rate });
        }
        let comes_into_force = setting != Setting::Unlimited;
        let narrowed = scope::read(calls, selection, per_stream, scope, comes_into_force)
            .map_err(LimitProblem::Scope)?;
        Ok(Self {
            name: narrowed.name,
            selection,
            per_stream,
            scope: narrowed.scope,
            setting,
        })
    }

    /// Whether it is for some descriptors only, or for each.
    pub const fn is_narrow(&self) -> bool {
        self.per_stream || self.scope.is_narrow()
    }

    /// Reads a limit of the command line.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let spec: LimitSpec = text
            .parse()
            .map_err(|error| Refusal::input(format!("{error}")))?;
        Self::check(spec).map_err(|problem| Refusal::input(format!("limit {text:?}: {problem}")))
    }

    /// Whether both are about the same bucket. Lifting a limit is about all of a
    /// name.
    fn collides(&self, other: &Self) -> bool {
        let unit = |limit: &Self| match limit.setting {
            Setting::Rate { rate, .. } => Some(rate.unit()),
            Setting::Unlimited => None,
        };
        let (a, b) = (unit(self), unit(other));
        self.name == other.name && (a == b || a.is_none() || b.is_none())
    }
}

/// Checks limits against each other.
pub fn check_together(limits: &[Limit]) -> Result<(), LimitProblem> {
    for (i, limit) in limits.iter().enumerate() {
        if limits[..i].iter().any(|earlier| earlier.collides(limit)) {
            return Err(LimitProblem::Twice {
                name: limit.name.clone(),
            });
        }
    }
    let set: Vec<Counted> = limits.iter().filter_map(Counted::new).collect();
    check_counts(&set)
}

/// A limit as far as it counts against the bounds.
struct Counted {
    selection: Selection,
    unit: Unit,
    /// For some descriptors only: how many such a call is under is not known before.
    scoped: bool,
    per_stream: bool,
}

impl Counted {
    /// Of a limit that is asked for; nothing of one that is lifted.
    fn new(limit: &Limit) -> Option<Self> {
        let Setting::Rate { rate, .. } = limit.setting else {
            return None;
        };
        Some(Self {
            selection: limit.selection,
            unit: rate.unit(),
            scoped: limit.scope.is_narrow(),
            per_stream: limit.per_stream,
        })
    }

    /// Of a limit in force.
    fn old(limit: &bonsai_ledger::Limit) -> Option<Self> {
        Some(Self {
            selection: calls_of(&limit.name)?,
            unit: unit_of(limit),
            scoped: limit.scope.is_narrow(),
            per_stream: limit.per_stream,
        })
    }
}

/// Checks that a service can hold limits, and each call wait for those on it.
fn check_counts(set: &[Counted]) -> Result<(), LimitProblem> {
    if set.len() > BUCKETS {
        return Err(LimitProblem::TooMany { count: set.len() });
    }
    for call in CALLS {
        let applies = |limit: &&Counted| {
            limit.selection.contains(call) && (limit.unit == Unit::Calls || call.moves_bytes())
        };
        let count = |which: fn(&Counted) -> bool| {
            let under = set.iter().filter(applies);
            under.filter(|limit| which(limit)).count()
        };
        let all = count(|limit| !limit.scoped);
        if all > MAX_TICKETS {
            return Err(LimitProblem::TooManyForCall {
                call: call.name,
                count: all,
            });
        }
        let streams = count(|limit| limit.per_stream);
        if streams > MOST_PER_STREAM {
            return Err(LimitProblem::TooManyStreams {
                call: call.name,
                count: streams,
            });
        }
    }
    Ok(())
}

/// What a limit in force counts.
pub const fn unit_of(limit: &bonsai_ledger::Limit) -> Unit {
    if limit.bytes {
        Unit::Bytes
    } else {
        Unit::Calls
    }
}

/// The rate of a limit in force.
pub const fn rate_of(limit: &bonsai_ledger::Limit) -> Rate {
    Rate::from_milli(limit.rate_milli, unit_of(limit))
}

/// A limit in force as it would be written.
pub fn written(limit: &bonsai_ledger::Limit) -> String {
    let burst = match unit_of(limit) {
        Unit::Bytes => bonsai_units::Burst::Bytes(bonsai_units::Bytes(limit.burst)),
        Unit::Calls => bonsai_units::Burst::Calls(limit.burst),
    };
    let rate = rate_of(limit);
    // The default needs no word.
    let standard = bonsai_units::Burst::default().units(rate) == Ok(limit.burst);
    Setting::Rate {
        rate,
        burst: (!standard).then_some(burst),
    }
    .to_string()
}

/// A rate for people: networks in bits, everything else in bytes or calls.
pub fn for_people(rate: Rate, selection: Option<Selection>) -> String {
    if selection.is_some_and(is_network) {
        rate.network()
    } else {
        rate.storage()
    }
}

/// Whether all bytes that a selection moves go through sockets.
fn is_network(selection: Selection) -> bool {
    match selection {
        Selection::Class(class) => matches!(class, Class::Send | Class::Recv | Class::Net),
        Selection::Nr(_) => CALLS
            .iter()
            .filter(|call| selection.contains(call))
            .all(|call| call.classes.contains(Class::Net) && call.fd != Fd::File),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Limit::parse(text).expect_err(text).to_string()
    }

    fn limits(texts: &[&str]) -> Vec<Limit> {
        texts
            .iter()
            .map(|text| Limit::parse(text).expect(text))
            .collect()
    }

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        let known = " (bonsai run --help lists the classes)";
        for (text, hint) in [
            ("raed=1MB/s", ", the nearest is \"read\""),
            ("pwrite65=1MB/s", ", the nearest is \"pwrite64\""),
            ("download=1MB/s", ", but \"recv\""),
            ("tx=1MB/s", ", but \"send\""),
            (
                "pwrite=1MB/s",
                ", which is a function of libc: the call behind it is \"pwrite64\"",
            ),
            ("zzzzzz=1/s", ""),
        ] {
            let name = text.split('=').next().expect("a name");
            let wanted = format!("limit {text:?}: there is no call or class {name:?}{hint}{known}");
            assert_eq!(refusal(text), wanted);
        }
    }

    #[test]
    fn bytes_need_a_call_that_moves_them() {
        assert_eq!(
            refusal("open=10MB/s"),
            "limit \"open=10MB/s\": open moves no bytes, so its limit is in calls, such as \
             open=100/s, and not 10MB/s"
        );
        for text in [
            "read=100/s",
            "open=100/s",
            "all=1MB/s",
            "accept4=50/s",
            "disk=1MiB/s",
        ] {
            Limit::parse(text).expect(text);
        }
    }

    #[test]
    fn bare_numbers_are_refused_with_the_reason() {
        let text = refusal("read=10");
        assert!(
            text.contains("\"10\" has no unit") && text.contains("10MB/s"),
            "{text}"
        );
    }

    #[test]
    fn the_same_limit_twice_is_refused() {
        let twice = |texts: &[&str]| {
            check_together(&limits(texts))
                .expect_err("twice")
                .to_string()
        };
        let wanted = "the limit on read is given twice: write it once";
        assert_eq!(twice(&["read=1MB/s", "write=1MB/s", "read=2MB/s"]), wanted);
        assert_eq!(twice(&["read=unlimited", "read=2MB/s"]), wanted);
        let both = limits(&["read=1MB/s", "read=100/s"]);
        assert_eq!(
            check_together(&both),
            Ok(()),
            "bytes and calls are two limits"
        );
    }

    #[test]
    fn a_call_waits_for_a_bounded_number_of_limits() {
        // Each name that selects the call, in bytes and in calls.
        let of = |call: &bonsai_calls::Call| {
            let selects = |name: &&str| select(name).is_some_and(|s| s.contains(call));
            names().filter(selects).count() * 2
        };
        let most = CALLS.iter().map(of).max().expect("calls");
        let limit = |selection, unit| Counted {
            selection,
            unit,
            scoped: false,
            per_stream: false,
        };
        let mut set: Vec<_> = (0..MAX_TICKETS)
            .map(|_| limit(Selection::Class(Class::All), Unit::Calls))
            .collect();
        assert_eq!(check_counts(&set), Ok(()));
        set.push(limit(Selection::Nr(0), Unit::Bytes));
        let problem = check_counts(&set).expect_err("too many");
        assert_eq!(
            problem,
            LimitProblem::TooManyForCall {
                call: "read",
                count: MAX_TICKETS + 1
            }
        );
        assert!(
            most <= MAX_TICKETS,
            "names alone never reach the bound: {most}"
        );
    }

    #[test]
    fn people_read_networks_in_bits() {
        let rate = Rate::bytes_per_sec(10_000_000);
        let text = |name: &str| for_people(rate, select(name));
        for name in ["send", "recv", "net", "sendto", "recvmsg"] {
            assert_eq!(text(name), "80 Mbit/s", "{name}");
        }
        for name in ["read", "write", "disk", "all", "pwrite64", "sendfile"] {
            assert_eq!(text(name), "10 MB/s", "{name}");
        }
        assert_eq!(for_people(Rate::calls_per_sec(5), select("connect")), "5/s");
    }
}
