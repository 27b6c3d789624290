//! Services come into a group and leave it, also while they run.
//!
//! A process reads in its service's ledger which number that has, and in which group
//! (`bonsai_ledger`'s `control/joined.rs`); what it draws on is in the segment of the group.
//!
//! # Invariants
//! 1. A number is in force in the group before it is in the ledger, and no longer in the
//!    ledger when the group takes it back: a call that finds a number has a place, and one
//!    that waits with a number that is gone goes on.
//! 2. The lock of the ledger is taken before that of the group.
//! 3. A group that a person chose goes before the pool of a daemon, which takes in each service that is in no group, at
//!    any moment: a member of the pool leaves it and joins the other under one lock.

use std::path::PathBuf;

use bonsai_calls::select;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Draws, Group, GroupEditor, Ledger, Membership, Part, Thing, Who, flags};

use super::DAEMON_POOL;
use super::member::{Wishes, agree, is_alive, refused};
use super::place;
use crate::observe::monotonic_ns;
use crate::refusal::Refusal;
use crate::service::{Service, Services, creator, members};

/// A process as a group knows it, which keeps the service of that name.
fn who(service: &str, ledger: &Ledger, pid: u32) -> anyhow::Result<Who> {
    let process = bonsai_host::proc::process(pid)?;
    Ok(Who {
        name: service.to_owned(),
        pid,
        started: process.map_or(0, |process| process.start_ticks),
        uid: ledger.header.uid.load(Ordering::Relaxed),
    })
}

/// Whoever keeps a running service alive: its `bonsai run`, else the process of it that
/// has lived the longest.
pub(super) fn keeper(service: &Service, ledger: &Ledger) -> anyhow::Result<Who> {
    if service.has_keeper()? {
        let ended = || Refusal::input(format!("{} has ended", service.name));
        let creator = creator(ledger).ok_or_else(ended)?;
        return who(&service.name, ledger, creator);
    }
    let members = members::all(service, ledger, None)?;
    let oldest = members.iter().min_by_key(|m| m.process.start_ticks);
    let Some(oldest) = oldest else {
        return Err(Refusal::input(format!("{} has ended", service.name)));
    };
    who(&service.name, ledger, oldest.process.pid)
}

/// Makes a service a member, before any process of it lives: the calling process keeps it.
///
/// # Errors
/// A [`Refusal`]: there is no such group, or it has not what is wished.
pub fn join_at_start(
    ledger: &Ledger,
    service: &str,
    group: &str,
    wishes: &Wishes,
) -> anyhow::Result<()> {
    let group = place::find(group)?;
    let who = who(service, ledger, std::process::id())?;
    enter(ledger, who, &group, |editor, number| {
        agree(&group, editor, number, wishes)
    })?;
    Ok(())
}

/// The same, on terms that `part` says for each thing that the group shares.
///
/// # Errors
/// A [`Refusal`]: it cannot be in a group, is in one already, or there is no place left.
pub fn join_with(
    ledger: &Ledger,
    service: &str,
    group: &Group,
    part: impl Fn(&Thing) -> Part,
) -> anyhow::Result<Membership> {
    let who = who(service, ledger, std::process::id())?;
    enter(ledger, who, group, |editor, number| {
        for i in 0..editor.things().len() {
            let part = editor.things()[i].as_ref().map(&part);
            if let Some(part) = part {
                editor.agree(number, i, part);
            }
        }
        Ok(())
    })
}

/// Makes a running service a member: its calls draw on the group from then on.
///
/// # Errors
/// A [`Refusal`]: it cannot be in a group, is in one already, or the group has not what is
/// wished.
pub fn join(
    service: &Service,
    ledger: &Ledger,
    group: &Group,
    wishes: &Wishes,
) -> anyhow::Result<Membership> {
    enter(ledger, keeper(service, ledger)?, group, |editor, number| {
        agree(group, editor, number, wishes)
    })
}

