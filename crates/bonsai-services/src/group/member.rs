//! A service as a member of a group.

use bonsai_calls::select;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{
    Group, GroupEditor, Ledger, LedgerError, MOST_WEIGHT, Membership, Part, Thing, Who, flags,
};
use bonsai_units::{LimitSpec, Rate, Setting, Unit};

use super::place;
use crate::limits::for_people;
use crate::observe::monotonic_ns;
use crate::refusal::{Refusal, before_start};

/// What a service wants of its group.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Guarantees by name; `None` lifts one.
    guarantees: Vec<(String, Option<Rate>)>,
    /// Ceilings, likewise.
    ceilings: Vec<(String, Option<Rate>)>,
    weight: Option<u64>,
}

impl Wishes {
    /// Reads guarantees and ceilings as they are written (`NAME=RATE`, or `NAME=none` to
    /// lift one), and a weight.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn parse(
        guarantees: &[String],
        ceilings: &[String],
        weight: Option<u64>,
    ) -> anyhow::Result<Self> {
        let all = |what: &str, texts: &[String]| -> anyhow::Result<Vec<(String, Option<Rate>)>> {
            let mut wishes: Vec<(String, Option<Rate>)> = Vec::new();
            for text in texts {
                let wish = wish(what, text)?;
                if wishes.iter().any(|(name, _)| *name == wish.0) {
                    let text = format!("the {what} on {} is given twice: write it once", wish.0);
                    return Err(Refusal::input(text));
                }
                wishes.push(wish);
            }
            Ok(wishes)
        };
        if let Some(weight) = weight
            && !(1..=MOST_WEIGHT).contains(&weight)
        {
            let text = format!("weight {weight}: a weight is a number from 1 to {MOST_WEIGHT}");
            return Err(Refusal::input(text));
        }
        Ok(Self {
            guarantees: all("guarantee", guarantees)?,
            ceilings: all("ceiling", ceilings)?,
            weight,
        })
    }

    /// Whether anything is wished.
    pub fn is_empty(&self) -> bool {
        self.guarantees.is_empty() && self.ceilings.is_empty() && self.weight.is_none()
    }
}

fn wish(what: &str, text: &str) -> anyhow::Result<(String, Option<Rate>)> {
    let refuse = |why: String| {
        let form = "the form is NAME=RATE, such as send=40Mbit/s, or NAME=none";
        Refusal::input(format!("{what} {text:?}: {why} ({form})"))
    };
    if let Some((name, "none" | "unlimited")) = text.split_once('=') {
        return Ok((name.trim().to_owned(), None));
    }
    let spec: LimitSpec = text.parse().map_err(|_| {
        let value = text.split_once('=').map(|(_, value)| value);
        let why = value.and_then(|value| value.parse::<Setting>().err());
        refuse(why.map_or_else(
            || "it has no name or no =".to_owned(),
            |why| why.to_string(),
        ))
    })?;
    match spec.setting {
        Setting::Rate { rate, burst: None } => Ok((spec.name, Some(rate))),
        _ => Err(refuse(format!("a {what} has no burst of its own"))),
    }
}

/// The process that makes a service, as its group knows it.
fn myself(name: &str) -> anyhow::Result<Who> {
    let pid = std::process::id();
    let process = bonsai_host::proc::process(pid)?;
    Ok(Who {
        name: name.to_owned(),
        pid,
        started: process.map_or(0, |process| process.start_ticks),
        uid: rustix::process::geteuid().as_raw(),
    })
}

/// Whether the process that has made a member's service lives.
pub fn is_alive(who: &Who) -> bool {
    match bonsai_host::proc::process(who.pid) {
        Ok(Some(process)) => process.start_ticks == who.started,
        // Processes of others may be hidden; then it is asked for by its number.
        _ => i32::try_from(who.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .is_some_and(|pid| {
                rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::PERM)
            }),
    }
}

