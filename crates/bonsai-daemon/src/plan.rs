//! From what is written to what the policy decides by: percentages become rates, names are
//! looked up, and what makes no sense is refused in one sentence.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bonsai_api as api;
use bonsai_history::Options;
use bonsai_policy as policy;
use bonsai_services::limits::{Limit, check_together};
use bonsai_services::theirs::{UID, is_place};
use bonsai_units::{Bytes, Resource, Setting, Unit};

use crate::files::SYSTEM_FOLDER;
use crate::places::{self, Places};

/// The shortest and the longest time between two decisions.
const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(10);

/// What the policy decides by.
///
/// # Errors
/// The first thing that is wrong, where, and what would be right.
pub fn plan(config: &api::Config) -> Result<policy::Config, String> {
    settled(config)?;
    let mut places = places::read(config)?;
    let capacity = capacity(&config.capacity)?;
    let planned = policy::Config {
        capacity,
        mode: mode(config.policy.mode),
        automatic: match config.policy.automatic {
            api::Automatic::DryRun => policy::Automatic::DryRun,
            api::Automatic::On => policy::Automatic::On,
        },
        overcommit: match config.policy.overcommit {
            api::Overcommit::Refuse => policy::Overcommit::Refuse,
            api::Overcommit::Scale => policy::Overcommit::Scale,
        },
        headroom: thousandths(config.policy.headroom),
        hysteresis: thousandths(config.policy.hysteresis),
        reserve: thousandths(config.policy.reserve),
        owner_most: config.policy.owner_max.map(thousandths),
        owner_weight: config.policy.owner_weight.into(),
        default_class: config
            .classes
            .contains_key(api::Config::DEFAULT_CLASS)
            .then(|| api::Config::DEFAULT_CLASS.into()),
        groups: groups(config, &capacity)?,
        classes: classes(config, &capacity)?,
        services: services(config, &capacity, &places)?,
        adaptive: adaptive(&config.policy)?,
        qos: policy::Qos::default(),
    };
    planned.check().map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        texts.join("; ")
    })?;
    places::complete(&mut places, config, &planned)?;
    Ok(planned)
}

/// Whether a configuration can be used by this daemon.
pub(crate) fn check(config: &api::Config) -> Result<(), String> {
    crate::plain::config(config)?;
    plan(config)?;
    if governs_users(config) {
        is_bounded(config)?;
    }
    let uid = rustix::process::geteuid();
    if !config.links.is_empty() && !uid.is_root() {
        return Err(format!(
            "links: interfaces are limited by root's daemon, and this one is of user {}: write them \
             into /etc/bonsai/bonsai.toml",
            uid.as_raw()
        ));
    }
    let placed = config.services.iter();
    let mut placed = placed.filter(|(_, service)| service.target.is_some());
    if let Some((id, _)) = placed.next().filter(|_| !uid.is_root()) {
        return Err(format!(
            "services.{id}.target: what is no bonsai run is governed by root's daemon, and this one is \
             of user {}: write it into /etc/bonsai/bonsai.toml",
            uid.as_raw()
        ));
    }
    Ok(())
}

/// Tells whether services of other users are governed: by root's daemon in its usual place, or where it says where they are.
fn governs_users(config: &api::Config) -> bool {
    let is_usual =
        || bonsai_host::runtime_dir_path().is_ok_and(|path| path == Path::new(SYSTEM_FOLDER));
    rustix::process::geteuid().is_root()
        && config
            .daemon
            .users
            .as_ref()
            .map_or_else(is_usual, |places| !places.is_empty())
}

/// Users may start any number of services of any name, which have the default class, and report what they like of them: what
/// that moves, at the cost of others, has a bound.
fn is_bounded(config: &api::Config) -> Result<(), String> {
    if config.policy.automatic != api::Automatic::On || config.policy.owner_max.is_some() {
        return Ok(());
    }
    let follows = |mode: Option<api::Mode>| {
        let mode = mode.unwrap_or(config.policy.mode);
        matches!(mode, api::Mode::Adaptive | api::Mode::Qos)
    };
    let of_user = config.services.iter().filter(|(id, _)| id.contains(':'));
    let moved = of_user.into_iter().find(|(_, service)| {
        let class = config.class_of(Some(service));
        follows(service.mode.or_else(|| class?.mode))
    });
    let default = config.class_of(None).and_then(|class| class.mode);
    let whose = match moved {
        Some((id, _)) => format!("of {id}"),
        None if follows(default) => "of the services of each user".to_owned(),
        None => return Ok(()),
    };
    Err(format!(
        "policy.owner-max: it is required with policy.automatic = \"on\", for the guarantee {whose} follows what its owner \
         reports and demands: write the part of a capacity that one user may take from others so, such as 10%"
    ))
}

