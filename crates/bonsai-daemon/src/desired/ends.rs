//! The ends of changes for a time.

use bonsai_api::{Config, Difference, Revision};

use super::{Change, Desired, Stuck, effective};

/// How often those that are left are gone through: one may end once another has.
const MOST_PASSES: usize = 3;

impl Desired {
    /// Takes away the changes that have ended; what is different, and whose they were. One whose
    /// end would leave no valid configuration stays, and is [`Desired::stuck`], until it may go;
    /// the others end.
    pub(crate) fn expire(
        &mut self,
        now: u64,
        check: impl Fn(&Config) -> Result<(), String>,
    ) -> Option<(Vec<Difference>, String)> {
        let over = |change: &&Change| change.until_unix_ms.is_some_and(|until| until <= now);
        let changes = self.kept.changes.iter().filter(over);
        let mut left: Vec<Revision> = changes.map(|change| change.revision).collect();
        let what = Some((self.kept.revision, left.clone()));
        // Nothing has changed since that was found out.
        if what == self.tried {
            return None;
        }
        let before = self.kept.changes.clone();
        let (mut changes, mut config) = (before.clone(), None);
        for _ in 0..MOST_PASSES {
            let count = left.len();
            self.stuck.clear();
            self.end(&left, &mut changes, &mut config, &check);
            left = self.stuck.iter().map(|stuck| stuck.revision).collect();
            if left.is_empty() || left.len() == count {
                break;
            }
        }
        let ended = config.map(|config| {
            let gone = before.iter().filter(|change| !changes.contains(change));
            let mut whose: Vec<&str> = gone.map(|change| change.actor.as_str()).collect();
            whose.sort_unstable();
            whose.dedup();
            let whose = whose.join(", ");
            (self.put(changes, config), whose)
        });
        self.tried = Some((self.kept.revision, left));
        ended
    }

    /// What should have ended, and cannot.
    pub(crate) fn stuck(&self) -> &[Stuck] {
        &self.stuck
    }

    /// Ends those of `over` that can, together where that is possible: most often it is, and each
    /// attempt is work.
    fn end(
        &mut self,
        over: &[Revision],
        changes: &mut Vec<Change>,
        config: &mut Option<Config>,
        check: &impl Fn(&Config) -> Result<(), String>,
    ) {
        if over.is_empty() {
            return;
        }
        let stays = |change: &&Change| !over.contains(&change.revision);
        let left: Vec<Change> = changes.iter().filter(stays).cloned().collect();
        let why = match effective(&self.base, &left, check) {
            Ok(found) => {
                *changes = left;
                *config = Some(found);
                return;
            }
            Err(why) => why.to_string(),
        };
        if let &[revision] = over {
            let change = changes.iter().find(|change| change.revision == revision);
            self.stuck.push(Stuck {
                revision,
                actor: change.map_or_else(String::new, |change| change.actor.clone()),
                why,
            });
            return;
        }
        let (first, second) = over.split_at(over.len() / 2);
        self.end(first, changes, config, check);
        self.end(second, changes, config, check);
    }
}
