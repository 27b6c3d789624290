//! Groups of processes on an uplink: whose packet it is, and no way past it while they come and go.
//!
//! # Definitions
//! - A *group* is a control group of version 2, by its path in the hierarchy (`/system.slice/db`). A
//!   packet belongs to the group in which its socket was made, and to all groups above that.
//! - A *limited* group has a class of an uplink. The groups *above* it lead from `/` to it.
//! - A group is *known* if the table has an entry for its number, which the kernel gives to no other.
//!   A *newcomer* is in a group above a limited one, and is not known.
//!
//! # How a packet finds its class
//! From the deepest limited group up to `/`, the first of these decides:
//! 1. its group there is limited: that class;
//! 2. its group there is one above, and the one below that is a newcomer: the class of the strictest
//!    limited group below;
//! 3. at `/` at last: none, and the packet goes its way.
//!
//! # Invariants
//! 1. All that is in a group above a limited one is known, but for newcomers.
//! 2. A limited group that comes back under a new number is a newcomer until it is known: it has
//!    never more than a limit. So has somebody else who comes there, for as long.
//! 3. What is neither limited nor a newcomer meets no class, whatever is wanted of others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::rules::NOTHING;
use crate::wanted::{Share, Wanted};

/// The deepest path that is taken; a program asks at each level.
pub(crate) const DEEPEST: u8 = 32;
/// Groups in a group above a limited one, at most: each has an entry.
pub const MOST_CHILDREN: usize = 10_000;

/// What is wanted of a group of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it has of which uplink.
    pub share: Share,
    /// For how long its limit may be exceeded, ns; that of the uplink if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ns: Option<u64>,
    /// The number of its class where that is known from before, so that it stays while the group is
    /// not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<u16>,
}

/// A group above a limited one, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Above {
    /// Its number: that of its folder.
    pub id: u64,
    /// The numbers of all groups in it, by name.
    pub children: BTreeMap<String, u64>,
}

/// What the programs know of a group at an uplink. Slots; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Its own class.
    pub(crate) own: u16,
    /// The class of newcomers in it.
    pub(crate) newcomers: u16,
}

/// Number of a group, and of the uplink.
pub(crate) type At = (u64, u32);

/// How many groups are above one; `/` has none.
pub(crate) fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

/// The groups above one, from the one it is in to `/`.
pub fn above(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path.trim_end_matches('/');
    std::iter::from_fn(move || {
        let (before, _) = rest.rsplit_once('/')?;
        rest = before;
        Some(if before.is_empty() { "/" } else { before })
    })
}

/// The path of what is in a group under a name.
#[must_use]
pub fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// A path as the hierarchy has it: from `/`, without empty parts, `.` and `..`.
pub(crate) fn is_path(path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or_default().split('/');
    parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// What there is to be known of any group, by its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    own: BTreeMap<String, (u32, u16)>,
    /// Of groups above limited ones: the class of newcomers at each uplink.
    newcomers: BTreeMap<String, BTreeMap<u32, u16>>,
}

impl Rules {
    /// The rules for what is wanted; a group without a slot has none.
    pub(crate) fn new(wanted: &Wanted, slot: impl Fn(&str) -> Option<u16>) -> Self {
        let mut rules = Self::default();
        let mut groups: Vec<(&String, &Group)> = wanted.groups.iter().collect();
        // The strictest first, and always the same of several.
        groups.sort_by_key(|(path, group)| {
            let share = &group.share;
            let ceiling = share.ceiling.unwrap_or(u64::MAX);
            (ceiling, share.guarantee.unwrap_or(NOTHING), *path)
        });
        for (path, group) in groups {
            let Some(slot) = slot(path) else {
                continue;
            };
            let uplink = group.share.uplink;
            rules.own.insert(path.clone(), (uplink, slot));
            for above in above(path) {
                let newcomers = rules.newcomers.entry(above.to_owned()).or_default();
                newcomers.entry(uplink).or_insert(slot);
            }
        }
        rules
    }

    /// What is to be known of the group at a path, by uplink.
    pub(crate) fn of(&self, path: &str) -> BTreeMap<u32, Known> {
        let mut known: BTreeMap<u32, Known> = BTreeMap::new();
        let parent = above(path).next();
        if let Some(newcomers) = parent.and_then(|parent| self.newcomers.get(parent)) {
            known.extend(newcomers.keys().map(|uplink| (*uplink, Known::default())));
        }
        for (uplink, slot) in self.newcomers.get(path).into_iter().flatten() {
            known.entry(*uplink).or_default().newcomers = *slot;
        }
        if let Some((uplink, slot)) = self.own.get(path) {
            known.entry(*uplink).or_default().own = *slot;
        }
        known
    }

