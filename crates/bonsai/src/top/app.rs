//! What `bonsai top` remembers: the last look, what is chosen, what the keys are for, and the history
//! of each limit.

use std::collections::{BTreeMap, VecDeque};

use bonsai_services::observe::{LimitView, Observation, ServiceView, WaitingView};

use super::line::Line;
use super::select::{self, Sort};

/// Looks that are remembered.
const REMEMBERED: usize = 200;

/// Threads of a service that wait are shown up to this number, the longest first; the
/// line of the service says how many there are.
const WAITING: usize = 5;

/// A line of the picture that can be chosen: a limit of a service, or a service that has none to
/// be seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    service: String,
    limit: Option<(String, &'static str)>,
}

/// What the keys are for at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Looking.
    #[default]
    Watch,
    /// What is to be in the picture is typed.
    Filter(Line),
    /// A change is typed.
    Edit(Edit),
    /// What the keys do is shown.
    Help,
}

/// A change that is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    /// Of which service.
    pub(super) service: String,
    /// The calls that a word without a name is about.
    pub(super) of: Option<String>,
    /// What is typed.
    pub(super) line: Line,
}

/// Something to tell, at the foot of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// What was done.
    Done(String),
    /// What is wrong.
    Wrong(String),
}

/// The state of the picture.
#[derive(Debug, Default)]
pub(super) struct App {
    /// Whether colour is wanted.
    pub(super) colour: bool,
    /// Whether keys are read, so that the picture says which.
    pub(super) has_keys: bool,
    /// Whether a daemon runs that changes go through.
    pub(super) has_daemon: bool,
    /// Whether a change is under way.
    pub(super) is_asking: bool,
    pub(super) mode: Mode,
    pub(super) message: Option<Message>,
    pub(super) sort: Sort,
    /// Whether the order is the other way round.
    pub(super) is_reversed: bool,
    /// What services or limits have in their names that are in the picture.
    pub(super) filter: String,
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
            ..Self::default()
        }
    }

    /// Takes a new look in.
    pub(super) fn update(&mut self, observation: Observation) {
        let mut history = BTreeMap::new();
        for service in &observation.services {
            for limit in &service.limits {
                let key = key(service, Some(limit));
                let mut rates = self.history.remove(&key).unwrap_or_default();
                rates.extend(limit.got);
                let surplus = rates.len().saturating_sub(REMEMBERED);
                rates.drain(..surplus);
                history.insert(key, rates);
            }
        }
        self.history = history;
        self.observation = Some(observation);
        self.keep_choice();
    }

    /// Chooses what is nearest, if what was chosen is no longer in the picture.
    pub(super) fn keep_choice(&mut self) {
        let choices = self.choices();
        let chosen = self.chosen.as_ref();
        if chosen.is_some_and(|chosen| choices.contains(chosen)) {
            return;
        }
        let of_it = |key: &&Key| chosen.is_some_and(|chosen| chosen.service == key.service);
        let nearest = choices.iter().find(of_it).or(choices.first()).cloned();
        self.chosen = nearest;
    }

    /// The services in the picture, and their limits in it, as they are sorted.
    fn shown(&self) -> Vec<(&ServiceView, Vec<&LimitView>)> {
        let services = self
            .observation
            .as_ref()
            .map_or(&[][..], |observation| &observation.services);
        let shown = |service| Some((service, select::shown(service, &self.filter)?));
        let mut shown: Vec<_> = services.iter().filter_map(shown).collect();
        shown.sort_by(|(a, _), (b, _)| self.sort.compare(a, b));
        if self.is_reversed {
            shown.reverse();
        }
        shown
    }

    /// How many services there are, in the picture and not.
    pub(super) fn services(&self) -> (usize, usize) {
        let all = self.observation.as_ref().map_or(0, |o| o.services.len());
        (self.shown().len(), all)
    }

    /// The lines of the picture.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for (service, limits) in self.shown() {
            rows.push(Row::Service(service));
            rows.extend(limits.into_iter().map(|limit| Row::Limit(service, limit)));
            rows.extend(service.waiting.iter().take(WAITING).map(Row::Waiting));
        }
        rows
    }

    fn choices(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for (service, limits) in self.shown() {
            if limits.is_empty() {
                keys.push(key(service, None));
            }
            keys.extend(limits.into_iter().map(|limit| key(service, Some(limit))));
        }
        keys
    }

    /// The chosen service, with its limit if it has any.
    pub(super) fn chosen(&self) -> Option<(&ServiceView, Option<&LimitView>)> {
        let chosen = self.chosen.as_ref()?;
        let (service, limits) = self
            .shown()
            .into_iter()
            .find(|(service, _)| service.name == chosen.service)?;
        let limit = limits
            .into_iter()
            .find(|limit| key(service, Some(limit)) == *chosen);
        (limit.is_some() || chosen.limit.is_none()).then_some((service, limit))
    }

    /// Whether this is the chosen line.
    pub(super) fn is_chosen(&self, row: &Row<'_>) -> bool {
        let key = match row {
            Row::Service(service) => key(service, None),
            Row::Limit(service, limit) => key(service, Some(limit)),
            Row::Waiting(_) => return false,
        };
        self.chosen.as_ref() == Some(&key)
    }

    /// Chooses the line so many places further down.
    pub(super) fn choose(&mut self, down: isize) {
        let choices = self.choices();
        let at = choices
            .iter()
            .position(|key| self.chosen.as_ref() == Some(key));
        let to = at
            .map_or(0, |at| at.saturating_add_signed(down))
            .min(choices.len().saturating_sub(1));
        self.chosen = choices.get(to).cloned();
    }

    /// What a limit got at each look, the latest last.
    pub(super) fn history(&self, service: &ServiceView, limit: &LimitView) -> Vec<f64> {
        self.history
            .get(&key(service, Some(limit)))
            .map(|rates| rates.iter().copied().collect())
            .unwrap_or_default()
    }
}

