//! Who asks, and what they may.

use bonsai_api::{Config, Resource};
use serde_json::Value;

/// Whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    /// In words: a user's name, or `token NAME`.
    pub(crate) name: String,
    /// By which way: `socket`, `tcp`.
    pub(crate) via: &'static str,
    /// Their number, where the kernel says it.
    pub(crate) uid: Option<u32>,
    /// Their process, likewise.
    pub(crate) pid: Option<u32>,
    /// Whether they see what belongs to others.
    pub(crate) reads_all: bool,
    /// Whether they change what belongs to others, and what belongs to all.
    pub(crate) writes_all: bool,
}

impl Who {
    /// The user whose services are all that they see; `None` for everybody's.
    pub(crate) fn only(&self) -> Option<u32> {
        // Without a number and without the right to see all, nobody's.
        (!self.reads_all).then_some(self.uid.unwrap_or(u32::MAX))
    }

    /// Whether they see the services of a user.
    pub(crate) fn sees(&self, uid: u32) -> bool {
        self.only().is_none_or(|only| only == uid)
    }
}

/// Whether the owner of a service, who may change nothing else, may make that change to it: they
/// lower what they get and put further limits on their calls. `before` is what it is without their
/// own changes, so that they may take them back.
pub(crate) fn owner_may(
    patch: &Value,
    id: &str,
    before: &Config,
    after: &Config,
) -> Result<(), String> {
    let refused = |what: &str| {
        Err(format!(
            "{what} of {id} is for root or whoever administers the machine: its owner may lower \
             max, and set further limits"
        ))
    };
    let Some(fields) = patch.as_object() else {
        return refused("that");
    };
    for (field, value) in fields {
        if field == "limits" {
            continue;
        }
        let Ok(resource) = serde_json::from_value::<Resource>(Value::String(field.clone())) else {
            return refused(field);
        };
        let Some(terms) = value.as_object() else {
            return refused(field);
        };
        if let Some(other) = terms.keys().find(|key| *key != "max") {
            return refused(&format!("{field}.{other}"));
        }
        let max = |config: &Config| {
            let planned = crate::plan::plan(config).ok()?;
            let service = planned.services.iter().find(|s| &*s.name == id)?;
            service.terms[bonsai_units::Resource::from(resource).index()].max
        };
        match (max(before), max(after)) {
            (Some(before), after) if after.is_none_or(|after| after > before) => {
                return refused(&format!("raising {field}.max"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_owner_lowers_and_takes_back() {
        let config = |text: &str| toml::from_str::<Config>(text).expect("a configuration");
        let before = config("[services.vod.send]\nmax = \"10MB/s\"\n");
        let may = |patch: Value, after: &str| owner_may(&patch, "vod", &before, &config(after));
        let lower = "[services.vod.send]\nmax = \"5MB/s\"\n";
        may(json!({"send": {"max": "5MB/s"}}), lower).expect("lower");
        may(json!({"send": {"max": null}}), "").expect_err("lifted");
        let higher = "[services.vod.send]\nmax = \"11MB/s\"\n";
        may(json!({"send": {"max": "11MB/s"}}), higher).expect_err("higher");
        may(json!({"limits": {"open": "5/s"}}), lower).expect("further limits");
        for patch in [
            json!({"send": {"min": "1MB/s"}}),
            json!({"send": {"weight": 9}}),
            json!({"send": null}),
            json!({"class": "media"}),
            json!({"group": null}),
            json!({"mode": "static"}),
            json!([]),
        ] {
            may(patch.clone(), lower).expect_err(&patch.to_string());
        }
        // Where nobody has said a bound, any is lower.
        owner_may(&json!({"recv": {"max": "5MB/s"}}), "vod", &before, &before).expect("lower");
    }
}
