//! `bonsai set`: changes the limits of a running service.

use bonsai_client::Client;
use bonsai_ledger::{Ledger, Part};
use bonsai_services::group;
use bonsai_services::limits::{
    BY_DAEMON, BY_SYSTEM, Change, Holds, Limit, apply, check_together, written,
};
use bonsai_services::observe::{Head, monotonic_ns};
use bonsai_services::refusal::Refusal;
use bonsai_services::service::Services;
use bonsai_units::{Setting, Unit};
use serde::Serialize;

use crate::cli::Set;
use crate::output::{print, print_json};

/// What `bonsai set --json` prints.
#[derive(Debug, Serialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    service: String,
    changes: Vec<Change>,
    /// What changed in its group, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group: Vec<String>,
    /// When event loops are served, if that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_loops: Option<&'static str>,
    /// Lower limits that hold beside these, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<String>,
}

/// What a change of a service did.
#[derive(Debug)]
pub(crate) enum Done {
    /// That daemon made it.
    ByDaemon(Box<bonsai_api::Changed>, Client),
    /// It was made in the ledger.
    Direct {
        /// The service.
        service: String,
        /// The limits that were changed.
        changes: Vec<Change>,
        /// What changed in its group, in words.
        group: Vec<String>,
        /// When event loops are served, if that was said.
        event_loops: Option<&'static str>,
        /// Lower limits that hold beside these, in words.
        beside: Vec<String>,
    },
}

impl Done {
    /// It in words, one line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Self::ByDaemon(changed, _) => crate::daemon::lines(changed),
            Self::Direct {
                service,
                changes,
                group,
                event_loops,
                beside,
            } => {
                let changes = changes.iter().map(|change| line(service, change));
                let loops = event_loops.map(|when| format!("{service}: event loops {when}"));
                let beside = beside.iter().map(|text| format!("note: {text}"));
                let changes = changes.chain(loops).chain(group.iter().cloned());
                changes.chain(beside).collect()
            }
        }
    }
}

/// Changes limits, all at once.
///
/// # Errors
/// A limit that makes no sense, no such service, or a ledger that cannot be read.
pub(crate) fn run(args: &Set) -> anyhow::Result<u8> {
    let done = change(args)?;
    let is_held = matches!(&done, Done::ByDaemon(changed, _) if !changed.held.is_empty());
    match done {
        Done::ByDaemon(changed, _) => crate::daemon::show(&changed, args.json)?,
        Done::Direct {
            service,
            changes,
            group,
            event_loops,
            beside,
        } if args.json => print_json(
            &Document {
                head: Head::now(),
                service,
                changes,
                group,
                event_loops,
                beside,
            },
            false,
        )?,
        done @ Done::Direct { .. } => {
            let lines = done.lines().into_iter();
            print(&lines.map(|line| line + "\n").collect::<String>())?;
        }
    }
    // Another limit binds.
    Ok(u8::from(is_held))
}

/// Makes the change: by the daemon where one runs, otherwise in the ledger.
///
/// # Errors
/// See [`run`].
pub(crate) fn change(args: &Set) -> anyhow::Result<Done> {
    let limits = args.limits.iter().map(|text| Limit::parse(text));
    let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
    check_together(&limits).map_err(|problem| Refusal::input(problem.to_string()))?;
    if !args.direct
        && args.event_loops.is_none()
        && let Some(client) = crate::daemon::running_for(&args.service)?
    {
        let changed = crate::daemon::set(&client, args, &limits)?;
        return Ok(Done::ByDaemon(Box::new(changed), client));
    }
    if args.how.lasts.is_some() || args.how.dry_run || args.how.reason.is_some() {
        let text = "--for, --dry-run and --reason need the daemon, and none runs (bonsai daemon)";
        return Err(Refusal::input(text));
    }
    let service = Services::open()?.find(&args.service)?;
    if let Some(enforced) = service.enforced() {
        enforced.check(&service.name, &limits)?;
        if args.event_loops.is_some() {
            return Err(Refusal::input(format!(
                "{}: event loops are not served under enforced limits",
                service.name
            )));
        }
    }
    let wishes = args.member.wishes()?;
    let ledger = service.ledger()?;
    Holds::of(&ledger)
        .check(&service.name, &limits)
        .map_err(|problem| Refusal::input(problem.to_string()))?;
    if args.event_loops.is_some() && Holds::of(&ledger) == Holds::Requests {
        return Err(Refusal::input(format!(
            "{}: a server of disk images has no event loops that wait for limits",
            service.name
        )));
    }
    // First what may be refused for the sake of others.
    let group = if wishes.is_empty() {
        Vec::new()
    } else {
        group::change(&service.name, &ledger, &wishes)?
    };
    let loops = args.event_loops.map(Into::into);
    let changes = if limits.is_empty() && loops.is_none() {
        Vec::new()
    } else {
        apply(&ledger, &limits, loops, monotonic_ns())?
    };
    Ok(Done::Direct {
        beside: beside(&service.name, &ledger, &limits),
        service: service.name,
        changes,
        group: group
            .iter()
            .map(|line| line.trim_end().to_owned())
            .collect(),
        event_loops: args.event_loops.map(crate::cli::Loops::name),
    })
}

