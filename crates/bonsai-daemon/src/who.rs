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
    /// What ids of their services begin with, if they are not the daemon's own user.
    pub(crate) home: Option<String>,
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

    /// Whether they see a service that may run no more; `uid` is its user's, if it is known.
    pub(crate) fn sees_id(&self, id: &str, uid: Option<u32>) -> bool {
        match uid {
            Some(uid) => self.sees(uid),
            None => self.reads_all || self.is_home_of(id),
        }
    }

    fn is_home_of(&self, id: &str) -> bool {
        let user = id.split_once(':').map(|(user, _)| user);
        user.is_some() && user == self.home.as_deref()
    }

    /// The id of the service that they mean: a name alone is that of one of theirs. Of those who
    /// see all, it is also that of one of the daemon's own user.
    pub(crate) fn means(&self, name: String, is_there: impl Fn(&str) -> bool) -> String {
        let Some(home) = self.home.as_ref().filter(|_| !name.contains(':')) else {
            return name;
        };
        let theirs = format!("{home}:{name}");
        if !self.reads_all || is_there(&theirs) {
            return theirs;
        }
        name
    }
}

fn refused(what: &str, id: &str) -> String {
    format!(
        "{what} of {id} is for root or whoever administers the machine: its owner may lower max, \
         and set further limits"
    )
}

/// Whether the owner of a service, who may change nothing else, may ask for that at all: bounds,
/// and further limits.
pub(crate) fn owner_may_ask(patch: &Value, id: &str) -> Result<(), String> {
    let fields = patch.as_object().ok_or_else(|| refused("that", id))?;
    for (field, value) in fields.iter().filter(|(field, _)| *field != "limits") {
        let resource = serde_json::from_value::<Resource>(Value::String(field.clone()));
        let terms = resource.ok().and_then(|_| value.as_object());
        let terms = terms.ok_or_else(|| refused(field, id))?;
        if let Some(other) = terms.keys().find(|key| *key != "max") {
            return Err(refused(&format!("{field}.{other}"), id));
        }
    }
    Ok(())
}

/// Whether the owner of a service may make that change to it: they lower what they get and put
/// further limits on their calls. `before` is what it is without their own changes, so that they
/// may take them back.
pub(crate) fn owner_may(
    patch: &Value,
    id: &str,
    before: &Config,
    after: &Config,
) -> Result<(), String> {
    owner_may_ask(patch, id)?;
    let limits = |config: &Config| {
        let service = config.services.get(id);
        service.map_or_else(Default::default, |service| service.limits.clone())
    };
    let is = limits(after);
    let changed = |(name, setting): &(String, String)| is.get(name) != Some(setting);
    if let Some((name, _)) = limits(before).into_iter().find(changed) {
        return Err(refused(&format!("limits.{name}"), id));
    }
    let planned = [before, after].map(|config| crate::plan::plan(config).ok());
    for resource in bonsai_units::Resource::ALL {
        let max = |planned: &Option<bonsai_policy::Config>| {
            let planned = planned.as_ref()?;
            let service = planned.services.iter().find(|s| &*s.name == id);
            let named = service.and_then(|service| service.class.as_deref());
            let class = named.unwrap_or(Config::DEFAULT_CLASS);
            let class = planned.classes.iter().find(|c| &*c.name == class);
            let own = service.and_then(|service| service.terms[resource.index()].max);
            own.or_else(|| class?.terms[resource.index()].max)
        };
        let [before, after] = &planned;
        match (max(before), max(after)) {
            (Some(before), after) if after.is_none_or(|after| after > before) => {
                return Err(refused(&format!("raising {resource}.max"), id));
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
    fn a_name_alone_is_that_of_ones_own() {
        let alice = |reads_all| Who {
            name: "alice".to_owned(),
            via: "socket",
            uid: Some(7),
            pid: None,
            home: Some("alice".to_owned()),
            reads_all,
            writes_all: false,
        };
        let means =
            |reads_all, name: &str| alice(reads_all).means(name.to_owned(), |id| id == "alice:a");
        assert_eq!(means(false, "b"), "alice:b", "never that of another");
        assert_eq!(means(true, "a"), "alice:a");
        assert_eq!(means(true, "b"), "b");
        assert_eq!(means(false, "bob:b"), "bob:b");
        let alice = alice(false);
        assert!(alice.sees_id("alice:gone", None) && alice.sees_id("x", Some(7)));
        for (id, uid) in [
            ("gone", None),
            ("alicex:a", None),
            ("bob:a", None),
            ("alice:a", Some(8)),
        ] {
            assert!(!alice.sees_id(id, uid), "{id}");
        }
    }

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
        // A bound of its class is one, too.
        let class = "[classes.default.send]\nmax = \"10MB/s\"\n";
        let raised = format!("{class}[services.vod.send]\nmax = \"11MB/s\"\n");
        let patch = json!({"send": {"max": "11MB/s"}});
        owner_may(&patch, "vod", &config(class), &config(&raised)).expect_err("higher");
        // What somebody else has limited stays so; others may be added, and taken back.
        let limited = config("[services.vod.limits]\nopen = \"5/s\"\n");
        let both = "[services.vod.limits]\nopen = \"5/s\"\npread64 = \"9/s\"\n";
        let more = json!({"limits": {"pread64": "9/s"}});
        owner_may(&more, "vod", &limited, &config(both)).expect("one more");
        for (patch, after) in [
            (json!({"limits": {"open": null}}), ""),
            (json!({"limits": null}), ""),
            (
                json!({"limits": {"open": "6/s"}}),
                "[services.vod.limits]\nopen = \"6/s\"\n",
            ),
        ] {
            owner_may(&patch, "vod", &limited, &config(after)).expect_err("somebody else's");
        }
        // Where nobody has said a bound, any is lower.
        owner_may(&json!({"recv": {"max": "5MB/s"}}), "vod", &before, &before).expect("lower");
    }
}
