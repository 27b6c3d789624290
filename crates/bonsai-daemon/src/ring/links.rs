//! Interfaces: handed to whoever keeps them, who is never waited for.

use super::{Outsiders, Ring, audit::Deed};

impl Ring {
    /// Says which services are no `bonsai run`. What is configured has been checked.
    pub(super) fn place(&self) {
        let Some(outsiders) = &self.outsiders else {
            return;
        };
        let places = crate::places::read(&self.config).and_then(|mut places| {
            crate::places::complete(&mut places, &self.config, &self.planned)?;
            Ok(places)
        });
        // Were it not fine all the same, everything would stay as it is.
        if let Ok(places) = places {
            outsiders.configure(places);
        }
    }

    /// Says what is wanted of interfaces now: of those that are configured, and of services that are
    /// no `bonsai run`. Nothing is said before it is known what those are to have.
    pub(super) fn order_links(&mut self) {
        let Some(links) = &self.links else {
            return;
        };
        let of_services = match &self.outsiders {
            Some(outsiders) => outsiders.wishes(),
            None => Some(std::collections::BTreeMap::new()),
        };
        self.is_unordered = of_services.is_none();
        let Some(of_services) = of_services else {
            return;
        };
        let mut wishes = bonsai_tenants::wishes(&self.config.links).unwrap_or_default();
        wishes.extend(of_services);
        links.want(self.desired.revision(), wishes);
    }

    /// Whether any service is no `bonsai run`.
    pub(super) fn has_places(&self) -> bool {
        let mut services = self.config.services.values();
        services.any(|service| service.target.is_some())
    }

    /// Says it where that has moved since.
    pub(super) fn order_what_moved(&mut self) {
        let outsiders = self.outsiders.as_ref();
        if self.is_unordered || outsiders.is_some_and(Outsiders::has_moved) {
            self.order_links();
        }
    }

    /// Shows what is not as it is configured.
    pub(super) fn look_at_links(&mut self) {
        let Some(links) = &self.links else {
            return;
        };
        // Those of services are shown with them.
        let problems = links.kept().problems(&self.config.links);
        self.set_notes("links", &problems);
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