/// What is looked at when the daemon starts.
fn settled(config: &api::Config) -> Result<(), String> {
    let period = config.daemon.period;
    if !PERIODS.contains(&period.0) {
        return Err(format!("daemon.period: {period} is not from 10ms to 10s"));
    }
    let places = config.daemon.users.iter().flatten();
    if let Some(place) = places.into_iter().find(|place| !is_place(place)) {
        return Err(format!(
            "daemon.users: {} is no absolute path with {UID} in it once, such as \
             /run/user/{UID}/bonsai",
            place.display()
        ));
    }
    let tls = config.api.tls.as_ref();
    for (name, path) in [
        ("daemon.state", config.daemon.state.as_ref()),
        ("daemon.socket", config.daemon.socket.as_ref()),
        ("api.tls.certificate", tls.map(|tls| &tls.certificate)),
        ("api.tls.key", tls.map(|tls| &tls.key)),
    ] {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            return Err(format!(
                "{name}: {} is no absolute path, and the daemon may be started anywhere",
                path.display()
            ));
        }
    }
    let history = &config.history;
    for (name, size, least) in [
        ("size", history.size, Options::LEAST_POINTS),
        ("audit-size", history.audit_size, Options::LEAST_RECORDS),
    ] {
        if size.0.0 < least {
            return Err(format!(
                "history.{name}: {size} is less than {}",
                Bytes(least)
            ));
        }
    }
    let api = &config.api;
    if !(1..=100_000).contains(&api.requests) {
        let text = format!(
            "api.requests: {} is not from 1 to 100000 a second",
            api.requests
        );
        return Err(text);
    }
    if !(1024..=16 << 20).contains(&api.body.0.0) {
        return Err(format!("api.body: {} is not from 1KiB to 16MiB", api.body));
    }
    if let Some(name) = api
        .hosts
        .iter()
        .find(|name| crate::http::host(name).is_none())
    {
        let text = "write a name or an address alone, such as media.example or [2001:db8::7]";
        return Err(format!("api.hosts: {name:?} is no host: {text}"));
    }
    let Some(listen) = &api.listen else {
        return Ok(());
    };
    let address: SocketAddr = listen.parse().map_err(|_| {
        format!("api.listen: {listen:?} is no address and port, such as 127.0.0.1:7117")
    })?;
    if !address.ip().is_loopback() && api.tls.is_none() {
        return Err(format!(
            "api.listen: {listen} can be reached from other machines: it needs api.tls, with \
             certificate and key"
        ));
    }
    Ok(())
}

fn mode(mode: api::Mode) -> policy::Mode {
    match mode {
        api::Mode::Static => policy::Mode::Static,
        api::Mode::Dynamic => policy::Mode::Dynamic,
        api::Mode::Adaptive => policy::Mode::Adaptive,
        api::Mode::Qos => policy::Mode::Qos,
    }
}

/// Of percent, what the policy counts in.
const fn thousandths(percent: api::Percent) -> u32 {
    percent.milli() / 100
}

fn adaptive(written: &api::Policy) -> Result<policy::Adaptive, String> {
    let hours = written.half_life.0.as_secs() / 3600;
    let half_life_h = u32::try_from(hours)
        .ok()
        .filter(|hours| (1..=8760).contains(hours))
        .ok_or_else(|| {
            format!(
                "policy.half-life: {} is not from 1h to 8760h, a year",
                written.half_life
            )
        })?;
    Ok(policy::Adaptive {
        percentile: thousandths(written.percentile),
        margin: thousandths(written.margin),
        half_life_h,
        ..policy::Adaptive::default()
    })
}

type Capacities = policy::PerResource<Option<u64>>;

fn capacity(written: &api::Capacity) -> Result<Capacities, String> {
    let mut found = [None; Resource::COUNT];
    for resource in Resource::ALL {
        found[resource.index()] = match written.of(resource.into()) {
            None => None,
            Some(api::Share::Rate(rate) | api::Share::Bits(rate))
                if rate.unit() == resource.unit() =>
            {
                Some(rate.milli())
            }
            Some(other) => {
                return Err(format!(
                    "capacity.{resource}: {other} is no rate of it: write {}",
                    example(resource)
                ));
            }
        };
    }
    Ok(found)
}

const fn example(resource: Resource) -> &'static str {
    match (resource, resource.unit()) {
        (_, Unit::Calls) => "calls per second, such as 100000/s",
        (Resource::Send | Resource::Recv, _) => "a rate such as 1Gbit/s",
        _ => "a rate such as 200MB/s",
    }
}

