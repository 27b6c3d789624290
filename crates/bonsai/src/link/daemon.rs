//! Interfaces, through root's daemon where it runs.

use std::thread;
use std::time::Duration;

use bonsai_api::{LinkChanged, LinkState, Links, Span};
use bonsai_client::{Client, ClientError};
use bonsai_host::runtime_dir;
use bonsai_link::rate_text;
use bonsai_services::refusal::Refusal;
use bonsai_tenants::{Ask, Change, Target};
use serde_json::{Map, Value, json};

use crate::cli::{Changing, LinkClear, LinkOf, LinkSet};
use crate::daemon::{how, lines, roots, said};
use crate::output::{print, print_json};

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

/// All that is configured and, if that is for good, all that was done by hand.
fn clear_all(client: &Client, args: &LinkClear) -> anyhow::Result<u8> {
    let patch = json!({"links": null});
    let changed = client
        .change_config(&patch, &how(&args.how))
        .map_err(said)?;
    let by_hand = match args.how.lasts.is_none() && !args.how.dry_run {
        true => bonsai_tenants::clear(&runtime_dir()?, None).map_err(super::said)?,
        false => bonsai_tenants::Cleared::default(),
    };
    if args.json {
        print_json(&changed, false)?;
        return Ok(0);
    }
    let mut all = lines(&changed);
    let cleared = by_hand.interfaces.iter();
    all.extend(cleared.map(|name| format!("{name}: as it was before")));
    all.extend(by_hand.notes.iter().map(|note| format!("  {note}")));
    print(&(all.join("\n") + "\n"))?;
    Ok(0)
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
