//! Interfaces, through root's daemon where it runs.

use std::thread;
use std::time::{Duration, Instant};

use bonsai_api::{LinkBy, LinkChanged, LinkState, Links, Span};
use bonsai_client::{Client, ClientError};
use bonsai_host::runtime_dir;
use bonsai_link::rate_text;
use bonsai_services::refusal::Refusal;
use bonsai_tenants::{Ask, Change, Target};
use serde_json::{Map, Value, json};

use crate::cli::{Changing, LinkClear, LinkOf, LinkSet};
use crate::daemon::{how, lines, roots, said};
use crate::output::{print, print_json};

/// Time that the kernel has to take limits away.
const FREE: Duration = Duration::from_secs(3);

/// What cannot be done without the daemon.
///
/// # Errors
/// A [`Refusal`]: that was asked for.
pub(super) fn is_not_needed(changing: &Changing) -> anyhow::Result<()> {
    if changing.lasts.is_none() && !changing.dry_run && changing.reason.is_none() {
        return Ok(());
    }
    let text = "--for, --dry-run and --reason need root's daemon, and what is limited there: a \
                process (--pid) and what was limited by hand is not";
    Err(Refusal::input(text))
}

/// The target that is meant. A process is none: it ends, and what is configured stays.
fn target(of: &LinkOf, name: Option<&str>) -> anyhow::Result<Option<String>> {
    let whose = match of {
        LinkOf { pid: Some(_), .. } => return Ok(None),
        LinkOf {
            netns: Some(name), ..
        } => Some(format!("netns:{name}")),
        LinkOf {
            container: Some(name),
            ..
        } => Some(format!("container:{name}")),
        LinkOf { vm: Some(name), .. } => Some(format!("vm:{name}")),
        _ => None,
    };
    let target = match (whose, name) {
        (None, None) => return Ok(None),
        (None, Some(name)) => name.to_owned(),
        (Some(whose), None) => whose,
        (Some(whose), Some(name)) => format!("{whose}/{name}"),
    };
    let target: Target = target.parse().map_err(Refusal::input)?;
    Ok(Some(target.to_string()))
}

/// `bonsai link set` where root's daemon runs; the code to end with.
///
/// # Errors
/// The daemon will not.
pub(super) fn set(args: &LinkSet, name: Option<&str>, ask: &Ask) -> anyhow::Result<Option<u8>> {
    let Some(target) = target(&args.of, name)? else {
        return Ok(None);
    };
    let Some(client) = roots()? else {
        return Ok(None);
    };
    let patch = patch(ask, args.adopt);
    let changed = client.change_link(&target, &patch, &how(&args.how));
    show(&changed.map_err(said)?, args.json).map(Some)
}

/// What is asked for, as a merge patch.
fn patch(ask: &Ask, adopt: bool) -> Value {
    let rate = |rate: Option<u64>| json!(rate.map(rate_text));
    let mut patch = Map::new();
    for change in &ask.changes {
        let (key, value) = match *change {
            Change::Tx(of) => ("tx", rate(of)),
            Change::Rx(of) => ("rx", rate(of)),
            Change::Guarantee(of) => ("guarantee", rate(of)),
            Change::Ceiling(of) => ("ceiling", rate(of)),
            Change::Weight(weight) => ("weight", json!(weight)),
            Change::Burst(ns) => {
                let span = ns.map(|ns| Span(Duration::from_nanos(ns)));
                ("burst", json!(span))
            }
        };
        patch.insert(key.to_owned(), value);
    }
    if let Some(uplink) = &ask.uplink {
        patch.insert("uplink".to_owned(), json!(uplink));
    }
    if adopt {
        patch.insert("adopt".to_owned(), json!(true));
    }
    Value::Object(patch)
}

