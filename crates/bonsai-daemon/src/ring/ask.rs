//! What is asked for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bonsai_api as api;
use bonsai_api::{Changed, Problem, QosReport, QosView};
use bonsai_calls::select;
use bonsai_policy::ClientReport;
use bonsai_services::limits::{Holds, nearest};
use bonsai_units::Resource;
use serde_json::Value;

use super::held::ChangedLimits;
use super::{Reply, Ring, audit::Deed, may_write};
use crate::desired::{Change, Refused};
use crate::picture::Picture;
use crate::plain;
use crate::plan::{self, check};
use crate::problems::{bad_input, forbidden, moved, problem, unknown_service};
use crate::who::{Who, owner_may, owner_may_ask};
use bonsai_services::observe::unix_ms;

/// The longest time that a change may be for, ms: a year.
const LONGEST_MS: u64 = 366 * 24 * 3600 * 1000;

/// Changes in force of somebody who may not change everything.
const MOST_OF_OWNER: usize = 50;

/// So many changes may they make in [`OWNER_TIME`].
const MOST_IN_TIME: usize = 30;

/// and try so many.
const TRIED_IN_TIME: usize = 300;

const OWNER_TIME: Duration = Duration::from_secs(60);

/// Something that is asked for, and by whom.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) who: Who,
    pub(crate) what: Ask,
}

/// What.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A change of what is configured.
    Change(Wish, Reply<Changed>),
    /// Back to what was, for a revision.
    Undo(Back, Reply<Changed>),
    /// What clients saw.
    Report(QosReport, Reply<()>),
    /// Whether more streams fit.
    Admit(api::AdmitRequest, Reply<api::Admission>),
}

/// An undo that is wished for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// Which revision to go back to; the one before the last change without it.
    pub(crate) to: Option<u64>,
    /// The revision it is made for.
    pub(crate) for_revision: Option<u64>,
    /// True where it is only tried.
    pub(crate) dry_run: bool,
}

/// A change that is wished for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// What it is about, if it is one service.
    pub(crate) service: Option<String>,
    /// A merge patch on that service, or on all.
    pub(crate) patch: Value,
    /// For how long, ms.
    pub(crate) for_ms: Option<u64>,
    /// The revision it is made for.
    pub(crate) for_revision: Option<u64>,
    /// Whether it is only tried.
    pub(crate) dry_run: bool,
    /// Why.
    pub(crate) reason: Option<String>,
}

fn refused(error: &Refused) -> Problem {
    match error {
        Refused::Invalid(text) => bad_input(text.as_str()),
        Refused::NoStep(text) => problem(409, "nothing-to-undo", "Nothing to undo", text.as_str()),
    }
}

/// Why a change of a service makes no configuration, for its owner: with what is wrong with all
/// of it together, others and what they are promised would be told.
fn of_own(text: String, id: &str) -> String {
    let own = [format!("services.{id}"), format!("service {id} has ")];
    let about_it = own.iter().any(|own| text.starts_with(own));
    if about_it && !text.contains("overcommit") {
        return text;
    }
    "with that, more would be promised on this machine than it has: ask whoever administers it"
        .to_owned()
}

impl Ring {
    pub(super) fn ask(&mut self, asked: Asked) {
        let Asked { who, what } = asked;
        // What is for a time from now on is by the clock as it is now.
        self.mind_the_clock();
        // Whoever asked may have gone away: then nobody takes the answer.
        match what {
            Ask::Change(wish, reply) => drop(reply.send(self.change(&who, wish))),
            Ask::Undo(back, reply) => drop(reply.send(self.undo(&who, back))),
            Ask::Report(report, reply) => drop(reply.send(self.report(&who, report))),
            Ask::Admit(request, reply) => drop(reply.send(self.admit(&who, &request))),
        }
    }

