//! The changes that were made in this picture, which `u` takes back: these, and nobody else's.

use bonsai_api::{Changed, Revision};
use bonsai_client::{Client, ClientError};

use crate::daemon;
use crate::set::Done;

/// One that a daemon has made.
#[derive(Clone, Debug)]
pub(super) struct Made {
    client: Client,
    /// What the daemon was at after it.
    revision: Revision,
}

/// What has become of what was asked for.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) lines: Vec<String>,
    /// The change that can be taken back now.
    made: Option<Made>,
    /// What was taken back, and what the daemon is at since.
    undone: Option<(Made, Revision)>,
}

impl Answer {
    /// Of a change.
    pub(super) fn changed(done: Done) -> Self {
        let lines = done.lines();
        let made = match done {
            // One without a difference has made no revision.
            Done::ByDaemon(changed, client) if !changed.differences.is_empty() => Some(Made {
                client,
                revision: changed.revision,
            }),
            _ => None,
        };
        Self {
            lines,
            made,
            undone: None,
        }
    }

    fn undone(made: Made, changed: &Changed) -> Self {
        Self {
            lines: daemon::lines(changed),
            made: None,
            undone: Some((made, changed.revision)),
        }
    }
}

/// Takes one back, if nothing has changed in that daemon since.
pub(super) fn undo(made: Option<Made>) -> anyhow::Result<Answer> {
    let Some(made) = made else {
        let text = "nothing that was changed here is left to take back: bonsai undo takes back the \
                    last change, whosesoever it was";
        anyhow::bail!(text);
    };
    match made.client.undo_at(made.revision) {
        Ok(changed) => Ok(Answer::undone(made, &changed)),
        Err(ClientError::Refused(problem)) if problem.status == 412 => {
            let text = "something else was changed since, so nothing was taken back: bonsai log \
                        says what, and bonsai undo takes back the last change";
            anyhow::bail!(text);
        }
        Err(error) => Err(error.into()),
    }
}

/// The changes, the last one last.
#[derive(Debug, Default)]
pub(super) struct History(Vec<Made>);

impl History {
    /// The one to take back.
    pub(super) fn last(&self) -> Option<Made> {
        self.0.last().cloned()
    }

    /// Takes an answer.
    pub(super) fn note(&mut self, answer: &Answer) {
        self.0.extend(answer.made.clone());
        let Some((made, revision)) = &answer.undone else {
            return;
        };
        self.0.pop();
        // With it, what was made right before it is the last one again.
        let next = self.0.last_mut().filter(|next| {
            next.client.place() == made.client.place() && next.revision + 1 == made.revision
        });
        if let Some(next) = next {
            next.revision = *revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(revision: Revision, differs: bool) -> Changed {
        let difference = bonsai_api::Difference {
            path: "services.vod.read.max".to_owned(),
            from: None,
            to: None,
        };
        Changed {
            revision,
            dry_run: false,
            until_unix_ms: None,
            differences: differs.then_some(difference).into_iter().collect(),
            services: Vec::new(),
            problems: Vec::new(),
            held: Vec::new(),
            undone: Vec::new(),
        }
    }

    #[test]
    fn changes_are_taken_back_in_turn_while_nobody_else_changes_anything() {
        let client = || Client::unix("/run/none/daemon.sock").expect("a client");
        let mut history = History::default();
        let at = |history: &History| history.last().map(|made| made.revision);
        // Between 4 and 6, somebody else.
        for (revision, differs) in [(3, true), (4, true), (6, true), (7, true), (7, false)] {
            let done = Done::ByDaemon(Box::new(changed(revision, differs)), client());
            history.note(&Answer::changed(done));
        }
        let mut undo = |revision| {
            let made = history.last().expect("one");
            history.note(&Answer::undone(made, &changed(revision, true)));
            at(&history)
        };
        assert_eq!(undo(8), Some(8), "6 is in force again, as 8");
        assert_eq!(undo(9), Some(4), "and 5 now, which is not ours");
    }
}