/// Makes a service a member, before any process of it lives.
///
/// # Errors
/// A [`Refusal`]: there is no such group, or it has not what is wished.
pub fn join(ledger: &Ledger, service: &str, group: &str, wishes: &Wishes) -> anyhow::Result<()> {
    let group = place::find(group)?;
    let now = monotonic_ns();
    let mut editor = group.edit(now)?;
    let membership = editor.join(myself(service)?, is_alive).map_err(refused)?;
    agree(&group, &mut editor, membership, wishes)?;
    let things = editor.things().to_vec();
    ledger.set_group(group.path())?;
    ledger
        .header
        .flags
        .fetch_or(flags::EXTENDED, Ordering::Relaxed);
    editor.commit().map_err(refused)?;
    let mut limits = ledger.edit(now)?;
    for (i, thing) in things.iter().enumerate() {
        if let Some((thing, selection)) = thing.as_ref().and_then(|t| Some((t, select(&t.name)?))) {
            limits.join(i, selection, thing.bytes, membership);
        }
    }
    limits.commit();
    Ok(())
}

/// Gives the number of a service back.
pub fn leave(ledger: &Ledger) {
    let Some((group, membership)) = of(ledger) else {
        return;
    };
    // What cannot be given back now is free for others in a minute.
    if let Ok(mut editor) = group.edit(monotonic_ns()) {
        editor.leave(membership);
        drop(editor.commit());
    }
}

/// The group that a service is in, and its number.
pub fn of(ledger: &Ledger) -> Option<(Group, Membership)> {
    let group = Group::open(&ledger.group()?).ok()?;
    let (_, word) = ledger.with_config(|config| {
        let words = config.groups.iter().map(|w| w.load(Ordering::Relaxed));
        words.fold(0, |found, word| if found == 0 { word } else { found })
    });
    let membership = Membership::from_word(word).filter(|m| group.has(*m))?;
    Some((group, membership))
}

/// Changes what a running service has of its group. What changed, in words.
///
/// # Errors
/// A [`Refusal`]: it is in none, or the group has not what is wished.
pub fn change(service: &str, ledger: &Ledger, wishes: &Wishes) -> anyhow::Result<Vec<String>> {
    let Some((group, membership)) = of(ledger) else {
        let text = format!(
            "{service} is in no group: a service joins one when it starts (bonsai run --group)"
        );
        return Err(Refusal::input(text));
    };
    let mut editor = group.edit(monotonic_ns())?;
    let before = parts(&editor, membership);
    agree(&group, &mut editor, membership, wishes)?;
    let after = parts(&editor, membership);
    editor.commit().map_err(refused)?;
    let lines = before.iter().zip(&after).flatten_pairs();
    let name = group.name();
    let lines = lines.map(|(thing, from, to)| {
        let (from, to) = (said(thing, from), said(thing, to));
        format!("{service}: group {name} {} {from} -> {to}\n", thing.name)
    });
    Ok(lines.collect())
}

type Held = Option<(Thing, Part)>;

fn parts(editor: &GroupEditor<'_>, membership: Membership) -> Vec<Held> {
    let things = editor.things().iter().enumerate();
    things
        .map(|(i, thing)| Some((thing.clone()?, editor.part(membership, i)?)))
        .collect()
}

trait Pairs<'a> {
    /// Those that are different afterwards.
    fn flatten_pairs(self) -> impl Iterator<Item = (&'a Thing, Part, Part)>;
}

impl<'a, I: Iterator<Item = (&'a Held, &'a Held)>> Pairs<'a> for I {
    fn flatten_pairs(self) -> impl Iterator<Item = (&'a Thing, Part, Part)> {
        self.filter_map(|(before, after)| {
            let ((thing, from), (_, to)) = (before.as_ref()?, after.as_ref()?);
            (from != to).then_some((thing, *from, *to))
        })
    }
}

/// A rate of a thing for people.
pub fn people(thing: &Thing, milli: u64) -> String {
    let unit = if thing.bytes {
        Unit::Bytes
    } else {
        Unit::Calls
    };
    for_people(Rate::from_milli(milli, unit), select(&thing.name))
}

