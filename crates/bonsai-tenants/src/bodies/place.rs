//! What a service can be: `vnet3`, `container:web`, `unit:db.service`.

use std::fmt;
use std::str::FromStr;

use bonsai_cgroup as cgroup;
use bonsai_units::text::escaped;

use crate::find::Whose;
use crate::target::Target;
use bonsai_host::tenants::Who;

/// The longest path of a control group (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// The longest name of a unit (systemd: `UNIT_NAME_MAX`).
const LONGEST_UNIT: usize = 255;

/// What a service is that is not a `bonsai run`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An interface, or whoever has one: a namespace, a container, a virtual machine.
    Link(Target),
    /// A control group or a unit of systemd; never a process alone.
    Group(cgroup::Target),
}

impl Place {
    /// What of it is limited at an interface; `None` if it is a group.
    #[must_use]
    pub const fn link(&self) -> Option<&Target> {
        match self {
            Self::Link(target) => Some(target),
            Self::Group(_) => None,
        }
    }

    /// Whether it has a control group, in which its disk is counted and limited. A namespace and an
    /// interface have none.
    #[must_use]
    pub fn has_disk(&self) -> bool {
        match self {
            Self::Link(target) => matches!(
                target.whose(),
                Whose::Of(Who::Container(_) | Who::Machine(_))
            ),
            Self::Group(_) => true,
        }
    }

    /// Whether it has a control group, in which its CPU time is limited.
    #[must_use]
    pub fn has_cpu(&self) -> bool {
        self.has_disk()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(target) => target.fmt(f),
            Self::Group(cgroup::Target::Unit(name)) => write!(f, "unit:{name}"),
            Self::Group(target) => write!(f, "cgroup:{target}"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown = || -> String { escaped(text).chars().take(60).collect() };
        match text.split_once(':') {
            Some(("unit", name)) => unit(name)
                .ok_or_else(|| {
                    format!(
                        "`{}` names no unit: write it as systemctl shows it, such as \
                         unit:db.service",
                        shown()
                    )
                })
                .map(Self::Group),
            Some(("cgroup", path)) => group(path)
                .ok_or_else(|| {
                    format!(
                        "`{}` names no control group: write its path as in /proc/PID/cgroup, below \
                         the root, such as cgroup:/system.slice/db",
                        shown()
                    )
                })
                .map(Self::Group),
            Some((word, _)) if !matches!(word, "netns" | "container" | "vm") => Err(format!(
                "`{}` is nothing that a service can be: write an interface (vnet3), netns:NAME, \
                 container:NAME, vm:NAME, unit:NAME or cgroup:/PATH",
                shown()
            )),
            _ => text.parse().map(Self::Link),
        }
    }
}

fn unit(name: &str) -> Option<cgroup::Target> {
    // systemd's VALID_CHARS, with the @ of instances.
    let fits = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let fine = name.len() <= LONGEST_UNIT && name.chars().all(fits) && cgroup::is_unit_name(name);
    fine.then(|| cgroup::Target::Unit(name.to_owned()))
}

/// A path from the root of its hierarchy, with single slashes: written in two ways it is one.
fn group(path: &str) -> Option<cgroup::Target> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let odd = |part: &&str| matches!(*part, "." | "..");
    let fine = path.starts_with('/')
        && path.len() < LONGEST_PATH
        && !path.chars().any(char::is_control)
        && !parts.is_empty()
        && !parts.iter().any(odd);
    fine.then(|| cgroup::Target::Cgroup(format!("/{}", parts.join("/"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for (text, disk) in [
            ("vnet3", false),
            ("netns:vod/eth0", false),
            ("container:web", true),
            ("vm:guest", true),
            ("unit:db.service", true),
            ("unit:getty@tty1.service", true),
            ("unit:dev-disk-by\\x2dlabel-swap.swap", true),
            ("cgroup:/system.slice/db", true),
            ("cgroup:/a b:c", true),
        ] {
            let place: Place = text.parse().expect(text);
            assert_eq!(place.to_string(), text);
            assert_eq!((place.has_disk(), place.has_cpu()), (disk, disk), "{text}");
            assert_eq!(
                place.link().is_some(),
                !text.contains("unit:") && !text.contains("group:")
            );
        }
        let one: Place = "cgroup:/a//b/".parse().expect("a group");
        assert_eq!(one.to_string(), "cgroup:/a/b");
    }

    #[test]
    fn slips_of_places_are_answered_in_a_sentence() {
        let long = format!("cgroup:/{}", "a".repeat(5000));
        for (text, words) in [
            ("", "names no interface"),
            ("docker:web", "unit:NAME"),
            ("container:", "names nobody"),
            ("unit:", "names no unit"),
            ("unit:.service", "names no unit"),
            ("unit:db", "systemctl"),
            ("unit:a/b.service", "names no unit"),
            ("unit:a\nb.service", "names no unit"),
            ("cgroup:", "names no control group"),
            ("cgroup:/", "below the root"),
            ("cgroup://", "below the root"),
            ("cgroup:a", "names no control group"),
            ("cgroup:/a/../b", "names no control group"),
            ("cgroup:/a\u{7}", "names no control group"),
            (&*long, "names no control group"),
        ] {
            let error = text.parse::<Place>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
            assert!(
                error.len() < 300 && !error.contains(['\n', '\u{7}']),
                "{error}"
            );
        }
    }
}
