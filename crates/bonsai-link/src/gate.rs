//! The entrance of groups: a newcomer is known as soon as somebody says who it is.

use std::collections::BTreeMap;

use crate::bpf::GroupTable;
use crate::error::Error;
use crate::groups::Rules;
use crate::wanted::{Wanted, Who};
use crate::{objects, tc};

/// A way to say who newcomers are, beside a namespace that is as it was wanted: without a look at it,
/// and without a change of anything else.
#[derive(Debug)]
pub struct Gate {
    table: GroupTable,
    rules: Rules,
    classes: BTreeMap<String, tc::Handle>,
}

impl Gate {
    pub(crate) fn new(table: GroupTable, wanted: &Wanted, slots: &BTreeMap<Who, u16>) -> Self {
        let class = |path: &String| {
            let slot = slots.get(&Who::Group(path.clone()))?;
            Some((path.clone(), tc::Handle::of(objects::MAJOR, *slot)))
        };
        Self {
            table,
            rules: objects::rules(wanted, slots),
            classes: wanted.groups.keys().filter_map(class).collect(),
        }
    }

    /// The class of a limited group, of its uplink.
    #[must_use]
    pub fn class(&self, path: &str) -> Option<tc::Handle> {
        self.classes.get(path).copied()
    }

    /// Makes a group known that has come, by its path and its number.
    ///
    /// # Errors
    /// If the kernel refuses it: then it stays a newcomer.
    pub fn enter(&self, path: &str, id: u64) -> Result<(), Error> {
        for (uplink, known) in self.rules.of(path) {
            self.table.set((id, uplink), Some(known))?;
        }
        Ok(())
    }

    /// Forgets one that is gone.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn leave(&self, path: &str, id: u64) -> Result<(), Error> {
        for (uplink, _) in self.rules.of(path) {
            self.table.set((id, uplink), None)?;
        }
        Ok(())
    }
}
