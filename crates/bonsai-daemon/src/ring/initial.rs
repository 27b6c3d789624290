//! Initial limits of services that come before the next look: published where the command that starts them reads
//! them ([`bonsai_services::initial`]).

use bonsai_api as api;
use bonsai_policy::{Config, PerResource, Service};
use bonsai_services::initial::{InitialLimits, Publication, publish};

use super::Ring;

/// Initial limits published last, for services of the daemon's own user and for those of others.
#[derive(Debug, Default)]
pub(super) struct Initial {
    published: [Option<(InitialLimits, Publication)>; 2],
}

impl Initial {
    /// Forgets what is not there any more, so that it is published again.
    pub(super) fn look(&mut self) {
        for published in &mut self.published {
            published.take_if(|(_, file)| !file.is_there());
        }
    }
}

impl Ring {
    /// Publishes it, where it is new.
    pub(super) fn publish_initial(&mut self) {
        let has_pool = self.enforcers.iter().any(|enforcer| enforcer.has_pool());
        let count = self.looker.watched().len();
        let limits = [
            Some(of_own(&self.config, &self.planned, has_pool, count)),
            self.looker
                .sees_others()
                .then(|| of_others(&self.planned, count)),
        ];
        for (i, limits) in limits.into_iter().enumerate() {
            let last = self.initial.published[i].as_ref().map(|(last, _)| last);
            let Some(limits) = limits.filter(|new| last != Some(new)) else {
                continue;
            };
            match publish(self.looker.folder(), &limits, i == 1) {
                Ok(file) => {
                    self.initial.published[i] = Some((limits, file));
                    self.notes.remove("initial");
                }
                Err(error) => {
                    let text = format!(
                        "{}: what new services begin with cannot be written: they have no limit \
                         before they are seen: {error}",
                        self.looker.folder().display()
                    );
                    self.notes.insert("initial", text);
                }
            }
        }
    }

    /// There is no daemon any more that would look at them.
    pub(super) fn withdraw_initial(&mut self) {
        let published = std::mem::take(&mut self.initial.published);
        for (_, file) in published.into_iter().flatten() {
            file.withdraw();
        }
    }
}

/// For services of the daemon's own user. A service with a target is started by nothing that reads this: its name may be that of a
/// `bonsai run` all the same, which then has what any other has, not the ceilings of a service without reads, writes and calls.
fn of_own(config: &api::Config, planned: &Config, pool: bool, count: usize) -> InitialLimits {
    let has_target = |name: &str| {
        let service = config.services.get(name);
        service.is_some_and(|service| service.target.is_some())
    };
    let own = planned.services.iter();
    let named = own.filter(|service| !service.name.contains(':') && !has_target(&service.name));
    let mut limits = of_others(planned, count);
    limits.pool = pool;
    let named = named.map(|service| (service.name.to_string(), ceilings(planned, Some(service))));
    limits.named = named.filter(|(_, own)| *own != limits.ceiling).collect();
    limits
}

/// For services of other users. What is configured for which of them is not for all to read: a
/// ceiling of their own holds from the first look on.
fn of_others(planned: &Config, count: usize) -> InitialLimits {
    let part = |capacity: Option<u64>| Some(InitialLimits::part_of(capacity?, count));
    InitialLimits {
        part: planned.capacity.map(part),
        ceiling: ceilings(planned, None),
        ..InitialLimits::default()
    }
}

/// The most that a service may have, by itself or by its class.
pub(super) fn ceilings(planned: &Config, service: Option<&Service>) -> PerResource<Option<u64>> {
    let named = service.and_then(|service| service.class.as_ref());
    let class = named.or(planned.default_class.as_ref());
    let class = class.and_then(|name| planned.classes.iter().find(|class| class.name == *name));
    std::array::from_fn(|at| {
        let own = service.and_then(|service| service.terms[at].max);
        let max = own.or_else(|| class?.terms[at].max);
        // 0 would stand for none.
        max.map(|max| max.max(1))
    })
}
