//! A configuration with everything looked up: which services there are, and the tree.
//!
//! # Owners
//! A user chooses how many services there are of theirs. Where the weights of those in one group (or in none) come to more than
//! [`Config::owner_weight`], they are in a node of their own below it, of that weight. It has no guarantee and no ceiling, and no
//! name by which a configuration could mean it.

use std::collections::BTreeMap;

use bonsai_units::Resource;

use crate::allocation::rate;
use crate::check::Problem;
use crate::config::{Class, Config, Mode, Name, PerResource, Target, Terms};
use crate::fill::{UNBOUNDED, narrow};
use crate::tree::{Bounds, Tree};

/// A service with nothing left open but its bounds, which are in the tree.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    /// What its own configuration guarantees, apart from its class: a floor of automatic
    /// changes.
    pub(crate) own_min: PerResource<u64>,
    pub(crate) target: Option<Target>,
    /// Its class's guarantees are its own as far as there is room.
    unasked: bool,
}

/// A configuration with everything looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) services: Vec<Resolved>,
    pub(crate) index: BTreeMap<Name, u32>,
    pub(crate) groups: BTreeMap<Name, u32>,
    /// Nodes from this one on that are no services are those of owners.
    first_owner: usize,
    pub(crate) tree: Tree,
}

/// The nodes of a tree before it is one, in the order of nodes.
struct Nodes {
    names: Vec<Name>,
    parents: Vec<u32>,
    terms: Vec<PerResource<Terms>>,
    /// The root and the groups of the configuration; then those of owners.
    groups: usize,
    first_leaf: usize,
}

impl Plan {
    /// The plan of a configuration that [`Config::check`] found good, and of the services
    /// `others` that run without being in it.
    pub(crate) fn new(config: &Config, others: &[Name]) -> Self {
        let (nodes, services) = nodes(config, others);
        let mut bounds: PerResource<Vec<Bounds>> = core::array::from_fn(|resource| {
            let of = |terms: &PerResource<Terms>| {
                let Terms { min, max, weight } = terms[resource];
                let max = max.unwrap_or(UNBOUNDED).min(UNBOUNDED);
                Bounds {
                    min: min.unwrap_or(0).min(max),
                    max,
                    weight: weight.unwrap_or(1).max(1),
                }
            };
            nodes.terms.iter().map(of).collect()
        });
        for bounds in &mut bounds {
            bounds[0].max = UNBOUNDED;
        }
        let asked = take_unasked(&mut bounds, &nodes, &services);
        let mut tree = Tree::new(nodes.parents, nodes.first_leaf, bounds);
        for (resource, capacity) in config.capacity.into_iter().enumerate() {
            if let Some(capacity) = capacity {
                scale(&mut tree, resource, capacity);
            }
            let capacity = capacity.unwrap_or(u64::MAX);
            give_back(&mut tree, resource, capacity, &asked);
        }
        // Whether groups have something beyond their members may have changed with that.
        let tree = Tree::new(tree.parents, tree.first_leaf, tree.bounds);
        let index = (0..).zip(&services).map(|(i, s)| (s.name.clone(), i));
        let groups = (0..).zip(&nodes.names).take(nodes.groups).skip(1);
        Self {
            groups: groups.map(|(i, name)| (name.clone(), i)).collect(),
            index: index.collect(),
            services,
            first_owner: nodes.groups,
            tree,
        }
    }

    /// The weight that the services of a service's owner have together, where they have less than each of its own.
    pub(crate) fn owner_weight(&self, service: usize, resource: usize) -> Option<u32> {
        let parent = self.tree.parents[self.node(service)] as usize;
        (parent >= self.first_owner).then(|| self.tree.bounds[resource][parent].weight)
    }

    /// The node of a service.
    pub(crate) fn node(&self, service: usize) -> usize {
        self.tree.first_leaf + service
    }

    /// The node of a group, the root without one.
    pub(crate) fn group(&self, name: Option<&Name>) -> usize {
        let at = name.and_then(|name| self.groups.get(name));
        at.map_or(0, |&at| at as usize)
    }

