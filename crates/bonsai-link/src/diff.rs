//! From what there is to what there has to be, in steps that each can be taken back. Pure.
//!
//! What is there is changed, and not taken away to be made anew, so that no queue is lost and no
//! packet meets an interface without its limit. A limit stands before packets are sent there:
//! trees, then what the programs know, then filters; what goes, goes the other way round.

use std::collections::BTreeMap;

use crate::objects::{Hook, MAJOR, Node, Objects, Tree};
use crate::tc::Handle;

/// A step; devices are numbers of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// HTB at the root of a device, with all that is in it. Never changed as a whole.
    Tree(u32, Way<Tree>),
    /// A class of a device, with its queue.
    Node(u32, u16, Way<Node>),
    /// What the programs know of what comes in by a link: slot, and block or 0.
    Entry(u32, Way<(u16, u32)>),
    /// A filter.
    Hook(u32, Hook, Way<()>),
}

/// From what, to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way<T> {
    Make(T),
    Change(T, T),
    Remove(T),
}

impl<T> Way<T> {
    fn between(old: Option<T>, new: Option<T>) -> Option<Self>
    where
        T: PartialEq,
    {
        match (old, new) {
            (None, None) => None,
            (None, Some(new)) => Some(Self::Make(new)),
            (Some(old), None) => Some(Self::Remove(old)),
            (Some(old), Some(new)) => (old != new).then_some(Self::Change(old, new)),
        }
    }

    fn back(self) -> Self {
        match self {
            Self::Make(new) => Self::Remove(new),
            Self::Change(old, new) => Self::Change(new, old),
            Self::Remove(old) => Self::Make(old),
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Make(_) => "making",
            Self::Change(..) => "changing",
            Self::Remove(_) => "taking away",
        }
    }

    fn removes(&self) -> bool {
        matches!(self, Self::Remove(_))
    }
}

impl Step {
    /// The step that takes this one back.
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Tree(device, way) => Self::Tree(device, way.back()),
            Self::Node(device, minor, way) => Self::Node(device, minor, way.back()),
            Self::Entry(device, way) => Self::Entry(device, way.back()),
            Self::Hook(device, hook, way) => Self::Hook(device, hook, way.back()),
        }
    }

    /// What it does, in words, with the name of its device.
    pub(crate) fn words(&self, name: &str) -> String {
        match self {
            Self::Tree(_, way) => format!("{} HTB at the root of {name}", way.verb()),
            Self::Node(_, minor, way) => {
                let class = Handle::of(MAJOR, *minor);
                format!("{} class {class} of {name}", way.verb())
            }
            Self::Entry(_, way) => format!("{} the class of what {name} receives", way.verb()),
            Self::Hook(_, hook, way) => {
                let what = match hook {
                    Hook::Incoming => "is received by",
                    Hook::Outgoing => "leaves by",
                };
                format!("{} the filter of what {what} {name}", way.verb())
            }
        }
    }

    /// The device it is about.
    pub(crate) fn device(&self) -> u32 {
        match self {
            Self::Tree(device, _)
            | Self::Node(device, ..)
            | Self::Entry(device, _)
            | Self::Hook(device, ..) => *device,
        }
    }

    /// When its turn is.
    fn turn(&self) -> u8 {
        match self {
            Self::Tree(_, way) if way.removes() => 8,
            Self::Tree(..) => 0,
            Self::Node(_, _, Way::Remove(_)) => 7,
            // Who gets less comes first, so that less is promised meanwhile and not more.
            Self::Node(_, _, Way::Change(old, new)) if new.terms.rate < old.terms.rate => 1,
            Self::Node(..) => 2,
            Self::Entry(_, way) if way.removes() => 6,
            Self::Entry(..) => 3,
            Self::Hook(_, _, way) if way.removes() => 5,
            Self::Hook(..) => 4,
        }
    }
}

/// The steps from `old` to `new`, in order.
pub(crate) fn steps(old: &Objects, new: &Objects) -> Vec<Step> {
    let mut steps = Vec::new();
    for (device, old, new) in both(&old.trees, &new.trees) {
        match (old, new) {
            (Some(old), Some(new)) => nodes(device, old, new, &mut steps),
            (old, new) => {
                let way = Way::between(old.cloned(), new.cloned());
                steps.extend(way.map(|way| Step::Tree(device, way)));
            }
        }
    }
    for (device, old, new) in both(&old.entries, &new.entries) {
        let way = Way::between(old.copied(), new.copied());
        steps.extend(way.map(|way| Step::Entry(device, way)));
    }
    let hook = |(device, hook): &(u32, Hook), way| Step::Hook(*device, *hook, way);
    steps.extend(
        new.hooks
            .difference(&old.hooks)
            .map(|of| hook(of, Way::Make(()))),
    );
    steps.extend(
        old.hooks
            .difference(&new.hooks)
            .map(|of| hook(of, Way::Remove(()))),
    );
    steps.sort_by_key(Step::turn);
    steps
}

fn nodes(device: u32, old: &Tree, new: &Tree, steps: &mut Vec<Step>) {
    for (minor, old, new) in both(&old.nodes, &new.nodes) {
        let mut step = |way| steps.push(Step::Node(device, minor, way));
        match (old, new) {
            // A class cannot be moved, and one that others are in has no queue.
            (Some(old), Some(new))
                if old.terms.parent != new.terms.parent
                    || old.leaf.is_some() && new.leaf.is_none() =>
            {
                step(Way::Remove(*old));
                step(Way::Make(*new));
            }
            (old, new) => {
                if let Some(way) = Way::between(old.copied(), new.copied()) {
                    step(way);
                }
            }
        }
    }
}

/// The keys of both, with what each has there.
fn both<'a, K: Ord + Copy, V>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (K, Option<&'a V>, Option<&'a V>)> {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let keys = old.keys().chain(added);
    keys.map(|key| (*key, old.get(key), new.get(key)))
}
