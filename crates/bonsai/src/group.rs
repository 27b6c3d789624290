//! `bonsai group`: makes groups, changes and shows them.

use std::fs;

use anyhow::Context;
use bonsai_ledger::{Group, GroupEditor, Thing};
use bonsai_services::group::member::{is_alive, limit_text, people, refused, said};
use bonsai_services::group::place;
use bonsai_services::group::view::{self, MemberView};
use bonsai_services::group::{self, DAEMON_POOL};
use bonsai_services::initial;
use bonsai_services::limits::{Limit, check_together};
use bonsai_services::observe::{Head, SCHEMA, monotonic_ns};
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::service::Services;
use bonsai_units::{Setting, Unit};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{
    GroupCommand, GroupCreate, GroupJoin, GroupLeave, GroupRemove, GroupSet, GroupStatus,
};
use crate::output::{Ink, Paint, count, finish, print, print_json, table};
use crate::run::wait_for_look;

/// Does what one of the subcommands says.
///
/// # Errors
/// A group that is not there or may not be used, or limits that make no sense.
pub(crate) fn run(command: &GroupCommand) -> anyhow::Result<u8> {
    match command {
        GroupCommand::Create(args) => create(args),
        GroupCommand::Set(args) => set(args),
        GroupCommand::Join(args) => join(args),
        GroupCommand::Leave(args) => leave(args),
        GroupCommand::Status(args) => status(args),
        GroupCommand::Remove(args) => remove(args),
    }
}

fn limits(texts: &[String]) -> anyhow::Result<Vec<Limit>> {
    let limits = texts.iter().map(|text| Limit::parse(text));
    let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
    check_together(&limits).map_err(|problem| Refusal::input(problem.to_string()))?;
    for limit in &limits {
        if limit.per_stream || limit.scope.is_narrow() {
            let text = format!(
                "{}: a group shares whole calls and classes, such as send=100Mbit/s",
                limit.name
            );
            return Err(Refusal::input(text));
        }
    }
    Ok(limits)
}

/// Writes limits into the terms; those of one name and another unit give way.
fn share(editor: &mut GroupEditor<'_>, limits: &[Limit]) -> anyhow::Result<()> {
    for limit in limits {
        let Setting::Rate { rate, burst } = limit.setting else {
            if !editor.lift(&limit.name) {
                let text = format!("the group has no limit on {}: nothing to lift", limit.name);
                return Err(Refusal::input(text));
            }
            continue;
        };
        let bytes = rate.unit() == Unit::Bytes;
        let other = |t: &&Thing| t.name == limit.name && t.bytes != bytes;
        if let Some(thing) = editor.things().iter().flatten().find(other) {
            let text = format!(
                "the group counts {} otherwise: it has {}",
                limit.name,
                limit_text(thing)
            );
            return Err(Refusal::input(text));
        }
        let burst = burst.unwrap_or_default().units(rate)?;
        let wanted = Thing {
            name: limit.name.clone(),
            bytes,
            rate_milli: rate.milli(),
            burst,
        };
        editor.share(wanted).map_err(refused)?;
    }
    Ok(())
}

