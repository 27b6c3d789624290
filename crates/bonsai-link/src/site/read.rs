//! What is there: ours, and others'.

use std::collections::{BTreeMap, BTreeSet};

use crate::bpf::{Table, Tables};
use crate::error::Error;
use crate::hooks::{Aim, Hook};
use crate::links;
use crate::netlink::Socket;
use crate::objects::{MAJOR, Node, Objects, Tree};
use crate::plan::Plan;
use crate::tc::filter::{self, Filter};
use crate::tc::seen::{self, Qdisc};
use crate::tc::{Handle, htb, queue};
use crate::wanted::Wanted;

use super::Seen;

pub(super) fn see(socket: &mut Socket, plan: Option<Plan>) -> Result<Seen, Error> {
    let links = links::links(socket)?;
    let qdiscs = seen::qdiscs(socket, None)?;
    let mut seen = Seen {
        links,
        foreign: BTreeMap::new(),
        objects: Objects::default(),
        hookable: hookable(&qdiscs),
        tables: Tables::default(),
        plan,
        queues: queue::best(socket)?,
        dropped: BTreeMap::new(),
    };
    let is_foreign =
        |qdisc: &&Qdisc| qdisc.parent == Handle::ROOT && qdisc.made() && our_root(qdisc).is_none();
    let foreign = qdiscs.iter().filter(is_foreign);
    seen.foreign = foreign.map(|of| (of.device, of.clone())).collect();
    let ours = |qdisc: &&Qdisc| qdisc.parent.major() == MAJOR;
    let queues = qdiscs.iter().filter(ours);
    let dropped = queues.map(|qdisc| ((qdisc.device, qdisc.parent), qdisc.counters.drops));
    seen.dropped = dropped.collect();
    seen.objects.trees = trees(socket, &qdiscs, |_| true)?;
    let mut programs = BTreeSet::new();
    for (device, hook) in &seen.hookable {
        for (hook, aim, filter) in hooks(socket, *device, *hook)? {
            seen.objects.hooks.insert((*device, hook), aim);
            // What groups are known is read out of those that look at them.
            let is_last = !matches!(aim, Aim::Program(Some(_)));
            programs.extend(filter.program.map(|program| (is_last, program)));
        }
    }
    for (_, program) in programs {
        if seen.tables.links.is_none() || seen.tables.groups.is_none() {
            match seen.tables.add_of(program) {
                // Where programs are not allowed any more they go, unread.
                Err(_) if seen.plan() == Plan::U32 => {}
                answer => answer?,
            }
        }
    }
    seen.objects.entries = entries(&seen.tables)?;
    if let Some(table) = &seen.tables.groups {
        seen.objects.groups = table.all()?.into_iter().collect();
    }
    Ok(seen)
}

/// What there is now of some devices, but for groups; `seen` says where the tables are.
pub(super) fn objects_of(
    socket: &mut Socket,
    seen: &Seen,
    devices: &BTreeSet<u32>,
) -> Result<Objects, Error> {
    let qdiscs = seen::qdiscs(socket, None)?;
    let mut objects = Objects {
        trees: trees(socket, &qdiscs, |device| devices.contains(&device))?,
        entries: entries(&seen.tables)?,
        ..Objects::default()
    };
    let places = hookable(&qdiscs).into_iter();
    for (device, hook) in places.filter(|(device, _)| devices.contains(device)) {
        for (hook, aim, _) in hooks(socket, device, hook)? {
            objects.hooks.insert((device, hook), aim);
        }
    }
    Ok(objects)
}

/// Where filters can hang.
fn hookable(qdiscs: &[Qdisc]) -> BTreeSet<(u32, Hook)> {
    let mut places = BTreeSet::new();
    for qdisc in qdiscs.iter().filter(|of| of.parent == Handle::CLSACT) {
        // `ingress`, of others, has no place for what goes out.
        places.insert((qdisc.device, Hook::Incoming));
        if qdisc.kind == "clsact" {
            places.insert((qdisc.device, Hook::Outgoing));
        }
    }
    places
}

fn our_root(qdisc: &Qdisc) -> Option<Tree> {
    let ours = qdisc.kind == htb::KIND
        && qdisc.parent == Handle::ROOT
        && qdisc.handle == Handle::of(MAJOR, 0);
    ours.then(|| Tree {
        default: htb::default_of(&qdisc.options).unwrap_or_default(),
        nodes: BTreeMap::new(),
    })
}

/// Which of ours a filter is, and what for; `None` for others'.
fn our_filter(filter: &Filter, at: Hook) -> Option<(Hook, Aim)> {
    let (hook, aim) = match (&*filter.kind, at) {
        ("bpf", hook) => {
            let aim = hook.aim(filter.name.as_deref()?)?;
            (hook, filter.block.map_or(aim, Aim::Through))
        }
        ("u32", Hook::Incoming) => (Hook::Mirrored, Aim::Block(filter.block?)),
        _ => return None,
    };
    (filter.place.priority == hook.priority()).then_some((hook, aim))
}

/// Our filters in a place.
fn hooks(
    socket: &mut Socket,
    device: u32,
    at: Hook,
) -> Result<impl Iterator<Item = (Hook, Aim, Filter)>, Error> {
    let filters = filter::filters(socket, device, at.parent())?.into_iter();
    Ok(filters.filter_map(move |filter| {
        let (hook, aim) = our_filter(&filter, at)?;
        Some((hook, aim, filter))
    }))
}

/// What the programs know of links.
fn entries(tables: &Tables) -> Result<BTreeMap<u32, (u16, u32)>, Error> {
    let all = tables.links.as_ref().map(Table::all).transpose()?;
    let all = all.into_iter().flatten();
    Ok(all
        .map(|(device, entry)| (device, (Handle(entry.class).minor(), entry.ifb)))
        .collect())
}

/// Our trees of those devices.
fn trees(
    socket: &mut Socket,
    qdiscs: &[Qdisc],
    of: impl Fn(u32) -> bool,
) -> Result<BTreeMap<u32, Tree>, Error> {
    let qdiscs = || qdiscs.iter().filter(|qdisc| of(qdisc.device));
    let ours = qdiscs().filter_map(|qdisc| Some((qdisc.device, our_root(qdisc)?)));
    let mut trees: BTreeMap<u32, Tree> = ours.collect();
    for (device, tree) in &mut trees {
        for (handle, class) in seen::classes_of(socket, *device)? {
            let node = Node {
                terms: class.terms,
                leaf: None,
            };
            tree.nodes.insert(handle.minor(), node);
        }
    }
    for qdisc in qdiscs().filter(|qdisc| qdisc.parent.major() == MAJOR) {
        if let Some(tree) = trees.get_mut(&qdisc.device)
            && let Some(node) = tree.nodes.get_mut(&qdisc.parent.minor())
        {
            node.leaf = Some(queue::read(&qdisc.kind, &qdisc.options));
        }
    }
    Ok(trees)
}

impl Seen {
    /// Whether somebody else's discipline is where ours would be, and is not to be taken over.
    pub(super) fn check_foreign(&self, wanted: &Wanted, adopt: &[u32]) -> Result<(), Error> {
        let limited = wanted.links.iter().filter(|(_, terms)| terms.tx.is_some());
        for (index, _) in limited.filter(|(index, _)| !adopt.contains(index)) {
            if let Some(root) = self.foreign.get(index) {
                return Err(Error::Foreign {
                    name: self.name(*index),
                    kind: root.kind.clone(),
                    handle: root.handle,
                });
            }
        }
        Ok(())
    }
}
