//! What `bonsai top` remembers: the last look, what is chosen, and the history of
//! each limit.

use std::collections::{BTreeMap, VecDeque};

use bonsai_services::observe::{LimitView, Observation, ServiceView, WaitingView};

/// Looks that are remembered.
const REMEMBERED: usize = 200;

/// Threads of a service that wait are shown up to this number, the longest first; the
/// line of the service says how many there are.
const WAITING: usize = 5;

/// Which limit of which service.
type Key = (String, String, &'static str);

/// The state of the picture.
#[derive(Debug)]
pub(super) struct App {
    /// Whether colour is wanted.
    pub(super) colour: bool,
    observation: Option<Observation>,
    chosen: Option<Key>,
    history: BTreeMap<Key, VecDeque<f64>>,
}

/// A line of the picture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    /// The title of a service.
    Service(&'a ServiceView),
    /// A limit of the service above.
    Limit(&'a ServiceView, &'a LimitView),
    /// A thread of the service above that waits.
    Waiting(&'a WaitingView),
}

impl App {
    /// Before the first look.
    pub(super) fn new(colour: bool) -> Self {
        Self {
            colour,
            observation: None,
            chosen: None,
            history: BTreeMap::new(),
        }
    }

    /// Takes a new look in.
    pub(super) fn update(&mut self, observation: Observation) {
        let mut history = BTreeMap::new();
        for service in &observation.services {
            for limit in &service.limits {
                let key = key(service, limit);
                let mut rates = self.history.remove(&key).unwrap_or_default();
                rates.extend(limit.got);
                let surplus = rates.len().saturating_sub(REMEMBERED);
                rates.drain(..surplus);
                history.insert(key, rates);
            }
        }
        self.history = history;
        self.observation = Some(observation);
        if self.chosen().is_none() {
            self.chosen = self
                .limits()
                .first()
                .map(|(service, limit)| key(service, limit));
        }
    }

    /// The lines of the picture.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for service in self.services() {
            rows.push(Row::Service(service));
            rows.extend(
                service
                    .limits
                    .iter()
                    .map(|limit| Row::Limit(service, limit)),
            );
            rows.extend(service.waiting.iter().take(WAITING).map(Row::Waiting));
        }
        rows
    }

    fn services(&self) -> &[ServiceView] {
        self.observation
            .as_ref()
            .map_or(&[], |observation| &observation.services)
    }

    fn limits(&self) -> Vec<(&ServiceView, &LimitView)> {
        let services = self.services().iter();
        services
            .flat_map(|service| service.limits.iter().map(move |limit| (service, limit)))
            .collect()
    }

    /// The chosen limit with its service.
    pub(super) fn chosen(&self) -> Option<(&ServiceView, &LimitView)> {
        let limits = self.limits();
        limits
            .into_iter()
            .find(|(service, limit)| self.chosen.as_ref() == Some(&key(service, limit)))
    }

    /// Whether this is the chosen limit.
    pub(super) fn is_chosen(&self, service: &ServiceView, limit: &LimitView) -> bool {
        self.chosen.as_ref() == Some(&key(service, limit))
    }

    /// Chooses the limit so many places further down.
    pub(super) fn choose(&mut self, down: isize) {
        let limits = self.limits();
        let at = limits
            .iter()
            .position(|(service, limit)| self.is_chosen(service, limit));
        let to = at
            .map_or(0, |at| at.saturating_add_signed(down))
            .min(limits.len().saturating_sub(1));
        self.chosen = limits.get(to).map(|(service, limit)| key(service, limit));
    }

    /// What a limit got at each look, the latest last.
    pub(super) fn history(&self, service: &ServiceView, limit: &LimitView) -> Vec<f64> {
        self.history
            .get(&key(service, limit))
            .map(|rates| rates.iter().copied().collect())
            .unwrap_or_default()
    }
}

fn key(service: &ServiceView, limit: &LimitView) -> Key {
    (service.name.clone(), limit.name.clone(), limit.unit)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bonsai_services::observe::{Head, Waits};

    pub(in crate::top) fn observation(services: Vec<ServiceView>) -> Observation {
        Observation {
            head: Head::now(),
            services,
        }
    }

    pub(in crate::top) fn service(name: &str, limits: &[(&str, f64, f64)]) -> ServiceView {
        let limit = |(name, asked, got): &(&str, f64, f64)| LimitView {
            name: (*name).to_owned(),
            setting: String::new(),
            unit: "bytes",
            asked: *asked,
            got: Some(*got),
            burst: 1,
            level: 0,
            waits: Waits::default(),
            recent: Waits::default(),
            waiting_calls: Vec::new(),
            per_stream: false,
            streams: None,
            network: false,
        };
        ServiceView {
            name: name.to_owned(),
            folder: name.into(),
            error: None,
            keeper: None,
            created_unix_ms: 0,
            interval_ms: 1000,
            limits: limits.iter().map(limit).collect(),
            group: None,
            waits: Waits::default(),
            longest_wait_ns: 0,
            waiting: Vec::new(),
            crowded: false,
            processes: Vec::new(),
            uncovered: Vec::new(),
            unshaped: Vec::new(),
            mapped: bonsai_services::observe::Mapped::default(),
            processes_lost: 0,
            enforced: None,
        }
    }

    #[test]
    fn what_is_chosen_stays_chosen_while_it_is_there() {
        let mut app = App::new(false);
        let both = || {
            vec![
                service("a", &[("x", 1.0, 1.0)]),
                service("b", &[("y", 1.0, 2.0)]),
            ]
        };
        let name = |app: &App| app.chosen().map(|(_, limit)| limit.name.clone());
        app.update(observation(both()));
        assert_eq!(name(&app).as_deref(), Some("x"));
        app.choose(5);
        app.update(observation(both()));
        assert_eq!(name(&app).as_deref(), Some("y"));
        app.update(observation(vec![service("a", &[("x", 1.0, 1.0)])]));
        assert_eq!(name(&app).as_deref(), Some("x"));
        app.choose(-1);
        assert_eq!(name(&app).as_deref(), Some("x"));
        app.update(observation(Vec::new()));
        assert_eq!(name(&app), None);
        app.choose(1);
    }

    #[test]
    fn the_history_is_bounded_and_goes_with_its_limit() {
        let mut app = App::new(false);
        for i in 0..REMEMBERED + 5 {
            app.update(observation(vec![service("a", &[("x", 1.0, i as f64)])]));
        }
        let (service_view, limit) = app.chosen().expect("chosen");
        let history = app.history(service_view, limit);
        assert_eq!((history.len(), history[0]), (REMEMBERED, 5.0));
        app.update(observation(Vec::new()));
        assert!(app.history.is_empty());
    }
}