fn create(args: &GroupCreate) -> anyhow::Result<u8> {
    let limits = limits(&args.limits)?;
    if limits
        .iter()
        .any(|limit| limit.setting == Setting::Unlimited)
    {
        let text = "a group without a limit shares nothing: give it a rate, such as send=100Mbit/s";
        return Err(Refusal::input(text));
    }
    let unix_group = match &args.unix_group {
        None => None,
        Some(_) if !rustix::process::geteuid().is_root() => {
            let text = "a group for other users is made by root: without --unix-group it is for \
                        services of this user";
            return Err(Refusal::input(text));
        }
        Some(name) => Some(place::unix_group(name)?),
    };
    let path = place::new(&args.group, unix_group.is_some())?;
    let group = Group::create(&path, &args.group, unix_group)
        .map_err(|error| before_start(error.into()))?;
    let filled = || -> anyhow::Result<()> {
        let mut editor = group.edit(monotonic_ns())?;
        share(&mut editor, &limits)?;
        editor.commit().map_err(refused)
    };
    if let Err(error) = filled() {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    if args.json {
        done(json!({"group": args.group, "file": path}))?;
    }
    Ok(0)
}

/// A deed, as JSON.
fn done(mut what: Value) -> anyhow::Result<()> {
    what["schema"] = SCHEMA.into();
    print_json(&what, false)
}

/// Refuses a change of the daemon's pool while the daemon runs, which would set it back within a period.
fn is_not_the_daemons(group: &str) -> anyhow::Result<()> {
    if group != DAEMON_POOL || !initial::is_pool_in_force() {
        return Ok(());
    }
    let text = format!(
        "{group} is kept by the daemon, which would set it back: bonsai config set capacity.write=RATE changes what all \
         services share, bonsai set SERVICE write=RATE the limit of one"
    );
    Err(Refusal::input(text))
}

fn set(args: &GroupSet) -> anyhow::Result<u8> {
    let limits = limits(&args.limits)?;
    is_not_the_daemons(&args.group)?;
    let shared = place::find(&args.group)?;
    let mut editor = shared.edit(monotonic_ns())?;
    let before = editor.things().to_vec();
    share(&mut editor, &limits)?;
    let after = editor.things().to_vec();
    editor.commit().map_err(refused)?;
    let what = |things: &[Option<Thing>]| -> Vec<Option<(String, bool)>> {
        let what = |thing: &Thing| (thing.name.clone(), thing.bytes);
        things.iter().map(|t| t.as_ref().map(what)).collect()
    };
    if what(&before) != what(&after) {
        group::draw_anew(&shared)?;
    }
    let mut text = String::new();
    let mut changes = Vec::new();
    for (from, to) in before.iter().zip(&after).filter(|(from, to)| from != to) {
        let rate = |thing: &Option<Thing>| {
            let thing = thing.as_ref();
            thing.map_or_else(|| "unlimited".to_owned(), |t| people(t, t.rate_milli))
        };
        let name = from
            .as_ref()
            .or(to.as_ref())
            .map_or("", |thing| &thing.name);
        let (from, to) = (rate(from), rate(to));
        text.push_str(&format!("group {}: {name} {from} -> {to}\n", args.group));
        changes.push(json!({"name": name, "from": from, "to": to}));
    }
    if args.json {
        done(json!({"group": args.group, "changes": changes}))?;
    } else {
        print(&text)?;
    }
    Ok(0)
}

fn join(args: &GroupJoin) -> anyhow::Result<u8> {
    let wishes = args.member.wishes()?;
    let group = place::find(&args.group)?;
    let service = Services::open()?.find(&args.service)?;
    let ledger = service.ledger()?;
    let (joined, provisional) = initial::join_out_of_pool(&args.service, &ledger, || {
        group::join(&service, &ledger, &group, &wishes)
    })?;
    wait_for_look(&args.service, provisional, &ledger);
    let membership = joined?;
    let mut text = String::new();
    let reports = group.reports();
    let own = reports.iter().find(|r| r.membership == membership);
    let parts = own.map_or(&[][..], |own| &own.parts);
    let mut has = Vec::new();
    for (thing, part) in group.things().iter().zip(parts) {
        if let (Some(thing), Some(part)) = (thing, part) {
            text.push_str(&format!(
                "{}: group {} {} {}\n",
                args.service,
                args.group,
                thing.name,
                said(thing, part.part)
            ));
            has.push(json!({"name": thing.name, "part": said(thing, part.part)}));
        }
    }
    if args.json {
        done(json!({"group": args.group, "service": args.service, "has": has}))?;
    } else {
        print(&text)?;
    }
    Ok(0)
}

fn leave(args: &GroupLeave) -> anyhow::Result<u8> {
    let service = args.service.as_str();
    let ledger = Services::open()?.find(service)?.ledger()?;
    if group::is_in_pool(&ledger) && initial::is_pool_in_force() {
        let text = format!(
            "{service} shares what the machine has in the daemon's pool, which it cannot leave \
             while the daemon runs: bonsai group join GROUP {service} puts it into another group"
        );
        return Err(Refusal::input(text));
    }
    let Some(left) = group::leave(&ledger)? else {
        let text = format!("{service} is in no group");
        return Err(Refusal::input(text));
    };
    let name = left.file_name().unwrap_or_default().to_string_lossy();
    if args.json {
        done(json!({"group": name, "service": service}))?;
    } else {
        print(&format!("{service}: left the group {name}\n"))?;
    }
    Ok(0)
}

fn remove(args: &GroupRemove) -> anyhow::Result<u8> {
    let name = args.group.as_str();
    is_not_the_daemons(name)?;
    let group = place::find(name)?;
    let members = group.reports().into_iter().filter(|m| is_alive(&m.who));
    let names: Vec<String> = members.map(|member| member.who.name).collect();
    if !names.is_empty() {
        let text = format!(
            "the group {name} has members that run: {}",
            names.join(", ")
        );
        return Err(Refusal::input(text));
    }
    fs::remove_file(group.path())
        .with_context(|| format!("{}: cannot be removed", group.path().display()))?;
    if args.json {
        done(json!({"group": name}))?;
    }
    Ok(0)
}

/// What `bonsai group status --json` prints.
#[derive(Debug, Serialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    groups: Vec<WholeView>,
}