    fn change(&mut self, who: &Who, wish: Wish) -> Result<Changed, Problem> {
        self.is_for(wish.for_revision)?;
        if !wish.patch.is_object() {
            let text = "a change is a JSON object with what is to be different (RFC 7396)";
            return Err(bad_input(text));
        }
        let patch = match &wish.service {
            None => {
                may_write(who)?;
                wish.patch.clone()
            }
            Some(id) => {
                self.may_change(who, id)?;
                let mut services = serde_json::Map::new();
                services.insert(id.clone(), wish.patch.clone());
                let mut patch = serde_json::Map::new();
                patch.insert("services".to_owned(), Value::Object(services));
                Value::Object(patch)
            }
        };
        if let Some(reason) = &wish.reason {
            plain::reason(reason).map_err(bad_input)?;
        }
        if wish
            .for_ms
            .is_some_and(|ms| !(1000..=LONGEST_MS).contains(&ms))
        {
            return Err(bad_input("for: a change is for a time from 1s to a year"));
        }
        let (config, differences) = match wish.service.as_deref().filter(|_| !who.writes_all) {
            None => {
                let changed = self.desired.with(&patch, false, check);
                changed.map_err(|e| refused(&e))?
            }
            Some(id) => {
                // What is wrong with all of it together is not for everybody: first whether they
                // may at all.
                owner_may_ask(&wish.patch, id).map_err(forbidden)?;
                if self.desired.changes_of((&who.name, who.uid)) >= MOST_OF_OWNER {
                    let text = format!(
                        "{} has {MOST_OF_OWNER} changes in force already: take some back",
                        who.name
                    );
                    return Err(bad_input(text));
                }
                self.may_again(who, wish.dry_run)?;
                let told = |error: Refused| match error {
                    Refused::Invalid(text) if !who.reads_all => bad_input(of_own(text, id)),
                    error => refused(&error),
                };
                let changed = self.desired.with(&patch, true, check).map_err(told)?;
                let whose = (who.name.as_str(), who.uid);
                let before = self.desired.without(whose, check).map_err(told)?;
                owner_may(&wish.patch, id, &before, &changed.0).map_err(forbidden)?;
                changed
            }
        };
        self.can_hold(&config).map_err(bad_input)?;
        let until = wish.for_ms.map(|ms| unix_ms() + ms);
        let asked = ChangedLimits::of(&patch);
        if wish.dry_run {
            let services = self.preview(who, &config)?;
            let planned = plan::plan(&config);
            let held = planned
                .as_ref()
                .map_or_else(|_| Vec::new(), |planned| self.would_hold(&asked, planned));
            let idle = match &planned {
                Ok(planned) if who.reads_all => crate::idle(&config, planned),
                _ => Vec::new(),
            };
            return Ok(Changed {
                revision: self.desired.revision(),
                dry_run: true,
                until_unix_ms: until,
                differences,
                services,
                problems: idle,
                held,
                undone: Vec::new(),
            });
        }
        let change = Change {
            revision: 0,
            actor: who.name.clone(),
            uid: who.uid,
            until_unix_ms: until,
            owner: !who.writes_all,
            patch,
        };
        let strange = self.strangers(&config);
        let before = self.desired.revision();
        let differences = self
            .desired
            .change(change, check)
            .map_err(|e| refused(&e))?;
        if self.desired.revision() == before {
            let mut changed = self.answer(&self.picture(), who, differences, None);
            changed.held = self.held(&asked);
            return Ok(changed);
        }
        let deed = Deed {
            who: Some(who),
            by: "",
            action: "change",
            service: wish.service.as_deref(),
            differences: differences.clone(),
            reason: match (wish.reason, until) {
                (Some(reason), _) => reason,
                (None, Some(_)) => "for a time".to_owned(),
                (None, None) => String::new(),
            },
        };
        self.note(deed);
        let mut changed = self.changed(who, differences, until);
        changed.held = self.held(&asked);
        changed.problems.extend(strange);
        Ok(changed)
    }

    /// Services that a change names and that neither run nor were configured, in words: a name may be mistyped.
    fn strangers(&self, after: &api::Config) -> Vec<String> {
        let known = || self.config.services.keys().map(String::as_str);
        let running = || self.identities.keys().map(|id| &**id);
        let is_new = |id: &&String| !known().chain(running()).any(|known| known == id.as_str());
        let named = after.services.iter().filter(|(_, of)| of.target.is_none());
        let new = named.map(|(id, _)| id).filter(is_new);
        let said = new.map(|id| {
            let near = nearest(id, known().chain(running()));
            let near = near.map_or_else(String::new, |near| format!("; is {near} meant?"));
            format!("no service {id} runs, and none was configured before{near}")
        });
        said.collect()
    }

