//! What is wanted: the configuration file, and the changes that were made since.
//!
//! # Definitions
//! - *base*: the file, as JSON.
//! - *change*: a JSON merge patch on it, made at a revision by somebody; for good, or until a time.
//! - *effective*: the base with all changes applied, in the order in which they were made.
//! - *revision*: a number that grows with whatever makes the effective configuration another one.
//!
//! # Invariants
//! 1. Nothing is applied that does not make a valid configuration; a refused change leaves
//!    everything as it was.
//! 2. Undoing brings back the changes that there were, not the file.
//! 3. A change that ends takes away itself only: what was changed after it stays.
//! 4. Revisions never come again, also after a restart.
//! 5. What makes no difference is not kept.
//!
//! # Limits
//! [`bounds`]: of changes at a time (those that later ones replace do not count), of steps back,
//! and of what of both is of owners, who may change their own services only.

use std::collections::BTreeSet;

use bonsai_api::{Config, Difference, Revision, Undone};
use bonsai_services::wording::of_document;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::step::Step;
use crate::patch::{differences, merge, needed, replaces, without_empty};

mod bounds;
mod ends;
mod step;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The revision that it made.
    pub(crate) revision: Revision,
    /// Who made it.
    pub(crate) actor: String,
    /// The user's number, which stays when the user is renamed, and where the name service does not answer.
    #[serde(default)]
    pub(crate) uid: Option<u32>,
    /// When it ends, ms since 1970.
    pub(crate) until_unix_ms: Option<u64>,
    /// Whether whoever made it may change their own services only.
    #[serde(default)]
    pub(crate) owner: bool,
    /// What it changes.
    pub(crate) patch: Value,
}

impl Change {
    /// Tells whether a user made the change: by number, or by name where no number is known (a token; a change of an older daemon).
    pub(crate) fn is_by(&self, actor: &str, uid: Option<u32>) -> bool {
        match (self.uid, uid) {
            (Some(own), Some(uid)) => own == uid,
            _ => self.actor == actor,
        }
    }
}

/// What survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    /// The form, 3. In 1, a step was all changes before it; 2 has no audit trail beside it.
    version: u32,
    revision: Revision,
    changes: Vec<Change>,
    steps: Vec<Step>,
}

impl Kept {
    /// The form of it that this program writes.
    pub(crate) const VERSION: u32 = 3;

    /// The revision that it is of.
    pub(crate) const fn revision(&self) -> Revision {
        self.revision
    }

    /// Nothing at a revision.
    #[cfg(test)]
    pub(crate) fn at(revision: Revision) -> Self {
        Self {
            revision,
            ..Self::default()
        }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    base: Value,
    kept: Kept,
    effective: Config,
    /// What should have ended, and cannot.
    stuck: Vec<Stuck>,
    /// At which revision, and with what that should end, that was found.
    tried: Option<(Revision, Vec<Revision>)>,
}

/// A change for a time that would leave no valid configuration if it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// The change.
    pub(crate) revision: Revision,
    /// Who made it.
    pub(crate) actor: String,
    /// What would be wrong.
    pub(crate) why: String,
}

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The result would be no configuration.
    #[error("{0}")]
    Invalid(String),
    /// There is nothing to undo, or not that far back.
    #[error("{0}")]
    NoStep(String),
}

type Checked = Result<Config, Refused>;

/// What is settled when the daemon starts, and cannot be changed before it starts again.
const SETTLED: [&str; 2] = ["daemon", "api"];

