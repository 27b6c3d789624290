//! A service as a member of a group.

use bonsai_calls::select;
use bonsai_ledger::{
    Group, GroupEditor, Ledger, LedgerError, MOST_WEIGHT, Membership, Part, Thing, Who,
};
use bonsai_units::{LimitSpec, Rate, Setting, Unit};

use super::join::of;
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

/// Whether the process that keeps a member's service lives.
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

/// Changes what a running service has of its group. What changed, in words.
///
/// # Errors
/// A [`Refusal`]: it is in none, or the group has not what is wished.
pub fn change(service: &str, ledger: &Ledger, wishes: &Wishes) -> anyhow::Result<Vec<String>> {
    let Some((group, membership)) = of(ledger) else {
        let text =
            format!("{service} is in no group: bonsai group join GROUP {service} puts it into one");
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

/// The most that a member gets of a thing, thousandths of a unit per second.
#[must_use]
pub fn most(thing: &Thing, part: Part) -> u64 {
    match part.ceiling_milli {
        0 => thing.rate_milli,
        ceiling => ceiling.min(thing.rate_milli),
    }
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
pub(super) fn agree(
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
