//! Steps, taken back.
//!
//! # Invariant
//! After a change that is refused, all is as it was before, or the error says what is not: it is compared, whatever the
//! kernel has answered.

use std::collections::BTreeSet;

use crate::diff::{self, Step, Way};
use crate::error::Error;
use crate::hooks::Hook;
use crate::links;
use crate::netlink::Refused;
use crate::netlink::message::Message;
use crate::saved::Saved;

use super::perform::{Act, Programs, entry, is_of_tables, no_clsact, put};
use super::{Seen, Site};

/// What steps stood on before the first of them.
#[derive(Debug)]
pub(super) struct Before {
    hookable: BTreeSet<(u32, Hook)>,
    blocks: BTreeSet<u32>,
}

impl Before {
    pub(super) fn of(seen: &Seen) -> Self {
        Self {
            hookable: seen.hookable.clone(),
            blocks: seen.blocks().collect(),
        }
    }
}

/// Of an error number: what was to be taken away may not be there. Whether that is so is compared in the end.
fn is_gone(errno: i32) -> bool {
    [libc::ENOENT, libc::ENODEV, libc::EINVAL].contains(&errno)
}

impl Site {
    /// Takes back what was done, the last first, and looks whether that is so. An error of the socket says nothing of what the
    /// kernel has done, nor does a refusal of what was to be taken back: what counts is what is there.
    pub(super) fn take_back(
        &mut self,
        seen: &Seen,
        before: &Before,
        undo: Vec<Act>,
        saved: &[(u32, Saved)],
        error: Error,
    ) -> Error {
        let mut torn = None;
        let replaced = |act: &Act| match act {
            Act::Step(Step::Tree(device, Way::Make(_))) => saved.iter().find(|of| of.0 == *device),
            _ => None,
        };
        let mut lost = None;
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
                lost.get_or_insert((format!("bringing back {}", saved.kind()), why));
            }
        }
        let torn = match self.go_back(seen, before) {
            Ok(None) => lost,
            Ok(Some(undone)) => {
                let differs = Error::Differs {
                    what: undone.clone(),
                };
                lost.or(torn).or(Some((undone, differs)))
            }
            Err(why) => lost
                .or(torn)
                .or(Some(("reading what is there".into(), why))),
        };
        match (error, torn) {
            (error, None) => error,
            (error, Some((undone, why))) => Error::Torn {
                error: error.to_string(),
                undone,
                why: Box::new(why),
            },
        }
    }

    /// Takes steps of rates back, the last first. Of what could not be, the next look says what is there.
    pub(super) fn steps_back(&mut self, seen: &Seen, undo: Vec<Act>, error: Error) -> Error {
        for act in undo.into_iter().rev() {
            let undone = act.words(seen);
            let Act::Step(step) = act else { continue };
            if let Err(why) = self.step_back(seen, step) {
                return Error::Torn {
                    error: error.to_string(),
                    undone,
                    why: Box::new(why),
                };
            }
        }
        error
    }

    /// Makes all as it was before, whatever has been done since; what is left to do, in words.
    fn go_back(&mut self, seen: &Seen, before: &Before) -> Result<Option<String>, Error> {
        // Of groups, newcomers may be entered meanwhile.
        let left = |now: &Seen| {
            let mut left = diff::steps(&now.objects, &seen.objects);
            left.retain(|step| !matches!(step, Step::Group(..)));
            left
        };
        let now = self.see()?;
        let steps = left(&now);
        let is_new = |of: &&(u32, Hook)| !before.hookable.contains(of) && of.1 == Hook::Outgoing;
        let places: Vec<u32> = now.hookable.iter().filter(is_new).map(|of| of.0).collect();
        let blocks = now.blocks().filter(|block| !before.blocks.contains(block));
        let blocks: Vec<Message> = blocks.map(links::delete).collect();
        if steps.is_empty() && places.is_empty() && blocks.is_empty() {
            return Ok(None);
        }
        // What is refused is seen in what is there in the end.
        let _ = self.walk(seen, steps, &mut Vec::new());
        self.tidy_places(places.into_iter())?;
        self.socket.ask_all(&blocks)?;
        let now = self.see()?;
        let words = |step: &Step| step.words(&seen.name(step.device()));
        Ok(left(&now).first().map(words))
    }

    fn step_back(&mut self, seen: &Seen, step: Step) -> Result<(), Error> {
        let back = step.back();
        if is_of_tables(&back) {
            return entry(&seen.tables, &back);
        }
        let mut messages = Vec::new();
        let mut programs = Programs::default();
        self.find_mirror(&back, &mut programs)?;
        put(&back, seen, &mut programs, &mut messages)?;
        let answers = self.socket.ask_all(&messages)?;
        let is_bad = |refused: &Refused| !is_gone(refused.errno) && refused.errno != libc::EEXIST;
        let bad = answers.into_iter().filter_map(Result::err).find(is_bad);
        bad.map_or(Ok(()), |refused| Err(Error::Refused(refused)))
    }
}
