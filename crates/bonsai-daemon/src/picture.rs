//! What is, as one value: the owner publishes it, everybody else reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api as api;
use bonsai_api::{Decision, Enforced, LimitInForce, LimitOwner, Proposal, ServiceView, Use};
use bonsai_policy::{Allocated, Allocation, Change, PerResource, Seen};
use bonsai_services::glance::{Bound, OwnLimits};
use bonsai_units::Resource;
use bonsai_units::text::escaped;

use crate::enforce::Outcome;
use crate::look::Done;
use crate::written::as_configured;

/// What is known of a service beside what it does.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) keeper: Option<u32>,
    pub(crate) created_unix_ms: u64,
    /// Of the limits in its ledger.
    pub(crate) epoch: u32,
    /// Those of them that are not the daemon's.
    pub(crate) limits: Arc<OwnLimits>,
    /// What cannot be seen or done, in words.
    pub(crate) problems: Vec<String>,
}

/// The daemon itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) periods: u64,
    pub(crate) decision_ns: u64,
    pub(crate) work_ns: u64,
    /// Limits and terms written so far.
    pub(crate) written: u64,
    pub(crate) history: api::StoreState,
    pub(crate) problems: Vec<String>,
}

/// All of it, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// Counts pictures.
    pub(crate) number: u64,
    /// When it was made, by the monotonic clock; 0 for before the first look.
    pub(crate) at_ns: u64,
    pub(crate) unix_ms: u64,
    pub(crate) revision: api::Revision,
    pub(crate) config: Arc<api::Config>,
    pub(crate) planned: Arc<bonsai_policy::Config>,
    pub(crate) identities: Arc<BTreeMap<Arc<str>, Identity>>,
    /// In the order of the allocation.
    pub(crate) seen: Vec<Seen>,
    pub(crate) waited: Vec<PerResource<f64>>,
    /// Since the services were made.
    pub(crate) done: Vec<PerResource<Done>>,
    pub(crate) allocation: Allocation,
    pub(crate) outcome: Arc<Outcome>,
    /// Why those are not there that are no `bonsai run`, in words.
    pub(crate) absent: Arc<BTreeMap<Arc<str>, String>>,
    pub(crate) health: Health,
    pub(crate) qos: Arc<Vec<api::QosView>>,
}

/// The lowest limit on all of a resource: one that is none of the daemon's, or its ceiling.
fn lowest(
    own: Option<&Bound>,
    ceiling: Option<u64>,
    configured: Option<&api::Service>,
) -> Option<LimitInForce> {
    let own = own.filter(|own| ceiling.is_none_or(|ceiling| own.rate_milli < ceiling));
    let Some(own) = own else {
        return ceiling.map(|ceiling| LimitInForce {
            rate: per_s(ceiling),
            name: None,
            by: LimitOwner::Daemon,
        });
    };
    Some(LimitInForce {
        rate: per_s(own.rate_milli),
        by: LimitOwner::of(&own.name, configured),
        name: Some(own.name.clone()),
    })
}

