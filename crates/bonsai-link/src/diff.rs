//! From what there is to what there has to be, in steps that each can be taken back. Pure.
//!
//! What is there is changed, and not taken away to be made anew, so that no queue is lost and no
//! packet meets an interface without its limit. A limit stands before packets are sent there:
//! trees, then what the programs know, then filters; what goes, goes the other way round. Groups
//! are known before others in their place are held as newcomers.

use std::collections::BTreeMap;

use crate::bpf::Which;
use crate::groups::{At, Known};
use crate::hooks::{Aim, Hook};
use crate::objects::{MAJOR, Node, Objects, Tree};
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
    /// What they know of a group.
    Group(At, Way<Known>),
    /// A filter. One that is changed is replaced at once.
    Hook(u32, Hook, Way<Aim>),
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

    /// What there is afterwards.
    pub(crate) fn after(&self) -> Option<&T> {
        match self {
            Self::Make(new) | Self::Change(_, new) => Some(new),
            Self::Remove(_) => None,
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
            Self::Group(at, way) => Self::Group(at, way.back()),
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
            Self::Group((id, _), way) => {
                let verb = way.verb();
                format!("{verb} the class of what group {id} sends by {name}")
            }
            Self::Hook(_, hook, way) => {
                let what = match hook.program() {
                    Which::Incoming => "is received by",
                    Which::Outgoing => "leaves by",
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
            | Self::Group((_, device), _)
            | Self::Hook(device, ..) => *device,
        }
    }

    /// Whether it changes what a class gives, and nothing else.
    pub(crate) fn is_of_rates(&self) -> bool {
        let Self::Node(_, _, Way::Change(old, new)) = self else {
            return false;
        };
        let leaves = old.leaf.is_some() == new.leaf.is_some();
        leaves && old.terms.parent == new.terms.parent
    }

    /// When its turn is.
    fn turn(&self) -> u8 {
        match self {
            Self::Tree(_, way) if way.removes() => 10,
            Self::Tree(..) => 0,
            Self::Node(_, _, Way::Remove(_)) => 9,
            // Who gets less comes first, so that less is promised meanwhile and not more.
            Self::Node(_, _, Way::Change(old, new)) if new.terms.rate < old.terms.rate => 1,
            Self::Node(..) => 2,
            Self::Entry(_, way) if way.removes() => 8,
            Self::Entry(..) => 3,
            // Newcomers are held once all others are known, and as long as they are.
            Self::Group(_, Way::Make(new) | Way::Change(_, new)) if new.newcomers != 0 => 4,
            Self::Group(_, Way::Remove(old) | Way::Change(old, _)) if old.newcomers != 0 => 7,
            Self::Group(_, way) if way.removes() => 8,
            Self::Group(..) => 3,
            Self::Hook(_, _, way) if way.removes() => 6,
            Self::Hook(..) => 5,
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
    for (at, old, new) in both(&old.groups, &new.groups) {
        let way = Way::between(old.copied(), new.copied());
        steps.extend(way.map(|way| Step::Group(at, way)));
    }
    for ((device, hook), old, new) in both(&old.hooks, &new.hooks) {
        let way = Way::between(old.copied(), new.copied());
        steps.extend(way.map(|way| Step::Hook(device, hook, way)));
    }
    steps.sort_by_key(Step::turn);
    steps
}

fn nodes(device: u32, old: &Tree, new: &Tree, steps: &mut Vec<Step>) {
    for (minor, old, new) in both(&old.nodes, &new.nodes) {
        let way = Way::between(old.copied(), new.copied());
        steps.extend(way.map(|way| Step::Node(device, minor, way)));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::tc::htb;
    use crate::tc::queue::{Leaf, Manner};

    /// What the kernel would do; it refuses what is not there, and what is there already.
    fn perform(objects: &mut Objects, step: &Step) {
        fn change<K: Ord, V: PartialEq + Clone + std::fmt::Debug>(
            map: &mut BTreeMap<K, V>,
            key: K,
            way: &Way<V>,
        ) {
            match way {
                Way::Make(new) => assert_eq!(map.insert(key, new.clone()), None),
                Way::Change(old, new) => {
                    assert_eq!(map.insert(key, new.clone()).as_ref(), Some(old));
                }
                Way::Remove(old) => assert_eq!(map.remove(&key).as_ref(), Some(old)),
            }
        }
        match step {
            Step::Tree(device, way) => change(&mut objects.trees, *device, way),
            Step::Node(device, minor, way) => {
                let tree = objects.trees.get_mut(device).expect("a tree");
                change(&mut tree.nodes, *minor, way);
            }
            Step::Entry(device, way) => change(&mut objects.entries, *device, way),
            Step::Group(at, way) => change(&mut objects.groups, *at, way),
            Step::Hook(device, hook, way) => change(&mut objects.hooks, (*device, *hook), way),
        }
    }

    fn node() -> impl Strategy<Value = Node> {
        (0_u16..3, 1_u64..5, 0_u8..5).prop_map(|(parent, rate, leaf)| Node {
            terms: htb::Class {
                parent,
                rate,
                ceil: 9,
                burst: 1,
                cburst: 1,
                quantum: 1,
                priority: 0,
            },
            leaf: (leaf > 0).then_some(Leaf {
                limit: 7,
                manner: match leaf {
                    1 => Manner::Plain,
                    2 => Manner::Cutting(9),
                    _ => Manner::Short(leaf.into()),
                },
            }),
        })
    }

    fn objects() -> impl Strategy<Value = Objects> {
        let nodes = prop::collection::btree_map(1_u16..6, node(), 0..4);
        let tree = nodes.prop_map(|nodes| Tree { default: 2, nodes });
        let hook = prop_oneof![
            Just(Hook::Incoming),
            Just(Hook::Outgoing),
            Just(Hook::LateIncoming)
        ];
        let reach = prop::option::of(0_u8..3).prop_map(Aim::Program);
        let known = (0_u16..3, 0_u16..3).prop_map(|(own, newcomers)| Known { own, newcomers });
        (
            prop::collection::btree_map(1_u32..5, tree, 0..4),
            prop::collection::btree_map((1_u32..5, hook), reach, 0..5),
            prop::collection::btree_map(1_u32..5, (16_u16..19, 0_u32..2), 0..4),
            prop::collection::btree_map((1_u64..6, 1_u32..3), known, 0..8),
        )
            .prop_map(|(trees, hooks, entries, groups)| Objects {
                trees,
                hooks,
                entries,
                groups,
            })
    }

    proptest! {
        #[test]
        fn steps_lead_there_and_back(old in objects(), new in objects()) {
            let steps = steps(&old, &new);
            prop_assert_eq!(steps.is_empty(), old == new);
            let mut now = old.clone();
            for step in &steps {
                perform(&mut now, step);
            }
            prop_assert_eq!(&now, &new);
            for step in steps.into_iter().rev() {
                perform(&mut now, &step.back());
            }
            prop_assert_eq!(&now, &old);
        }

        #[test]
        fn nothing_is_sent_where_no_limit_stands(old in objects(), new in objects()) {
            // A filter hangs only while what it stands on is there: made before, removed after.
            let steps = steps(&old, &new);
            let turns: Vec<u8> = steps.iter().map(Step::turn).collect();
            prop_assert!(turns.is_sorted());
            let made = |step: &Step| matches!(step, Step::Hook(_, _, Way::Make(_)));
            let first = steps.iter().position(made).unwrap_or(steps.len());
            let late: BTreeSet<_> = steps[first..]
                .iter()
                .filter(|step| matches!(step, Step::Tree(_, Way::Make(_)) | Step::Entry(_, Way::Make(_))))
                .map(Step::device)
                .collect();
            prop_assert!(late.is_empty(), "made after the first filter: {:?}", late);
        }

        #[test]
        fn newcomers_are_held_only_while_all_others_are_known(old in objects(), new in objects()) {
            let steps = steps(&old, &new);
            let mut now = old.clone();
            for step in &steps {
                perform(&mut now, step);
                let holds = |objects: &Objects| objects.groups.values().any(|one| one.newcomers != 0);
                // While it changes, whoever is known before and after is known.
                for at in old.groups.keys().filter(|at| new.groups.contains_key(*at)) {
                    prop_assert!(now.groups.contains_key(at));
                }
                if holds(&now) && !holds(&old) {
                    for at in new.groups.keys().filter(|at| new.groups[at].newcomers == 0) {
                        prop_assert!(now.groups.contains_key(at), "held before {at:?} is known");
                    }
                }
            }
        }
    }
}