/// One group with all of its members.
#[derive(Debug, Serialize)]
struct WholeView {
    name: String,
    file: std::path::PathBuf,
    /// What it shares.
    shares: Vec<ShareView>,
}

#[derive(Debug, Serialize)]
struct ShareView {
    name: String,
    unit: &'static str,
    /// Units/s.
    rate: f64,
    /// Guaranteed to its members, units/s.
    guaranteed: f64,
    members: Vec<MemberView>,
    #[serde(skip)]
    thing: Thing,
}

fn status(args: &GroupStatus) -> anyhow::Result<u8> {
    let groups: Vec<Group> = match &args.group {
        Some(name) => vec![place::find(name)?],
        None => place::all()?
            .iter()
            .filter_map(|(name, path)| place::open(name, path).ok())
            .collect(),
    };
    let before: Vec<_> = groups
        .iter()
        .map(|g| (std::time::Instant::now(), g.reports()))
        .collect();
    std::thread::sleep(args.interval);
    let views = groups.iter().zip(&before).map(|(group, (at, before))| {
        let time = at.elapsed().as_secs_f64();
        let now = group.reports();
        let things = group.things().into_iter().enumerate();
        let shares = things.filter_map(|(i, thing)| {
            let thing = thing?;
            let members = now.iter().filter_map(|member| {
                let old = before
                    .iter()
                    .find(|old| old.membership == member.membership);
                view::member(member, old, i, time, is_alive(&member.who))
            });
            let members: Vec<MemberView> = members.collect();
            Some(ShareView {
                name: thing.name.clone(),
                unit: if thing.bytes { "bytes" } else { "calls" },
                rate: thing.rate_milli as f64 / 1e3,
                guaranteed: members.iter().filter_map(|m| m.guarantee).sum(),
                members,
                thing,
            })
        });
        WholeView {
            name: group.name(),
            file: group.path().to_owned(),
            shares: shares.collect(),
        }
    });
    let views: Vec<WholeView> = views.collect();
    if args.json {
        print_json(
            &Document {
                head: Head::now(),
                groups: views,
            },
            false,
        )?;
        return Ok(0);
    }
    if views.is_empty() {
        print("there is no group\n")?;
        return Ok(0);
    }
    let paint = Paint::stdout();
    let texts = views.iter().map(|view| text(view, paint));
    print(&texts.collect::<Vec<_>>().join("\n"))?;
    Ok(0)
}

fn text(view: &WholeView, paint: Paint) -> String {
    let mut text = format!("{}\n", paint.ink(Ink::Bold, &view.name));
    for share in &view.shares {
        let rate = |per_s: f64| view::rate(&share.thing, per_s);
        let got: f64 = share.members.iter().filter_map(|m| m.got).sum();
        text.push_str(&format!(
            "  {} {}, guaranteed {}, got {}, {}\n",
            share.name,
            rate(share.rate),
            rate(share.guaranteed),
            rate(got),
            count(share.members.len() as u64, "member", "members"),
        ));
        if share.members.is_empty() {
            continue;
        }
        let header = [
            "member",
            "user",
            "guarantee",
            "ceiling",
            "weight",
            "got",
            "borrowed",
            "waits",
        ];
        let mut rows = table(&header, &[1, 2, 3, 4, 5, 6, 7]);
        for member in &share.members {
            let or_none = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rate);
            let ended = if member.alive { "" } else { " (ended)" };
            rows.add_row([
                format!("{}{ended}", member.service),
                member.uid.to_string(),
                or_none(member.guarantee),
                or_none(member.ceiling),
                member.weight.to_string(),
                or_none(member.got),
                or_none(member.borrowed),
                member.waits.to_string(),
            ]);
        }
        text.push_str(&finish(&rows));
    }
    text
}
