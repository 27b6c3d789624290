//! Limits that a daemon gives a service by itself: one on each resource.

use bonsai_calls::select;
use bonsai_ledger::{Ledger, LedgerError, Wanted};
use bonsai_units::{Burst, Rate, Resource, Unit};

/// Rates by [`Resource::index`], thousandths of a unit per second; `None` for no limit.
pub type Rates = [Option<u64>; Resource::COUNT];

/// Limits of that kind that are in force.
#[must_use]
pub fn plain_rates(ledger: &Ledger, whose: &str, now_ns: u64) -> Rates {
    let in_force = ledger.limits(now_ns);
    Resource::ALL.map(|resource| {
        let name = format!("{}{whose}", resource.class());
        let limit = in_force.iter().find(|limit| limit.name == name);
        limit.map(|limit| limit.rate_milli)
    })
}

/// Writes what is different, in one change; `whose` is what the names of such limits end with
/// ([`super::BY_DAEMON`], [`super::BY_SYSTEM`]). Returns how many are new.
///
/// # Errors
/// The ledger cannot be changed, or has no room.
pub fn put_plain(
    ledger: &Ledger,
    whose: &str,
    wanted: Rates,
    now_ns: u64,
) -> Result<u64, LedgerError> {
    let now = plain_rates(ledger, whose, now_ns);
    let name = |resource: Resource| format!("{}{whose}", resource.class());
    let different = |resource: &Resource| now[resource.index()] != wanted[resource.index()];
    let different: Vec<Resource> = Resource::ALL.into_iter().filter(different).collect();
    if different.is_empty() {
        return Ok(0);
    }
    let mut editor = ledger.edit(now_ns)?;
    for resource in &different {
        let name = name(*resource);
        let Some(rate_milli) = wanted[resource.index()] else {
            editor.clear(&name);
            continue;
        };
        let Some(selection) = select(resource.class()) else {
            continue;
        };
        let rate = Rate::from_milli(rate_milli, resource.unit());
        editor.put(&Wanted {
            name: &name,
            selection,
            bytes: resource.unit() == Unit::Bytes,
            rate_milli: rate.milli(),
            burst: Burst::default().units(rate).unwrap_or(1).max(1),
            per_stream: false,
            scope: bonsai_ledger::Scope::default(),
        })?;
    }
    editor.commit();
    Ok(different.len() as u64)
}
