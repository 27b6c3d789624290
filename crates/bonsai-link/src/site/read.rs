//! What is there: ours, and others'.

use std::collections::{BTreeMap, BTreeSet};

use crate::bpf::Table;
use crate::error::Error;
use crate::links;
use crate::netlink::Socket;
use crate::netlink::message::u32_at;
use crate::objects::{Hook, Leaf, MAJOR, Node, Objects, PRIORITY, Tree};
use crate::tc::filter::{self, Filter};
use crate::tc::seen::{self, Qdisc};
use crate::tc::{Handle, htb};
use crate::wanted::Wanted;

use super::Seen;

pub(super) fn see(socket: &mut Socket) -> Result<Seen, Error> {
    let links = links::links(socket)?;
    let qdiscs = seen::qdiscs(socket, None)?;
    let mut seen = Seen {
        links,
        foreign: BTreeMap::new(),
        objects: Objects::default(),
        hookable: BTreeSet::new(),
        table: None,
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
    read_trees(socket, &qdiscs, &mut seen.objects)?;
    let mut program = None;
    for (device, hook) in &seen.hookable {
        for filter in filter::filters(socket, *device, hook.parent())? {
            if is_ours(&filter, *hook) {
                seen.objects.hooks.insert((*device, *hook));
                program = program.or(filter.program);
            }
        }
    }
    seen.table = program.map(Table::of_program).transpose()?.flatten();
    if let Some(table) = &seen.table {
        let entries = table.all()?;
        let entries = entries.into_iter().map(|(device, entry)| {
            let slot = Handle(entry.class).minor();
            (device, (slot, entry.ifb))
        });
        seen.objects.entries = entries.collect();
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

fn is_ours(filter: &Filter, hook: Hook) -> bool {
    filter.place.priority == PRIORITY
        && filter.kind == "bpf"
        && filter.name.as_deref() == Some(hook.program().name())
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
        if qdisc.kind == "bfifo"
            && qdisc.parent.major() == MAJOR
            && let Some(tree) = objects.trees.get_mut(&qdisc.device)
            && let Some(node) = tree.nodes.get_mut(&minor)
            && let Some(limit) = u32_at(&qdisc.options, 0)
        {
            node.leaf = Some(Leaf { limit });
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
