//! Steps, carried out.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::os::fd::OwnedFd;

use crate::bpf::{Entry, GroupTable, Table, Tables};
use crate::diff::{Step, Way};
use crate::error::Error;
use crate::hooks::{self, Aim, Hook};
use crate::links::{self, Link};
use crate::netlink::message::Message;
use crate::objects::{MAJOR, Node, Objects, Tree};
use crate::plan::Plan;
use crate::tc::filter::{self, Place};
use crate::tc::queue::{self, Leaf};
use crate::tc::{self, Handle, Write, htb, seen};
use crate::wanted::Wanted;

use super::{Seen, Site};

/// Packets that pass a tree without a class, at most at once: what is not shaped is not held.
const DIRECT: u32 = 1000;

/// Something that was done, and can be taken back.
#[derive(Debug)]
pub(super) enum Act {
    Step(Step),
    /// The block was made.
    Block(u32),
    /// A place for filters was made.
    Hookable(u32),
}

impl Act {
    pub(super) fn words(&self, seen: &Seen) -> String {
        match self {
            Self::Step(step) => step.words(&seen.name(step.device())),
            Self::Block(device) => format!("making {}", seen.name(*device)),
            Self::Hookable(device) => format!("making clsact at {}", seen.name(*device)),
        }
    }
}

