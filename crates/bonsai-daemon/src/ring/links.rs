//! Interfaces: handed to whoever keeps them, who is never waited for.

use super::{Ring, audit::Deed};

impl Ring {
    /// Says what is wanted of interfaces now.
    pub(super) fn order_links(&self) {
        if let Some(links) = &self.links {
            // What is configured has been checked.
            let wishes = bonsai_tenants::wishes(&self.config.links).unwrap_or_default();
            links.want(self.desired.revision(), wishes);
        }
    }

    /// Shows what is not as it is configured.
    pub(super) fn look_at_links(&mut self) {
        let Some(links) = &self.links else {
            return;
        };
        match links.kept().problems() {
            none if none.is_empty() => drop(self.notes.remove("links")),
            problems => drop(self.notes.insert("links", problems.join("; "))),
        }
    }

    /// Notes what was done to interfaces.
    pub(super) fn told(&mut self, told: Vec<(&'static str, String)>) {
        for (action, reason) in told {
            self.note(Deed {
                who: None,
                by: "daemon",
                action,
                service: None,
                differences: Vec::new(),
                reason,
            });
        }
        self.look_at_links();
    }
}
