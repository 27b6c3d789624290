//! A change sets or lifts a limit of a service, and another limit, which is not this daemon's, is lower or is still there: the change does
//! nothing therefore, and its answer says so. Such limits are those of the service itself (`bonsai run --limit`, `bonsai attach`, `bonsai
//! set --direct`), those of another daemon, and what a group of the ledger (`bonsai group`) lets it have. A change that is only tried is
//! answered by the same rule.
//!
//! # Limits
//! A limit per stream or on some descriptors is not among them: it does not hold for all calls.

use bonsai_api::LimitOwner;
use bonsai_ledger::Part;
use bonsai_policy::Config;
use bonsai_services::group::{self, DAEMON_POOL};
use bonsai_services::limits::{calls_of, for_people, written};
use bonsai_services::observe::monotonic_ns;
use bonsai_units::{Rate, Resource};
use serde_json::Value;

use super::Ring;
use super::initial::ceilings;

/// Limits that a change sets or lifts, by service.
pub(super) struct ChangedLimits {
    /// Ceilings.
    ceilings: Vec<(String, Resource)>,
    /// Limits by name that are lifted.
    lifted: Vec<(String, String)>,
}

impl ChangedLimits {
    /// By a merge patch on the configuration.
    pub(super) fn of(patch: &Value) -> Self {
        let mut asked = Self {
            ceilings: Vec::new(),
            lifted: Vec::new(),
        };
        let services = patch.get("services").and_then(Value::as_object);
        for (id, service) in services.into_iter().flatten() {
            for resource in Resource::ALL {
                let terms = service.get(resource.name());
                if terms.is_some_and(|terms| terms.is_null() || terms.get("max").is_some()) {
                    asked.ceilings.push((id.clone(), resource));
                }
            }
            let limits = service.get("limits").and_then(Value::as_object);
            for (name, _) in limits.into_iter().flatten().filter(|(_, to)| to.is_null()) {
                // `bonsai set vod read=unlimited` lifts both.
                let is_ceiling =
                    |(of, resource): &(String, Resource)| of == id && resource.class() == name;
                if !asked.ceilings.iter().any(is_ceiling) {
                    asked.lifted.push((id.clone(), name.clone()));
                }
            }
        }
        asked
    }
}

impl Ring {
    /// Of a change that is in force: limits that make it do nothing, in words.
    pub(super) fn held(&self, asked: &ChangedLimits) -> Vec<String> {
        let ceiling = |id: &str, resource: Resource| {
            let mut decided = self.policy.allocation().services.iter();
            let decided = decided.find(|decided| &*decided.name == id)?;
            decided.grants[resource.index()].ceiling
        };
        self.held_beside(asked, ceiling)
    }

    /// The same of a change that is only tried, by what would be planned.
    pub(super) fn would_hold(&self, asked: &ChangedLimits, planned: &Config) -> Vec<String> {
        let ceiling = |id: &str, resource: Resource| {
            let service = planned.services.iter().find(|of| &*of.name == id);
            ceilings(planned, service)[resource.index()]
        };
        self.held_beside(asked, ceiling)
    }

    /// Limits that are lower than the ceilings that a change leads to.
    fn held_beside(
        &self,
        asked: &ChangedLimits,
        ceiling: impl Fn(&str, Resource) -> Option<u64>,
    ) -> Vec<String> {
        let by_group = |(id, resource): &(String, Resource)| {
            let ledger = self.looker.get(id)?.own()?.ledger().ok()?;
            let (group, number) = group::of(&ledger)?;
            let things = group.things();
            let mut things = things.iter().enumerate();
            let (place, thing) = things.find_map(|(place, thing)| {
                let thing = thing.as_ref()?;
                group::is_of(thing, *resource).then_some((place, thing))
            })?;
            let part = group.part(number, place).unwrap_or(Part::PLAIN);
            let most = group::member::most(thing, part);
            // The pool is where this daemon's own decision stands.
            let is_pool = group.name() == DAEMON_POOL;
            if is_pool || ceiling(id, *resource).is_some_and(|ceiling| ceiling <= most) {
                return None;
            }
            let rate = group::member::people(thing, most);
            let group = group.name();
            Some(format!(
                "{id}: the group {group} still lets it have at most {rate} of {resource} (bonsai group set {group} changes it)"
            ))
        };
        let by_ceiling = |(id, resource): &(String, Resource)| {
            let watched = self.looker.get(id)?;
            let own = self.looker.own_limits(watched);
            let bound = own.bounds[resource.index()].as_ref()?;
            if ceiling(id, *resource).is_some_and(|ceiling| ceiling <= bound.rate_milli) {
                return None;
            }
            let rate = Rate::from_milli(bound.rate_milli, resource.unit());
            let rate = for_people(rate, calls_of(&bound.name));
            let by = LimitOwner::of(&bound.name, self.config.services.get(id));
            let name = by.plain(&bound.name);
            Some(format!(
                "{id}: {name}={rate}, set by {}, still holds for {resource}{}",
                by.words(),
                way(by, id, name)
            ))
        };
        let by_name = |(id, name): &(String, String)| {
            let watched = self.looker.get(id)?;
            let configured = self.config.services.get(id);
            if configured.is_some_and(|service| service.limits.contains_key(name)) {
                // This daemon's own, which would be lifted.
                return None;
            }
            // As it is now: what is configured was lifted a moment ago.
            let limits = watched.own()?.ledger().ok()?.limits(monotonic_ns());
            let setting = written(limits.iter().find(|limit| limit.name == *name)?);
            let by = LimitOwner::Service;
            Some(format!(
                "{id}: {name}={setting}, set by {}, still holds{}",
                by.words(),
                way(by, id, name)
            ))
        };
        let mut held: Vec<String> = asked.ceilings.iter().filter_map(by_ceiling).collect();
        held.extend(asked.ceilings.iter().filter_map(by_group));
        held.extend(asked.lifted.iter().filter_map(by_name));
        held
    }
}

/// How such a limit is changed.
fn way(by: LimitOwner, id: &str, name: &str) -> String {
    match by {
        LimitOwner::Service => format!(" (bonsai set --direct {id} {name}=RATE changes it)"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_says_which_limits_are_asked_for() {
        let patch = json!({
            "policy": {"mode": "static"},
            "services": {
                "a": {"send": {"max": "1MB/s"}, "read": {"min": "1MB/s"}},
                "b": {"write": {"max": null}, "recv": null, "limits": {"open": "5/s", "all": null}},
                "c": null,
            },
        });
        let asked = ChangedLimits::of(&patch);
        let ceilings: Vec<_> = asked
            .ceilings
            .iter()
            .map(|(id, resource)| (&**id, *resource))
            .collect();
        assert_eq!(
            ceilings,
            [
                ("a", Resource::Send),
                ("b", Resource::Write),
                ("b", Resource::Recv)
            ]
        );
        assert_eq!(asked.lifted, [("b".to_owned(), "all".to_owned())]);
        assert!(ChangedLimits::of(&json!({})).ceilings.is_empty());
    }
}
