//! Putting limits into force.

use bonsai_ledger::{EventLoops, Ledger, LedgerError, Wanted};
use bonsai_units::{Setting, Unit};
use serde::Serialize;

use super::{Counted, Holds, Limit, LimitProblem, check_counts, unit_of, written};
use crate::refusal::Refusal;

/// What a change of one limit did; part of what `bonsai set --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The call or class.
    pub name: String,
    /// The settings it had, as they would be written; empty for none.
    pub from: Vec<String>,
    /// The setting it has now, as it would be written.
    pub to: String,
}

/// Puts limits into force at `now` (monotonic clock, ns), all together, and with them
/// whether event loops are made to wait, if that is said.
///
/// # Errors
/// A [`Refusal`] if the service cannot hold them, with nothing changed;
/// [`LedgerError`] if the ledger cannot be locked.
pub fn apply(
    ledger: &Ledger,
    limits: &[Limit],
    loops: Option<EventLoops>,
    now: u64,
) -> anyhow::Result<Vec<Change>> {
    let mut editor = ledger.edit(now)?;
    Holds::of(ledger)
        .check(&ledger.name(), limits)
        .map_err(|problem| Refusal::input(problem.to_string()))?;
    // Nobody else changes them while the editor lives.
    let before = ledger.limits(now);
    check_result(&before, limits).map_err(|problem| Refusal::input(problem.to_string()))?;
    let narrow = |limit: &&Limit| limit.is_narrow() && limit.setting != Setting::Unlimited;
    if let Some(limit) = limits.iter().find(narrow)
        && !ledger.has_extension()
    {
        return Err(Refusal::input(format!(
            "the limit on {} needs libbonsai_extension.so beside the library, where this service was started: install it, or limit all calls of a kind (an enforced service decides outside of the program, where no limit is narrowed down)",
            limit.name
        )));
    }
    let mut changes = Vec::new();
    for limit in limits {
        let old = before.iter().filter(|old| old.name == limit.name);
        let from = match limit.setting {
            Setting::Rate { rate, .. } => old
                .filter(|old| unit_of(old) == rate.unit())
                .map(written)
                .collect(),
            Setting::Unlimited => old.map(written).collect(),
        };
        set(&mut editor, limit)?;
        changes.push(Change {
            name: limit.name.clone(),
            from,
            to: limit.setting.to_string(),
        });
    }
    if let Some(loops) = loops {
        editor.event_loops(loops);
    }
    editor.commit();
    Ok(changes)
}

fn set(editor: &mut bonsai_ledger::Editor<'_>, limit: &Limit) -> anyhow::Result<()> {
    let Setting::Rate { rate, burst } = limit.setting else {
        editor.clear(&limit.name);
        return Ok(());
    };
    let burst = burst.unwrap_or_default().units(rate)?;
    let bytes = rate.unit() == Unit::Bytes;
    let wanted = Wanted {
        name: &limit.name,
        selection: limit.selection,
        bytes,
        rate_milli: rate.milli(),
        burst,
        per_stream: limit.per_stream,
        scope: limit.scope,
    };
    editor.put(&wanted).map_err(|error| match error {
        LedgerError::Limit(text) => Refusal::input(text),
        error => error.into(),
    })
}

/// Checks the limits that would be in force after a change.
fn check_result(before: &[bonsai_ledger::Limit], limits: &[Limit]) -> Result<(), LimitProblem> {
    let replaced = |old: &bonsai_ledger::Limit| {
        limits.iter().any(|limit| {
            limit.name == old.name
                && match limit.setting {
                    Setting::Rate { rate, .. } => rate.unit() == unit_of(old),
                    Setting::Unlimited => true,
                }
        })
    };
    let kept = before
        .iter()
        .filter(|old| !replaced(old))
        .filter_map(Counted::old);
    let new = limits.iter().filter_map(Counted::new);
    check_counts(&kept.chain(new).collect::<Vec<_>>())
}