impl Desired {
    /// The file's configuration, and what was kept beside it. What was kept and does not fit the
    /// file any more is left out: what, is returned in words.
    pub(crate) fn new(
        base: &Config,
        kept: Option<Kept>,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Result<(Self, Vec<String>), Refused> {
        check(base).map_err(Refused::Invalid)?;
        let base = to_value(base);
        let mut left_out = Vec::new();
        let mut kept = kept.unwrap_or_default();
        if kept.version < 2 && !kept.steps.is_empty() {
            kept.steps.clear();
            let text = "changes that were made before the daemon was replaced by a newer one are \
                        in force, and cannot be undone one by one";
            left_out.push(text.to_owned());
        }
        kept.version = Kept::VERSION;
        let (mut fitting, mut effective) = (Vec::new(), effective(&base, &[], &check)?);
        for change in std::mem::take(&mut kept.changes) {
            fitting.push(change);
            match self::effective(&base, &fitting, &check) {
                Ok(config) => effective = config,
                Err(why) => {
                    let change = fitting.pop().map_or(0, |change| change.revision);
                    left_out.push(format!(
                        "the change of revision {change} does not fit the configuration file any \
                         more and was left out: {why}"
                    ));
                }
            }
        }
        kept.changes = fitting;
        // Whatever somebody has seen before the restart is another state.
        kept.revision += 1;
        Ok((
            Self {
                base,
                kept,
                effective,
                stuck: Vec::new(),
                tried: None,
            },
            left_out,
        ))
    }

    /// What survives a restart.
    pub(crate) const fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What is in force.
    pub(crate) const fn effective(&self) -> &Config {
        &self.effective
    }

    /// Its revision.
    pub(crate) const fn revision(&self) -> Revision {
        self.kept.revision
    }

    /// What would be in force with one more patch, of somebody or of an owner, and what would be
    /// different.
    pub(crate) fn with(
        &self,
        patch: &Value,
        by_owner: bool,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Result<(Config, Vec<Difference>), Refused> {
        if !patch.is_object() {
            let text = "a change is a JSON object with what is to be different (RFC 7396)";
            return Err(Refused::Invalid(text.to_owned()));
        }
        if let Some(name) = SETTLED.iter().find(|name| patch.get(**name).is_some()) {
            let text = format!(
                "[{name}] is settled when the daemon starts: change it in the configuration file \
                 and restart the daemon"
            );
            return Err(Refused::Invalid(text));
        }
        let mut document = to_value(&self.effective);
        let before = document.clone();
        merge(&mut document, patch);
        let mut named = named(&self.base, &self.kept.changes);
        if !by_owner {
            name(&mut named, patch);
        }
        let config = from_value(document, &named, &check)?;
        let after = to_value(&config);
        Ok((config, differences(&before, &after)))
    }

    /// What would be in force without the changes of somebody.
    pub(crate) fn without(
        &self,
        (actor, uid): (&str, Option<u32>),
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Checked {
        let mut changes = self.kept.changes.clone();
        changes.retain(|change| !change.is_by(actor, uid));
        effective(&self.base, &changes, &check)
    }

    /// How many changes of somebody are in force.
    pub(crate) fn changes_of(&self, (actor, uid): (&str, Option<u32>)) -> usize {
        let changes = self.kept.changes.iter();
        changes.filter(|change| change.is_by(actor, uid)).count()
    }

    /// Makes a change; what is different. One that makes no difference is not kept, and no
    /// revision.
    pub(crate) fn change(
        &mut self,
        mut change: Change,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Result<Vec<Difference>, Refused> {
        let (config, differences) = self.with(&change.patch, change.owner, &check)?;
        let Some(patch) = self.needed(&change, &config) else {
            return Ok(differences);
        };
        change.patch = patch;
        let mut changes = self.kept.changes.clone();
        let mut replaced = Vec::new();
        // One that ends leaves what it covers to be seen again.
        if change.until_unix_ms.is_none() {
            // What others have said stays below what an owner says: it is what they may go back to.
            let may =
                |old: &Change| !change.owner || old.owner && old.is_by(&change.actor, change.uid);
            let replaced_by_it = |old: &mut Change| may(old) && replaces(&change.patch, &old.patch);
            replaced.extend(changes.extract_if(.., replaced_by_it));
        }
        bounds::fits(&changes, &change)?;
        change.revision = self.kept.revision + 1;
        self.kept.steps.push(Step {
            revision: self.kept.revision,
            added: vec![change.revision],
            replaced,
            owner: change.owner,
        });
        bounds::steps(&mut self.kept.steps);
        self.kept.revision = change.revision;
        changes.push(change);
        self.kept.changes = changes;
        self.effective = config;
        Ok(differences)
    }

    /// What of a change makes a difference, or may once a change for a time has ended, or an owner
    /// has taken theirs back. `after` is what is in force with it.
    fn needed(&self, change: &Change, after: &Config) -> Option<Value> {
        let now = to_value(&self.effective);
        let may_go = |old: &&Change| old.until_unix_ms.is_some() || old.owner && !change.owner;
        let over = self.kept.changes.iter().filter(may_go);
        let over: Vec<&Value> = over.map(|change| &change.patch).collect();
        // The same may be written in more than one way.
        if over.is_empty() && without_empty(&now) == without_empty(&to_value(after)) {
            return None;
        }
        let mut under = self.base.clone();
        for old in self.kept.changes.iter().filter(|old| !may_go(old)) {
            merge(&mut under, &old.patch);
        }
        let patch = needed(&change.patch, Some(&now), Some(&under), &over);
        patch.filter(|patch| without_empty(patch) != Value::Object(Map::new()))
    }

    /// The changes that an undo takes back, the last first.
    pub(crate) fn undone(&self, to: Option<Revision>) -> Vec<Undone> {
        let steps = &self.kept.steps;
        let at = match to {
            None => steps.len().checked_sub(1),
            Some(to) => steps.iter().rposition(|step| step.revision == to),
        };
        let taken = steps.get(at.unwrap_or(steps.len())..).unwrap_or_default();
        let revisions = taken.iter().rev().flat_map(|step| &step.added);
        let undone = revisions.map(|revision| Undone {
            revision: *revision,
            actor: self.actor_of(*revision),
        });
        undone.collect()
    }

    /// The actor of a change that is in force, or that a later one has replaced.
    fn actor_of(&self, revision: Revision) -> Option<String> {
        let replaced = self.kept.steps.iter().flat_map(|step| &step.replaced);
        let mut changes = self.kept.changes.iter().chain(replaced);
        let change = changes.find(|change| change.revision == revision);
        change.map(|change| change.actor.clone())
    }

    /// Takes back the last change, or all since a revision. `now` is for changes that have ended
    /// meanwhile, ms since 1970.
    pub(crate) fn undo(
        &mut self,
        to: Option<Revision>,
        now: u64,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Result<Vec<Difference>, Refused> {
        let steps = &self.kept.steps;
        let at = match to {
            None => steps.len().checked_sub(1),
            Some(to) => steps.iter().rposition(|step| step.revision == to),
        };
        let Some(at) = at else {
            let text = match (to, steps.first()) {
                (Some(to), Some(first)) => format!(
                    "revision {to} is none to go back to: those from {} to {} before a change are",
                    first.revision, self.kept.revision
                ),
                _ => "there is no change to undo".to_owned(),
            };
            return Err(Refused::NoStep(text));
        };
        let mut changes = self.kept.changes.clone();
        for step in steps[at..].iter().rev() {
            step.take_back(&mut changes, now);
        }
        let config = effective(&self.base, &changes, &check)?;
        self.kept.steps.truncate(at);
        Ok(self.put(changes, config))
    }

    /// The wall clock was set: changes for a time end as much later or earlier by it, and so as
    /// late as they were to. Whether there are any.
    pub(crate) fn shift(&mut self, ms: i64) -> bool {
        let steps = self.kept.steps.iter_mut();
        let changes = steps.flat_map(|step| &mut step.replaced);
        let mut any = false;
        for change in changes.chain(&mut self.kept.changes) {
            if let Some(until) = &mut change.until_unix_ms {
                *until = until.saturating_add_signed(ms);
                any = true;
            }
        }
        any
    }

    /// Takes a file that was changed.
    pub(crate) fn reload(
        &mut self,
        base: &Config,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Result<(Vec<Difference>, Vec<String>), Refused> {
        let base = to_value(base);
        let config = effective(&base, &self.kept.changes, &check)?;
        let mut notes = Vec::new();
        for name in SETTLED
            .iter()
            .filter(|name| base.get(**name) != self.base.get(**name))
        {
            notes.push(format!(
                "[{name}] in the file takes effect when the daemon is restarted"
            ));
        }
        self.base = base;
        Ok((self.put(self.kept.changes.clone(), config), notes))
    }

    fn put(&mut self, changes: Vec<Change>, config: Config) -> Vec<Difference> {
        let before = to_value(&self.effective);
        let differences = differences(&before, &to_value(&config));
        self.kept.changes = changes;
        self.kept.revision += 1;
        self.effective = config;
        differences
    }
}

fn effective(
    base: &Value,
    changes: &[Change],
    check: &impl Fn(&Config) -> Result<(), String>,
) -> Checked {
    let mut document = base.clone();
    for change in changes {
        merge(&mut document, &change.patch);
    }
    from_value(document, &named(base, changes), check)
}

/// The services that are there without what their owners have said.
fn named<'a>(base: &'a Value, changes: &'a [Change]) -> BTreeSet<&'a str> {
    let mut named = BTreeSet::new();
    name(&mut named, base);
    for change in changes.iter().filter(|change| !change.owner) {
        name(&mut named, &change.patch);
    }
    named
}

/// Adds the services that a patch is about, and takes out those that it takes away.
fn name<'a>(named: &mut BTreeSet<&'a str>, patch: &'a Value) {
    match patch.get("services") {
        Some(Value::Object(services)) => {
            for (id, service) in services {
                if service.is_null() {
                    named.remove(id.as_str());
                } else {
                    named.insert(id);
                }
            }
        }
        Some(_) => named.clear(),
        None => {}
    }
}

/// The configuration of a document; `named` are the services in it that others than their owners
/// have named.
fn from_value(
    document: Value,
    named: &BTreeSet<&str>,
    check: &impl Fn(&Config) -> Result<(), String>,
) -> Checked {
    let mut config: Config = serde_path_to_error::deserialize(document).map_err(|error| {
        let path = error.path().to_string();
        let why = of_document(&error.into_inner().to_string());
        Refused::Invalid(if path == "." {
            why
        } else {
            format!("{path}: {why}")
        })
    })?;
    for (id, service) in &mut config.services {
        service.by_owner = !named.contains(id.as_str());
    }
    check(&config).map_err(Refused::Invalid)?;
    Ok(config)
}

fn to_value(config: &Config) -> Value {
    // Maps with text for keys, text and numbers: nothing that JSON has not.
    serde_json::to_value(config).unwrap_or_default()
}

#[cfg(test)]
mod tests;
