//! Services that are no `bonsai run`: what is configured of them, checked as far as it can be
//! without looking at them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bonsai_api as api;
use bonsai_policy::{self as policy, PerResource};
use bonsai_tenants::{Place, Target, Whose, Wish};
use bonsai_units::{Change, CpuTerms, Resource};

/// What is decided by itself is no lower, bytes per second: a packet of the largest usual size gets
/// through within a second, and whoever is idle can begin.
pub(crate) const LEAST: u64 = 10_000;

/// The most that the policy gives of a resource that a service has not, thousandths: it knows none
/// that is not there.
pub(crate) const NOT_THERE: u64 = 1;

/// A service that is no `bonsai run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// What it is.
    pub(crate) place: Place,
    /// By which interface it leaves.
    pub(crate) uplink: Option<String>,
    /// What it has of the CPUs.
    pub(crate) cpu: Option<CpuTerms>,
    /// Which resources it has.
    pub(crate) has: PerResource<bool>,
    /// What it is to have as long as nothing is decided for it.
    pub(crate) first: Wanted,
    /// What is configured for it, bytes per second.
    pub(crate) min: PerResource<Option<u64>>,
    pub(crate) max: PerResource<Option<u64>>,
    /// What can be guaranteed on its uplink to services, bytes per second, if that is known.
    pub(crate) room: Option<u64>,
}

/// What one is to have. Rates are bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Plain limits.
    pub(crate) plain: PerResource<Option<u64>>,
    /// Of its uplink.
    pub(crate) share: Share,
}

/// A share of an uplink. Rates are bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) guarantee: Option<u64>,
    pub(crate) ceiling: Option<u64>,
    pub(crate) weight: u16,
}

impl Placed {
    /// Whether a resource is shared on its uplink.
    pub(crate) fn is_shared(&self, resource: Resource) -> bool {
        resource == Resource::Send && self.uplink.is_some()
    }

    /// A limit that was decided, thousandths of a byte per second, as it is put into force.
    pub(crate) fn limit(&self, resource: Resource, milli: u64) -> u64 {
        let bytes = milli / 1000;
        let least = self.max[resource.index()].map_or(LEAST, |max| max.min(LEAST));
        bytes.max(least)
    }

    /// What is wanted of its interface, if it has one.
    pub(crate) fn wish(&self, wanted: &Wanted) -> Option<Wish> {
        let is_shared = self.is_shared(Resource::Send);
        let share = match is_shared {
            true => wanted.share,
            false => Share::default(),
        };
        let plain = |resource: Resource| wanted.plain[resource.index()];
        let target = match self.place.link() {
            Some(target) => target.clone(),
            // What a group sends has a class of its own on its uplink, and nowhere else.
            None if is_shared => self.place.to_string().parse().ok()?,
            None => return None,
        };
        Some(Wish {
            target,
            tx: plain(Resource::Send).filter(|_| !is_shared),
            rx: plain(Resource::Recv),
            guarantee: share.guarantee,
            ceiling: share.ceiling,
            weight: share.weight.max(1),
            uplink: self.uplink.clone(),
            burst_ns: None,
            adopt: false,
            of_service: true,
        })
    }
}

/// Those of a configuration, by id.
pub(crate) type Places = BTreeMap<Arc<str>, Placed>;

/// Reads those that say what they are.
///
/// # Errors
/// The first thing that is wrong, where, and what would be right.
pub(crate) fn read(config: &api::Config) -> Result<Places, String> {
    let mut places = Places::new();
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for (id, service) in &config.services {
        let Some(text) = &service.target else {
            without_target(id, service)?;
            continue;
        };
        let placed = one(id, text, service)?;
        let target = placed.place.to_string();
        if config.links.contains_key(&target) {
            return Err(format!(
                "links.{target}: service {id} is that, and what it may send and receive is said \
                 there: as services.{id}.send and services.{id}.recv"
            ));
        }
        if let Some(other) = taken.insert(target, id) {
            return Err(format!(
                "services.{id}.target: service {other} is {text} already"
            ));
        }
        places.insert(id.as_str().into(), placed);
    }
    Ok(places)
}