/// `bonsai link clear` where root's daemon runs and has configured it; the code to end with.
///
/// # Errors
/// The daemon will not.
pub(super) fn clear(args: &LinkClear) -> anyhow::Result<Option<u8>> {
    let target = match args.all {
        true => None,
        false => match target(&args.of, args.interface.as_deref())? {
            None => return Ok(None),
            target => target,
        },
    };
    let Some(client) = roots()? else {
        return Ok(None);
    };
    let how = how(&args.how);
    let Some(target) = target else {
        return clear_all(&client, args).map(Some);
    };
    match client.clear_link(&target, &how) {
        Ok(changed) => show(&changed, args.json).map(Some),
        // What was limited by hand is given free by hand.
        Err(ClientError::Refused(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(said(error)),
    }
}

/// All that is configured and, if that is for good, all that was done by hand. Each interface is named, so that one which the file gets
/// later has its limit.
fn clear_all(client: &Client, args: &LinkClear) -> anyhow::Result<u8> {
    let configured = client.config().map_err(said)?.links;
    let nothing: Map<_, _> = configured
        .keys()
        .map(|name| (name.clone(), Value::Null))
        .collect();
    let changed = client
        .change_config(&json!({"links": nothing}), &how(&args.how))
        .map_err(said)?;
    let is_for_good = args.how.lasts.is_none() && !args.how.dry_run;
    let by_hand = match is_for_good {
        true => bonsai_tenants::clear(&runtime_dir()?, None).map_err(super::said)?,
        false => bonsai_tenants::Cleared::default(),
    };
    let left = match args.how.dry_run {
        true => Vec::new(),
        false => left(client, |name| configured.contains_key(name))?,
    };
    let code = u8::from(!left.is_empty());
    if args.json {
        let mut document = serde_json::to_value(&changed)?;
        document["cleared"] = json!(by_hand.interfaces);
        document["notes"] = json!(by_hand.notes);
        document["not_in_force"] = json!(left);
        print_json(&document, false)?;
        return Ok(code);
    }
    let mut all = lines(&changed);
    let cleared = by_hand.interfaces.iter();
    all.extend(cleared.map(|name| format!("{name}: as it was before")));
    all.extend(by_hand.notes.iter().map(|note| format!("  {note}")));
    if !is_for_good {
        let views = client.links().map_err(said)?.links.into_iter();
        let by_hand = views.filter(|view| view.by == Some(LinkBy::Hand));
        let would = match args.how.dry_run && args.how.lasts.is_none() {
            true => "would be as it was before",
            false => "stays limited, for that was done by hand",
        };
        all.extend(by_hand.map(|view| format!("{}: {would}", view.target.unwrap_or(view.name))));
    }
    all.extend(left);
    print(&(all.join("\n") + "\n"))?;
    Ok(code)
}

/// Interfaces that still have a limit after it was taken away, and why, in words. The kernel has a moment for it.
fn left(client: &Client, is_cleared: impl Fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + FREE;
    loop {
        let views = client.links().map_err(said)?.links.into_iter();
        let left = views.filter_map(|view| {
            let target = view.target.filter(|target| is_cleared(target))?;
            let is_limited = view.by.is_some() && view.state != LinkState::Free;
            let why = view
                .problem
                .unwrap_or_else(|| "its limit is still there".to_owned());
            is_limited.then(|| format!("{target}: not in force: {why}"))
        });
        let left: Vec<String> = left.collect();
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What has become of a change. The code is 1 where it cannot be in force.
fn show(done: &LinkChanged, as_json: bool) -> anyhow::Result<u8> {
    let failed = !done.in_force && !done.changed.dry_run && done.state != LinkState::Waiting;
    let code = u8::from(failed);
    if as_json {
        print_json(done, false)?;
        return Ok(code);
    }
    let mut lines = lines(&done.changed);
    let why = done.why.as_deref().unwrap_or_default();
    let target = &done.target;
    lines.push(match done.state {
        _ if done.changed.dry_run => "nothing was changed".to_owned(),
        LinkState::Free if done.in_force => format!("{target}: as it was before"),
        _ if done.in_force => format!("{target}: in force"),
        LinkState::Waiting => format!("{target}: it will be limited when it comes: {why}"),
        _ => format!("{target}: not in force: {why}"),
    });
    print(&(lines.join("\n") + "\n"))?;
    Ok(code)
}

/// All interfaces, as root's daemon sees them, if it runs and shows them. What moves is counted for
/// so long at least.
///
/// # Errors
/// It does not answer as it should.
pub(super) fn links(lasts: Duration) -> anyhow::Result<Option<Links>> {
    let Some(client) = roots()? else {
        return Ok(None);
    };
    match client.links() {
        Ok(_) => {}
        // Whoever may not see what is configured sees what everybody does.
        Err(ClientError::Refused(problem)) if problem.status == 403 => return Ok(None),
        Err(error) => return Err(said(error)),
    }
    thread::sleep(lasts);
    client.links().map(Some).map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_becomes_a_patch() {
        let words = ["tx=20Mbit/s", "rx=unlimited", "weight=7", "burst=5ms"];
        let changes = words.map(|word| word.parse().expect(word));
        let ask = Ask {
            changes: changes.to_vec(),
            uplink: Some("eth0".to_owned()),
        };
        let expected = json!({
            "tx": "20Mbit/s", "rx": null, "weight": 7, "burst": "5ms", "uplink": "eth0",
            "adopt": true,
        });
        assert_eq!(patch(&ask, true), expected);
    }
}