/// Makes a service a member on the terms that `agree` writes.
pub(super) fn enter(
    ledger: &Ledger,
    who: Who,
    group: &Group,
    agree: impl FnOnce(&mut GroupEditor<'_>, Membership) -> anyhow::Result<()>,
) -> anyhow::Result<Membership> {
    can_join(&who.name, ledger)?;
    // What was lost, because its file was removed or its number given to another, is left.
    if ledger.membership().is_some() && of(ledger).is_none() {
        leave(ledger)?;
    }
    let now = monotonic_ns();
    let mut limits = ledger.edit(now)?;
    let is_pooled = is_in_pool(ledger) && ledger.group().as_deref() != Some(group.path());
    if ledger.membership().is_some() && !is_pooled {
        let text = format!(
            "{service} is in the group {} already: bonsai group leave {service} takes it out",
            of(ledger).map_or_else(String::new, |(group, _)| group.name()),
            service = who.name
        );
        return Err(Refusal::input(text));
    }
    let mut editor = group.edit(now)?;
    // Of a joining that was killed half-way.
    editor.forget(&who);
    let membership = editor.join(who, is_alive).map_err(refused)?;
    agree(&mut editor, membership)?;
    let pooled = of(ledger).filter(|_| is_pooled);
    if is_pooled {
        limits.leave();
        limits = limits.commit_and_go_on();
    }
    limits.join(group.path(), membership, &draws(editor.things()))?;
    let extended = &ledger.header.flags;
    extended.fetch_or(flags::EXTENDED, Ordering::Relaxed);
    editor.commit().map_err(refused)?;
    limits.commit();
    if let Some(pooled) = pooled {
        give_back(pooled)?;
    }
    Ok(membership)
}

/// True where a service is in the pool of this user's daemon.
#[must_use]
pub fn is_in_pool(ledger: &Ledger) -> bool {
    let pool = place::own(DAEMON_POOL).ok();
    ledger.membership().is_some() && ledger.group() == pool
}

/// Gives the number of a service back that has left the group. Calls that wait for the group go on.
fn give_back((group, membership): (Group, Membership)) -> anyhow::Result<()> {
    let mut editor = group.edit(monotonic_ns())?;
    editor.leave(membership);
    editor.commit().map_err(refused)?;
    Ok(())
}

/// Whether a service can be in a group.
///
/// # Errors
/// A [`Refusal`].
pub fn can_join(service: &str, ledger: &Ledger) -> anyhow::Result<()> {
    let is_set = |flag| ledger.header.flags.load(Ordering::Relaxed) & flag != 0;
    if is_set(flags::ENFORCED) {
        let text = format!(
            "{service} is enforced, and what is enforced is in no group: give it limits of its \
             own (bonsai set {service} NAME=RATE)"
        );
        return Err(Refusal::input(text));
    }
    if is_set(flags::REQUESTS) {
        let text = format!(
            "{service} serves a disk image, and its requests draw on no group: give it limits of its own (bonsai set {service} read=RATE)"
        );
        return Err(Refusal::input(text));
    }
    if !ledger.has_extension() {
        let text = format!(
            "groups need libbonsai_extension.so beside the library, where {service} was started: \
             install it, and start the service again"
        );
        return Err(Refusal::input(text));
    }
    Ok(())
}

/// What calls draw on of things.
pub(super) fn draws(things: &[Option<Thing>]) -> Vec<Draws> {
    let draw = |(thing, shared): (usize, &Option<Thing>)| {
        let shared = shared.as_ref()?;
        Some(Draws {
            thing,
            selection: select(&shared.name)?,
            bytes: shared.bytes,
        })
    };
    things.iter().enumerate().filter_map(draw).collect()
}

/// Lets the services of this user that are members draw on what their group shares now, when
/// it shares something else than before.
///
/// # Errors
/// The services cannot be listed, or a ledger not be changed.
pub fn draw_anew(group: &Group) -> anyhow::Result<()> {
    for service in Services::open()?.live()? {
        // One that is half made, or has just ended, has no ledger.
        let Ok(ledger) = service.ledger() else {
            continue;
        };
        if ledger.group().is_none_or(|path| path != group.path()) {
            continue;
        }
        let mut limits = ledger.edit(monotonic_ns())?;
        if ledger.membership().is_some_and(|number| group.has(number)) {
            limits.draw(&draws(&group.things()));
            limits.commit();
        }
    }
    Ok(())
}

/// Takes a service out of its group; where that is, if it was in one. Calls that wait for the
/// group go on.
///
/// # Errors
/// The ledger cannot be changed.
pub fn leave(ledger: &Ledger) -> anyhow::Result<Option<PathBuf>> {
    let mut limits = ledger.edit(monotonic_ns())?;
    if ledger.membership().is_none() {
        return Ok(None);
    }
    let (found, path) = (of(ledger), ledger.group());
    limits.leave();
    limits.commit();
    // What cannot be given back now is free for others when its service has ended.
    if let Some(found) = found {
        give_back(found)?;
    }
    Ok(path)
}

/// Gives the number of a service back that has ended.
pub fn leave_at_end(ledger: &Ledger) {
    // What cannot be given back now is free for others in a minute.
    let _ = leave(ledger);
}

/// The group that a service is in, and its number.
#[must_use]
pub fn of(ledger: &Ledger) -> Option<(Group, Membership)> {
    let membership = ledger.membership()?;
    let group = Group::open(&ledger.group()?).ok()?;
    group.has(membership).then_some((group, membership))
}