fn without_target(id: &str, service: &api::Service) -> Result<(), String> {
    if service.uplink.is_some() {
        return Err(format!(
            "services.{id}.uplink: a bonsai run is shaped inside its programs, wherever they send: an \
             uplink is for a service with a target, such as container:NAME"
        ));
    }
    if service.cpu.is_some() {
        return Err(format!(
            "services.{id}.cpu: it is for a service with a target, such as unit:NAME: a bonsai run is \
             given its part of the CPUs by --cpu"
        ));
    }
    Ok(())
}

fn one(id: &str, text: &str, service: &api::Service) -> Result<Placed, String> {
    let at = format!("services.{id}");
    let place: Place = text
        .parse()
        .map_err(|error| format!("{at}.target: {error}"))?;
    if id.contains(':') {
        return Err(format!(
            "{at}.target: what is no bonsai run is nobody's but the machine's: give it a name without \
             a user"
        ));
    }
    let has = Resource::ALL.map(|resource| match resource {
        Resource::Read | Resource::Write => place.has_disk(),
        Resource::Send => place.link().is_some() || service.uplink.is_some(),
        Resource::Recv => place.link().is_some(),
        Resource::Calls => false,
    });
    for resource in Resource::ALL {
        if service.terms(resource.into()).is_some() && !has[resource.index()] {
            let why = match resource {
                Resource::Calls => "calls are seen inside programs only",
                Resource::Read | Resource::Write => "it has no control group of its own",
                Resource::Send => "it has no interface of its own: say by which uplink it leaves",
                Resource::Recv => "it has no interface of its own",
            };
            return Err(format!(
                "{at}.{resource}: {place} has no such resource: {why}"
            ));
        }
    }
    if !service.limits.is_empty() {
        return Err(format!(
            "{at}.limits: further limits are of calls, which are seen inside programs only: {place} \
             has a max of {}",
            names(&has)
        ));
    }
    if let Some(uplink) = &service.uplink {
        check_uplink(&at, &place, uplink)?;
    }
    let cpu = service.cpu.as_ref().map(|cpu| cpus(&at, &place, cpu));
    Ok(Placed {
        uplink: service.uplink.clone(),
        cpu: cpu.transpose()?,
        has,
        first: Wanted::default(),
        min: Default::default(),
        max: Default::default(),
        room: None,
        place,
    })
}

fn names(has: &PerResource<bool>) -> String {
    let all = Resource::ALL.into_iter().zip(has);
    let names: Vec<_> = all
        .filter(|(_, has)| **has)
        .map(|(of, _)| of.name())
        .collect();
    names.join(", ")
}

fn check_uplink(at: &str, place: &Place, uplink: &str) -> Result<(), String> {
    let target: Target = uplink
        .parse()
        .map_err(|error| format!("{at}.uplink: {error}"))?;
    if target.whose() != Whose::Ours {
        return Err(format!(
            "{at}.uplink: `{uplink}` is none: it is an interface by which it leaves, such as eth0"
        ));
    }
    if place.link() == Some(&target) {
        return Err(format!("{at}.uplink: it cannot be its own uplink"));
    }
    Ok(())
}

fn cpus(at: &str, place: &Place, cpu: &api::Cpu) -> Result<CpuTerms, String> {
    if !place.has_cpu() {
        return Err(format!(
            "{at}.cpu: {place} has no control group, and so no part of the CPUs"
        ));
    }
    if let Some(weight) = cpu.weight.filter(|weight| !(1..=10_000).contains(weight)) {
        return Err(format!(
            "{at}.cpu.weight: {weight} is no weight: it is from 1 to 10000, and 100 by default"
        ));
    }
    Ok(CpuTerms {
        weight: cpu.weight.map_or(Change::Keep, |of| Change::To(of.into())),
        quota: cpu.quota.map_or(Change::Keep, |of| Change::To(of.0)),
        reserve: cpu.reserve.map_or(Change::Keep, |of| Change::To(of.0)),
    })
}

