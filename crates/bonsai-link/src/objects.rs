//! What there has to be in the kernel for what is wanted: a pure function of it and of the links.
//!
//! ```text
//!   who sends it                         what governs it
//!   ------------------------------------------------------------------------------------
//!   the machine, out through a link      HTB at the link's root: one class per link that
//!                                        has a share, one for all else
//!   a guest, in through its link         the link's filter gives it its class and sends it
//!                                        through the block (ifb), with HTB at its root
//!   a guest, out through an uplink       the uplink's filter gives it its class again
//!   a group, out through an uplink       the uplink's filter gives it its class
//! ```
//!
//! A link has the same class number everywhere, its *slot*: in the block, and in each uplink. So
//! has a group of processes.
//! Nothing here depends on what is in the kernel already, but for slots, which stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Error;
use crate::groups::{At, Known, Rules, depth};
use crate::hooks::{Aim, Hook, block_name, blocks};
use crate::links::Link;
use crate::plan::{Means, Plan};
use crate::rules::{self, BURST_NS, NOTHING, QUEUE_NS, SHARE_BURST_NS, SHARE_QUEUE_NS, WEIGHT};
use crate::tc::htb;
use crate::tc::queue::{Kind, Leaf};
use crate::wanted::{Part, Terms, Wanted, Who};

/// The number of all our disciplines: whose it is, is seen by it.
pub(crate) const MAJOR: u16 = 0xb05a;
/// The class that all others of a device are in.
pub(crate) const TRUNK: u16 = 1;
/// The class of what nobody has a share for.
pub(crate) const OTHERS: u16 = 2;
/// The first slot.
pub(crate) const FIRST_SLOT: u16 = 0x10;

/// The last slot: its queue would have the name of `clsact` behind this one.
const LAST_SLOT: u16 = 0xfffe;

/// A class and its queue; the one that others are in has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) terms: htb::Class,
    pub(crate) leaf: Option<Leaf>,
}

/// HTB at the root of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The class of packets without one; 0 lets them pass.
    pub(crate) default: u16,
    pub(crate) nodes: BTreeMap<u16, Node>,
}

/// All of it. Devices are numbers of links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) trees: BTreeMap<u32, Tree>,
    /// Which filters hang where, and what for.
    pub(crate) hooks: BTreeMap<(u32, Hook), Aim>,
    /// What the programs know of interfaces: slot, and block or 0.
    pub(crate) entries: BTreeMap<u32, (u16, u32)>,
    /// What they know of groups.
    pub(crate) groups: BTreeMap<At, Known>,
}

/// The slots of all: those that have one keep it. Interfaces have the smallest that are free, and
/// groups the largest.
pub(crate) fn slots(
    wanted: &Wanted,
    had: &BTreeMap<Who, u16>,
) -> Result<BTreeMap<Who, u16>, Error> {
    let links = wanted.links.keys().map(|index| Who::Link(*index));
    let groups = wanted.groups.keys().map(|path| Who::Group(path.clone()));
    let all: Vec<Who> = links.chain(groups).collect();
    let mut slots = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for who in &all {
        // Two that have one slot, by somebody's hand: the later gets another.
        if let Some(slot) = had.get(who).filter(|slot| taken.insert(**slot)) {
            slots.insert(who.clone(), *slot);
        }
    }
    let full = || Error::Wrong("more interfaces than HTB has classes: 65,518".into());
    // Queues are named after slots, and none may be named as the tree is.
    taken.insert(MAJOR);
    let (mut next, mut last) = (FIRST_SLOT, LAST_SLOT);
    for who in all {
        if slots.contains_key(&who) {
            continue;
        }
        let slot = match who {
            Who::Link(_) => {
                while taken.contains(&next) {
                    next = (next < LAST_SLOT).then(|| next + 1).ok_or_else(full)?;
                }
                next
            }
            Who::Group(_) => {
                while taken.contains(&last) {
                    last = (last > FIRST_SLOT).then(|| last - 1).ok_or_else(full)?;
                }
                last
            }
        };
        taken.insert(slot);
        slots.insert(who, slot);
    }
    Ok(slots)
}

/// What programs are to know of groups.
pub(crate) fn rules(wanted: &Wanted, slots: &BTreeMap<Who, u16>) -> Rules {
    Rules::new(wanted, |path| {
        slots.get(&Who::Group(path.to_owned())).copied()
    })
}

