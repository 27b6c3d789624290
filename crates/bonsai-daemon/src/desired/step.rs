//! A step that can be taken back.

use bonsai_api::Revision;
use serde::{Deserialize, Serialize};

use super::Change;

/// A step: what differs between the changes after it and those before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Step {
    /// The revision before it.
    pub(super) revision: Revision,
    /// The changes that it made.
    #[serde(default)]
    pub(super) added: Vec<Revision>,
    /// The changes that these replaced.
    #[serde(default)]
    pub(super) replaced: Vec<Change>,
    /// Whether all that it made is of owners.
    #[serde(default)]
    pub(super) owner: bool,
}

impl Step {
    /// Of the changes after it, makes those before. What has ended by `now`, ms since 1970, does
    /// not come back.
    pub(super) fn take_back(&self, changes: &mut Vec<Change>, now: u64) {
        changes.retain(|change| !self.added.contains(&change.revision));
        let over = |change: &&Change| change.until_unix_ms.is_some_and(|until| until <= now);
        changes.extend(self.replaced.iter().filter(|c| !over(c)).cloned());
        // The order in which they were made.
        changes.sort_by_key(|change| change.revision);
    }

    /// Makes one step of this one and the next.
    pub(super) fn join(&mut self, mut next: Self) {
        next.replaced
            .retain(|change| !self.added.contains(&change.revision));
        self.replaced.append(&mut next.replaced);
        self.added.append(&mut next.added);
        self.owner &= next.owner;
    }
}