impl Site {
    /// Makes what steps stand on: the block, places for filters, the table.
    pub(super) fn prepare(
        &mut self,
        wanted: &Wanted,
        seen: &mut Seen,
        undo: &mut Vec<Act>,
    ) -> Result<usize, Error> {
        let before = undo.len();
        self.make_blocks(wanted, seen, undo)?;
        let limited = wanted.links.iter().filter(|(_, terms)| terms.rx.is_some());
        let mut hooked: Vec<_> = limited.map(|(index, _)| (*index, Hook::Incoming)).collect();
        let shares = wanted.shares().into_keys();
        hooked.extend(shares.map(|uplink| (uplink, Hook::Outgoing)));
        if !hooked.is_empty() && seen.tables.links.is_none() && seen.plan() == Plan::Bpf {
            seen.tables.links = Some(Table::new()?);
        }
        if !wanted.groups.is_empty() && seen.tables.groups.is_none() {
            seen.tables.groups = Some(GroupTable::new()?);
        }
        hooked.retain(|hook| !seen.hookable.contains(hook));
        let mut missing: Vec<u32> = hooked.into_iter().map(|(index, _)| index).collect();
        missing.sort_unstable();
        missing.dedup();
        let messages: Vec<Message> = missing.iter().map(|index| clsact(*index)).collect();
        let answers = self.socket.ask_all(&messages)?;
        let mut refusal = None;
        for (index, answer) in missing.into_iter().zip(answers) {
            let act = Act::Hookable(index);
            match answer {
                Ok(()) => {
                    let hooks = [Hook::Incoming, Hook::Outgoing];
                    seen.hookable.extend(hooks.map(|hook| (index, hook)));
                    undo.push(act);
                }
                Err(refused) => {
                    let step = act.words(seen);
                    refusal.get_or_insert(Error::Step { step, refused });
                }
            }
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        Ok(undo.len() - before)
    }

    /// Makes the blocks that are missing, and sets up those that are down.
    fn make_blocks(
        &mut self,
        wanted: &Wanted,
        seen: &mut Seen,
        undo: &mut Vec<Act>,
    ) -> Result<(), Error> {
        let missing = seen.missing_blocks(wanted)?;
        let is_missing = |link: &&Link| missing.contains(link.name.as_str());
        if let Some(link) = seen.links.iter().find(is_missing) {
            return Err(Error::Wrong(format!(
                "what is received goes through an ifb with the name {name}, and there is {kind} \
                 with that name: ip link set {name} name OTHER gives it another one",
                name = link.name,
                kind = link.kind.as_deref().unwrap_or("a device"),
            )));
        }
        if !missing.is_empty() {
            let messages: Vec<Message> = missing.iter().map(|name| links::ifb(name)).collect();
            let answers = self.socket.ask_all(&messages)?;
            seen.links = links::links(&mut self.socket)?;
            let mut refusal = None;
            for (name, answer) in missing.iter().zip(answers) {
                match answer {
                    Ok(()) => {
                        let made = links::named(&seen.links, name)?;
                        undo.push(Act::Block(made.index));
                    }
                    Err(refused) => {
                        let step = format!("making {name}");
                        refusal.get_or_insert(Error::Step { step, refused });
                    }
                }
            }
            refusal.map_or(Ok(()), Err)?;
        }
        if wanted.links.values().all(|terms| terms.rx.is_none()) {
            return Ok(());
        }
        let down = hooks::blocks(&seen.links).filter(|(link, _)| !link.up);
        let down: Vec<Message> = down.map(|(link, _)| links::set_up(link.index)).collect();
        for answer in self.socket.ask_all(&down)? {
            answer.map_err(Error::Refused)?;
        }
        Ok(())
    }

    /// Walks the steps; what was done, also in part, is added to `undo`.
    pub(super) fn walk(
        &mut self,
        seen: &Seen,
        steps: Vec<Step>,
        undo: &mut Vec<Act>,
    ) -> Result<(), Error> {
        let mut programs = Programs::default();
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() {
            // What goes to the socket goes together, up to the next step that does not.
            let mut some = Vec::new();
            while let Some(step) = steps.next_if(|step| !is_of_tables(step)) {
                some.push(step);
            }
            self.send(seen, some, &mut programs, undo)?;
            while let Some(step) = steps.next_if(is_of_tables) {
                entry(&seen.tables, &step)?;
                undo.push(Act::Step(step));
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        seen: &Seen,
        steps: Vec<Step>,
        programs: &mut Programs,
        undo: &mut Vec<Act>,
    ) -> Result<(), Error> {
        let mut messages = Vec::new();
        let mut whose = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            self.find_mirror(step, programs)?;
            put(step, seen, programs, &mut messages)?;
            whose.resize(messages.len(), place);
        }
        let answers = self.socket.ask_all(&messages)?;
        let mut refusal = None;
        // One that is refused does not keep the kernel from those behind it; of a step with
        // several, a part may be done.
        let mut done = vec![false; steps.len()];
        for (place, answer) in whose.into_iter().zip(answers) {
            match answer {
                Ok(()) => done[place] = true,
                Err(refused) => {
                    refusal.get_or_insert_with(|| Error::Step {
                        step: steps[place].words(&seen.name(steps[place].device())),
                        refused,
                    });
                }
            }
        }
        let done = steps.into_iter().zip(done).filter(|(_, done)| *done);
        undo.extend(done.map(|(step, _)| Act::Step(step)));
        refusal.map_or(Ok(()), Err)
    }

    /// Finds the name that the kernel has given to a plain filter that a step changes.
    pub(super) fn find_mirror(
        &mut self,
        step: &Step,
        programs: &mut Programs,
    ) -> Result<(), Error> {
        let Step::Hook(device, hook, Way::Change(..) | Way::Remove(_)) = step else {
            return Ok(());
        };
        if !hook.is_mirrored() {
            return Ok(());
        }
        let filters = filter::filters(&mut self.socket, *device, Handle::INCOMING)?;
        let is_it = |of: &&filter::Filter| {
            let is_ours = of.kind == "u32" && of.block.is_some();
            is_ours && of.place.priority == hook.priority()
        };
        if let Some(found) = filters.iter().find(is_it) {
            let has_turn = |of: &&filter::Filter| {
                of.place.priority == hook.priority() && of.chain == 0 && !of.is_table()
            };
            let is_alone = filters.iter().filter(has_turn).count() == 1;
            let mirror = (found.handle, is_alone);
            programs.mirrors.insert((*device, *hook), mirror);
        }
        Ok(())
    }

    /// Takes places for filters away in which no filter hangs.
    ///
    /// # Errors
    /// If the kernel does not show them.
    pub fn tidy_places(&mut self, devices: impl Iterator<Item = u32>) -> Result<(), Error> {
        for device in devices {
            let qdiscs = seen::qdiscs(&mut self.socket, Some(device))?;
            let is_place = |of: &seen::Qdisc| of.parent == Handle::CLSACT && of.kind == "clsact";
            if qdiscs.iter().any(is_place) && self.has_no_filters(device)? {
                self.socket.ask(&no_clsact(device))?;
            }
        }
        Ok(())
    }

    fn has_no_filters(&mut self, device: u32) -> Result<bool, Error> {
        let mut filters = 0;
        for parent in [Handle::INCOMING, Handle::OUTGOING] {
            filters += filter::filters(&mut self.socket, device, parent)?.len();
        }
        Ok(filters == 0)
    }

    /// Takes away what nothing stands on any more: places for filters that ours were the last in,
    /// and the block. What cannot be is left: it does no harm.
    pub(super) fn tidy(&mut self, objects: &Objects, seen: &Seen) -> Result<usize, Error> {
        let mut messages = Vec::new();
        let both = seen
            .hookable
            .iter()
            .filter(|(_, hook)| *hook == Hook::Outgoing);
        for (device, _) in both {
            let is_of_it = |(of, _): &(u32, Hook)| of == device;
            let now = objects.hooks.keys().any(is_of_it);
            let was = seen.objects.hooks.keys().any(is_of_it);
            if now || !was {
                continue;
            }
            if self.has_no_filters(*device)? {
                messages.push(no_clsact(*device));
            }
        }
        let idle = hooks::blocks(&seen.links).map(|(link, _)| link.index);
        let idle = idle.filter(|index| !objects.trees.contains_key(index));
        messages.extend(idle.map(links::delete));
        let answers = self.socket.ask_all(&messages)?;
        Ok(answers.into_iter().filter(Result::is_ok).count())
    }
}

fn clsact(device: u32) -> Message {
    let handle = Handle::of(0xffff, 0);
    tc::qdisc(Write::Make, device, handle, Handle::CLSACT, "clsact")
}

pub(super) fn no_clsact(device: u32) -> Message {
    tc::no_qdisc(device, Handle::of(0xffff, 0), Handle::CLSACT)
}

/// The programs, given to the kernel when the first filter wants one, and the names of plain filters with whether they are
/// alone with their turn.
#[derive(Default)]
pub(super) struct Programs {
    loaded: BTreeMap<(Hook, Option<u8>), OwnedFd>,
    mirrors: BTreeMap<(u32, Hook), (u32, bool)>,
}

impl Programs {
    fn get(&mut self, hook: Hook, deepest: Option<u8>, tables: &Tables) -> Result<&OwnedFd, Error> {
        Ok(match self.loaded.entry((hook, deepest)) {
            Slot::Occupied(program) => program.into_mut(),
            Slot::Vacant(place) => {
                let links = tables.links.as_ref().ok_or_else(no_table)?;
                let groups = match deepest {
                    Some(deepest) => Some((tables.groups.as_ref().ok_or_else(no_table)?, deepest)),
                    None => None,
                };
                place.insert(links.program(hook.program(), groups)?)
            }
        })
    }
}

fn no_table() -> Error {
    Error::Unexpected {
        what: "filters".into(),
    }
}

/// Whether a step is one of the tables, which are not the socket's.
pub(super) fn is_of_tables(step: &Step) -> bool {
    matches!(step, Step::Entry(..) | Step::Group(..))
}

pub(super) fn entry(tables: &Tables, step: &Step) -> Result<(), Error> {
    match step {
        Step::Entry(device, way) => {
            let table = tables.links.as_ref().ok_or_else(no_table)?;
            let entry = way.after().map(|(slot, ifb)| Entry {
                class: Handle::of(MAJOR, *slot).0,
                ifb: *ifb,
            });
            table.set(*device, entry)
        }
        Step::Group(at, way) => {
            let table = tables.groups.as_ref().ok_or_else(no_table)?;
            table.set(*at, way.after().copied())
        }
        _ => Ok(()),
    }
}

/// The messages of a step.
pub(super) fn put(
    step: &Step,
    seen: &Seen,
    programs: &mut Programs,
    messages: &mut Vec<Message>,
) -> Result<(), Error> {
    match step {
        Step::Tree(device, Way::Make(new) | Way::Change(_, new)) => {
            let write = match seen.foreign.contains_key(device) {
                true => Write::Replace,
                false => Write::Make,
            };
            tree(write, *device, new, messages);
        }
        Step::Tree(device, Way::Remove(_)) => {
            messages.push(tc::no_qdisc(*device, Handle::of(MAJOR, 0), Handle::ROOT));
        }
        Step::Node(device, minor, way) => node(*device, *minor, way, messages),
        Step::Hook(device, hook, way) => {
            let place = Place {
                device: *device,
                parent: hook.parent(),
                priority: hook.priority(),
            };
            let write = match way {
                Way::Change(..) => Write::Replace,
                _ => Write::Make,
            };
            let mirror = programs.mirrors.get(&(*device, *hook)).copied();
            let (mirror, is_alone) = (mirror.map(|of| of.0), mirror.is_some_and(|of| of.1));
            messages.push(match (way.after(), hook) {
                (None, hook) if hook.is_mirrored() => filter::no_mirror(place, mirror, is_alone),
                (None, _) => filter::no_program(place),
                (Some(Aim::Block(block)), _) => filter::mirror(write, place, mirror, *block),
                (Some(Aim::Program(deepest)), _) => {
                    let program = programs.get(*hook, *deepest, &seen.tables)?;
                    filter::program(write, place, program, &hook.name(*deepest), None)
                }
                (Some(Aim::Through(block)), _) => {
                    let program = programs.get(*hook, None, &seen.tables)?;
                    filter::program(write, place, program, &hook.name(None), Some(*block))
                }
            });
        }
        Step::Entry(..) | Step::Group(..) => {}
    }
    Ok(())
}

fn tree(write: Write, device: u32, tree: &Tree, messages: &mut Vec<Message>) {
    messages.push(htb::root(write, device, MAJOR, tree.default, DIRECT));
    // Those that others are in come first: their numbers are the smallest.
    for (minor, of) in &tree.nodes {
        node(device, *minor, &Way::Make(*of), messages);
    }
}

fn node(device: u32, minor: u16, way: &Way<Node>, messages: &mut Vec<Message>) {
    let handle = Handle::of(MAJOR, minor);
    let class = |write, node: &Node| htb::class(write, device, handle, &node.terms);
    let leaf = |write, of: Leaf| queue::leaf(write, device, handle, of);
    match way {
        Way::Make(new) => {
            messages.push(class(Write::Make, new));
            messages.extend(new.leaf.and_then(|of| leaf(Write::Make, of)));
        }
        // Such a class is somebody else's work: ours are never moved, and keep their queues.
        Way::Change(old, new)
            if old.terms.parent != new.terms.parent || old.leaf.is_some() && new.leaf.is_none() =>
        {
            messages.push(htb::no_class(device, handle));
            node(device, minor, &Way::Make(*new), messages);
        }
        Way::Change(old, new) => {
            if old.terms != new.terms {
                messages.push(class(Write::Change, new));
            }
            match (old.leaf, new.leaf) {
                (Some(old), Some(new)) if old == new => {}
                (Some(old), Some(new)) if old.is_like(new) => {
                    messages.extend(leaf(Write::Change, new));
                }
                // The kernel changes no kind: it was made by another version, on another kernel, or by another
                // program, which may have named it as it likes.
                (Some(_), Some(new)) => {
                    messages.push(tc::no_qdisc(device, Handle(0), handle));
                    messages.extend(leaf(Write::Make, new));
                }
                (None, Some(new)) => messages.extend(leaf(Write::Make, new)),
                _ => {}
            }
        }
        Way::Remove(_) => messages.push(htb::no_class(device, handle)),
    }
}
