//! What is there: ours, and others'.

use std::collections::{BTreeMap, BTreeSet};

use crate::bpf::Tables;
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
        hookable: BTreeSet::new(),
        tables: Tables::default(),
        plan,
        short: queue::can_be_short(socket)?,
        dropped: BTreeMap::new(),
    };
    for qdisc in &qdiscs {
        if qdisc.parent == Handle::CLSACT {
            // `ingress`, of others, has no place for what goes out.
            seen.hookable.insert((qdisc.device, Hook::Incoming));
            if qdisc.kind == "clsact" {
                seen.hookable.insert((qdisc.device, Hook::Outgoing));
            }
        } else if let Some(tree) = our_root(qdisc) {
            seen.objects.trees.insert(qdisc.device, tree);
        } else if qdisc.parent == Handle::ROOT && qdisc.made() {
            seen.foreign.insert(qdisc.device, qdisc.clone());
        }
    }
    let ours = |qdisc: &&Qdisc| qdisc.kind == queue::SHORT && qdisc.parent.major() == MAJOR;
    let short = qdiscs.iter().filter(ours);
    let dropped = short.map(|qdisc| ((qdisc.device, qdisc.parent), qdisc.counters.drops));
    seen.dropped = dropped.collect();
    read_trees(socket, &qdiscs, &mut seen.objects)?;
    let mut programs = BTreeSet::new();
    for (device, hook) in &seen.hookable {
        for filter in filter::filters(socket, *device, hook.parent())? {
            let Some((hook, aim)) = our_filter(&filter, *hook) else {
                continue;
            };
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
    if let Some(table) = &seen.tables.links {
        let entries = table.all()?.into_iter().map(|(device, entry)| {
            let slot = Handle(entry.class).minor();
            (device, (slot, entry.ifb))
        });
        seen.objects.entries = entries.collect();
    }
    if let Some(table) = &seen.tables.groups {
        seen.objects.groups = table.all()?.into_iter().collect();
    }
    Ok(seen)
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

fn read_trees(socket: &mut Socket, qdiscs: &[Qdisc], objects: &mut Objects) -> Result<(), Error> {
    for (device, tree) in &mut objects.trees {
        for (handle, class) in seen::classes_of(socket, *device)? {
            let node = Node {
                terms: class.terms,
                leaf: None,
            };
            tree.nodes.insert(handle.minor(), node);
        }
    }
    for qdisc in qdiscs {
        let minor = qdisc.parent.minor();
        if qdisc.parent.major() == MAJOR
            && let Some(tree) = objects.trees.get_mut(&qdisc.device)
            && let Some(node) = tree.nodes.get_mut(&minor)
        {
            node.leaf = queue::read(&qdisc.kind, &qdisc.options);
        }
    }
    Ok(())
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