/// A rate of a resource, with percentages of its capacity.
fn rate(
    place: &str,
    resource: Resource,
    share: api::Share,
    capacity: &Capacities,
) -> Result<u64, String> {
    match share {
        api::Share::Rate(rate) | api::Share::Bits(rate) if rate.unit() == resource.unit() => {
            Ok(rate.milli())
        }
        api::Share::Rate(rate) | api::Share::Bits(rate) => Err(format!(
            "{place}: {rate} counts other things than {resource} does: write {}",
            example(resource)
        )),
        api::Share::Percent(percent) => capacity[resource.index()]
            .map(|capacity| percent.of(capacity))
            .ok_or_else(|| format!("{place}: {percent} of what? There is no capacity.{resource}")),
    }
}

/// What somebody has of all resources.
fn terms<'a>(
    place: &str,
    of: impl Fn(api::Resource) -> Option<&'a api::Terms>,
    capacity: &Capacities,
) -> Result<policy::PerResource<policy::Terms>, String> {
    let mut found = [policy::Terms::default(); Resource::COUNT];
    for resource in Resource::ALL {
        let Some(written) = of(resource.into()) else {
            continue;
        };
        let place = format!("{place}.{resource}");
        let rate = |word: &str, share: Option<api::Share>| {
            let place = format!("{place}.{word}");
            share
                .map(|share| rate(&place, resource, share, capacity))
                .transpose()
        };
        if let Some(weight) = written.weight
            && !(1..=policy::MAX_WEIGHT).contains(&u32::from(weight))
        {
            let text = format!("{place}.weight: {weight} is no weight: write 1 to 1000");
            return Err(text);
        }
        found[resource.index()] = policy::Terms {
            min: rate("min", written.min)?,
            max: rate("max", written.max)?,
            weight: written.weight.map(u32::from),
        };
    }
    Ok(found)
}

fn groups(config: &api::Config, capacity: &Capacities) -> Result<Vec<policy::Group>, String> {
    let groups = config.groups.iter().map(|(name, group)| {
        let place = format!("groups.{name}");
        named(&place, name)?;
        Ok(policy::Group {
            name: name.as_str().into(),
            parent: group.parent.as_deref().map(Into::into),
            terms: terms(&place, |resource| group.terms(resource), capacity)?,
        })
    });
    groups.collect()
}

fn classes(config: &api::Config, capacity: &Capacities) -> Result<Vec<policy::Class>, String> {
    let classes = config.classes.iter().map(|(name, class)| {
        let place = format!("classes.{name}");
        named(&place, name)?;
        Ok(policy::Class {
            name: name.as_str().into(),
            mode: class.mode.map(mode),
            group: class.group.as_deref().map(Into::into),
            terms: terms(&place, |resource| class.terms(resource), capacity)?,
            target: class.qos.as_ref().map(target),
        })
    });
    classes.collect()
}

fn services(
    config: &api::Config,
    capacity: &Capacities,
    places: &Places,
) -> Result<Vec<policy::Service>, String> {
    let services = config.services.iter().map(|(id, service)| {
        let place = format!("services.{id}");
        let (user, name) = id.split_once(':').unwrap_or(("root", id));
        bonsai_services::service::check_name(user).map_err(|error| format!("{place}: {error}"))?;
        bonsai_services::service::check_name(name).map_err(|error| format!("{place}: {error}"))?;
        further(&place, &service.limits)?;
        let terms = terms(&place, |resource| service.terms(resource), capacity)?;
        Ok(policy::Service {
            name: id.as_str().into(),
            class: service.class.as_deref().map(Into::into),
            group: service.group.as_deref().map(Into::into),
            mode: service.mode.map(mode),
            terms: match places.get(id.as_str()) {
                Some(placed) => places::without(&placed.has, terms),
                None => terms,
            },
            target: service.qos.as_ref().map(target),
            unasked: service.by_owner,
        })
    });
    services.collect()
}

/// Names of groups and classes are written in paths and pages: the letters of services.
fn named(place: &str, name: &str) -> Result<(), String> {
    bonsai_services::service::check_name(name).map_err(|error| format!("{place}: {error}"))
}

/// The further limits of a service.
pub(crate) fn further(
    place: &str,
    limits: &std::collections::BTreeMap<String, String>,
) -> Result<Vec<Limit>, String> {
    let mut found = Vec::new();
    for (name, setting) in limits {
        let place = format!("{place}.limits.{name}");
        let limit = Limit::parse(&format!("{name}={setting}"));
        let limit =
            limit.map_err(|error| format!("{place}: {}", bonsai_host::sentence(error.as_ref())))?;
        let plain = Resource::ALL
            .into_iter()
            .find(|resource| resource.class() == name);
        if let (Some(resource), Setting::Rate { rate, burst: None }) = (plain, limit.setting)
            && rate.unit() == resource.unit()
        {
            return Err(format!(
                "{place}: write it as {resource}.max of the service"
            ));
        }
        found.push(limit);
    }
    check_together(&found).map_err(|error| format!("{place}.limits: {error}"))?;
    Ok(found)
}

