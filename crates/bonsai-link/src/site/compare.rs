//! What is there against what is wanted, and what may keep it from having an effect.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::{self, Step};
use crate::error::Error;
use crate::objects;
use crate::wanted::{Wanted, Who};

use super::Seen;

/// Whose a step is: the device that something is wanted of. Classes of a block are of those whose packets they limit.
#[derive(Debug)]
pub(super) struct Owners {
    slots: BTreeMap<u16, u32>,
    blocks: BTreeSet<u32>,
}

impl Owners {
    pub(super) fn new(seen: &Seen, slots: &BTreeMap<Who, u16>) -> Self {
        let had = seen
            .slots()
            .into_iter()
            .map(|(device, slot)| (slot, device));
        let have = slots.iter().filter_map(|(who, slot)| match who {
            Who::Link(device) => Some((*slot, *device)),
            Who::Group(_) => None,
        });
        Self {
            slots: had.chain(have).collect(),
            blocks: seen.blocks().collect(),
        }
    }

    pub(super) fn of(&self, step: &Step) -> u32 {
        match step {
            Step::Node(device, minor, _) if self.blocks.contains(device) => {
                self.slots.get(minor).copied().unwrap_or(*device)
            }
            _ => step.device(),
        }
    }
}

fn before_ours(what: &str, name: &str) -> String {
    format!(
        "{what} is asked before Bonsai's filter at {name}, so that packets which it accepts or sends elsewhere are not \
         limited; give it a later turn, or take it away"
    )
}

impl Seen {
    /// Whether all was as wanted; the first that was not, in words.
    ///
    /// # Errors
    /// If there are more interfaces than HTB has classes.
    pub fn differs(&self, wanted: &Wanted) -> Result<Option<String>, Error> {
        self.differs_in(wanted, |_| true)
    }

    /// The same, but for which groups are known: for whoever does not hear of newcomers, of which
    /// there may be some more at any moment.
    ///
    /// # Errors
    /// See [`Seen::differs`].
    pub fn differs_but_newcomers(&self, wanted: &Wanted) -> Result<Option<String>, Error> {
        self.differs_in(wanted, |step| !matches!(step, Step::Group(..)))
    }

    fn differs_in(
        &self,
        wanted: &Wanted,
        counts: impl Fn(&Step) -> bool,
    ) -> Result<Option<String>, Error> {
        // Without the block there is nothing to compare what comes in with.
        if let Some(name) = self.missing_blocks(wanted)?.first() {
            return Ok(Some(format!("making {name}")));
        }
        let slots = objects::slots(wanted, &self.had(wanted))?;
        let objects = objects::objects(wanted, &self.links, &slots, &self.means_for(wanted));
        let steps = diff::steps(&self.objects, &objects);
        let words = |step: &Step| step.words(&self.name(step.device()));
        Ok(steps.iter().find(|step| counts(step)).map(words))
    }

    /// All that is not as wanted, in words, by the device that it is wanted of: classes of a block are of the interface whose
    /// packets they limit, and all else of a block of the block, or of no device (0) where it is not there.
    ///
    /// # Errors
    /// See [`Seen::differs`].
    pub fn differences(&self, wanted: &Wanted) -> Result<Vec<(u32, String)>, Error> {
        let missing = self.missing_blocks(wanted)?;
        let missing = missing.iter().map(|name| (0, format!("making {name}")));
        let mut found: Vec<(u32, String)> = missing.collect();
        let slots = objects::slots(wanted, &self.had(wanted))?;
        let objects = objects::objects(wanted, &self.links, &slots, &self.means_for(wanted));
        let owners = Owners::new(self, &slots);
        for step in diff::steps(&self.objects, &objects) {
            let words = step.words(&self.name(step.device()));
            found.push((owners.of(&step), words));
        }
        Ok(found)
    }

    /// A filter of another program that is asked before ours at a device, in words: of what comes in, or of what goes out.
    /// A packet that it accepts or sends elsewhere does not reach our class.
    #[must_use]
    pub fn asked_before(&self, device: u32, comes_in: bool) -> Option<&str> {
        let before = self.before.get(&(device, comes_in));
        before.map(String::as_str)
    }

    /// Why a limit of an interface may not hold, though all that it takes is there: the first of [`Seen::asked_before`]
    /// that concerns what is wanted of it.
    #[must_use]
    pub fn doubt(&self, wanted: &Wanted, device: u32) -> Option<String> {
        let terms = wanted.links.get(&device)?;
        let of_rx = terms.rx.and_then(|_| self.asked_before(device, true));
        let of_tx = terms.tx.and_then(|_| self.asked_before(device, false));
        // A filter at the root's place may send packets away before they are counted, which is no way around the limit.
        let of_tx = of_tx.filter(|_| wanted.shares().contains_key(&device));
        let uplink = terms.share.as_ref().map(|share| share.uplink);
        let of_uplink = uplink.and_then(|uplink| self.asked_before(uplink, false));
        let (what, at) = match (of_rx, of_tx, of_uplink) {
            (Some(what), ..) => (what, device),
            (_, Some(what), _) => (what, device),
            (.., Some(what)) => (what, uplink?),
            (None, None, None) => return None,
        };
        Some(before_ours(what, &self.name(at)))
    }

    /// The same of a group of processes.
    #[must_use]
    pub fn doubt_of_group(&self, wanted: &Wanted, path: &str) -> Option<String> {
        let uplink = wanted.groups.get(path)?.share.uplink;
        let what = self.asked_before(uplink, false)?;
        Some(before_ours(what, &self.name(uplink)))
    }
}