    /// What of a configuration that is otherwise good is more than there is.
    pub(crate) fn overcommitted(config: &Config) -> Vec<Problem> {
        let (nodes, services) = nodes(config, &[]);
        let mut found = Vec::new();
        let plan = Self::new(
            &Config {
                capacity: [None; Resource::COUNT],
                ..config.clone()
            },
            &[],
        );
        for resource in Resource::ALL {
            let i = resource.index();
            let bounds = &plan.tree.bounds[i];
            let sums = plan.tree.guaranteed(i, |node| {
                match services[node - nodes.first_leaf].is_soft(i) {
                    true => 0,
                    false => bounds[node].min,
                }
            });
            for node in plan.tree.upwards() {
                let kids = plan.tree.kids(node);
                let of = |kid: &u32| (*kid, sums[*kid as usize]);
                let parts: Vec<(u32, u64)> = kids.iter().map(of).filter(|p| p.1 > 0).collect();
                let sum = parts.iter().map(|part| u128::from(part.1)).sum();
                let (most, of) = match node {
                    0 => (config.capacity[i], format!("{resource} has")),
                    _ => {
                        let max = nodes.terms[node as usize][i].max;
                        let name = &nodes.names[node as usize];
                        (max, format!("the max of group {name} for {resource}"))
                    }
                };
                let Some(most) = most.filter(|&most| sum > u128::from(most)) else {
                    continue;
                };
                found.push(Problem::Overcommitted {
                    sum: arithmetic(resource, &nodes, &parts, narrow(sum)),
                    over: rate(resource, narrow(sum) - most),
                    of: format!("{of}, {}", rate(resource, most)),
                });
            }
        }
        found
    }
}

/// `vod 60 Mbit/s + web 50 Mbit/s = 110 Mbit/s`, the largest five at most.
fn arithmetic(resource: Resource, nodes: &Nodes, parts: &[(u32, u64)], sum: u64) -> String {
    const SHOWN: usize = 5;
    let mut parts = parts.to_vec();
    parts.sort_by_key(|part| core::cmp::Reverse(part.1));
    let word = |&(node, min): &(u32, u64)| {
        let group = match node as usize {
            at if at < nodes.groups => "group ",
            at if at < nodes.first_leaf => "services of ",
            _ => "",
        };
        format!(
            "{group}{} {}",
            nodes.names[node as usize],
            rate(resource, min)
        )
    };
    let mut words: Vec<String> = parts.iter().take(SHOWN).map(word).collect();
    if let Some(others) = parts.get(SHOWN..).filter(|others| !others.is_empty()) {
        let rest = others
            .iter()
            .map(|part| part.1)
            .fold(0, u64::saturating_add);
        words.push(format!("{} others {}", others.len(), rate(resource, rest)));
    }
    match parts.len() {
        1 => words.join(""),
        _ => format!("{} = {}", words.join(" + "), rate(resource, sum)),
    }
}

impl Resolved {
    /// Whether what it is guaranteed of a resource is so as far as there is room.
    fn is_soft(&self, resource: usize) -> bool {
        self.unasked && self.own_min[resource] == 0
    }
}

/// Takes away the guarantees that services have of their class without being promised them;
/// returns their nodes and what they would have.
fn take_unasked(
    bounds: &mut PerResource<Vec<Bounds>>,
    nodes: &Nodes,
    services: &[Resolved],
) -> Vec<(usize, PerResource<u64>)> {
    let mut unasked: Vec<_> = (nodes.first_leaf..)
        .zip(services)
        .filter(|(_, s)| s.unasked)
        .collect();
    // The first service of each owner comes before the second one of any, as far as there is room.
    let mut before = BTreeMap::<&str, usize>::new();
    unasked.sort_by_cached_key(|(_, service)| {
        owner(&service.name).map_or(0, |owner| {
            let count = before.entry(owner).or_default();
            *count += 1;
            *count - 1
        })
    });
    let mut take = |node: usize, service: &Resolved| {
        core::array::from_fn(|i| match service.is_soft(i) {
            true => core::mem::take(&mut bounds[i][node].min),
            false => 0,
        })
    };
    unasked
        .into_iter()
        .map(|(node, service)| (node, take(node, service)))
        .collect()
}

/// Gives these guarantees as far as those that a person has written leave room.
fn give_back(tree: &mut Tree, resource: usize, capacity: u64, asked: &[(usize, PerResource<u64>)]) {
    let mut sums = tree.guaranteed(resource, |node| tree.bounds[resource][node].min);
    for (node, mins) in asked.iter().filter(|(_, mins)| mins[resource] > 0) {
        let min = mins[resource].min(tree.room(resource, &sums, *node, capacity));
        tree.guarantee(resource, &mut sums, *node, min);
        tree.bounds[resource][*node].min = min;
    }
}

/// Guarantees that come to more than a group or the machine has are made smaller, all of its
/// members' in the same proportion.
fn scale(tree: &mut Tree, resource: usize, capacity: u64) {
    let bounds = &tree.bounds[resource];
    let mut sums = tree.guaranteed(resource, |node| bounds[node].min);
    // A group guarantees no more than its ceiling.
    for node in tree.upwards().filter(|&node| node != 0) {
        let members: u64 = tree.kids(node).iter().map(|&kid| sums[kid as usize]).sum();
        let at = node as usize;
        sums[at] = members.max(bounds[at].min).min(bounds[at].max);
    }
    let mut scaled = tree.bounds[resource].clone();
    let mut budgets = sums.clone();
    budgets[0] = capacity;
    for &node in tree.downwards() {
        let kids = tree.kids(node);
        let sum: u128 = kids.iter().map(|&kid| u128::from(sums[kid as usize])).sum();
        let budget = u128::from(budgets[node as usize]);
        for &kid in kids {
            let at = kid as usize;
            if sum > budget {
                budgets[at] = narrow(u128::from(sums[at]) * budget / sum);
            }
            scaled[at].min = scaled[at].min.min(budgets[at]);
        }
    }
    tree.bounds[resource] = scaled;
}