/// What clients are to see.
pub(crate) fn target(written: &api::Qos) -> policy::Target {
    let ms = |span: api::Span| span.0.as_secs_f64() * 1e3;
    policy::Target {
        loss: written.loss.map(|loss| f64::from(loss.milli()) / 1e5),
        delay_ms: written.delay.map(ms),
        jitter_ms: written.jitter.map(ms),
        stalls: written.stalls.map(f64::from),
        resource: written.resource.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Result<policy::Config, String> {
        plan(&toml::from_str(text).expect("TOML of the right form"))
    }

    #[test]
    fn percentages_are_of_the_capacity() {
        let text = "[capacity]\nsend = \"80Mbit/s\"\n[services.vod.send]\nmin = \"25%\"\n";
        let planned = planned(text).expect("a plan");
        assert_eq!(
            planned.capacity[Resource::Send.index()],
            Some(10_000_000_000)
        );
        let terms = planned.services[0].terms[Resource::Send.index()];
        assert_eq!(terms.min, Some(2_500_000_000));
    }

    #[test]
    fn what_owners_may_move_needs_a_bound() {
        let is_bounded = |text: &str| {
            let config: api::Config = toml::from_str(text).expect("TOML of the right form");
            plan(&config).expect("a plan");
            is_bounded(&config)
        };
        let on = "[policy]\nautomatic = \"on\"\n";
        for text in [
            "mode = \"qos\"",
            "mode = \"adaptive\"",
            "[classes.default]\nmode = \"qos\"",
            "[services.\"alice:vod\"]\nmode = \"adaptive\"",
            "[classes.m]\nmode = \"qos\"\n[services.\"alice:vod\"]\nclass = \"m\"",
        ] {
            let why = is_bounded(&format!("{on}{text}")).expect_err(text);
            assert!(why.starts_with("policy.owner-max: "), "{why}");
            is_bounded(&format!("{on}owner-max = \"10%\"\n{text}")).expect("it has a bound");
            let dry = "[policy]\n";
            is_bounded(&format!("{dry}{text}")).expect("nothing is moved");
        }
        for text in [
            "",
            "[classes.m]\nmode = \"qos\"\n[services.vod]\nclass = \"m\"",
        ] {
            is_bounded(&format!("{on}{text}")).expect("no owner moves it");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_place() {
        let cases = [
            (
                "[capacity]\nsend = \"50%\"",
                "capacity.send: 50% is no rate of it",
            ),
            (
                "[capacity]\ncalls = \"1MB/s\"",
                "capacity.calls: 1MB/s is no rate of it",
            ),
            (
                "[services.vod.send]\nmin = \"5%\"",
                "services.vod.send.min: 5% of what?",
            ),
            (
                "[services.vod.send]\nmin = \"5/s\"",
                "services.vod.send.min: 5/s counts other",
            ),
            (
                "[services.vod.send]\nweight = 0",
                "services.vod.send.weight: 0 is no weight",
            ),
            ("[services.\"a b\"]\nclass=\"x\"", "services.a b: "),
            (
                "[services.vod.limits]\nsend = \"1MB/s\"",
                "write it as send.max",
            ),
            (
                "[services.vod.limits]\nsned = \"1MB/s\"",
                "services.vod.limits.sned: ",
            ),
            (
                "[daemon]\nperiod = \"1ms\"",
                "daemon.period: 1ms is not from 10ms to 10s",
            ),
            (
                "[daemon]\nusers = [\"/run/{uid}\", \"/run/bonsai\"]",
                "daemon.users: /run/bonsai is no absolute path with {uid} in it",
            ),
            (
                "[api]\nlisten = \"localhost\"",
                "api.listen: \"localhost\" is no address",
            ),
            ("[api]\nlisten = \"0.0.0.0:1\"", "needs api.tls"),
            (
                "[api]\nhosts = [\"https://media.example\"]",
                "api.hosts: \"https://media.example\" is no host",
            ),
            (
                "[history]\nsize = \"1kB\"",
                "history.size: 1kB is less than 8MiB",
            ),
            (
                "[policy]\nhalf-life = \"1s\"",
                "policy.half-life: 1s is not from 1h",
            ),
            ("[services.vod]\nclass = \"none\"", "none"),
            (
                "[groups.a]\nparent = \"b\"\n[groups.b]\nparent = \"a\"",
                "a",
            ),
            (
                "[capacity]\nsend=\"100Mbit/s\"\n[services.a.send]\nmin=\"60Mbit/s\"\n\
                 [services.b.send]\nmin=\"50Mbit/s\"",
                "110 Mbit/s",
            ),
        ];
        for (text, expected) in cases {
            let error = planned(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