/// What there has to be, as far as blocks are there for it.
pub(crate) fn objects(
    wanted: &Wanted,
    links: &[Link],
    slots: &BTreeMap<Who, u16>,
    means: &Means,
) -> Objects {
    let plan = means.plan;
    let mut objects = Objects {
        groups: rules(wanted, slots).all(&wanted.tree),
        ..Objects::default()
    };
    let shaping = Shaping::new(links, means.queues);
    for uplink in wanted.shares().into_keys() {
        let groups = wanted.groups.iter();
        let here = groups.filter(|(_, group)| group.share.uplink == uplink);
        let deepest = here.filter_map(|(path, _)| u8::try_from(depth(path)).ok());
        let aim = Aim::Program(deepest.max());
        let hook = means.turn(uplink, Hook::Outgoing);
        objects.hooks.insert((uplink, hook), aim);
    }
    let blocks: BTreeMap<&str, u32> = blocks(links)
        .map(|(link, _)| (link.name.as_str(), link.index))
        .collect();
    let mut shares = wanted.shares();
    for (index, terms) in &wanted.links {
        if let Some(tx) = terms.tx {
            let of_it = shares.remove(index).unwrap_or_default();
            let tree = shaping.root(*index, tx, terms, &of_it, slots);
            objects.trees.insert(*index, tree);
        }
        let Some(slot) = slots.get(&Who::Link(*index)) else {
            continue;
        };
        let block = terms.rx.and_then(|_| {
            let name = block_name(plan, *slot);
            blocks.get(&*name).copied()
        });
        if let (Some(rx), Some(ifb)) = (terms.rx, block) {
            let node = shaping.node(0, rx, rx, shaping.mtu(*index), terms.burst_ns);
            let tree = objects.trees.entry(ifb).or_default();
            tree.nodes.insert(*slot, node);
            let (hook, aim) = match plan {
                // Packets that no class is known for pass: the default is none.
                Plan::Bpf if means.redirects => (Hook::Incoming, Aim::Program(None)),
                Plan::Bpf => (Hook::Incoming, Aim::Through(ifb)),
                Plan::U32 => {
                    tree.default = *slot;
                    (Hook::Mirrored, Aim::Block(ifb))
                }
            };
            let hook = means.turn(*index, hook);
            objects.hooks.insert((*index, hook), aim);
        }
        let by_program = block.filter(|_| plan == Plan::Bpf);
        if by_program.is_some() || terms.share.is_some() {
            let entry = (*slot, by_program.unwrap_or(0));
            objects.entries.insert(*index, entry);
        }
    }
    objects
}

struct Shaping {
    /// A packet may come from any link before it is cut, so turns and queues go by the largest.
    gso_max: u32,
    mtus: BTreeMap<u32, u32>,
    queues: Kind,
}

impl Shaping {
    fn new(links: &[Link], queues: Kind) -> Self {
        let mtu = |link: &Link| (link.index, link.mtu.min(65_535));
        Self {
            gso_max: links
                .iter()
                .map(|link| link.gso_max)
                .max()
                .unwrap_or(65_536),
            mtus: links.iter().map(mtu).collect(),
            queues,
        }
    }

    fn mtu(&self, index: u32) -> u32 {
        self.mtus.get(&index).copied().unwrap_or(1500)
    }

    /// A class and its queue. Nobody has more than the ceiling.
    fn node(&self, parent: u16, rate: u64, ceil: u64, mtu: u32, burst_ns: Option<u64>) -> Node {
        // Who borrows waits for turns of others, and is ahead for less, of its guarantee for an eighth of
        // that: what it is ahead of all together, others wait for when it has gone.
        let borrows = rate < ceil;
        let burst_ns = burst_ns.unwrap_or(if borrows { SHARE_BURST_NS } else { BURST_NS });
        let (turn, ahead_ns) = match borrows {
            true => (self.gso_max, burst_ns / 8),
            false => (0, burst_ns),
        };
        Node {
            terms: htb::Class {
                parent,
                rate: rate.min(ceil),
                ceil,
                burst: rules::burst(rate.min(ceil), mtu, ahead_ns),
                cburst: rules::burst(ceil, mtu.max(turn), burst_ns),
                quantum: rules::quantum(1, 1, self.gso_max),
                priority: 0,
            },
            leaf: Some(self.leaf(ceil, QUEUE_NS, mtu)),
        }
    }

    fn leaf(&self, ceil: u64, queue_ns: u64, mtu: u32) -> Leaf {
        rules::leaf(ceil, queue_ns, mtu, self.gso_max, self.queues)
    }

