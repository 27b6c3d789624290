//! Which services and limits are in the picture, and in which order.

use std::cmp::Ordering;

use bonsai_services::observe::{LimitView, ServiceView};
use clap::ValueEnum;

/// What services are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name.
    #[default]
    Name,
    /// The most bytes a second first.
    Got,
    /// The nearest to one of its limits first.
    Full,
    /// The most waits a second first.
    Waits,
}

impl Sort {
    /// The one after it.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Name => Self::Got,
            Self::Got => Self::Full,
            Self::Full => Self::Waits,
            Self::Waits => Self::Name,
        }
    }

    /// What it is called, also on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Got => "got",
            Self::Full => "full",
            Self::Waits => "waits",
        }
    }

    fn of(self, service: &ServiceView) -> f64 {
        let limits = service.limits.iter();
        match self {
            Self::Name => 0.0,
            // A call may be under several limits; the one that saw the most saw most of them.
            Self::Got => {
                let bytes = limits.filter(|limit| limit.unit == "bytes");
                bytes.filter_map(|limit| limit.got).fold(0.0, f64::max)
            }
            Self::Full => limits.filter_map(full).fold(0.0, f64::max),
            Self::Waits => {
                let waits: u64 =
                    limits.fold(0, |sum, limit| limit.recent.count.saturating_add(sum));
                waits as f64 / service.interval_ms.max(1) as f64
            }
        }
    }

    /// How two services stand to each other. Equal ones go by name, so that nothing jumps.
    pub(super) fn compare(self, a: &ServiceView, b: &ServiceView) -> Ordering {
        let by_name = a.name.cmp(&b.name);
        self.of(b).total_cmp(&self.of(a)).then(by_name)
    }
}

/// How much of a limit is taken. Of a limit per stream, what all of them get together is no part
/// of it.
pub(super) fn full(limit: &LimitView) -> Option<f64> {
    let got = limit.got.filter(|_| !limit.per_stream)?;
    Some(got / limit.asked.max(0.001))
}

/// Whether a text is in another, whatever the case.
fn has(text: &str, wanted: &str) -> bool {
    text.to_lowercase().contains(&wanted.to_lowercase())
}

/// What of a service a filter lets through: all of it if its name has the text, otherwise the
/// limits whose names have it; nothing if there are none.
pub(super) fn shown<'a>(service: &'a ServiceView, wanted: &str) -> Option<Vec<&'a LimitView>> {
    let limits = service.limits.iter();
    if has(&service.name, wanted) {
        return Some(limits.collect());
    }
    let limits: Vec<_> = limits.filter(|limit| has(&limit.name, wanted)).collect();
    (!limits.is_empty()).then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::tests::service;

    #[test]
    fn services_are_sorted() {
        let mut services = [
            service("a", &[("read", 1e6, 5e5)]),
            service("b", &[("read", 9e9, 7e5), ("send", 1e6, 9e5)]),
            service("c", &[("read", 1e9, 3e6)]),
            service("d", &[]),
        ];
        services[2].limits[0].recent.count = 9;
        services[0].limits[0].recent.count = 10;
        let mut order = |sort: Sort| {
            services.sort_by(|a, b| sort.compare(a, b));
            services.each_ref().map(|s| s.name.clone()).concat()
        };
        assert_eq!(order(Sort::Got), "cbad");
        assert_eq!(order(Sort::Full), "bacd");
        assert_eq!(order(Sort::Waits), "acbd");
        assert_eq!(order(Sort::Name), "abcd");
        let mut sort = Sort::Name;
        for _ in 0..4 {
            assert_eq!(Sort::from_str(sort.name(), false), Ok(sort));
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Name);
    }

    #[test]
    fn a_filter_is_of_services_and_of_limits() {
        let service = service("Vod", &[("read", 1.0, 1.0), ("send", 1.0, 1.0)]);
        let names = |wanted| {
            let limits = shown(&service, wanted)?;
            Some(
                limits
                    .iter()
                    .map(|limit| limit.name.clone())
                    .collect::<Vec<_>>(),
            )
        };
        let all = || Some(vec!["read".to_owned(), "send".to_owned()]);
        assert_eq!(names(""), all());
        assert_eq!(names("vO"), all());
        assert_eq!(names("SEN"), Some(vec!["send".to_owned()]));
        assert_eq!(names("x"), None);
    }
}
