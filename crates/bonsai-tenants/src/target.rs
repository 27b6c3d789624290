//! What a limit is written for: `vnet3`, `container:web`, `netns:vod/eth0`, `unit:db.service`.

use std::fmt;
use std::str::FromStr;

use bonsai_cgroup as cgroup;
use bonsai_host::tenants::Who;
use bonsai_units::text::{escaped, is_plain};

use crate::bodies::Place;
use crate::find::Whose;

/// Letters of a name of somebody: more than any engine gives.
const LONGEST: usize = 255;

/// Letters of an interface's name, without the zero (`IFNAMSIZ`).
const LONGEST_INTERFACE: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Netns,
    Container,
    Machine,
}

const KINDS: [(&str, Kind); 3] = [
    ("netns", Kind::Netns),
    ("container", Kind::Container),
    ("vm", Kind::Machine),
];

/// An interface of ours, or one of somebody; or a group of processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    of: Option<(Kind, String)>,
    interface: Option<String>,
    group: Option<cgroup::Target>,
}

impl Target {
    /// Whose it is.
    #[must_use]
    pub fn whose(&self) -> Whose<'_> {
        if let Some(group) = &self.group {
            return Whose::Group(group);
        }
        match &self.of {
            None => Whose::Ours,
            Some((Kind::Netns, name)) => Whose::Of(Who::Netns(name)),
            Some((Kind::Container, name)) => Whose::Of(Who::Container(name)),
            Some((Kind::Machine, name)) => Whose::Of(Who::Machine(name)),
        }
    }

    /// The name of the interface, if it is said.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            return Place::Group(group.clone()).fmt(f);
        }
        let interface = self.interface.as_deref();
        let Some((kind, name)) = &self.of else {
            return f.write_str(interface.unwrap_or_default());
        };
        let known = KINDS.iter().find(|(_, of)| of == kind);
        write!(f, "{}:{name}", known.map_or("", |(word, _)| word))?;
        interface.map_or(Ok(()), |interface| write!(f, "/{interface}"))
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown: String = escaped(text).chars().take(60).collect();
        let Some((word, rest)) = text.split_once(':') else {
            let interface = interface(text, &shown)?;
            return Ok(Self {
                of: None,
                interface: Some(interface),
                group: None,
            });
        };
        if matches!(word, "unit" | "cgroup")
            && let Place::Group(group) = text.parse()?
        {
            return Ok(Self {
                of: None,
                interface: None,
                group: Some(group),
            });
        }
        let known = KINDS.iter().find(|(known, _)| *known == word);
        let (_, kind) = known.ok_or_else(|| {
            format!(
                "`{shown}` is no target: write an interface (vnet3), netns:NAME, container:NAME or \
                 vm:NAME, and /IFACE behind it where there is more than one, unit:NAME or \
                 cgroup:/PATH"
            )
        })?;
        let (name, of_it) = match rest.split_once('/') {
            Some((name, of_it)) => (name, Some(interface(of_it, &shown)?)),
            None => (rest, None),
        };
        let fits = |c: char| is_plain(c) && !c.is_whitespace();
        if name.is_empty() || name.len() > LONGEST || !name.chars().all(fits) {
            return Err(format!(
                "`{shown}` names nobody: write a name of 1 to {LONGEST} letters without blanks behind \
                 {word}:"
            ));
        }
        Ok(Self {
            of: Some((*kind, name.to_owned())),
            interface: of_it,
            group: None,
        })
    }
}

/// A name that an interface can have: `dev_valid_name` of the kernel.
fn interface(name: &str, shown: &str) -> Result<String, String> {
    let fits = |c: char| is_plain(c) && !c.is_whitespace() && c != '/' && c != ':';
    let fine = (1..=LONGEST_INTERFACE).contains(&name.len())
        && name != "."
        && name != ".."
        && name.chars().all(fits);
    if fine {
        return Ok(name.to_owned());
    }
    Err(format!(
        "`{shown}` names no interface: write 1 to {LONGEST_INTERFACE} letters without blanks, `/` \
         and `:`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written() {
        for text in [
            "vnet3",
            "eth0.100",
            "netns:vod",
            "netns:1234/eth0",
            "container:web/eth1",
            "vm:guest 1".trim_end_matches(" 1"),
            "unit:db.service",
            "cgroup:/system.slice/db",
        ] {
            let target: Target = text.parse().expect(text);
            assert_eq!(target.to_string(), text);
        }
        let target: Target = "container:web/eth1".parse().expect("a target");
        assert_eq!(target.whose(), Whose::Of(Who::Container("web")));
        assert_eq!(target.interface(), Some("eth1"));
    }

    #[test]
    fn slips_of_targets_are_answered_in_a_sentence() {
        let long = "a".repeat(16);
        for (text, words) in [
            ("", "names no interface"),
            (&*long, "1 to 15 letters"),
            ("a b", "names no interface"),
            ("..", "names no interface"),
            ("a/b", "names no interface"),
            ("docker:web", "is no target"),
            ("netns:", "names nobody"),
            ("netns:/eth0", "names nobody"),
            ("container:a b", "names nobody"),
            ("vm:guest/", "names no interface"),
            ("vm:guest/a/b", "names no interface"),
            ("container:\u{7}x", "names nobody"),
            ("unit:db", "names no unit"),
            ("cgroup:/", "names no control group"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains(['\n', '\u{7}']), "{text}: {error}");
        }
    }
}
