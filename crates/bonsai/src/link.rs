//! `bonsai link`: interfaces, seen and limited.

mod daemon;
mod pace;

use std::collections::BTreeSet;

use anyhow::bail;
use bonsai_api::{LinkBy, LinkState, LinkView};
use bonsai_host::tenants::Who;
use bonsai_host::{runtime_dir, runtime_dir_path};
use bonsai_link::{Terms, rate_text};
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_tenants::{Ask, Found, Set, Target, Whose, clear, find, look, set};
use bonsai_units::{Rate, format_duration_ns};
use serde_json::json;

use crate::cli::{LinkClear, LinkCommand, LinkLs, LinkOf, LinkSet};
use crate::output::{Ink, Paint, finish, print, print_json, table};

/// `bonsai link`.
///
/// # Errors
/// What was asked for makes no sense, or the kernel refuses it.
pub(crate) fn run(command: &LinkCommand) -> anyhow::Result<u8> {
    match command {
        LinkCommand::Ls(args) => ls(args),
        LinkCommand::Set(args) => change(args),
        LinkCommand::Clear(args) => away(args),
        LinkCommand::Pace(args) => pace::run(args),
    }
}

/// An error as one sentence: bad input where it is the caller's to mend.
fn said(error: bonsai_tenants::Error) -> anyhow::Error {
    if !error.is_input() {
        return error.into();
    }
    Refusal::input(error.sentence())
}

fn whose(of: &LinkOf) -> Whose<'_> {
    match of {
        LinkOf {
            netns: Some(name), ..
        } => Whose::Of(Who::Netns(name)),
        LinkOf {
            container: Some(name),
            ..
        } => Whose::Of(Who::Container(name)),
        LinkOf { vm: Some(name), .. } => Whose::Of(Who::Machine(name)),
        LinkOf { pid: Some(pid), .. } => Whose::Of(Who::Pid(*pid)),
        _ => Whose::Ours,
    }
}

/// Finds what is meant, which may be written as a target of the configuration.
fn meant(of: &LinkOf, name: Option<&str>) -> anyhow::Result<Found> {
    let whose = whose(of);
    if let (Whose::Ours, Some(name)) = (whose, name.filter(|name| name.contains(':'))) {
        let target: Target = name.parse().map_err(Refusal::input)?;
        return find(target.whose(), target.interface()).map_err(said);
    }
    find(whose, name).map_err(said)
}

/// The interface and the changes among the words.
fn read(words: &[String]) -> anyhow::Result<(Option<&str>, Ask)> {
    let mut name = None;
    let mut ask = Ask::default();
    let mut keys = BTreeSet::new();
    for word in words {
        let key = word.split_once('=').map(|(key, _)| key);
        let twice = key.filter(|key| !keys.insert(*key));
        if let Some(key) = twice {
            bail!(Refusal::input(format!(
                "{key} is given twice: write it once"
            )));
        }
        if let Some(uplink) = word.strip_prefix("uplink=") {
            ask.uplink = Some(uplink.to_owned());
        } else if word.contains('=') {
            ask.changes.push(word.parse().map_err(Refusal::input)?);
        } else if let Some(first) = name.replace(word.as_str()) {
            bail!(Refusal::input(format!(
                "{first} and {word} are two interfaces: name one"
            )));
        }
    }
    if ask.changes.is_empty() && ask.uplink.is_none() {
        bail!(Refusal::input(
            "nothing is to be changed: write KEY=VALUE, such as tx=20Mbit/s"
        ));
    }
    Ok((name, ask))
}

fn change(args: &LinkSet) -> anyhow::Result<u8> {
    let (name, ask) = read(&args.words)?;
    if let Some(code) = daemon::set(args, name, &ask)? {
        return Ok(code);
    }
    daemon::is_not_needed(&args.how)?;
    let found = meant(&args.of, name)?;
    let done = set(&runtime_dir()?, &found, &ask, args.adopt).map_err(said)?;
    if args.json {
        print_json(&document(&found, &done), false)?;
    } else {
        print(&text(&found, &done))?;
    }
    Ok(u8::from(done.doubt.is_some()))
}

/// What holds of an interface now, from the view of what was named.
fn from_there(found: &Found, terms: &Terms) -> (Option<u64>, Option<u64>) {
    match found.swapped {
        false => (terms.tx, terms.rx),
        true => (terms.rx, terms.tx),
    }
}

fn text(found: &Found, done: &Set) -> String {
    let limit = |rate: Option<u64>| rate.map_or_else(|| "unlimited".to_owned(), rate_text);
    let (tx, rx) = from_there(found, &done.terms);
    let mut line = format!("{}: tx={} rx={}", found.said, limit(tx), limit(rx));
    if let Some(share) = &done.terms.share {
        let uplink = done.uplink.as_deref().unwrap_or("?");
        let guarantee = share.guarantee.map_or_else(|| "none".to_owned(), rate_text);
        line.push_str(&format!(
            " guarantee={guarantee} ceiling={} weight={} uplink={uplink}",
            limit(share.ceiling),
            share.weight
        ));
    }
    if let Some(ns) = done.terms.burst_ns {
        line.push_str(&format!(" burst={}", format_duration_ns(ns)));
    }
    let effect = match (&done.doubt, done.steps) {
        (Some(doubt), _) => format!("not in force: {doubt}"),
        (None, 0) => "as it was already".to_owned(),
        (None, _) => "in force".to_owned(),
    };
    let mut text = format!("{line}: {effect}");
    if found.swapped {
        text.push_str(&format!(
            ", at {}, where what it sends is received",
            done.interface
        ));
    }
    text.push('\n');
    for note in &done.notes {
        text.push_str(&format!("  {note}\n"));
    }
    text
}