/// A rate of the policy's as one of the interface's.
pub(crate) fn per_s(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

impl Picture {
    /// The services that whoever asks may see: all, or those of a user.
    pub(crate) fn services(&self, only: Option<u32>) -> api::Services {
        let visible = |identity: &Identity| only.is_none_or(|uid| uid == identity.uid);
        let mut services = Vec::with_capacity(self.seen.len());
        for i in 0..self.allocation.services.len() {
            if let Some(view) = self.running(i, visible) {
                services.push(view);
            }
        }
        let sleeping = self
            .config
            .services
            .iter()
            .filter(|(id, _)| only.is_none() && !self.identities.contains_key(id.as_str()));
        services.extend(sleeping.map(|(id, settings)| self.sleeping(id, settings)));
        services.sort_by(|a, b| a.id.cmp(&b.id));
        api::Services {
            revision: self.revision,
            unix_ms: self.unix_ms,
            groups: self.groups(only.map(|_| &*services), visible),
            services,
        }
    }

    /// All that there is a service of, or a setting for.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        let configured = self.config.services.keys().map(String::as_str);
        configured.chain(self.identities.keys().map(|id| &**id))
    }

    /// One of them.
    pub(crate) fn service(&self, id: &str, only: Option<u32>) -> Option<ServiceView> {
        let visible = |identity: &Identity| only.is_none_or(|uid| uid == identity.uid);
        let at = |(_, s): &(usize, &Allocated)| &*s.name == id;
        if let Some((i, _)) = self.allocation.services.iter().enumerate().find(at) {
            return self.running(i, visible);
        }
        let settings = self.config.services.get(id).filter(|_| only.is_none())?;
        Some(self.sleeping(id, settings))
    }

    fn running(&self, i: usize, visible: impl Fn(&Identity) -> bool) -> Option<ServiceView> {
        let decided = self.allocation.services.get(i)?;
        let identity = self.identities.get(&decided.name).filter(|i| visible(i))?;
        let settings = self.config.services.get(&*decided.name);
        let mut problems = identity.problems.clone();
        // Services beyond the pool's places have all that they are to have, by another way.
        let outside = self.outcome.outside.get(&decided.name);
        let is_beyond = outside.is_some_and(|why| **why == *crate::enforce::FULL);
        let notes = outside.filter(|_| is_beyond);
        problems.extend(outside.filter(|_| !is_beyond).map(|text| text.to_string()));
        let failed = self.outcome.problems.get(&decided.name);
        problems.extend(failed.map(|text| text.to_string()));
        for text in &mut problems {
            *text = escaped(text).into_owned();
        }
        Some(ServiceView {
            id: decided.name.to_string(),
            uid: identity.uid,
            target: settings.and_then(|settings| settings.target.clone()),
            running: true,
            keeper: identity.keeper,
            created_unix_ms: identity.created_unix_ms,
            mode: self.mode(settings),
            settings: settings.cloned().unwrap_or_default(),
            resources: self.uses(i, decided, &identity.limits),
            limits: settings.map_or_else(
                || identity.limits.written.clone(),
                |settings| as_configured(&identity.limits.written, &settings.limits),
            ),
            proposals: self.proposals(&decided.name),
            problems,
            notes: notes.map(|text| text.to_string()).into_iter().collect(),
        })
    }

    fn uses(&self, i: usize, decided: &Allocated, own: &OwnLimits) -> Vec<Use> {
        let how = self.outcome.how.get(i);
        let settings = self.config.services.get(&*decided.name);
        let is_placed = settings.is_some_and(|settings| settings.target.is_some());
        // What is no bonsai run has not all resources.
        let has = |resource: &Resource| {
            let ceiling = decided.grants[resource.index()].ceiling;
            !is_placed || ceiling != Some(crate::places::NOT_THERE)
        };
        let uses = Resource::ALL.into_iter().filter(has).map(|resource| {
            let at = resource.index();
            let grant = &decided.grants[at];
            let usage = self
                .seen
                .get(i)
                .map_or_else(Default::default, |seen| seen.usage[at]);
            let waited = self.waited.get(i).map_or(0.0, |waited| waited[at]);
            Use {
                resource: resource.into(),
                got: per_s(usage.used),
                asked: grant.wanted().map(per_s),
                borrowed: per_s(usage.borrowed.unwrap_or_default()),
                waiting: usage.wanted_more,
                waited: waited / 1e9,
                limit: lowest(own.bounds[at].as_ref(), grant.ceiling, settings),
                decision: Decision {
                    min: per_s(grant.guarantee),
                    max: grant.ceiling.map(per_s),
                    weight: u16::try_from(grant.own_weight()).unwrap_or(u16::MAX),
                    share: grant.given().map(per_s),
                    reason: grant.reason().to_string(),
                    enforced: how.and_then(|how| how[at]).unwrap_or(Enforced::None),
                },
            }
        });
        uses.collect()
    }

    fn mode(&self, settings: Option<&api::Service>) -> api::Mode {
        let class = self.config.class_of(settings);
        let own = settings.and_then(|s| s.mode).or_else(|| class?.mode);
        own.unwrap_or(self.config.policy.mode)
    }

    fn sleeping(&self, id: &str, settings: &api::Service) -> ServiceView {
        ServiceView {
            id: id.to_owned(),
            uid: 0,
            target: settings.target.clone(),
            running: false,
            keeper: None,
            created_unix_ms: 0,
            mode: self.mode(Some(settings)),
            settings: settings.clone(),
            resources: Vec::new(),
            limits: settings.limits.clone(),
            proposals: Vec::new(),
            problems: self.absent.get(id).cloned().into_iter().collect(),
            notes: Vec::new(),
        }
    }

    fn proposals(&self, id: &str) -> Vec<Proposal> {
        let of_it = |change: &&Change| &*change.service == id;
        let proposals = self.allocation.proposals.iter().filter(of_it);
        let proposals = proposals.map(|change| Proposal {
            resource: change.resource.into(),
            from: per_s(change.from),
            to: per_s(change.to),
            reason: change.why.to_string(),
        });
        proposals.collect()
    }

    /// All groups, or those that some of these services are in: what others do in theirs is not
    /// for all clients, nor is what others do in these.
    fn groups(
        &self,
        of: Option<&[ServiceView]>,
        of_theirs: impl Fn(&Identity) -> bool,
    ) -> Vec<api::GroupView> {
        let visible = |name: &str| {
            of.is_none_or(|services| services.iter().any(|service| self.is_in(&service.id, name)))
        };
        let groups = self.config.groups.iter().filter(|(name, _)| visible(name));
        let groups = groups.map(|(name, settings)| {
            let (mut got, mut share) = (BTreeMap::new(), BTreeMap::new());
            for (i, decided) in self.allocation.services.iter().enumerate() {
                let identity = self.identities.get(&decided.name);
                if !identity.is_some_and(&of_theirs) || !self.is_in(&decided.name, name) {
                    continue;
                }
                for resource in Resource::ALL {
                    let at = resource.index();
                    let used = self.seen.get(i).map_or(0, |seen| seen.usage[at].used);
                    *got.entry(resource.into()).or_insert(0.0) += per_s(used);
                    let part = decided.grants[at].given().map_or(0.0, per_s);
                    *share.entry(resource.into()).or_insert(0.0) += part;
                }
            }
            api::GroupView {
                name: name.clone(),
                settings: settings.clone(),
                got,
                share,
            }
        });
        groups.collect()
    }

    /// Whether a service is in a group, or in one of those in it.
    fn is_in(&self, id: &str, group: &str) -> bool {
        let settings = self.config.services.get(id);
        let class = self.config.class_of(settings);
        let own = settings.and_then(|s| s.group.as_deref());
        let mut at = own.or_else(|| class?.group.as_deref());
        while let Some(name) = at {
            if name == group {
                return true;
            }
            at = self
                .config
                .groups
                .get(name)
                .and_then(|g| g.parent.as_deref());
        }
        false
    }

    /// Use and guarantees of services together: all, or those of a user. A sum of all, less one's own, would be that of
    /// others.
    pub(crate) fn sums(&self, only: Option<u32>) -> (PerResource<u64>, PerResource<u64>) {
        let (mut used, mut guaranteed) = ([0_u64; Resource::COUNT], [0_u64; Resource::COUNT]);
        let visible = |id: &Arc<str>| {
            let identity = self.identities.get(id);
            only.is_none_or(|uid| identity.is_some_and(|identity| identity.uid == uid))
        };
        let all = self.seen.iter().zip(&self.allocation.services);
        for (seen, decided) in all.filter(|(_, decided)| visible(&decided.name)) {
            for at in 0..Resource::COUNT {
                used[at] = used[at].saturating_add(seen.usage[at].used);
                guaranteed[at] = guaranteed[at].saturating_add(decided.grants[at].guarantee);
            }
        }
        (used, guaranteed)
    }
}
