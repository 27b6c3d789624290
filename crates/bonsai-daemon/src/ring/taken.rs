//! A service has limits of its own (`bonsai run --limit`, `bonsai attach`, `bonsai set --direct`), and the daemon is asked for a ceiling on
//! the same resource: then the service's own is taken over. It becomes a ceiling of the daemon's, which the change that was asked for
//! replaces, so that undoing that, or its end, brings it back; and it is lifted once the new one is in force.
//!
//! Other limits on all calls of the resource stay, and are named where they are lower: one under another name (`net`, `all`), one of
//! another daemon, and those of another user's service.

use std::collections::BTreeSet;
use std::sync::Arc;

use bonsai_api::{LimitOwner, Share};
use bonsai_services::limits::{calls_of, for_people};
use bonsai_units::{Rate, Resource};
use serde_json::{Map, Value, json};

use super::Ring;
use super::audit::Deed;
use crate::desired::{Change, Refused};
use crate::plan::check;
use crate::who::Who;

/// The ceilings that a change sets or lifts: service and resource.
pub(super) type Ceilings = Vec<(String, Resource)>;

/// A limit of a service's own.
#[derive(Debug)]
pub(super) struct Own {
    id: Arc<str>,
    resource: Resource,
    rate: Rate,
    /// As it is written.
    text: String,
}

/// Those that a merge patch on the configuration is about.
pub(super) fn ceilings(patch: &Value) -> Ceilings {
    let services = patch.get("services").and_then(Value::as_object);
    let services = services.into_iter().flatten();
    let of = |(id, service): (&String, &Value)| {
        let has = |resource: &Resource| {
            let terms = service.get(resource.name());
            terms.is_some_and(|terms| terms.is_null() || terms.get("max").is_some())
        };
        let resources = Resource::ALL.into_iter().filter(has);
        resources
            .map(|resource| (id.clone(), resource))
            .collect::<Vec<_>>()
    };
    services.flat_map(of).collect()
}

/// As people write it.
const fn in_its_unit(resource: Resource, rate: Rate) -> Share {
    match resource {
        Resource::Send | Resource::Recv => Share::Bits(rate),
        Resource::Read | Resource::Write | Resource::Calls => Share::Rate(rate),
    }
}

impl Own {
    /// In words.
    pub(super) fn words(&self) -> String {
        let Self {
            id, resource, text, ..
        } = self;
        format!("{id}: {}={text} of the service itself", resource.class())
    }
}

impl Ring {
    /// Limits of the services' own that such a change takes the place of.
    pub(super) fn own_under(&self, ceilings: &Ceilings) -> Vec<Own> {
        let own = |(id, resource): &(String, Resource)| {
            let watched = self.looker.get(id)?;
            let (rate, text) = watched.own_limit(*resource)?;
            Some(Own {
                id: Arc::clone(&watched.id),
                resource: *resource,
                rate,
                text,
            })
        };
        ceilings.iter().filter_map(own).collect()
    }

    /// Makes those that bind ceilings of the daemon's.
    pub(super) fn take_over(&mut self, who: &Who, own: &[Own]) -> Result<(), Refused> {
        for Own {
            id, resource, rate, ..
        } in own
        {
            let configured = self.config.services.get(&**id);
            let terms = configured.and_then(|service| service.terms((*resource).into()));
            let is_lower = match terms.and_then(|terms| terms.max) {
                None => true,
                Some(Share::Rate(ceiling) | Share::Bits(ceiling)) => rate.milli() < ceiling.milli(),
                Some(Share::Percent(_)) => false,
            };
            if !is_lower {
                continue;
            }
            let ceiling = json!({ resource.name(): { "max": in_its_unit(*resource, *rate) } });
            let services: Map<String, Value> = [(id.to_string(), ceiling)].into_iter().collect();
            let change = Change {
                revision: 0,
                actor: who.name.clone(),
                until_unix_ms: None,
                owner: !who.writes_all,
                patch: json!({ "services": services }),
            };
            let differences = self.desired.change(change, check)?;
            self.note(Deed {
                who: Some(who),
                by: "",
                action: "take-over",
                service: Some(id),
                differences,
                reason: "a limit of the service itself is the daemon's from now on".to_owned(),
            });
        }
        Ok(())
    }

    /// Lifts them, once what takes their place is in force; what could not be done, in words.
    pub(super) fn lift(&mut self, own: &[Own]) -> Vec<String> {
        let mut problems = Vec::new();
        let ids: BTreeSet<&Arc<str>> = own.iter().map(|own| &own.id).collect();
        for id in ids {
            let of_it = own.iter().filter(|own| own.id == *id);
            let resources: Vec<Resource> = of_it.clone().map(|own| own.resource).collect();
            match self.looker.lift(id, &resources) {
                Ok(()) => {}
                Err(error) => {
                    let why = bonsai_host::sentence(error.as_ref());
                    problems.extend(
                        of_it.map(|own| format!("{} could not be lifted: {why}", own.words())),
                    );
                }
            }
        }
        if !own.is_empty() {
            self.identify();
        }
        problems
    }

    /// Of such a change that is in force: limits that are lower than the ceiling, in words.
    pub(super) fn held(&self, ceilings: &Ceilings) -> Vec<String> {
        let held = |(id, resource): &(String, Resource)| {
            let watched = self.looker.get(id)?;
            let bound = self.looker.own_limits(watched).bounds[resource.index()].clone()?;
            let decided = self
                .policy
                .allocation()
                .services
                .iter()
                .find(|decided| &*decided.name == id)?;
            let ceiling = decided.grants[resource.index()].ceiling;
            if ceiling.is_some_and(|ceiling| ceiling <= bound.rate_milli) {
                return None;
            }
            let rate = Rate::from_milli(bound.rate_milli, resource.unit());
            let rate = for_people(rate, calls_of(&bound.name));
            let by = LimitOwner::of(&bound.name);
            let name = bound
                .name
                .rsplit_once('/')
                .filter(|_| by != LimitOwner::Service);
            let name = name.map_or(&*bound.name, |(name, _)| name);
            Some(format!(
                "{id}: {name}={rate}, set by {}, still holds for {resource}",
                by.words()
            ))
        };
        ceilings.iter().filter_map(held).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_what_a_patch_sets_or_lifts() {
        let patch = json!({
            "policy": {"mode": "static"},
            "services": {
                "a": {"send": {"max": "1MB/s"}, "read": {"min": "1MB/s"}},
                "b": {"write": {"max": null}, "recv": null, "limits": {"open": "5/s"}},
                "c": null,
            },
        });
        let found = ceilings(&patch);
        let found: Vec<_> = found
            .iter()
            .map(|(id, resource)| (&**id, *resource))
            .collect();
        assert_eq!(
            found,
            [
                ("a", Resource::Send),
                ("b", Resource::Write),
                ("b", Resource::Recv)
            ]
        );
        assert!(ceilings(&json!({})).is_empty());
    }
}