    /// Whether services that run can hold what a change gives them: the server of a disk image holds limits on reads and
    /// writes alone.
    fn can_hold(&self, config: &api::Config) -> Result<(), String> {
        for (id, watched) in self.looker.watched() {
            let holds = watched.holds();
            let service = config.services.get(&**id);
            let Some(service) = service.filter(|_| holds != Holds::Everything) else {
                continue;
            };
            let before = self.config.services.get(&**id);
            let mut limits = service.limits.clone();
            limits.retain(|name, to| before.and_then(|b| b.limits.get(name)) != Some(to));
            let limits = plan::further(id, &limits)?;
            holds
                .check(id, &limits)
                .map_err(|problem| problem.to_string())?;
            for resource in Resource::ALL {
                let terms = service.terms(resource.into());
                let is_new = terms != before.and_then(|before| before.terms(resource.into()));
                let is_held = select(resource.class()).is_some_and(|calls| holds.covers(calls));
                if terms.is_some() && is_new && !is_held {
                    return Err(format!(
                        "{id} serves a disk image, and holds limits on read, write and calls alone: {resource} would do nothing"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether somebody who may not change everything may make one more change now: each is kept
    /// on disk and in the trail, where those of others stand, too.
    ///
    /// One that is only tried costs the time to try it, and counts with its like.
    fn may_again(&mut self, who: &Who, is_tried: bool) -> Result<(), Problem> {
        let now = Instant::now();
        let (known, most, what) = match is_tried {
            false => (&mut self.changes, MOST_IN_TIME, "made"),
            true => (&mut self.tries, TRIED_IN_TIME, "tried"),
        };
        known.retain(|_, times| {
            times.retain(|then| now.duration_since(*then) < OWNER_TIME);
            !times.is_empty()
        });
        let times = known.entry(who.uid.unwrap_or(u32::MAX)).or_default();
        if times.len() >= most {
            let text = format!(
                "{} has {what} {most} changes in the last {} s: wait",
                who.name,
                OWNER_TIME.as_secs()
            );
            return Err(problem(429, "too-often", "Too often", text));
        }
        times.push(now);
        Ok(())
    }

    /// Whether that is still the state that the change was made for.
    fn is_for(&self, revision: Option<u64>) -> Result<(), Problem> {
        match revision {
            Some(expected) if expected != self.desired.revision() => {
                Err(moved(expected, self.desired.revision()))
            }
            _ => Ok(()),
        }
    }

    /// Whether they may change a service at all. One that they may not see does not exist for
    /// them.
    fn may_change(&self, who: &Who, id: &str) -> Result<(), Problem> {
        if who.writes_all {
            return Ok(());
        }
        let identity = self
            .identities
            .get(id)
            .filter(|identity| who.sees(identity.uid));
        match identity {
            // A service that is only configured is seen by clients that see all.
            None if who.reads_all && self.config.services.contains_key(id) => may_write(who),
            None => Err(unknown_service(id)),
            Some(identity) if who.uid == Some(identity.uid) => Ok(()),
            Some(_) => may_write(who),
        }
    }

    /// Puts what was changed into force, and says what has become of it.
    fn changed(
        &mut self,
        who: &Who,
        differences: Vec<api::Difference>,
        until: Option<u64>,
    ) -> Changed {
        self.configured();
        let picture = self.show();
        self.answer(&picture, who, differences, until)
    }

    /// What has become of a change, as it is published.
    fn answer(
        &self,
        picture: &Picture,
        who: &Who,
        differences: Vec<api::Difference>,
        until: Option<u64>,
    ) -> Changed {
        let ids: BTreeSet<&str> = picture.ids().collect();
        let services = touched(&differences, &ids);
        let services = services
            .into_iter()
            .filter_map(|id| picture.service(id, who.only()));
        Changed {
            revision: self.desired.revision(),
            dry_run: false,
            until_unix_ms: until,
            services: services.collect(),
            differences,
            problems: if who.reads_all {
                self.notes.values().cloned().collect()
            } else {
                Vec::new()
            },
            held: Vec::new(),
            undone: Vec::new(),
        }
    }

    /// What all services would get.
    fn preview(&self, who: &Who, config: &api::Config) -> Result<Vec<api::ServiceView>, Problem> {
        let planned = plan::plan(config).map_err(bad_input)?;
        let allocation = self.policy.preview(planned, &self.observation);
        let allocation = allocation.map_err(|problems| bad_input(crate::texts(&problems)))?;
        let mut picture = self.picture();
        picture.allocation = allocation;
        picture.config = std::sync::Arc::new(config.clone());
        Ok(picture.services(who.only()).services)
    }

    fn undo(&mut self, who: &Who, back: Back) -> Result<Changed, Problem> {
        may_write(who)?;
        self.is_for(back.for_revision)?;
        let undone = self.desired.undone(back.to);
        if back.dry_run {
            let mut tried = self.desired.clone();
            let differences = tried.undo(back.to, unix_ms(), check);
            let differences = differences.map_err(|e| refused(&e))?;
            let services = self.preview(who, tried.effective())?;
            return Ok(Changed {
                revision: self.desired.revision(),
                dry_run: true,
                until_unix_ms: None,
                differences,
                services,
                problems: Vec::new(),
                held: Vec::new(),
                undone,
            });
        }
        let differences = self.desired.undo(back.to, unix_ms(), check);
        let differences = differences.map_err(|e| refused(&e))?;
        self.note(Deed {
            who: Some(who),
            by: "",
            action: "undo",
            service: None,
            differences: differences.clone(),
            reason: back.to.map_or_else(
                || "the last change was taken back".to_owned(),
                |to| format!("back to revision {to}"),
            ),
        });
        let mut changed = self.changed(who, differences, None);
        changed.undone = undone;
        Ok(changed)
    }

    fn report(&mut self, who: &Who, report: QosReport) -> Result<(), Problem> {
        self.may_change(who, &report.service)?;
        if !self.identities.contains_key(report.service.as_str()) {
            return Err(unknown_service(&report.service));
        }
        let number = |name: &str, value: Option<f64>, most: f64| match value {
            Some(value) if !(0.0..=most).contains(&value) => Err(bad_input(format!(
                "{name}: {value} is not from 0 to {most}"
            ))),
            _ => Ok(()),
        };
        number("loss", report.loss, 1.0)?;
        number("delay-ms", report.delay_ms, 1e9)?;
        number("jitter-ms", report.jitter_ms, 1e9)?;
        self.reports.push(for_policy(&report));
        self.qos.insert(report.service.clone(), (report, unix_ms()));
        Ok(())
    }

    fn admit(&mut self, who: &Who, request: &api::AdmitRequest) -> Result<api::Admission, Problem> {
        let identity = self.identities.get(request.service.as_str());
        let is_configured = self.config.services.contains_key(&request.service);
        if !who.reads_all || identity.is_none() && !is_configured {
            return Err(unknown_service(&request.service));
        }
        crate::admit::admit(&self.policy, unix_ms() / 1000, request)
    }

    /// What clients see, of each service with a target.
    pub(super) fn qos_views(&self) -> Vec<QosView> {
        let with_target = self.config.services.iter().filter_map(|(id, service)| {
            let class = self.config.class_of(Some(service));
            let target = service.qos.as_ref().or_else(|| class?.qos.as_ref())?;
            Some((id, target))
        });
        let views = with_target.map(|(id, target)| {
            let last = self.qos.get(id);
            let holds = last.map(|(report, _)| plan::target(target).holds(&for_policy(report)));
            QosView {
                service: id.clone(),
                target: target.clone(),
                last: last.map(|(report, _)| report.clone()),
                last_unix_ms: last.map(|(_, at)| *at),
                holds,
                action: self.qos_action(id, holds),
            }
        });
        views.collect()
    }

    fn qos_action(&self, id: &str, holds: Option<bool>) -> String {
        let allocation = self.policy.allocation();
        let about = |change: &&bonsai_policy::Change| &*change.service == id;
        if let Some(change) = allocation.proposals.iter().find(about) {
            return format!("would be done: {}", change.why);
        }
        match holds {
            None => "no report yet".to_owned(),
            Some(true) => "the target holds".to_owned(),
            Some(false) => "the target does not hold".to_owned(),
        }
    }
}

/// A report, as the policy takes it.
fn for_policy(report: &QosReport) -> ClientReport {
    ClientReport {
        service: report.service.as_str().into(),
        loss: report.loss,
        delay_ms: report.delay_ms,
        jitter_ms: report.jitter_ms,
        stalls: report.stalls.map(u64::from),
    }
}

/// The services that differences are about.
fn touched<'a>(differences: &[api::Difference], ids: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let about = |difference: &api::Difference| {
        let rest = difference.path.strip_prefix("services.")?;
        // Names may have dots in them: the longest that fits.
        let fits = |id: &&&str| {
            let after = rest.strip_prefix(**id);
            after.is_some_and(|after| after.is_empty() || after.starts_with('.'))
        };
        ids.iter().filter(fits).max_by_key(|id| id.len()).copied()
    };
    differences.iter().filter_map(about).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_told_what_is_wrong_with_their_own() {
        for (text, told) in [
            ("services.alice:x.send.max: 5/s counts other", true),
            (
                "service alice:x has for send a max of nothing; it has to be",
                true,
            ),
            (
                "service alice:x has for send a min of 5, above its max of 3",
                true,
            ),
            (
                "service bob:y has for send a min of 5, above its max of 3",
                false,
            ),
            (
                "min of alice:x 60 + bob:y 50 = 110 is 10 more than send has",
                false,
            ),
            (
                "service alice:x has for send a min of 5; min of bob:y 60 is 10 more than send \
                 has, 50; lower one, or say overcommit = \"scale\"",
                false,
            ),
        ] {
            let said = of_own(text.to_owned(), "alice:x");
            assert_eq!(said == text, told, "{said}");
            assert!(!said.contains("bob"), "{said}");
        }
    }
}
