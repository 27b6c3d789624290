//! The tree of groups, and water-filling over it.
//!
//! Node 0 is the root, then come groups, then services, each in the order of names, so that
//! nothing depends on the order in which a configuration or an observation lists them.

use crate::config::PerResource;
use crate::fill::{Level, Open, Sharer, UNBOUNDED, fill, narrow};

/// What a node has of one resource, with nothing left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Its guarantee. Of a group, that beyond which its members have none of their own.
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) weight: u32,
}

/// The shape of the tree, and the bounds of its nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The parent of each node; the root's is itself.
    pub(crate) parents: Vec<u32>,
    /// Where the children of inner node `i` are in `kids`: from `starts[i]` to `starts[i + 1]`.
    starts: Vec<u32>,
    kids: Vec<u32>,
    /// The root and the groups, parents before children.
    inner: Vec<u32>,
    /// Nodes below this one are groups or the root.
    pub(crate) first_leaf: usize,
    pub(crate) bounds: PerResource<Vec<Bounds>>,
    /// Whether some group guarantees more than its members do, and whether some has a ceiling.
    pub(crate) excess: PerResource<bool>,
    pub(crate) ceilings: PerResource<bool>,
}

impl Tree {
    /// The tree in which node `i` has the parent `parents[i]`; the first `first_leaf` nodes are
    /// the root and groups, without loops.
    pub(crate) fn new(
        parents: Vec<u32>,
        first_leaf: usize,
        bounds: PerResource<Vec<Bounds>>,
    ) -> Self {
        let mut starts = vec![0_u32; first_leaf + 1];
        for &parent in &parents[1..] {
            starts[parent as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut kids = vec![0; parents.len() - 1];
        for (node, &parent) in (0_u32..).zip(&parents).skip(1) {
            kids[next[parent as usize] as usize] = node;
            next[parent as usize] += 1;
        }
        let mut tree = Self {
            parents,
            starts,
            kids,
            inner: vec![0],
            first_leaf,
            bounds,
            ..Self::default()
        };
        let mut at = 0;
        while let Some(&node) = tree.inner.get(at) {
            let groups = tree.kids(node).iter().copied();
            let groups: Vec<u32> = groups.filter(|&kid| (kid as usize) < first_leaf).collect();
            tree.inner.extend(groups);
            at += 1;
        }
        tree.look();
        tree
    }

    /// Children of an inner node.
    pub(crate) fn kids(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.kids[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The root and the groups, children before parents.
    pub(crate) fn upwards(&self) -> impl Iterator<Item = u32> + '_ {
        self.inner.iter().rev().copied()
    }

    /// The root and the groups, parents before children.
    pub(crate) fn downwards(&self) -> &[u32] {
        &self.inner
    }

    /// Whether there are groups.
    pub(crate) fn is_nested(&self) -> bool {
        self.first_leaf > 1
    }

    /// Notes what the bounds of groups make necessary.
    fn look(&mut self) {
        for (resource, bounds) in self.bounds.iter().enumerate() {
            let sums = self.guaranteed(resource, |node| bounds[node].min);
            let groups = || self.inner.iter().skip(1).map(|&node| node as usize);
            self.excess[resource] =
                groups().any(|node| bounds[node].min > self.sum_of_kids(&sums, node));
            self.ceilings[resource] = groups().any(|node| bounds[node].max < UNBOUNDED);
        }
    }

    /// What each node guarantees, given the guarantees of services: a group's own, or those of
    /// its members where they come to more.
    pub(crate) fn guaranteed(&self, resource: usize, leaf: impl Fn(usize) -> u64) -> Vec<u64> {
        let bounds = &self.bounds[resource];
        let mut sums: Vec<u64> = (0..self.parents.len())
            .map(|node| {
                if node < self.first_leaf {
                    0
                } else {
                    leaf(node)
                }
            })
            .collect();
        for node in self.upwards() {
            let members = self.sum_of_kids(&sums, node as usize);
            sums[node as usize] = match node {
                0 => members,
                _ => members.max(bounds[node as usize].min),
            };
        }
        sums
    }

    /// By how much the guarantee of a service may grow, of a machine that guarantees at most
    /// `capacity`; `sums` is what [`Tree::guaranteed`] says now.
    pub(crate) fn room(&self, resource: usize, sums: &[u64], leaf: usize, capacity: u64) -> u64 {
        let own = self.bounds[resource][leaf].max.saturating_sub(sums[leaf]);
        own.min(self.room_in(resource, sums, self.parents[leaf] as usize, capacity))
    }

    /// By how much the guarantees of a group's members may grow; of all, for the root.
    pub(crate) fn room_in(
        &self,
        resource: usize,
        sums: &[u64],
        group: usize,
        capacity: u64,
    ) -> u64 {
        let bounds = &self.bounds[resource];
        let mut room = u64::MAX;
        // What a group guarantees beyond its members is theirs already.
        let mut own = 0_u64;
        let mut at = group;
        while at != 0 {
            let members = self.sum_of_kids(sums, at);
            room = room.min(bounds[at].max.saturating_sub(members).saturating_add(own));
            own = own.saturating_add(sums[at].saturating_sub(members));
            at = self.parents[at] as usize;
        }
        room.min(capacity.saturating_sub(sums[0]).saturating_add(own))
    }

    /// Notes in `sums` that the guarantee of a service is `to`.
    pub(crate) fn guarantee(&self, resource: usize, sums: &mut [u64], leaf: usize, to: u64) {
        let bounds = &self.bounds[resource];
        let (mut node, mut to) = (leaf, to);
        loop {
            let from = core::mem::replace(&mut sums[node], to);
            if node == 0 {
                return;
            }
            let parent = self.parents[node] as usize;
            to = match parent {
                0 => sums[0].saturating_add(to).saturating_sub(from),
                _ => self.sum_of_kids(sums, parent).max(bounds[parent].min),
            };
            node = parent;
        }
    }

    fn sum_of_kids(&self, sums: &[u64], group: usize) -> u64 {
        let kids = self.kids(u32::try_from(group).unwrap_or(0)).iter();
        kids.map(|&kid| sums[kid as usize])
            .fold(0, u64::saturating_add)
    }
}

/// Vectors that are used again in each decision, and its results: one element for each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Water {
    pub(crate) floors: Vec<u64>,
    pub(crate) mosts: Vec<u64>,
    /// What each node gets.
    pub(crate) given: Vec<u64>,
    /// Of each inner node: the level of those of its children that want more.
    pub(crate) levels: Vec<Option<Level>>,
    sharers: Vec<Sharer>,
    open: Vec<Open>,
    out: Vec<u64>,
}

impl Water {
    /// Room for a tree. What is in it is left from before: whoever pours sets the floors and
    /// mosts of all services.
    pub(crate) fn fit(&mut self, tree: &Tree) {
        let nodes = tree.parents.len();
        for vector in [&mut self.floors, &mut self.mosts, &mut self.given] {
            vector.resize(nodes, 0);
        }
        self.levels.resize(tree.first_leaf, None);
    }

    /// Gives `amount` to the services, whose `floors` and `mosts` are set; returns what is left
    /// when all have their mosts. With `group_floors` the guarantees of groups count, too.
    pub(crate) fn pour(
        &mut self,
        tree: &Tree,
        resource: usize,
        amount: u64,
        group_floors: bool,
    ) -> u64 {
        let bounds = &tree.bounds[resource];
        for node in tree.upwards().filter(|&node| node != 0) {
            let (mut floor, mut most) = (0_u128, 0_u128);
            for &kid in tree.kids(node) {
                floor += u128::from(self.floors[kid as usize]);
                most += u128::from(self.mosts[kid as usize]);
            }
            let at = node as usize;
            let least = if group_floors { bounds[at].min } else { 0 };
            self.mosts[at] = narrow(most).min(bounds[at].max);
            self.floors[at] = narrow(floor).max(least).min(self.mosts[at]);
        }
        self.given[0] = amount;
        for &node in tree.downwards() {
            let kids = tree.kids(node);
            self.sharers.clear();
            self.sharers.extend(kids.iter().map(|&kid| Sharer {
                floor: self.floors[kid as usize],
                most: self.mosts[kid as usize],
                weight: bounds[kid as usize].weight,
            }));
            self.out.clear();
            self.out.resize(kids.len(), 0);
            let amount = self.given[node as usize];
            self.levels[node as usize] = fill(amount, &self.sharers, &mut self.open, &mut self.out);
            for (&kid, &given) in kids.iter().zip(&self.out) {
                self.given[kid as usize] = given;
            }
        }
        match self.levels[0] {
            Some(_) => 0,
            None => amount - tree.sum_of_kids(&self.given, 0),
        }
    }
}