/// What a member has of a thing, in words.
pub fn said(thing: &Thing, part: Part) -> String {
    let rate = |what: &str, milli: u64| match milli {
        0 => format!("no {what}"),
        milli => format!("{what} {}", people(thing, milli)),
    };
    let [guarantee, ceiling] = [
        rate("guarantee", part.guarantee_milli),
        rate("ceiling", part.ceiling_milli),
    ];
    format!("{guarantee}, {ceiling}, weight {}", part.weight)
}

/// Writes wishes into the terms.
fn agree(
    group: &Group,
    editor: &mut GroupEditor<'_>,
    membership: Membership,
    wishes: &Wishes,
) -> anyhow::Result<()> {
    let name = group.name();
    let things = editor.things().to_vec();
    let wished = wishes.guarantees.iter().chain(&wishes.ceilings);
    for (wanted, rate) in wished {
        let same = |thing: &&Thing| thing.name == *wanted;
        let Some(thing) = things.iter().flatten().find(same) else {
            let has: Vec<String> = things.iter().flatten().map(limit_text).collect();
            let text = format!(
                "the group {name} has no limit on {wanted}: it has {}",
                has.join(" ")
            );
            return Err(Refusal::input(text));
        };
        let bytes = rate.map(|rate| rate.unit() == Unit::Bytes);
        if bytes.is_some_and(|bytes| bytes != thing.bytes) {
            let text = format!(
                "the group {name} counts {} of {wanted}: it has {}",
                if thing.bytes { "bytes" } else { "calls" },
                limit_text(thing)
            );
            return Err(Refusal::input(text));
        }
    }
    for (i, thing) in things.iter().enumerate() {
        let Some(thing) = thing else { continue };
        let mut part = editor.part(membership, i).unwrap_or(Part::PLAIN);
        let find = |wishes: &[(String, Option<Rate>)]| {
            let wish = wishes.iter().find(|(wanted, _)| *wanted == thing.name);
            wish.map(|(_, rate)| rate.map_or(0, Rate::milli))
        };
        part.guarantee_milli = find(&wishes.guarantees).unwrap_or(part.guarantee_milli);
        part.ceiling_milli = find(&wishes.ceilings).unwrap_or(part.ceiling_milli);
        part.weight = wishes.weight.unwrap_or(part.weight);
        check(&name, editor, membership, (i, thing), part)?;
        editor.agree(membership, i, part);
    }
    Ok(())
}

fn check(
    name: &str,
    editor: &GroupEditor<'_>,
    membership: Membership,
    (i, thing): (usize, &Thing),
    part: Part,
) -> anyhow::Result<()> {
    let rate = |milli| people(thing, milli);
    if part.ceiling_milli != 0 && part.ceiling_milli < part.guarantee_milli {
        let text = format!(
            "the ceiling {} is below the guarantee {} of {}: a ceiling is at least the guarantee",
            rate(part.ceiling_milli),
            rate(part.guarantee_milli),
            thing.name
        );
        return Err(Refusal::input(text));
    }
    let others = editor.promised(i, membership);
    let free = thing.rate_milli.saturating_sub(others);
    if part.guarantee_milli > free {
        let text = format!(
            "the group {name} has {} of {}, and {} of that is guaranteed to others: a guarantee \
             of {} does not fit ({} is left)",
            rate(thing.rate_milli),
            thing.name,
            if others == 0 {
                "nothing".to_owned()
            } else {
                rate(others)
            },
            rate(part.guarantee_milli),
            if free == 0 {
                "nothing".to_owned()
            } else {
                rate(free)
            },
        );
        return Err(Refusal::input(text));
    }
    Ok(())
}

/// A limit of a group as it may be written, in the units of its name.
pub fn limit_text(thing: &Thing) -> String {
    let rate = people(thing, thing.rate_milli).replace(' ', "");
    format!("{}={rate}", thing.name)
}

/// What the ledger refuses, as bad input.
pub fn refused(error: LedgerError) -> anyhow::Error {
    match error {
        LedgerError::Limit(text) => Refusal::input(text),
        error => before_start(error.into()),
    }
}
