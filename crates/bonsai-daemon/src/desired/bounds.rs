//! How much may be kept. All of it is written to disk with each change, by the thread that owns
//! what changes.
//!
//! Owners may change their own services only, and there may be many of them, or some that mean
//! harm: what is of them leaves a part of everything to those who may change everything.

use serde_json::Value;

use super::{Change, Refused, Step};

/// Changes that may be in force at a time.
const MOST_CHANGES: usize = 1000;

/// Those of owners.
const MOST_OF_OWNERS: usize = 900;

/// Bytes that the changes of one owner take.
const OWNER_BYTES: usize = 64 << 10;

/// Bytes that those of all owners take.
const OWNERS_BYTES: usize = 1 << 20;

/// How many steps back are remembered.
const MOST_STEPS: usize = 100;

/// Of these, where there are more, those of owners.
const STEPS_OF_OWNERS: usize = 50;

/// Bytes of changes that steps would bring back.
const STEPS_BYTES: usize = 4 << 20;

/// Those that steps of owners would.
const OWNERS_STEPS_BYTES: usize = 256 << 10;

/// What a change takes beside its patch and its maker's name.
const OVERHEAD: usize = 64;

/// About the bytes that a value takes as JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len() + 4 + size(value))
            .fold(2, usize::saturating_add),
        Value::Array(values) => values
            .iter()
            .map(|value| size(value) + 1)
            .fold(2, usize::saturating_add),
        Value::String(text) => text.len() + 2,
        _ => 8,
    }
}

fn sum<'a>(changes: impl Iterator<Item = &'a Change>) -> usize {
    let each = changes.map(|change| OVERHEAD + change.actor.len() + size(&change.patch));
    each.fold(0, usize::saturating_add)
}

/// Whether one more change may be kept beside these.
pub(super) fn fits(changes: &[Change], change: &Change) -> Result<(), Refused> {
    let refused = |text: String| Err(Refused::Invalid(text));
    if changes.len() >= MOST_CHANGES {
        return refused(format!(
            "{MOST_CHANGES} changes are in force already: put them into the configuration file, \
             or undo some"
        ));
    }
    if !change.owner {
        return Ok(());
    }
    let owners = || changes.iter().filter(|old| old.owner).chain([change]);
    let name = &change.actor;
    if sum(owners().filter(|old| old.is_by(name, change.uid))) > OWNER_BYTES {
        return refused(format!(
            "with that, the changes of {name} that are in force would take more than {} KiB: take \
             some back",
            OWNER_BYTES >> 10
        ));
    }
    if owners().count() > MOST_OF_OWNERS || sum(owners()) > OWNERS_BYTES {
        let text = "users have made more changes of their services than are kept: ask whoever \
                    administers the machine";
        return refused(text.to_owned());
    }
    Ok(())
}

/// Forgets steps that are too many. Of owners, two that follow each other become one first.
pub(super) fn steps(steps: &mut Vec<Step>) {
    loop {
        let many = steps.len() > MOST_STEPS;
        let bytes = |owner: bool| {
            let of = steps.iter().filter(|step| step.owner || !owner);
            sum(of.flat_map(|step| &step.replaced))
        };
        let of_owners = steps.iter().filter(|step| step.owner).count();
        let pair = steps
            .windows(2)
            .position(|two| two[0].owner && two[1].owner);
        let crowded = many && of_owners > STEPS_OF_OWNERS || bytes(true) > OWNERS_STEPS_BYTES;
        match pair.filter(|_| crowded) {
            Some(at) => {
                let next = steps.remove(at + 1);
                steps[at].join(next);
            }
            None if many || bytes(false) > STEPS_BYTES => drop(steps.remove(0)),
            None => break,
        }
    }
}