fn document(found: &Found, done: &Set) -> serde_json::Value {
    let (tx, rx) = from_there(found, &done.terms);
    json!({
        "schema": SCHEMA,
        "of": found.said,
        "interface": done.interface,
        "namespace": found.namespace_name,
        "swapped": found.swapped,
        "tx": tx,
        "rx": rx,
        "share": done.terms.share.as_ref().map(|share| json!({
            "uplink": done.uplink,
            "guarantee": share.guarantee,
            "ceiling": share.ceiling,
            "weight": share.weight,
        })),
        "burst_ns": done.terms.burst_ns,
        "in_force": done.doubt.is_none(),
        "why": done.doubt,
        "steps": done.steps,
        "notes": done.notes,
    })
}

fn away(args: &LinkClear) -> anyhow::Result<u8> {
    if let Some(code) = daemon::clear(args)? {
        return Ok(code);
    }
    daemon::is_not_needed(&args.how)?;
    let found = match args.all {
        true => None,
        false => Some(meant(&args.of, args.interface.as_deref())?),
    };
    let cleared = clear(&runtime_dir()?, found.as_ref()).map_err(said)?;
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "cleared": cleared.interfaces,
            "notes": cleared.notes,
        });
        print_json(&document, false)?;
        return Ok(0);
    }
    let mut text = String::new();
    for name in &cleared.interfaces {
        text.push_str(&format!("{name}: as it was before\n"));
    }
    if cleared.interfaces.is_empty() {
        let whose = found.map_or_else(|| "no interface".to_owned(), |found| found.said);
        text.push_str(&format!("{whose}: there was no limit\n"));
    }
    for note in &cleared.notes {
        text.push_str(&format!("  {note}\n"));
    }
    print(&text)?;
    Ok(0)
}

/// All interfaces; with exit code 1 where some could not be seen.
fn ls(args: &LinkLs) -> anyhow::Result<u8> {
    let mut links = match daemon::links(args.lasts)? {
        Some(links) => links,
        None => look(&runtime_dir_path()?, args.lasts).map_err(said)?,
    };
    if args.limited {
        let limited = |link: &LinkView| link.by.is_some() || link.state != LinkState::Free;
        links.links.retain(limited);
    }
    let code = u8::from(!links.problems.is_empty());
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "seconds": links.seconds,
            "links": links.links,
            "problems": links.problems,
        });
        print_json(&document, false)?;
        return Ok(code);
    }
    let paint = Paint::stdout();
    let mut problems = String::new();
    for problem in &links.problems {
        problems.push_str(&format!("{}\n", paint.ink(Ink::Yellow, problem)));
    }
    if links.links.is_empty() {
        let none = match &*problems {
            "" => "no interface has a limit\n",
            problems => problems,
        };
        print(none)?;
        return Ok(code);
    }
    let heads = [
        "interface",
        "kind",
        "tx",
        "limit",
        "rx",
        "limit",
        "share",
        "state",
        "whose",
    ];
    let mut table = table(&heads, &[2, 3, 4, 5]);
    for link in &links.links {
        table.add_row(row(link));
    }
    let mut text = finish(&table);
    for link in links.links.iter() {
        let Some(problem) = link.problem.as_deref() else {
            continue;
        };
        let line = format!("{}: {problem}", link.name);
        text.push_str(&format!("{}\n", paint.ink(Ink::Yellow, &line)));
    }
    text.push_str(&problems);
    print(&text)?;
    Ok(code)
}

fn row(link: &LinkView) -> [String; 9] {
    // Never negative, and far from the end of the range.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "see above"
    )]
    let rate = |rate: f64| match rate as u64 {
        0 => "0".to_owned(),
        rate => Rate::bytes_per_sec(rate).network(),
    };
    let limit = |rate: Option<u64>| rate.map_or_else(|| "-".to_owned(), rate_text);
    let share = link.share.as_ref().map(|share| {
        let guarantee = share.guarantee.map(|rate| format!("{} ", rate_text(rate)));
        let ceiling = share.ceiling.map(|rate| format!("to {} ", rate_text(rate)));
        format!(
            "{}{}x{} of {}",
            guarantee.unwrap_or_default(),
            ceiling.unwrap_or_default(),
            share.weight,
            share.uplink
        )
    });
    let name = match &link.namespace {
        None => link.name.clone(),
        Some(namespace) => format!("{} of {namespace}", link.name),
    };
    let kind = link.kind.as_deref().unwrap_or("device");
    let kind = match (link.index, link.up) {
        (0, _) => link.kind.clone().unwrap_or_else(|| "-".to_owned()),
        (_, true) => kind.to_owned(),
        (_, false) => format!("{kind}, down"),
    };
    let state = match (link.state, link.by) {
        (LinkState::Free, _) => "-",
        (LinkState::InForce, Some(LinkBy::Hand)) => "in force, by hand",
        (LinkState::InForce, _) => "in force",
        (LinkState::Waiting, _) => "waiting",
        (LinkState::Problem, _) => "problem",
    };
    [
        name,
        kind,
        rate(link.tx),
        limit(link.tx_limit),
        rate(link.rx),
        limit(link.rx_limit),
        share.unwrap_or_else(|| "-".to_owned()),
        state.to_owned(),
        link.whose.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
