//! Steps, carried out and taken back.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::bpf::{Entry, Table};
use crate::diff::{Step, Way};
use crate::error::Error;
use crate::links;
use crate::netlink::Refused;
use crate::netlink::message::Message;
use crate::objects::{Hook, IFB, Leaf, MAJOR, Node, Objects, PRIORITY, Tree};
use crate::saved::Saved;
use crate::tc::filter::{self, Place};
use crate::tc::{self, Handle, TCA_OPTIONS, Write, htb};
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
    fn words(&self, seen: &Seen) -> String {
        match self {
            Self::Step(step) => step.words(&seen.name(step.device())),
            Self::Block(_) => format!("making {IFB}"),
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
        let limited = wanted.links.iter().filter(|(_, terms)| terms.rx.is_some());
        let mut hooked: Vec<_> = limited.map(|(index, _)| (*index, Hook::Incoming)).collect();
        if !hooked.is_empty() && seen.block().is_none() {
            let index = links::make_ifb(&mut self.socket, IFB)
                .map_err(|error| in_words(error, format!("making {IFB}")))?;
            undo.push(Act::Block(index));
            seen.links = links::links(&mut self.socket)?;
        }
        if let Some(ifb) = seen.block()
            && !hooked.is_empty()
            && seen.links.iter().any(|link| link.index == ifb && !link.up)
        {
            self.socket.ask(&links::set_up(ifb))?;
        }
        let shares = wanted.shares().into_keys();
        hooked.extend(shares.map(|uplink| (uplink, Hook::Outgoing)));
        if !hooked.is_empty() && seen.table.is_none() {
            seen.table = Some(Table::new()?);
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
            while let Some(step) = steps.next_if(|step| !matches!(step, Step::Entry(..))) {
                some.push(step);
            }
            self.send(seen, some, &mut programs, undo)?;
            while let Some(step) = steps.next_if(|step| matches!(step, Step::Entry(..))) {
                entry(seen, &step)?;
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

    /// Takes back what was done, the last first. What is gone already is as it should be.
    pub(super) fn take_back(
        &mut self,
        seen: &Seen,
        undo: Vec<Act>,
        saved: &[(u32, Saved)],
        error: Error,
    ) -> Error {
        let mut torn = None;
        let replaced = |act: &Act| match act {
            Act::Step(Step::Tree(device, Way::Make(_))) => saved.iter().find(|of| of.0 == *device),
            _ => None,
        };
        for act in undo.into_iter().rev() {
            let words = act.words(seen);
            let replaced = replaced(&act);
            let answer = match act {
                Act::Block(index) => self.socket.ask(&links::delete(index)),
                Act::Hookable(device) => self.socket.ask(&no_clsact(device)),
                Act::Step(step) => self.step_back(seen, step),
            };
            if let Err(why) = answer
                && !why.errno().is_some_and(is_gone)
            {
                torn.get_or_insert((words, why));
            } else if let Some((device, saved)) = replaced
                && let Err(why) = saved.bring_back(&mut self.socket, *device)
                // If it was never replaced, it is there.
                && why.errno() != Some(libc::EEXIST)
            {
                torn.get_or_insert((format!("bringing back {}", saved.kind()), why));
            }
        }
        match (error, torn) {
            (error, None) => error,
            (error, Some((undone, why))) => Error::Torn {
                error: error.to_string(),
                undone,
                why: Box::new(why),
            },
        }
    }

    fn step_back(&mut self, seen: &Seen, step: Step) -> Result<(), Error> {
        let back = step.back();
        if matches!(back, Step::Entry(..)) {
            return entry(seen, &back);
        }
        let mut messages = Vec::new();
        put(&back, seen, &mut Programs::default(), &mut messages)?;
        let answers = self.socket.ask_all(&messages)?;
        let is_bad = |refused: &Refused| !is_gone(refused.errno) && refused.errno != libc::EEXIST;
        let bad = answers.into_iter().filter_map(Result::err).find(is_bad);
        bad.map_or(Ok(()), |refused| Err(Error::Refused(refused)))
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
            let is_of_it = |(of, _): &&(u32, Hook)| of == device;
            let now = objects.hooks.iter().any(|of| is_of_it(&of));
            let was = seen.objects.hooks.iter().any(|of| is_of_it(&of));
            if now || !was {
                continue;
            }
            let mut others = 0;
            for hook in [Hook::Incoming, Hook::Outgoing] {
                others += filter::filters(&mut self.socket, *device, hook.parent())?.len();
            }
            if others == 0 {
                messages.push(no_clsact(*device));
            }
        }
        if let Some(ifb) = seen.block()
            && !objects.trees.contains_key(&ifb)
        {
            messages.push(links::delete(ifb));
        }
        let answers = self.socket.ask_all(&messages)?;
        Ok(answers.into_iter().filter(Result::is_ok).count())
    }
}

/// Of an error number: what was to be taken away is not there.
fn is_gone(errno: i32) -> bool {
    [libc::ENOENT, libc::ENODEV, libc::EINVAL].contains(&errno)
}

fn in_words(error: Error, step: String) -> Error {
    match error {
        Error::Refused(refused) => Error::Step { step, refused },
        error => error,
    }
}

fn clsact(device: u32) -> Message {
    let handle = Handle::of(0xffff, 0);
    tc::qdisc(Write::Make, device, handle, Handle::CLSACT, "clsact")
}

fn no_clsact(device: u32) -> Message {
    tc::no_qdisc(device, Handle::of(0xffff, 0), Handle::CLSACT)
}

/// The programs, given to the kernel when the first filter wants one.
#[derive(Default)]
struct Programs {
    incoming: Option<OwnedFd>,
    outgoing: Option<OwnedFd>,
}

impl Programs {
    fn get(&mut self, hook: Hook, table: Option<&Table>) -> Result<i32, Error> {
        let kept = match hook {
            Hook::Incoming => &mut self.incoming,
            Hook::Outgoing => &mut self.outgoing,
        };
        if let Some(program) = kept {
            return Ok(program.as_raw_fd());
        }
        let table = table.ok_or_else(no_table)?;
        let program = kept.insert(table.program(hook.program())?);
        Ok(program.as_raw_fd())
    }
}

fn no_table() -> Error {
    Error::Unexpected {
        what: "filters".into(),
    }
}

fn entry(seen: &Seen, step: &Step) -> Result<(), Error> {
    let Step::Entry(device, way) = step else {
        return Ok(());
    };
    let new = match way {
        Way::Make(new) | Way::Change(_, new) => Some(*new),
        Way::Remove(_) => None,
    };
    let table = seen.table.as_ref();
    let table = table.ok_or_else(no_table)?;
    let entry = new.map(|(slot, ifb)| Entry {
        class: Handle::of(MAJOR, slot).0,
        ifb,
    });
    table.set(*device, entry)
}

/// The messages of a step.
fn put(
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
                priority: PRIORITY,
            };
            messages.push(match way {
                Way::Remove(()) => filter::no_program(place),
                _ => {
                    let program = programs.get(*hook, seen.table.as_ref())?;
                    filter::program(Write::Make, place, program, hook.program().name())
                }
            });
        }
        Step::Entry(..) => {}
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
    let leaf = |write, of: Leaf| {
        let mut message = tc::qdisc(write, device, Handle::of(minor, 0), handle, "bfifo");
        message.u32(TCA_OPTIONS, of.limit);
        message
    };
    match way {
        Way::Make(new) => {
            messages.push(class(Write::Make, new));
            messages.extend(new.leaf.map(|of| leaf(Write::Make, of)));
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
                (Some(old), Some(new)) if old != new => messages.push(leaf(Write::Change, new)),
                (None, Some(new)) => messages.push(leaf(Write::Make, new)),
                _ => {}
            }
        }
        Way::Remove(_) => messages.push(htb::no_class(device, handle)),
    }
}