/// What the policy is told of one that has not all resources: of those it has none, whatever its
/// class has.
pub(crate) fn without(
    has: &PerResource<bool>,
    terms: PerResource<policy::Terms>,
) -> PerResource<policy::Terms> {
    let mut terms = terms;
    for (terms, _) in terms.iter_mut().zip(has).filter(|(_, has)| !**has) {
        *terms = policy::Terms {
            min: Some(0),
            max: Some(NOT_THERE),
            weight: Some(1),
        };
    }
    terms
}

/// Adds what follows from all that is configured together, which has been planned.
///
/// # Errors
/// More is guaranteed on an uplink than it has.
pub(crate) fn complete(
    places: &mut Places,
    config: &api::Config,
    planned: &policy::Config,
) -> Result<(), String> {
    for service in &planned.services {
        let Some(placed) = places.get_mut(&service.name) else {
            continue;
        };
        for resource in Resource::ALL {
            let at = resource.index();
            if !placed.has[at] {
                continue;
            }
            let terms = effective(planned, service, resource);
            let bytes = |milli: u64| milli.div_ceil(1000);
            placed.min[at] = terms.min.filter(|min| *min > 0).map(bytes);
            placed.max[at] = terms.max.map(bytes);
            placed.first.plain[at] = terms.max.or(planned.capacity[at]).map(bytes);
            if placed.is_shared(resource) {
                placed.first.share = Share {
                    guarantee: placed.min[at],
                    ceiling: placed.max[at],
                    weight: weight(terms),
                };
            }
        }
    }
    let links = bonsai_tenants::wishes(&config.links)?;
    let mut all = links.clone();
    all.extend(wishes(places, |_| None));
    bonsai_tenants::check_sums(&all)?;
    for placed in places.values_mut() {
        let of_uplink = |wish: &&Wish| wish.uplink == placed.uplink;
        let line = placed
            .uplink
            .as_ref()
            .and_then(|uplink| links.get(uplink)?.tx);
        let others = links.values().filter(of_uplink);
        let others: u64 = others.filter_map(|wish| wish.guarantee).sum();
        placed.room = line.map(|line| line.saturating_sub(others));
    }
    Ok(())
}

/// What a service has of a resource, from wherever it has it.
pub(crate) fn effective(
    planned: &policy::Config,
    service: &policy::Service,
    resource: Resource,
) -> policy::Terms {
    let class = service.class.as_ref().or(planned.default_class.as_ref());
    let class = class.and_then(|name| planned.classes.iter().find(|class| class.name == *name));
    let at = resource.index();
    let of_class = class.map_or_else(Default::default, |class| class.terms[at]);
    service.terms[at].or(of_class)
}

/// The weight of terms, where siblings say 1.
pub(crate) fn weight(terms: policy::Terms) -> u16 {
    let weight = terms.weight.unwrap_or(1).clamp(1, 1000);
    u16::try_from(weight).unwrap_or(1)
}