/// Lower limits that hold beside those that were set in a ledger, in words: limits of daemons, and what the
/// service may have of its group.
fn beside(service: &str, ledger: &Ledger, limits: &[Limit]) -> Vec<String> {
    let in_force = ledger.limits(monotonic_ns());
    let drawn = group::of(ledger);
    let mut found = Vec::new();
    for limit in limits.iter().filter(|limit| !limit.is_narrow()) {
        let wanted = match limit.setting {
            Setting::Rate { rate, .. } => Some((rate.unit() == Unit::Bytes, rate.milli())),
            Setting::Unlimited => None,
        };
        let is_lower = |bytes: bool, milli: u64| {
            wanted.is_none_or(|(of, wanted)| of == bytes && milli < wanted)
        };
        let of_daemons = [(BY_DAEMON, "the daemon"), (BY_SYSTEM, "root's daemon")];
        for (end, daemon) in of_daemons {
            let name = format!("{}{end}", limit.name);
            let of_it = in_force.iter().filter(|of| of.name == name);
            for of in of_it.filter(|of| is_lower(of.bytes, of.rate_milli)) {
                let rate = people(&limit.name, &written(of));
                found.push(format!(
                    "{service}: {}={rate}, set by {daemon}, still holds",
                    limit.name
                ));
            }
        }
        let Some((group, number)) = &drawn else {
            continue;
        };
        for (i, thing) in group.things().iter().enumerate() {
            let Some(thing) = thing.as_ref().filter(|thing| thing.name == limit.name) else {
                continue;
            };
            let part = group.part(*number, i).unwrap_or(Part::PLAIN);
            let most = group::member::most(thing, part);
            if is_lower(thing.bytes, most) {
                found.push(format!(
                    "{service}: the group {} still lets it have at most {} of {}",
                    group.name(),
                    group::member::people(thing, most),
                    limit.name
                ));
            }
        }
    }
    found
}

fn line(service: &str, change: &Change) -> String {
    let Change { name, from, to } = change;
    if from.is_empty() && to == "unlimited" {
        return format!("{service}: {name} had no limit: nothing to lift");
    }
    let from = match from.as_slice() {
        [] => "unlimited".to_owned(),
        from => from
            .iter()
            .map(|old| people(name, old))
            .collect::<Vec<_>>()
            .join(" and "),
    };
    format!("{service}: {name} {from} -> {}", people(name, to))
}

/// A setting for people: its rate in the units of the name.
fn people(name: &str, setting: &str) -> String {
    let Ok(Setting::Rate { rate, burst }) = setting.parse() else {
        return setting.to_owned();
    };
    let selection = bonsai_services::limits::calls_of(name).filter(|_| rate.unit() == Unit::Bytes);
    let rate = bonsai_services::limits::for_people(rate, selection);
    match burst {
        Some(burst) => format!("{rate} (burst {burst})"),
        None => rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_from_what_to_what() {
        let line = |from: &[&str], to: &str| {
            let from = from.iter().map(ToString::to_string).collect();
            line(
                "vod",
                &Change {
                    name: "send".to_owned(),
                    from,
                    to: to.to_owned(),
                },
            )
        };
        assert_eq!(
            line(&["10MB/s"], "5MB/s"),
            "vod: send 80 Mbit/s -> 40 Mbit/s"
        );
        assert_eq!(line(&[], "100/s"), "vod: send unlimited -> 100/s");
        assert_eq!(
            line(&["10MB/s:burst=1MB", "9/s"], "unlimited"),
            "vod: send 80 Mbit/s (burst 1MB) and 9/s -> unlimited"
        );
        assert_eq!(
            line(&[], "unlimited"),
            "vod: send had no limit: nothing to lift"
        );
    }
}
