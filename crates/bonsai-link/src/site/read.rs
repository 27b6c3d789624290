//! What is there: ours, and others'.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use crate::bpf::{self, Table, Tables};
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
        late: BTreeSet::new(),
        before: BTreeMap::new(),
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
        let filters = filter::filters(socket, *device, hook.parent())?;
        seen.late.extend(late(*device, hook.parent(), &filters));
        if let Some(before) = before(hook.parent(), &filters) {
            let comes_in = hook.parent() == Handle::INCOMING;
            seen.before.insert((*device, comes_in), before);
        }
        for (hook, aim, filter) in ours_of(filters, hook.parent()) {
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
        let filters = filter::filters(socket, device, hook.parent())?;
        for (hook, aim, _) in ours_of(filters, hook.parent()) {
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
fn our_filter(filter: &Filter, parent: Handle) -> Option<(Hook, Aim)> {
    let is_it = |hook: &&Hook| {
        let place = (hook.kind(), hook.priority());
        (&*filter.kind, filter.place.priority) == place && filter.chain == 0
    };
    let hook = *Hook::at(parent).iter().find(is_it)?;
    if hook.is_mirrored() {
        return Some((hook, Aim::Block(filter.block?)));
    }
    let aim = hook.aim(filter.name.as_deref()?)?;
    Some((hook, filter.block.map_or(aim, Aim::Through)))
}

/// Our filters among those of a place.
fn ours_of(filters: Vec<Filter>, parent: Handle) -> impl Iterator<Item = (Hook, Aim, Filter)> {
    filters.into_iter().filter_map(move |filter| {
        let (hook, aim) = our_filter(&filter, parent)?;
        Some((hook, aim, filter))
    })
}

/// Which of ours cannot have their turn in a place: one turn has filters of one kind and one protocol.
fn late(device: u32, parent: Handle, filters: &[Filter]) -> impl Iterator<Item = (u32, Hook)> {
    let is_taken = move |hook: &&Hook| {
        filters.iter().any(|filter| {
            let same_turn = filter.chain == 0 && filter.place.priority == hook.priority();
            same_turn && (filter.kind != hook.kind() || filter.protocol != filter::ETH_P_ALL)
        })
    };
    let first = Hook::at(parent).iter().filter(|hook| hook.late() != **hook);
    first.filter(is_taken).map(move |hook| (device, *hook))
}

/// The first filter of others in a place that is asked before ours, in words; the kernel lists them in their order.
/// Where none of ours is there, nothing is before it.
fn before(parent: Handle, filters: &[Filter]) -> Option<String> {
    let is_asked = |filter: &&Filter| filter.chain == 0 && !filter.is_table();
    let asked: Vec<&Filter> = filters.iter().filter(is_asked).collect();
    let is_ours = |filter: &&Filter| our_filter(filter, parent).is_some();
    let own = asked.iter().position(is_ours)?;
    let first = asked[..own].first()?;
    let name = first.name.as_deref().unwrap_or_default();
    let between = if name.is_empty() { "" } else { " " };
    let (kind, priority) = (&first.kind, first.place.priority);
    Some(format!(
        "the filter {kind}{between}{name} with priority {priority}"
    ))
}

/// Programs that the kernel asks before all filters (tcx, Linux 6.6): where they are attached to devices with filters of
/// ours.
pub(super) fn programs_before(
    namespace: Option<BorrowedFd<'_>>,
    seen: &mut Seen,
) -> Result<(), Error> {
    let devices: BTreeSet<(u32, bool)> = seen
        .objects
        .hooks
        .keys()
        .map(|(device, hook)| (*device, hook.parent() == Handle::INCOMING))
        .collect();
    seen.before.extend(programs_at(namespace, &devices)?);
    Ok(())
}

/// The first program of tcx of each of some devices that has one, in words.
pub(super) fn programs_at(
    namespace: Option<BorrowedFd<'_>>,
    devices: &BTreeSet<(u32, bool)>,
) -> Result<BTreeMap<(u32, bool), String>, Error> {
    if devices.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = || {
        let first = |(device, comes_in): &(u32, bool)| {
            let name = bpf::first_of_tcx(*device, *comes_in)?;
            let text = format!("the program {name} at tcx");
            Some(((*device, *comes_in), text))
        };
        devices.iter().filter_map(first).collect()
    };
    match namespace {
        // The number of a device is of the namespace of the thread that asks.
        Some(namespace) => crate::namespace::inside(namespace, query),
        None => Ok(query()),
    }
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