/// The root, the groups, those of owners, and the services, each in the order of names.
fn nodes(config: &Config, others: &[Name]) -> (Nodes, Vec<Resolved>) {
    let mut groups: Vec<_> = config.groups.iter().collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    let at: BTreeMap<&Name, u32> = (1..).zip(&groups).map(|(i, g)| (&g.name, i)).collect();
    let parent = |name: Option<&Name>| name.and_then(|name| at.get(name)).copied().unwrap_or(0);
    let mut nodes = Nodes {
        names: vec!["".into()],
        parents: vec![0],
        terms: vec![Default::default()],
        groups: groups.len() + 1,
        first_leaf: groups.len() + 1,
    };
    for group in &groups {
        nodes.names.push(group.name.clone());
        nodes.parents.push(parent(group.parent.as_ref()));
        nodes.terms.push(group.terms);
    }
    let classes: BTreeMap<&Name, &Class> = config.classes.iter().map(|c| (&c.name, c)).collect();
    let plain = others.iter().map(|name| crate::Service {
        unasked: true,
        ..crate::Service::named(name.clone())
    });
    let mut services: Vec<_> = config.services.iter().cloned().chain(plain).collect();
    services.sort_by(|a, b| a.name.cmp(&b.name));
    let mut resolved = Vec::with_capacity(services.len());
    let (mut parents, mut leaves) = (Vec::new(), Vec::new());
    for service in services {
        let class = service.class.as_ref().or(config.default_class.as_ref());
        let class = class.and_then(|name| classes.get(name)).copied();
        let group = service
            .group
            .as_ref()
            .or(class.and_then(|c| c.group.as_ref()));
        parents.push(parent(group));
        leaves.push(core::array::from_fn(|i| {
            service.terms[i].or(class.map_or(Terms::default(), |class| class.terms[i]))
        }));
        let mode = service.mode.or(class.and_then(|class| class.mode));
        resolved.push(Resolved {
            mode: mode.unwrap_or(config.mode),
            own_min: core::array::from_fn(|i| service.terms[i].min.unwrap_or(0)),
            target: service.target.or(class.and_then(|class| class.target)),
            unasked: service.unasked,
            name: service.name,
        });
    }
    share_by_owner(
        &mut nodes,
        &resolved,
        &mut parents,
        &leaves,
        config.owner_weight,
    );
    nodes.first_leaf = nodes.names.len();
    nodes.names.extend(resolved.iter().map(|s| s.name.clone()));
    nodes.parents.append(&mut parents);
    nodes.terms.append(&mut leaves);
    (nodes, resolved)
}

/// The owner of a service, if that is not the daemon's own user.
pub(crate) fn owner(name: &str) -> Option<&str> {
    name.split_once(':').map(|(owner, _)| owner)
}

/// Puts services of one owner in one group into a node of their own, where their weights come to more than `most` and more than
/// the heaviest of them. `parents` and `terms` are those of the services.
fn share_by_owner(
    nodes: &mut Nodes,
    services: &[Resolved],
    parents: &mut [u32],
    terms: &[PerResource<Terms>],
    most: u32,
) {
    let mut owned = BTreeMap::<(u32, &str), Vec<usize>>::new();
    for (at, service) in services.iter().enumerate() {
        if let Some(owner) = owner(&service.name) {
            owned.entry((parents[at], owner)).or_default().push(at);
        }
    }
    for ((parent, owner), own) in owned {
        let mut is_cut = false;
        let terms = core::array::from_fn(|i| {
            let weights = || {
                own.iter()
                    .map(|&at| terms[at][i].weight.unwrap_or(1).max(1))
            };
            let sum = weights().fold(0, u32::saturating_add);
            let most = weights().fold(most, u32::max);
            is_cut |= sum > most;
            Terms {
                weight: Some(sum.min(most)),
                ..Terms::default()
            }
        });
        if !is_cut {
            continue;
        }
        let node = u32::try_from(nodes.names.len()).unwrap_or(u32::MAX);
        nodes.names.push(owner.into());
        nodes.parents.push(parent);
        nodes.terms.push(terms);
        for at in own {
            parents[at] = node;
        }
    }
}