    /// What is at the root of a link with a limit of what it sends: a trunk, a class of its own in
    /// it for each that has a share, and one for all else. It is so without shares, too: a class
    /// that others are put into loses its queue, and the one for all else cannot be changed.
    fn root(
        &self,
        index: u32,
        tx: u64,
        terms: &Terms,
        shares: &[Part<'_>],
        slots: &BTreeMap<Who, u16>,
    ) -> Tree {
        let own = self.mtu(index);
        let trunk = Node {
            leaf: None,
            ..self.node(0, tx, tx, own, terms.burst_ns)
        };
        // Those without a share have no guarantee, and the weight of those that say none.
        let weights = shares.iter().map(|part| part.share.weight);
        let smallest = weights.min().unwrap_or(WEIGHT).min(WEIGHT);
        // Where there is nobody else, nobody waits for what it is ahead.
        let alone = shares.is_empty().then_some(BURST_NS);
        let others = self.node(TRUNK, NOTHING, tx, own, terms.burst_ns.or(alone));
        let mut nodes = BTreeMap::from([(TRUNK, trunk), (OTHERS, others)]);
        for part in shares {
            let Some(slot) = slots.get(&part.who) else {
                continue;
            };
            let share = part.share;
            let guarantee = share.guarantee.unwrap_or(NOTHING);
            let ceiling = share.ceiling.unwrap_or(tx).min(tx);
            let mtu = match part.who {
                Who::Link(of) => own.max(self.mtu(of)),
                Who::Group(_) => own,
            };
            let burst_ns = part.burst_ns.or(terms.burst_ns);
            let mut node = self.node(TRUNK, guarantee, ceiling, mtu, burst_ns);
            node.terms.quantum = rules::quantum(share.weight, smallest, self.gso_max);
            node.leaf = Some(self.leaf(ceiling, SHARE_QUEUE_NS, mtu));
            nodes.insert(*slot, node);
        }
        Tree {
            default: OTHERS,
            nodes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{Above, Group};
    use crate::links::Traffic;
    use crate::wanted::Share;

    const MEANS: Means = Means {
        plan: Plan::Bpf,
        redirects: true,
        queues: Kind::Plain,
        late: BTreeSet::new(),
    };

    fn link(index: u32) -> Link {
        Link {
            index,
            name: format!("v{index}"),
            kind: Some("veth".into()),
            up: true,
            mtu: 1500,
            gso_max: 65_536,
            master: None,
            other: None,
            other_namespace: None,
            xdp: None,
            traffic: Traffic::default(),
        }
    }

    fn wanted(links: &[(u32, Terms)]) -> Wanted {
        Wanted {
            links: links.iter().cloned().collect(),
            ..Wanted::default()
        }
    }

    fn share(uplink: u32, guarantee: u64, weight: u16) -> Terms {
        Terms {
            share: Some(Share {
                uplink,
                guarantee: Some(guarantee),
                ceiling: None,
                weight,
            }),
            ..Terms::default()
        }
    }

    #[test]
    fn a_slot_stays_whoever_comes_and_goes() {
        let all = wanted(&[1, 2, 3].map(|index| (index, Terms::default())));
        let first = slots(&all, &BTreeMap::new()).expect("slots");
        let of = |slots: [(u32, u16); 3]| slots.map(|(index, slot)| (Who::Link(index), slot));
        assert_eq!(first, of([(1, 0x10), (2, 0x11), (3, 0x12)]).into());
        let some = wanted(&[2, 3, 4].map(|index| (index, Terms::default())));
        let then = slots(&some, &first).expect("slots");
        assert_eq!(then, of([(2, 0x11), (3, 0x12), (4, 0x10)]).into());
        // Two that have one, by somebody's hand: one of them gets another.
        let same = [2, 3].map(|index| (Who::Link(index), 0x11)).into();
        let then = slots(&some, &same).expect("slots");
        let different: BTreeSet<u16> = then.values().copied().collect();
        assert_eq!(different.len(), 3, "{then:?}");
    }

    #[test]
    fn many_links_have_slots_and_none_is_the_trees_own() {
        let many = 65_518;
        let all = wanted(
            &(0..many)
                .map(|index| (index, Terms::default()))
                .collect::<Vec<_>>(),
        );
        let given = slots(&all, &BTreeMap::new()).expect("slots");
        assert!(
            given
                .values()
                .all(|slot| *slot >= FIRST_SLOT && *slot != MAJOR)
        );
        let more = wanted(
            &(0..=many + 2)
                .map(|index| (index, Terms::default()))
                .collect::<Vec<_>>(),
        );
        slots(&more, &BTreeMap::new()).expect_err("no more than there are classes");
    }

    #[test]
    fn what_comes_in_goes_through_the_block_by_what_the_kernel_can() {
        let terms = Terms {
            rx: Some(1_000_000),
            ..Terms::default()
        };
        let all = wanted(&[(1, terms)]);
        let block = Link {
            name: "bonsai-ifb".into(),
            kind: Some("ifb".into()),
            ..link(7)
        };
        let given = slots(&all, &BTreeMap::new()).expect("slots");
        for (redirects, aim) in [(true, Aim::Program(None)), (false, Aim::Through(7))] {
            let means = Means { redirects, ..MEANS };
            let there = objects(&all, &[link(1), block.clone()], &given, &means);
            assert_eq!(there.hooks, [((1, Hook::Incoming), aim)].into());
            assert_eq!(there.entries, [(1, (FIRST_SLOT, 7))].into());
        }
    }

    #[test]
    fn a_filter_is_the_first_where_others_do_not_have_that_turn() {
        let terms = Terms {
            rx: Some(1_000_000),
            ..Terms::default()
        };
        let all = wanted(&[(1, terms.clone()), (2, terms)]);
        let block = Link {
            name: "bonsai-ifb".into(),
            kind: Some("ifb".into()),
            ..link(7)
        };
        let given = slots(&all, &BTreeMap::new()).expect("slots");
        let means = Means {
            late: [(2, Hook::Incoming)].into(),
            ..MEANS
        };
        let there = objects(&all, &[link(1), link(2), block], &given, &means);
        let hooks: Vec<_> = there.hooks.into_keys().collect();
        assert_eq!(hooks, [(1, Hook::Incoming), (2, Hook::LateIncoming)]);
        assert!(Hook::Incoming.priority() == 1 && Hook::LateIncoming.priority() > 1);
    }

    #[test]
    fn an_uplink_has_a_class_for_each_share_and_one_for_all_else() {
        let line = Terms {
            tx: Some(12_500_000),
            ..Terms::default()
        };
        let all = wanted(&[
            (1, line),
            (2, share(1, 5_000_000, 2)),
            (3, share(1, 1_000_000, 4)),
        ]);
        let links = [link(1), link(2), link(3)];
        let slots = slots(&all, &BTreeMap::new()).expect("slots");
        let objects = objects(&all, &links, &slots, &MEANS);
        let tree = &objects.trees[&1];
        let slot = |index: u32| slots[&Who::Link(index)];
        let minors: Vec<u16> = tree.nodes.keys().copied().collect();
        assert_eq!(minors, [TRUNK, OTHERS, slot(2), slot(3)]);
        let of = |minor: u16| tree.nodes[&minor].terms;
        assert_eq!((of(TRUNK).parent, of(OTHERS).parent), (0, TRUNK));
        assert_eq!(
            (of(slot(2)).rate, of(slot(2)).ceil),
            (5_000_000, 12_500_000)
        );
        // Turns are as weights are, and the smallest holds a whole packet.
        assert_eq!(of(slot(3)).quantum, 2 * of(slot(2)).quantum);
        assert_eq!(of(slot(2)).quantum, 2 * of(OTHERS).quantum);
        assert!(of(OTHERS).quantum > 65_536);
        assert_eq!(
            objects.hooks,
            [((1, Hook::Outgoing), Aim::Program(None))].into()
        );
        assert_eq!(
            objects.entries[&2],
            (slot(2), 0),
            "there is no block to go through"
        );
    }
    #[test]
    fn a_group_has_a_class_of_its_uplink_and_a_way_there() {
        let mut all = wanted(&[(
            1,
            Terms {
                tx: Some(12_500_000),
                ..Terms::default()
            },
        )]);
        let share = Share {
            uplink: 1,
            guarantee: None,
            ceiling: Some(1_000_000),
            weight: 1,
        };
        let group = Group {
            share,
            burst_ns: None,
            class: None,
        };
        all.groups.insert("/s/db".into(), group);
        let links = [link(1)];
        let given = slots(&all, &BTreeMap::new()).expect("slots");
        assert_eq!(given[&Who::Group("/s/db".into())], LAST_SLOT);
        let there = objects(&all, &links, &given, &MEANS);
        assert_eq!(there.trees[&1].nodes[&LAST_SLOT].terms.ceil, 1_000_000);
        assert_eq!(
            there.hooks,
            [((1, Hook::Outgoing), Aim::Program(Some(2)))].into()
        );
        assert_eq!(there.groups, BTreeMap::new(), "nothing is there");
        let slice = Above {
            id: 5,
            children: [("db".to_owned(), 6)].into(),
        };
        all.tree.insert("/s".into(), slice);
        let there = objects(&all, &links, &given, &MEANS);
        let known = |own, newcomers| Known { own, newcomers };
        let expected = [((5, 1), known(0, LAST_SLOT)), ((6, 1), known(LAST_SLOT, 0))];
        assert_eq!(there.groups, expected.into());
    }
}
