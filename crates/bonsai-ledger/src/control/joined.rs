//! Being in a group: which number a service has there, as its processes read it.
//!
//! # Invariants
//! 1. The path of the group's segment is written while the service is in no group, by whoever
//!    holds the lock. So while a number is in force, the path is that of its group.
//! 2. Each joining has another tag in its words, also of the same group: who was in one
//!    before finds that out from the word that it kept.

use super::Editor;
use crate::layout::GROUPS;
use crate::mapping::{Ledger, LedgerError};
use crate::sync::Ordering;
use crate::{Config, Membership};
use bonsai_calls::{CALLS, Selection};
use std::path::Path;

/// What the calls of a service draw on of its group.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// Its place among what the group shares.
    pub thing: usize,
    /// The calls.
    pub selection: Selection,
    /// Whether bytes are counted; otherwise calls.
    pub bytes: bool,
}

fn words(config: &Config) -> [u64; GROUPS] {
    core::array::from_fn(|i| config.groups[i].load(Ordering::Relaxed))
}

impl Ledger {
    /// The number that the service has in its group, whose path is [`Ledger::group`]; `None`
    /// if it is in none.
    #[must_use]
    pub fn membership(&self) -> Option<Membership> {
        let (_, words) = self.with_config(words);
        words.into_iter().find_map(Membership::from_word)
    }
}

impl Editor<'_> {
    /// Makes the service a member of a group, of which its calls draw on what is said.
    ///
    /// # Errors
    /// It is in a group already, or the path of the segment is too long.
    pub fn join(
        &mut self,
        group: &Path,
        membership: Membership,
        draws: &[Draws],
    ) -> Result<(), LedgerError> {
        if self.ledger.membership().is_some() {
            let text = format!("{}: in a group already", self.ledger.name());
            return Err(LedgerError::Limit(text));
        }
        self.ledger.set_group(group)?;
        let config = &self.ledger.configs[self.next];
        let tags = words(config).map(Membership::tag);
        let tag = tags.into_iter().max().unwrap_or(0).wrapping_add(1);
        for word in &config.groups {
            // Also where it draws on nothing: it is a member.
            word.store(membership.to_word(tag), Ordering::Relaxed);
        }
        self.draw(draws);
        Ok(())
    }

    /// Says anew what the calls of a member draw on.
    pub fn draw(&mut self, draws: &[Draws]) {
        let config = &self.ledger.configs[self.next];
        for word in config.grouped.iter().chain([&config.group_bytes]) {
            word.store(0, Ordering::Relaxed);
        }
        for draw in draws {
            for (i, call) in CALLS.iter().enumerate() {
                if draw.selection.contains(call) && (!draw.bytes || call.moves_bytes()) {
                    let bit = 1 << (8 * (i % 8) + draw.thing);
                    config.grouped[i / 8].fetch_or(bit, Ordering::Relaxed);
                }
            }
            config.set_group_bytes(draw.thing, draw.bytes);
        }
    }

    /// Lets no call draw on a group any more. Who waits for it goes on, as soon as the
    /// group has taken the number back.
    pub fn leave(&mut self) {
        self.draw(&[]);
        for word in &self.ledger.configs[self.next].groups {
            let tag = Membership::tag(word.load(Ordering::Relaxed));
            word.store(Membership::none(tag), Ordering::Relaxed);
        }
    }
}