/// What is wanted of interfaces, by target. `decided` says what one is to have, if that is decided.
pub(crate) fn wishes<'a>(
    places: &'a Places,
    decided: impl Fn(&str) -> Option<&'a Wanted>,
) -> BTreeMap<String, Wish> {
    let wishes = places.iter().filter_map(|(id, placed)| {
        let wanted = decided(id).unwrap_or(&placed.first);
        Some((placed.place.to_string(), placed.wish(wanted)?))
    });
    wishes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Result<Places, String> {
        let config: api::Config = toml::from_str(text).expect("TOML of the right form");
        let planned = crate::plan::plan(&config)?;
        let mut places = read(&config)?;
        complete(&mut places, &config, &planned)?;
        Ok(places)
    }

    #[test]
    fn terms_come_from_the_class_too_and_become_wishes() {
        let places = planned(
            "[capacity]\nsend = \"80Mbit/s\"\n[links.eth0]\ntx = \"80Mbit/s\"\n\
             [links.v9]\nguarantee = \"8Mbit/s\"\nuplink = \"eth0\"\n\
             [classes.media.send]\nmin = \"8Mbit/s\"\nweight = 3\n[classes.media.calls]\nmin = \"5/s\"\n\
             [services.web]\ntarget = \"container:web\"\nuplink = \"eth0\"\nclass = \"media\"\n\
             send = { max = \"16Mbit/s\" }\nrecv = { max = \"4Mbit/s\" }\n\
             [services.tap]\ntarget = \"vnet3\"\n",
        );
        let places = places.expect("a plan");
        let web = &places["web"];
        assert_eq!(web.room, Some(9_000_000));
        let wish = web.wish(&web.first).expect("it has an interface");
        assert_eq!((wish.tx, wish.rx), (None, Some(500_000)));
        assert_eq!(
            (wish.guarantee, wish.ceiling, wish.weight),
            (Some(1_000_000), Some(2_000_000), 3)
        );
        // Without an uplink nobody has more than there is.
        let tap = places["tap"]
            .wish(&places["tap"].first)
            .expect("an interface");
        assert_eq!((tap.tx, tap.rx), (Some(10_000_000), None));
        assert!(tap.of_service && !tap.has_share());
    }

    #[test]
    fn slips_are_answered_with_their_place() {
        let service = |rest: &str| format!("[services.web]\n{rest}");
        for (text, words) in [
            (
                service("target = \"docker:web\""),
                "services.web.target: `docker:web` is nothing",
            ),
            (
                service("uplink = \"eth0\""),
                "services.web.uplink: a bonsai run",
            ),
            (
                service("cpu = { weight = 5 }"),
                "services.web.cpu: it is for a service",
            ),
            (
                service("target = \"vnet3\"\ncalls.max = \"5/s\""),
                "services.web.calls: vnet3 has no such resource: calls are seen",
            ),
            (
                service("target = \"netns:a\"\nread.max = \"5MB/s\""),
                "services.web.read: netns:a has no such resource: it has no control group",
            ),
            (
                service("target = \"unit:db.service\"\nsend.max = \"5MB/s\""),
                "services.web.send: unit:db.service has no such resource: it has no interface of its \
                 own: say by which uplink",
            ),
            (
                service("target = \"unit:db.service\"\nuplink = \"eth0\"\nrecv.max = \"5MB/s\""),
                "services.web.recv: unit:db.service has no such resource",
            ),
            (
                service("target = \"vnet3\"\nlimits = { open = \"5/s\" }"),
                "services.web.limits: further limits are of calls",
            ),
            (
                service("target = \"vnet3\"\nuplink = \"vnet3\""),
                "its own uplink",
            ),
            (
                service("target = \"vnet3\"\nuplink = \"netns:a\""),
                "`netns:a` is none",
            ),
            (
                service("target = \"vnet3\"\ncpu = { weight = 5 }"),
                "services.web.cpu: vnet3 has no",
            ),
            (
                service("target = \"vm:a\"\ncpu = { weight = 0 }"),
                "services.web.cpu.weight: 0 is no weight",
            ),
            (
                service("target = \"vnet3\"\n[links.vnet3]\ntx = \"1MB/s\""),
                "links.vnet3: service web is that",
            ),
            (
                service("target = \"vnet3\"\n[services.b]\ntarget = \"vnet3\""),
                "services.web.target: service b is vnet3 already",
            ),
            (
                "[services.\"a:web\"]\ntarget = \"vnet3\"".to_owned(),
                "services.a:web.target: what is no bonsai run",
            ),
            (
                service(
                    "target = \"vnet3\"\nuplink = \"up\"\nsend.min = \"9Mbit/s\"\n[links.up]\n\
                     tx = \"8Mbit/s\"",
                ),
                "links.up: the guarantees on it are 9Mbit/s together, 1Mbit/s more",
            ),
        ] {
            let error = planned(&text).expect_err(&text);
            assert!(
                error.contains(words) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }
}
