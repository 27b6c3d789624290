//! Settings that can have no effect, in words: said by `config check`, with each change, and among the problems. They are no
//! errors, since what they wait for may be measured or written later.

use bonsai_api as api;
use bonsai_policy as policy;
use bonsai_units::Resource;

/// More of them are counted.
const MOST: usize = 16;

/// All of them, the most important first.
#[must_use]
pub fn idle(config: &api::Config, planned: &policy::Config) -> Vec<String> {
    let mut found = Vec::new();
    let mut terms = |place: &str, of: &policy::PerResource<policy::Terms>| {
        for resource in Resource::ALL {
            let of = of[resource.index()];
            if planned.capacity[resource.index()].is_some() {
                continue;
            }
            // What is guaranteed is a part of the capacity, and what is shared out is the rest of it.
            for (word, written, lacks) in [
                ("min", of.min, "nothing is guaranteed"),
                ("weight", of.weight.map(u64::from), "nothing is shared out"),
            ] {
                if written.is_some() {
                    found.push(format!(
                        "{place}.{resource}.{word} needs capacity.{resource}: without it {lacks}"
                    ));
                }
            }
        }
    };
    for service in &planned.services {
        terms(&format!("services.{}", service.name), &service.terms);
    }
    for class in &planned.classes {
        terms(&format!("classes.{}", class.name), &class.terms);
    }
    for group in &planned.groups {
        terms(&format!("groups.{}", group.name), &group.terms);
    }
    for (target, link) in &config.links {
        let Some(uplink) = &link.uplink else { continue };
        if config.links.get(uplink).is_none_or(|of| of.tx.is_none()) {
            found.push(format!(
                "links.{target}.uplink needs links.{uplink}.tx: a share is one of that, and nothing is shared unless it was set by hand"
            ));
        }
    }
    let has_capacity = planned.capacity.iter().any(Option::is_some);
    if config.policy.automatic == api::Automatic::On && !has_capacity {
        found.push(
            "policy.automatic = \"on\" needs a capacity: without one no guarantee is changed"
                .to_owned(),
        );
    }
    if found.len() > MOST {
        let more = found.len() - MOST;
        found.truncate(MOST);
        found.push(format!("and {more} more settings without effect"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let config: api::Config = toml::from_str(text).expect("TOML of the right form");
        let planned = crate::plan::plan(&config).expect("a plan");
        idle(&config, &planned)
    }

    #[test]
    fn what_needs_a_capacity_is_said_where_there_is_none() {
        for (text, said_of) in [
            (
                "[services.vod.send]\nmin = \"40Mbit/s\"",
                "services.vod.send.min",
            ),
            (
                "[services.vod.write]\nweight = 3",
                "services.vod.write.weight",
            ),
            ("[groups.g.recv]\nmin = \"1MB/s\"", "groups.g.recv.min"),
            (
                "[classes.media.calls]\nweight = 5",
                "classes.media.calls.weight",
            ),
            ("[policy]\nautomatic = \"on\"", "policy.automatic"),
        ] {
            let found = said(text);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with(said_of) && found[0].contains("capacity"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_share_of_an_uplink_without_a_rate_is_said() {
        let share = "[links.a]\nguarantee = \"1Mbit/s\"\nuplink = \"eth9\"\n";
        let found = said(share);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("links.a.uplink needs links.eth9.tx"),
            "{found:?}"
        );
        let whole = format!("{share}[links.eth9]\ntx = \"10Mbit/s\"\n");
        assert_eq!(said(&whole), Vec::<String>::new());
    }

    #[test]
    fn what_has_its_capacity_or_needs_none_is_not_said() {
        for text in [
            "",
            "[services.vod.send]\nmax = \"40Mbit/s\"",
            "[capacity]\nsend = \"80Mbit/s\"\n[services.vod.send]\nmin = \"25%\"\nweight = 2",
            "[capacity]\nread = \"80MB/s\"\n[policy]\nautomatic = \"on\"",
        ] {
            assert_eq!(said(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn of_many_some_are_said_and_the_others_counted() {
        let service = |of: usize| format!("[services.s{of}.send]\nmin = \"1Mbit/s\"\n");
        let found = said(&(0..100).map(service).collect::<String>());
        assert_eq!(found.len(), MOST + 1);
        assert_eq!(found[MOST], "and 84 more settings without effect");
    }
}