fn key(service: &ServiceView, limit: Option<&LimitView>) -> Key {
    Key {
        service: service.name.clone(),
        limit: limit.map(|limit| (limit.name.clone(), limit.unit)),
    }
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
            mapped_files: bonsai_services::observe::MappedFiles::default(),
            unseen: None,
            unseen_line: None,
            processes_lost: 0,
            enforced: None,
            target: None,
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
        let name = |app: &App| {
            app.chosen()
                .and_then(|(_, limit)| Some(limit?.name.clone()))
        };
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
        let history = app.history(service_view, limit.expect("a limit"));
        assert_eq!((history.len(), history[0]), (REMEMBERED, 5.0));
        app.update(observation(Vec::new()));
        assert!(app.history.is_empty());
    }

    #[test]
    fn a_service_without_limits_can_be_chosen_and_keeps_the_choice_when_it_gets_one() {
        let mut app = App::new(false);
        let a = || service("a", &[("x", 1.0, 1.0)]);
        app.update(observation(vec![a(), service("b", &[])]));
        app.choose(1);
        let chosen = |app: &App| {
            let (service, limit) = app.chosen()?;
            Some((service.name.clone(), limit.map(|limit| limit.name.clone())))
        };
        assert_eq!(chosen(&app), Some(("b".to_owned(), None)));
        app.update(observation(vec![a(), service("b", &[("y", 1.0, 1.0)])]));
        assert_eq!(chosen(&app), Some(("b".to_owned(), Some("y".to_owned()))));
    }

    #[test]
    fn what_is_filtered_away_is_not_chosen() {
        let mut app = App::new(false);
        app.update(observation(vec![
            service("a", &[("x", 1.0, 1.0)]),
            service("b", &[("y", 1.0, 2.0)]),
        ]));
        app.filter = "b".to_owned();
        app.keep_choice();
        assert_eq!(app.services(), (1, 2));
        assert_eq!(
            app.chosen().map(|(service, _)| service.name.as_str()),
            Some("b")
        );
        app.filter = "nobody".to_owned();
        app.keep_choice();
        assert!(app.chosen().is_none() && app.rows().is_empty());
        app.choose(1);
        app.filter.clear();
        app.is_reversed = true;
        app.keep_choice();
        assert_eq!(
            app.chosen().map(|(service, _)| service.name.as_str()),
            Some("b")
        );
    }
}
