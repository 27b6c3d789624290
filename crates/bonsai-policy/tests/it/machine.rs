//! Small machines by hand.

use bonsai_policy::{
    Class, Config, Group, Mode, Observation, PerResource, Seen, Service, Terms, Usage,
};
use bonsai_units::{Rate, Resource};

use crate::cases::SEND;

/// So many Mbit/s.
pub(crate) fn mbit(n: u64) -> u64 {
    Rate::bytes_per_sec(n * 125_000).milli()
}

/// Terms of sending: min and max in Mbit/s, 0 for none, and the weight.
pub(crate) fn send(min: u64, max: u64, weight: u32) -> PerResource<Terms> {
    let mut terms = [Terms::default(); Resource::COUNT];
    terms[SEND] = Terms {
        min: (min > 0).then(|| mbit(min)),
        max: (max > 0).then(|| mbit(max)),
        weight: (weight > 0).then_some(weight),
    };
    terms
}

/// A link of 100 Mbit/s.
pub(crate) fn link() -> Config {
    let mut config = Config::default();
    config.capacity[SEND] = Some(mbit(100));
    config
}

/// A service with terms of sending.
pub(crate) fn service(name: &str, terms: PerResource<Terms>) -> Service {
    Service {
        terms,
        ..Service::named(name)
    }
}

/// A service of a class, with nothing of its own.
pub(crate) fn of_class(name: &str, class: &str) -> Service {
    Service {
        class: Some(class.into()),
        ..Service::named(name)
    }
}

/// A class with terms of sending.
pub(crate) fn class(name: &str, mode: Mode, terms: PerResource<Terms>) -> Class {
    Class {
        name: name.into(),
        mode: Some(mode),
        group: None,
        terms,
        target: None,
    }
}

/// A group at the root or in another.
pub(crate) fn group(name: &str, parent: Option<&str>, terms: PerResource<Terms>) -> Group {
    Group {
        name: name.into(),
        parent: parent.map(Into::into),
        terms,
    }
}

/// A service that sent so many Mbit/s, or wanted more than that.
pub(crate) fn seen(name: &str, used: u64, wanted_more: bool) -> Seen {
    let mut usage = [Usage::default(); Resource::COUNT];
    usage[SEND] = Usage {
        used: mbit(used),
        wanted_more,
        borrowed: None,
        bound: None,
    };
    Seen {
        name: name.into(),
        usage,
    }
}

/// What was seen in a period.
pub(crate) fn observed(services: impl Into<Vec<Seen>>) -> Observation {
    Observation {
        services: services.into(),
        ..Observation::default()
    }
}