    /// All that is to be known.
    pub(crate) fn all(&self, tree: &BTreeMap<String, Above>) -> BTreeMap<At, Known> {
        let mut all = BTreeMap::new();
        let mut add = |path: &str, id: u64| {
            let known = self.of(path).into_iter();
            all.extend(known.map(|(uplink, known)| ((id, uplink), known)));
        };
        for (path, above) in tree.iter().filter(|(path, _)| self.is_above(path)) {
            add(path, above.id);
            for (name, id) in &above.children {
                add(&join(path, name), *id);
            }
        }
        all
    }

    /// Whether a limited group is below that one.
    fn is_above(&self, path: &str) -> bool {
        self.newcomers.contains_key(path)
    }
}

impl Wanted {
    /// The groups above limited ones: what [`Wanted::tree`] is to say, of those that there are.
    #[must_use]
    pub fn above(&self) -> std::collections::BTreeSet<&str> {
        self.groups.keys().flat_map(|path| above(path)).collect()
    }

    /// The number of a group, if it is there.
    #[must_use]
    pub fn id(&self, path: &str) -> Option<u64> {
        let parent = self.tree.get(above(path).next()?)?;
        parent.children.get(path.rsplit('/').next()?).copied()
    }

    pub(crate) fn check_groups(&self) -> Result<(), Error> {
        for path in self.groups.keys() {
            if !is_path(path) {
                return Err(Error::Wrong(format!(
                    "`{path}` is no group of processes: write its path below /, such as \
                     /system.slice/db.service; what all send, the tx of the uplink limits"
                )));
            }
            if depth(path) > usize::from(DEEPEST) {
                return Err(Error::Wrong(format!(
                    "{path} is {} groups deep, more than the {DEEPEST} that are looked at for a \
                     packet",
                    depth(path)
                )));
            }
        }
        for (path, above) in &self.tree {
            if above.children.len() > MOST_CHILDREN {
                return Err(Error::Wrong(format!(
                    "there are {} groups in {path}, more than the {MOST_CHILDREN} that are told \
                     apart beside a limited one",
                    above.children.len()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(uplink: u32, ceiling: u64) -> Group {
        Group {
            share: Share {
                uplink,
                guarantee: None,
                ceiling: Some(ceiling),
                weight: 1,
            },
            burst_ns: None,
            class: None,
        }
    }

    #[test]
    fn the_groups_above_one_lead_to_the_top() {
        let of = |path| above(path).collect::<Vec<_>>();
        assert_eq!(of("/a/b/c"), ["/a/b", "/a", "/"]);
        assert_eq!(of("/a"), ["/"]);
        assert_eq!(of("/"), [""; 0]);
        assert_eq!((depth("/"), depth("/a/b")), (0, 2));
        assert_eq!(
            (join("/", "a"), join("/a", "b")),
            ("/a".into(), "/a/b".into())
        );
        for path in ["", "/", "a", "/a/", "//a", "/a/../b", "/."] {
            assert!(!is_path(path), "{path}");
        }
        assert!(is_path("/a") && is_path("/a/b.service"));
    }

    #[test]
    fn newcomers_are_in_the_class_of_the_strictest() {
        let mut wanted = Wanted::default();
        for (path, uplink, ceiling) in [
            ("/s/a", 1, 9_000),
            ("/s/b", 1, 5_000),
            ("/s/b/deep", 1, 7_000),
            ("/s/c", 2, 1_000),
        ] {
            wanted.groups.insert(path.into(), group(uplink, ceiling));
        }
        let slots = BTreeMap::from([("/s/a", 10), ("/s/b", 11), ("/s/b/deep", 12), ("/s/c", 13)]);
        let rules = Rules::new(&wanted, |path| slots.get(path).copied());
        let known = |own, newcomers| Known { own, newcomers };
        // One that is neither limited nor above is known, and no more.
        let other = BTreeMap::from([(1, known(0, 0)), (2, known(0, 0))]);
        assert_eq!(rules.of("/s/x"), other);
        assert_eq!(rules.of("/t"), other);
        assert_eq!(rules.of("/t/x"), BTreeMap::new(), "too deep to matter");
        let above = BTreeMap::from([(1, known(0, 11)), (2, known(0, 13))]);
        assert_eq!(rules.of("/s"), above);
        assert_eq!(rules.of("/"), above);
        // Limited, and above another.
        let both = BTreeMap::from([(1, known(11, 12)), (2, known(0, 0))]);
        assert_eq!(rules.of("/s/b"), both);

        let tree = BTreeMap::from([(
            "/s".to_owned(),
            Above {
                id: 7,
                children: BTreeMap::from([("a".to_owned(), 8), ("x".to_owned(), 9)]),
            },
        )]);
        let all = rules.all(&tree);
        assert_eq!(all[&(7, 1)], known(0, 11));
        assert_eq!(all[&(8, 1)], known(10, 0));
        assert_eq!(all[&(9, 2)], known(0, 0));
        assert_eq!(all.len(), 6);
    }
}
